"""What the libraries of a torch installation need from NVIDIA's, and stand-ins for it."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

# A library's name up to its version, and how the functions that it exports begin. The first prefix
# that fits decides, so longer ones come first.
_LIBRARIES = (
    ("cublasLt", "libcublasLt.so"),
    ("cublas", "libcublas.so"),
    ("cusparseLt", "libcusparseLt.so"),
    ("cusparse", "libcusparse.so"),
    ("cusolver", "libcusolver.so"),
    ("cudnn", "libcudnn.so"),
    ("nccl", "libnccl.so"),
    ("pnccl", "libnccl.so"),
    ("cufft", "libcufft.so"),
    ("curand", "libcurand.so"),
    ("cupti", "libcupti.so"),
    ("nvshmem", "libnvshmem_host.so"),
    ("nvrtc", "libnvrtc.so"),
    ("cuFile", "libcufile.so"),
    ("__cuda", "libcudart.so"),
    ("cuda", "libcudart.so"),
    ("cu", "libcuda.so"),
)
# Libraries that are needed for their presence alone.
_ALSO_NVIDIA = ("libnvJitLink.so", "libnvToolsExt.so")

# What auditwheel makes of the name of a library that it puts into a wheel.
_MANGLED = re.compile(r"-[0-9a-f]{8}(?=\.so)")

DRIVER = "libcuda.so.1"
NVML = "libnvidia-ml.so.1"

# By the major version of CUDA; from 12 on it is the name's end.
_NVRTC = {"11": "libnvrtc.so.11.2"}

# What a stub returns, where torch takes it for a version; all others return an error, 1.
_VERSIONS = {
    "cudnnGetVersion": 90100,
    "cudnnGetCudartVersion": 12040,
    "cublasLtGetVersion": 120405,
    "cublasLtGetCudartVersion": 12040,
}
# The profiler prints what this one writes to its second argument.
_CUPTI_TEXT = "cuptiGetResultString"
_RETURNS_TEXT = re.compile(r"(ErrorString|ErrorName|StatusString|StatusName|LastError)$")


@dataclass
class Library:
    """A shared library to stand in for: its soname, symbol version, and functions.

    aliases: other names that torch's libraries know it by.
    forwarded: functions that lead to the simulated ones, simcuda_ before their names: with a symbol
        version, a function has to be in its own library.
    """

    soname: str
    symbol_version: str = ""
    functions: set[str] = field(default_factory=set)
    aliases: set[str] = field(default_factory=set)
    forwarded: set[str] = field(default_factory=set)


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _is_nvidia(soname: str) -> bool:
    names = {name for _, name in _LIBRARIES} | set(_ALSO_NVIDIA)
    return any(soname == name or soname.startswith(name + ".") for name in names)


def _needed(library: Path) -> set[str]:
    """The sonames that a library is linked with."""
    lines = _output("objdump", "-p", str(library)).splitlines()
    return {line.split()[1] for line in lines if line.split()[:1] == ["NEEDED"]}


def _undefined(library: Path) -> list[tuple[str, str]]:
    """The functions that a library takes from others, each with its symbol version or ""."""
    symbols = []
    for line in _output("nm", "-D", "--undefined-only", str(library)).splitlines():
        name, _, version = line.split()[-1].partition("@")
        symbols.append((name, version.lstrip("@")))
    return symbols


def static_runtime(library: Path) -> set[str]:
    """The CUDA runtime's functions that a library has inside, linked statically."""
    symbols = re.findall(
        r"^\w+ t ((?:__)?cuda[A-Z]\w+)$", _output("nm", str(library)), re.MULTILINE
    )
    return set(symbols) if "cudaMalloc" in symbols else set()


def _looked_up_by_name(library: Path) -> set[str]:
    """Driver and NVML functions that a library finds at run time, by the names in its data."""
    names = re.findall(rb"\0((?:cu|nvml)[A-Z]\w+)(?=\0)", library.read_bytes())
    return {name.decode() for name in names}


def required(torch_dir: Path) -> dict[str, Library]:
    """NVIDIA's libraries that the libraries of torch in `torch_dir` need, by soname."""
    libraries = sorted((torch_dir / "lib").glob("*.so"))
    found = {soname: Library(soname) for soname in (DRIVER, NVML)}
    for library in libraries:
        for needed in _needed(library):
            soname = _MANGLED.sub("", needed)
            if soname != needed and not soname.startswith("libcudart."):
                continue  # it is in the wheel, and needs no device
            if _is_nvidia(soname):
                found.setdefault(soname, Library(soname))
                if soname != needed:
                    found[soname].aliases.add(needed)
    if not any(soname.startswith("libnvrtc.so") for soname in found):
        # LMS looks for it by name, also beside a torch that has no library linked to it.
        for soname in [soname for soname in found if soname.startswith("libcudart.so")]:
            major = soname.split(".")[2]
            nvrtc = _NVRTC.get(major, f"libnvrtc.so.{major}")
            found[nvrtc] = Library(nvrtc)
    owners = {}
    for prefix, name in _LIBRARIES:
        for soname in found:
            if soname.startswith(name):
                owners[prefix] = soname
    prefixes = [prefix for prefix, _ in _LIBRARIES if prefix in owners]
    versions: dict[str, set[str]] = defaultdict(set)
    for library in libraries:
        for function, version in _undefined(library):
            if not re.match(r"(__)?p?(cu|nccl|nvrtc|nvshmem)[a-zA-Z_]", function):
                continue
            prefix = next((p for p in prefixes if function.startswith(p)), None)
            soname = version if version in found else owners.get(prefix or "", "")
            if not soname:
                continue
            found[soname].functions.add(function)
            if version:
                versions[soname].add(version)
    for library in libraries:
        # The largest ones, which are linked to it, are not looked through for it.
        if not any(_MANGLED.sub("", name) == owners["cuda"] for name in _needed(library)):
            found[owners["cuda"]].functions |= static_runtime(library)
    for function in _looked_up_by_name(torch_dir / "lib" / "libc10_cuda.so"):
        found[NVML if function.startswith("nvml") else DRIVER].functions.add(function)
    for soname, seen in versions.items():
        if len(seen) > 1:
            raise RuntimeError(f"{soname} has several symbol versions: {sorted(seen)}")
        found[soname].symbol_version = seen.pop()
    return found


def stub_source(library: Library) -> str:
    """C source of a library whose functions say on stderr that they were called, and fail."""
    lines = [
        "#include <stdio.h>",
        "#include <stdlib.h>",
        "static long missing(const char* name, char* said) {",
        '  if (!*said && getenv("SIMCUDA_LOG")) {',
        "    *said = 1;",
        '    fprintf(stderr, "[simcuda] %s is a stub\\n", name);',
        "  }",
        "  return 1;",
        "}",
        '#define EXPORT __attribute__((visibility("default")))',
        "#define STUB(name, value) \\",
        "  EXPORT long name(void) { static char said; missing(#name, &said); return value; }",
    ]
    if _CUPTI_TEXT in library.functions:
        lines += [
            f"EXPORT int {_CUPTI_TEXT}(int result, const char** text) {{",
            '  *text = "the simulated device has no CUPTI";',
            "  return 0;",
            "}",
        ]
    for function in sorted(library.functions - {_CUPTI_TEXT}):
        value = str(_VERSIONS.get(function, 1))
        if _RETURNS_TEXT.search(function):
            value = '(long)"simulated device"'
        lines.append(f"STUB({function}, {value})")
    # Whatever they take: integers and pointers, and no more than registers hold.
    parameters = ", ".join(f"long {letter}" for letter in "abcdef")
    for function in sorted(library.forwarded):
        lines += [
            f"extern long simcuda_{function}({parameters});",
            f"EXPORT long {function}({parameters}) {{",
            f"  return simcuda_{function}(a, b, c, d, e, f);",
            "}",
        ]
    return "\n".join(lines) + "\n"


def version_script(library: Library) -> str:
    """A linker script that gives the library's functions their symbol version, or ""."""
    return f"{library.symbol_version} {{ global: *; }};\n" if library.symbol_version else ""


def unsupported_source(functions: set[str]) -> str:
    """C source of runtime functions that are not simulated: cudaErrorNotSupported."""
    lines = [
        "extern int simcuda_unsupported(const char* name);",
        '#define EXPORT __attribute__((visibility("default")))',
        "#define UNSUPPORTED(name) EXPORT int name(void) { return simcuda_unsupported(#name); }",
    ]
    lines += [f"UNSUPPORTED({function})" for function in sorted(functions)]
    return "\n".join(lines) + "\n"
