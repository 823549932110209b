"""Builds the simulated device for a torch installation.

    python -m simcuda.build [TORCH_DIR] [OUT_DIR]

TORCH_DIR is the `torch` folder of an installation (default: the one this Python imports). The
result is kept by what it was made from, in $LMS_SIM_CACHE or ~/.cache/lmsbuild/sim.
"""

from __future__ import annotations

import csv
import fcntl
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from simcuda import stubs

if TYPE_CHECKING:
    from collections.abc import Iterator

_SOURCES = Path(__file__).resolve().parent.parent
_OPERATORS = "libsimops.so"
_DONE = "complete"
_COMPILERS = {"CXX": "g++", "CC": "gcc"}
_JOBS = 2


class BuildError(RuntimeError):
    """A compiler or linker run that failed; the message holds its output."""


def _compiler(variable: str) -> list[str]:
    """The command in CXX or CC, which may have several words, like "ccache g++"."""
    return shlex.split(os.environ.get(variable, _COMPILERS[variable]))


def torch_directory() -> Path:
    """The `torch` folder that this Python would import, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise BuildError(f"{sys.executable} has no torch: install PyTorch's CUDA build there")
    return Path(spec.submodule_search_locations[0])


def _cache_directory() -> Path:
    configured = os.environ.get("LMS_SIM_CACHE")
    if configured:
        return Path(configured)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "lmsbuild" / "sim"


def _key(torch_dir: Path) -> str:
    """Changes with this simulation's sources, with the compiler, and with torch's own libraries."""
    digest = hashlib.sha256()
    sources = [s for s in sorted(_SOURCES.glob("*/*")) if s.suffix in {".h", ".cpp"}]
    for source in [*sources, Path(__file__), Path(stubs.__file__)]:
        digest.update(source.relative_to(_SOURCES).as_posix().encode())
        digest.update(source.read_bytes())
    digest.update(shlex.join([*_compiler("CXX"), *_compiler("CC")]).encode())
    recorded = _recorded(torch_dir)
    for name in ("c10_cuda", "torch_cuda", "torch_cpu", "torch_python"):
        library = torch_dir / "lib" / f"lib{name}.so"
        status = library.stat()
        # The same library in another environment has the same simulated device.
        identity = recorded.get((library.name, status.st_size)) or (
            f"{torch_dir.resolve()} {status.st_size} {status.st_mtime_ns}"
        )
        digest.update(f"{name} {identity}\n".encode())
    digest.update((torch_dir / "version.py").read_bytes())
    return digest.hexdigest()[:16]


def _recorded(torch_dir: Path) -> dict[tuple[str, int], str]:
    """The hashes of torch's libraries in its RECORD, by name and size; empty without a RECORD."""
    hashes = {}
    for record in torch_dir.parent.glob("torch-*.dist-info/RECORD"):
        with record.open(encoding="utf-8", newline="") as file:
            for row in csv.reader(file):
                if row[0].startswith("torch/lib/") and row[1].startswith("sha256=") and row[2]:
                    hashes[row[0].removeprefix("torch/lib/"), int(row[2])] = row[1]
    return hashes


def _run(*command: str | Path) -> None:
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if result.returncode != 0:
        line = " ".join(str(part) for part in command)
        raise BuildError(f"{line}\n{result.stdout}{result.stderr}"[:4000])


def _uses_cxx11_abi(torch_dir: Path) -> bool:
    """Whether torch was built with libstdc++'s new std::string: c10::Error's constructor says."""
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", str(torch_dir / "lib" / "libc10.so")],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return "_ZN3c105ErrorC1ENS_14SourceLocationESs" not in symbols


def _operator_flags(torch_dir: Path, cuda_major: int) -> list[str]:
    """Compiler flags to build against the torch installation's headers."""
    headers = torch_dir / "include"
    pointers = (headers / "c10" / "util" / "intrusive_ptr.h").read_text()
    standard = "20" if "strong_ordering" in pointers else "17"
    return [
        f"-std=c++{standard}",
        "-O1",
        "-DNDEBUG",
        "-fPIC",
        "-fvisibility=hidden",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(_uses_cxx11_abi(torch_dir))}",
        f"-DCUDART_VERSION={cuda_major}000",
        "-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE",
        f"-I{_SOURCES / 'cuda_shim'}",
        f"-isystem{headers}",
        f"-isystem{headers / 'torch' / 'csrc' / 'api' / 'include'}",
    ]


class _Builder:
    def __init__(self, torch_dir: Path, out: Path, work: Path) -> None:
        self.torch_dir = torch_dir
        self.out = out
        self.work = work
        self.libraries = stubs.required(torch_dir)
        self.runtime = next(n for n in self.libraries if n.startswith("libcudart.so."))
        self.cuda_major = int(self.runtime.rsplit(".", 1)[1])

    def compile(self, source: Path, flags: list[str]) -> Path:
        target = self.work / f"{source.name}.o"
        compiler = _compiler("CC" if source.suffix == ".c" else "CXX")
        _run(*compiler, "-c", *flags, source, "-o", target)
        return target

    def compile_together(self, folder: str, flags: list[str]) -> Path:
        """One object of all sources in a folder: they share their costly headers."""
        sources = sorted((_SOURCES / folder).glob("*.cpp"))
        unit = self.work / f"{folder}.cpp"
        unit.write_text("".join(f'#include "{source}"\n' for source in sources))
        return self.compile(unit, flags)

    def link_device(self) -> None:
        """libcudart, with the driver's and NVML's functions that are simulated in it too."""
        simulated = set(self._device_functions())
        missing = self.libraries[self.runtime].functions - simulated
        source = self.work / "unsupported.c"
        source.write_text(stubs.unsupported_source(missing))
        flags = ["-O1", "-fPIC", "-fvisibility=hidden"]
        major = f"-DSIMCUDA_CUDART_MAJOR={self.cuda_major}"
        objects = [
            self.compile_together("device", ["-std=c++17", major, *flags]),
            self.compile(source, flags),
        ]
        version = self.libraries[self.runtime].symbol_version or self.runtime
        script = self.work / "cudart.map"
        script.write_text(
            f"{version} {{ global: cuda*; __cuda*; simcuda_*; }};\n"
            "driver { global: cu[A-Z]*; nvml*; local: *; };\n"
        )
        _run(
            *_compiler("CXX"),
            "-shared",
            *objects,
            "-o",
            self.out / self.runtime,
            f"-Wl,-soname,{self.runtime}",
            f"-Wl,--version-script={script}",
            "-ldl",
            "-lpthread",
        )
        for alias in sorted(self.libraries[self.runtime].aliases):
            self.link_alias(alias, version)

    def link_alias(self, alias: str, version: str) -> None:
        """A library without code that leads to the simulated libcudart."""
        source, script = self.work / "alias.c", self.work / "alias.map"
        source.write_text("")
        script.write_text(f"{version} {{ local: *; }};\n")
        _run(
            *_compiler("CC"),
            "-shared",
            source,
            "-o",
            self.out / alias,
            f"-Wl,-soname,{alias}",
            f"-Wl,--version-script={script}",
            f"-L{self.out}",
            "-Wl,--no-as-needed",
            f"-l:{self.runtime}",
        )

    def _device_functions(self) -> list[str]:
        """The API functions that the sources define."""
        names: list[str] = []
        for source in sorted((_SOURCES / "device").glob("*_api.cpp")):
            names += re.findall(r"^SIMCUDA_API [^(]*?\b(\w+)\(", source.read_text(), re.MULTILINE)
        return names

    def link_stub(self, library: stubs.Library) -> None:
        """A library of stubs; it leads to the simulated libcudart for what is simulated."""
        source = self.work / f"{library.soname}.c"
        simulated = set(self._device_functions())
        library.functions -= simulated
        if library.soname.startswith("libnvrtc.so"):
            library.forwarded = {n[len("simcuda_") :] for n in simulated if "_nvrtc" in n}
            library.functions -= library.forwarded
        source.write_text(stubs.stub_source(library))
        flags = ["-O1", "-fPIC", "-fvisibility=hidden", "-fno-builtin", "-w"]
        script = stubs.version_script(library)
        if script:
            path = self.work / f"{library.soname}.map"
            path.write_text(script)
            flags.append(f"-Wl,--version-script={path}")
        _run(
            *_compiler("CC"),
            "-shared",
            *flags,
            source,
            "-o",
            self.out / library.soname,
            f"-Wl,-soname,{library.soname}",
            "-Wl,-rpath,$ORIGIN",
            f"-L{self.out}",
            "-Wl,--no-as-needed",
            f"-l:{self.runtime}",
        )

    def link_operators(self, compiled: Path) -> None:
        _run(
            *_compiler("CXX"),
            "-shared",
            compiled,
            "-o",
            self.out / _OPERATORS,
            f"-L{self.torch_dir / 'lib'}",
            "-lc10",
            "-ltorch_cpu",
            "-lc10_cuda",
            f"-L{self.out}",
            f"-l:{self.runtime}",
            "-Wl,--no-as-needed",
            "-Wl,--allow-shlib-undefined",
        )

    def run(self) -> None:
        flags = _operator_flags(self.torch_dir, self.cuda_major)
        with ThreadPoolExecutor(_JOBS) as pool:
            operators = pool.submit(self.compile_together, "ops", flags)  # takes longest
            self.link_device()
            others = [lib for lib in self.libraries.values() if lib.soname != self.runtime]
            stub_jobs = [pool.submit(self.link_stub, library) for library in others]
            self.link_operators(operators.result())
            for job in stub_jobs:
                job.result()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(torch_dir: Path | str | None = None, out_dir: Path | str | None = None) -> Path:
    """The folder with the simulated device's libraries for a torch installation.

    Built when the cache does not have it; safe to call from several processes at once.
    Raises BuildError when a compiler fails.
    """
    torch_dir = Path(torch_dir) if torch_dir else torch_directory()
    if not (torch_dir / "lib" / "libtorch_cuda.so").exists():
        raise BuildError(f"{torch_dir} is not a CUDA build of PyTorch: it has no libtorch_cuda.so")
    key = _key(torch_dir)
    out = Path(out_dir) if out_dir else _cache_directory() / key
    marker = out / _DONE
    if marker.exists() and marker.read_text() == key:
        return out
    with _locked(out.with_name(out.name + ".lock")):
        if marker.exists() and marker.read_text() == key:
            return out
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        with tempfile.TemporaryDirectory(prefix="simcuda-") as work:
            _Builder(torch_dir, out, Path(work)).run()
        marker.write_text(key)
    return out


def main(arguments: list[str]) -> None:
    start = time.monotonic()
    out = build(*arguments)
    size = sum(file.stat().st_size for file in out.iterdir())
    print(f"{out}: {size / 1e6:.1f} MB, {time.monotonic() - start:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
