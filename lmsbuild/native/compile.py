"""Compiling the runtime library against a torch package's headers and libraries."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from lmsbuild import console
from lmsbuild.errors import CompileError, ForeignWheelError, HeadersError, SeriesError
from lmsbuild.native import link_stubs, manylinux
from lmsbuild.native.link_stubs import shim_dir, version_script
from lmsbuild.native.manylinux import ManylinuxPolicy
from lmsbuild.native.toolchain import Compiler, run
from lmsbuild.registry import Tag
from lmsbuild.tools import elf

LIBRARY = "libtorch_lms.so"
RUNTIME_SOURCES = "torch/csrc/cuda/lms"  # below the runtime's root
EXPORT_PREFIX = "lms_"

# A variant of the runtime may have this library. It is loaded before torch's libraries, and takes
# calls that they make to each other. It does not link to them.
SEAM = "libtorch_lms_seam.so"
SEAM_SOURCES = f"{RUNTIME_SOURCES}/seam"

# What the runtime links to, all of it in torch/lib.
TORCH_LIBRARIES = ("libc10.so", "libc10_cuda.so", "libtorch_cpu.so")

# -O1 and line numbers only: what the sanitizers' documentation recommends, and it takes less than
# half the time of -O2 -g to compile.
_SANITIZED = ("-O1", "-g1", "-fno-omit-frame-pointer")

_DETAIL_LINES = 40  # of a compiler's output, shown with --verbose

# progress(files done, files in all)
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The inputs of the library.

    Attributes:
        torch: the torch package folder, with include/ and lib/.
        cuda: folders of unpacked CUDA header packages.
        runtime: root of the runtime's source tree.
    """

    torch: Path
    cuda: tuple[Path, ...]
    runtime: Path


def sources(runtime: Path) -> list[Path]:
    """The runtime's C++ files, sorted. Raises SeriesError if there are none."""
    root = runtime / RUNTIME_SOURCES
    seam = runtime / SEAM_SOURCES
    found = sorted(file for file in root.rglob("*.cpp") if seam not in file.parents)
    if not found:
        raise SeriesError(f"no C++ file in {root}; reinstall lmsbuild")
    return found


def flags(tag: Tag) -> list[str]:
    """Compiler flags that determine the result, without the paths of this machine."""
    chosen = [
        f"-std=c++{tag.cxx_standard}",
        "-O2",
        "-fPIC",
        # Without NDEBUG, RecordFunction checks itself on every operator.
        "-DNDEBUG",
        "-fvisibility=hidden",
        "-fvisibility-inlines-hidden",
        # Symbols that libstdc++ lacked before GCC 5, and an old policy therefore lacks.
        "-fno-sized-deallocation",
        f"-D_GLIBCXX_USE_CXX11_ABI={tag.cxx11_abi}",
    ]
    if tag.abi_version is not None:
        chosen.append(f"-fabi-version={tag.abi_version}")
    return chosen


def command(tag: Tag, compiler: Compiler, inputs: Inputs) -> list[str]:
    """The compiler's command for files of the runtime, without files and what to make of them."""
    return [*compiler.command, *flags(tag), *_include_flags(inputs)]


def build_library(
    tag: Tag,
    compiler: Compiler,
    inputs: Inputs,
    folder: Path,
    *,
    policy: ManylinuxPolicy | None,
    log: Path,
    progress: Progress | None = None,
    sanitize: str = "",
) -> Path:
    """Compile and link ``folder``/libtorch_lms.so; the same inputs give the same bytes.

    ``policy`` is the oldest system that the library has to run on; None means systems like this
    one. If the compiler fails, its output is kept in ``log``. ``sanitize`` is the value of
    -fsanitize=; such a library keeps its symbols.

    Raises:
        CompileError: the runtime does not compile or link, or needs a newer system.
        ForeignWheelError: torch has another C++ ABI than the registry says.
        HeadersError: the CUDA header packages lack a header or libcudart.
    """
    _check_abi(tag, inputs.torch)
    files = [*sources(inputs.runtime), shim_dir() / "compat.cpp"]
    instrument = [f"-fsanitize={sanitize}", *_SANITIZED] if sanitize else []
    compiling = [*command(tag, compiler, inputs), *instrument, "-c"]
    console.detail(f"compiling: {shlex.join(compiling)}")
    objects = _compile_all(compiling, files, folder, compiler, log, progress)
    library = folder / LIBRARY
    link = _link_command(compiler, inputs, policy, objects, library)
    console.detail(f"linking: {shlex.join(link)}")
    _run([*link, *(instrument or ["-Wl,-s"])], _unlinked(compiler, policy), log)
    _check_machine(library, compiler.machine, policy)
    _check_exports(library)
    return library


def build_seam(
    tag: Tag,
    compiler: Compiler,
    inputs: Inputs,
    folder: Path,
    *,
    policy: ManylinuxPolicy | None,
    log: Path,
) -> Path | None:
    """Compile and link ``folder``/libtorch_lms_seam.so, if the runtime has one.

    See build_library for the arguments and the errors.
    """
    files = sorted((inputs.runtime / SEAM_SOURCES).glob("*.cpp"))
    if not files:
        return None
    objects = _compile_all(
        [*command(tag, compiler, inputs), "-c"],
        [*files, shim_dir() / "compat.cpp"],
        folder / "seam",
        compiler,
        log,
        None,
    )
    library = folder / SEAM
    link = [
        *(*compiler.command, "-shared", "-o", str(library), *map(str, objects)),
        f"-Wl,-soname,{SEAM}",
        *version_script(inputs.runtime / SEAM_SOURCES / "exports.map"),
        *_LINK_FLAGS,
        *_system_libraries(compiler, policy, folder / "seam" / "stubs"),
        "-Wl,-s",
    ]
    _run(link, _unlinked(compiler, policy), log)
    _check_machine(library, compiler.machine, policy)
    return library


def _unlinked(compiler: Compiler, policy: ManylinuxPolicy | None) -> str:
    within = f" within {policy.name}" if policy else ""
    return f"the runtime does not link{within} with {compiler.version}"


def _compile_all(
    command: Sequence[str],
    files: Sequence[Path],
    folder: Path,
    compiler: Compiler,
    log: Path,
    progress: Progress | None,
) -> list[Path]:
    """The object files, in the order of the sources."""
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [(name, source, source.with_suffix(".o")) for name, source in _units(files, folder)]

    def compile_one(job: tuple[str, Path, Path]) -> None:
        name, source, output = job
        _run(
            [*command, str(source), "-o", str(output)],
            f"{name} does not compile with {compiler.version}",
            log,
        )

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        futures = [pool.submit(compile_one, job) for job in jobs]
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                future.result()
                if progress:
                    progress(done, len(jobs))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    # In the order of the names, not of completion: the result depends on it.
    return [output for *_, output in jobs]


def _units(files: Sequence[Path], folder: Path) -> list[tuple[str, Path]]:
    """A translation unit in ``folder`` for the sources of each folder, and its name in messages.

    Most of the time is spent on torch's headers, which the sources of a unit share.
    """
    groups: dict[Path, list[Path]] = {}
    for file in files:
        groups.setdefault(file.parent, []).append(file)
    units = []
    for number, (parent, members) in enumerate(groups.items()):
        unit = folder / f"{number}-{parent.name}.cpp"
        unit.write_text("".join(f'#include "{member}"\n' for member in members), "utf-8")
        name = members[0].name if len(members) == 1 else f"{parent.name}/*.cpp"
        units.append((name, unit))
    return units


def cxx11_abi(torch: Path) -> int:
    """1 when the torch package was built with the C++11 std::string, 0 with the one before.

    It is read from the mangled names of c10::Error's constructors, which take strings. Compiled
    extensions do not have a mark of their ABI in all versions.
    """
    return cxx11_abi_of(elf.read(torch / "lib" / "libc10.so"))


def cxx11_abi_of(library: elf.Library) -> int:
    """As :func:`cxx11_abi`, from a libc10.so that was read already."""
    constructors = [name for name in library.exported if name.startswith("_ZN3c105ErrorC1E")]
    if not constructors:
        raise ForeignWheelError(
            "libc10.so does not define c10::Error; this is not a torch wheel that lmsbuild knows"
        )
    return int(any("__cxx1112basic_string" in name for name in constructors))


def _check_abi(tag: Tag, torch: Path) -> None:
    abi = cxx11_abi(torch)
    if abi != tag.cxx11_abi:
        raise ForeignWheelError(
            f"this torch has C++ ABI {abi}, the official wheel of {tag.name} "
            f"has {tag.cxx11_abi}; use the official wheel"
        )


def _include_flags(inputs: Inputs) -> list[str]:
    include = inputs.torch / "include"
    cuda = [folder for root in inputs.cuda for folder in sorted(root.glob("nvidia/*/include"))]
    if not any((folder / "cuda_runtime_api.h").exists() for folder in cuda):
        raise HeadersError(
            "the CUDA header packages do not contain cuda_runtime_api.h; "
            "check header_packages in tags.toml"
        )
    folders = [
        shim_dir(),
        include,
        include / "torch" / "csrc" / "api" / "include",
        *cuda,
    ]
    flags = [f"-I{inputs.runtime}"]
    for folder in folders:
        # As system headers, so that upstream's warnings are not shown.
        flags += ["-isystem", str(folder)]
    # __FILE__ ends up in error messages: keep this machine's paths out of the library.
    mapped = [
        (inputs.runtime, ""),
        (inputs.torch, "torch"),
        (shim_dir(), "shim"),
        *((root, "cuda") for root in inputs.cuda),
    ]
    return flags + [f"-ffile-prefix-map={path}={name}" for path, name in mapped]


def _link_command(
    compiler: Compiler,
    inputs: Inputs,
    policy: ManylinuxPolicy | None,
    objects: Sequence[Path],
    library: Path,
) -> list[str]:
    lib = inputs.torch / "lib"
    cudart = sorted(
        path for root in inputs.cuda for path in root.glob("nvidia/*/lib/libcudart.so.*")
    )
    if not cudart:
        raise HeadersError(
            "the CUDA header packages do not contain libcudart; check header_packages in tags.toml"
        )
    runtime = link_stubs.for_machine(
        compiler.command, compiler.machine, cudart[0], library.parent / "stubs"
    )
    exports = inputs.runtime / RUNTIME_SOURCES / "exports.map"
    return [
        *compiler.command,
        "-shared",
        "-o",
        str(library),
        *map(str, objects),
        *(str(lib / name) for name in TORCH_LIBRARIES),
        str(runtime),
        f"-Wl,-soname,{LIBRARY}",
        *version_script(exports),
        *_LINK_FLAGS,
        # torch's own libraries need others (cuDNN, NCCL), which are not here.
        "-Wl,--allow-shlib-undefined",
        # Where upstream's own CUDA library looks for its neighbours.
        f"-Wl,-rpath,{elf.read(lib / 'libc10_cuda.so').rpath or '$ORIGIN'}",
        "-Wl,--enable-new-dtags",
        *_system_libraries(compiler, policy, library.parent / "stubs"),
    ]


_LINK_FLAGS = (
    # If no library defines a symbol, for example with a wrong ABI, this fails, and not the import.
    "-Wl,-z,defs",
    "-Wl,-z,relro",
    "-Wl,-z,now",
    "-Wl,--hash-style=gnu",
    "-Wl,--build-id=none",
)


def _system_libraries(
    compiler: Compiler, policy: ManylinuxPolicy | None, stubs: Path
) -> Sequence[str]:
    if policy is None:
        return ()
    return link_stubs.link_arguments(compiler.command, compiler.machine, policy, stubs)


def _check_machine(path: Path, machine: str, policy: ManylinuxPolicy | None) -> None:
    library = elf.read(path)
    if library.machine != machine:
        raise CompileError(f"the compiler made a library for {library.machine}, not for {machine}")
    if policy and (too_new := manylinux.violations(library, policy)):
        raise CompileError(
            f"the library needs more than {policy.name} allows: {', '.join(too_new)}"
        )


def _check_exports(path: Path) -> None:
    library = elf.read(path)
    foreign = sorted(n for n in library.exported if not n.startswith(EXPORT_PREFIX))
    if foreign or not library.exported:
        raise CompileError(
            f"the library exports {', '.join(foreign[:3]) or 'nothing'}; check exports.map"
        )


def _run(command: Sequence[str], failure: str, log: Path) -> None:
    result = run(command)
    if result.returncode == 0:
        return
    output = result.stderr + result.stdout
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(" ".join(command) + "\n\n" + output, encoding="utf-8")
    tail = "\n".join(output.splitlines()[-_DETAIL_LINES:])
    raise CompileError(f"{failure}; the compiler's output is in {log}", detail=tail)
