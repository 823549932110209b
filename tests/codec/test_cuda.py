"""The kernels compiled for GPUs, without one: by nvcc, and by NVRTC as on a user's machine."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from packing import KINDS, Host, Kind

ARCHITECTURES = (70, 75, 80, 90, 100)
# As in module.cpp.
OPTIONS = ("--std=c++14",)
THREADS = 768  # at most
ENTRIES = 5  # kernels of a kind

# Compiling takes seconds. These have the widest and the narrowest values.
SOME = [Kind.BFLOAT16, Kind.FLOAT8_E4, Kind.INT64]
ALL_AT = 80  # the architecture for which every kind is compiled

each_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


@pytest.fixture(scope="session")
def nvcc() -> str:
    found = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if found is None:
        pytest.skip("nvcc is not installed")
    return found


@each_architecture
def test_registers(host: Host, nvcc: str, tmp_path: Path, architecture: int) -> None:
    """Nothing is kept in memory that should be in registers."""
    known = subprocess.run([nvcc, "--list-gpu-arch"], check=True, capture_output=True, text=True)
    if f"compute_{architecture}" not in known.stdout.split():
        pytest.skip(f"this nvcc does not compile for compute capability {architecture / 10}")
    for kind in KINDS if architecture == ALL_AT else SOME:
        source = tmp_path / f"{kind.name}.cu"
        source.write_text(host.source(kind))
        command = [nvcc, *OPTIONS, f"-arch=sm_{architecture}", "-cubin", "-Xptxas=-v"]
        command += ["-Werror=all-warnings", str(source), "-o", str(source.with_suffix(".cubin"))]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        report = done.stderr
        assert report.count("Compiling entry function") == ENTRIES
        used = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill", report)
        assert used == [("0", "0")] * ENTRIES, (kind.name, report)
        registers = [int(count) for count in re.findall(r"Used (\d+) registers", report)]
        assert len(registers) == ENTRIES
        assert max(registers) * THREADS <= 65536
        print(f"sm_{architecture} {kind.name.lower()}: {registers} registers")


@pytest.mark.parametrize("kind", KINDS)
def test_what_only_nvrtc_would_refuse(host: Host, kind: Kind) -> None:
    """Neither nvcc nor g++ minds, and NVRTC is missing where most tests run."""
    text = host.source(kind)
    assert "#include" not in text, "NVRTC has no headers"
    assert not re.search(r"\[[&=]?\]\s*\([^)]*\bauto\b", text), "it is a host function there"


class Nvrtc:
    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def architectures(self) -> list[int]:
        count = ctypes.c_int()
        self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        found = (ctypes.c_int * count.value)()
        self._library.nvrtcGetSupportedArchs(found)
        return list(found)

    def compile(self, source: str, *options: str) -> tuple[int, str, bytes]:
        """The result, the log and the machine code."""
        library, program = self._library, ctypes.c_void_p()
        text = source.encode()
        assert library.nvrtcCreateProgram(ctypes.byref(program), text, b"codec", 0, None, None) == 0
        given = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        result = library.nvrtcCompileProgram(program, len(options), given)
        log = self._get(program, "ProgramLog").rstrip(b"\0\n").decode()
        code = b"" if result else self._get(program, "CUBIN")
        library.nvrtcDestroyProgram(ctypes.byref(program))
        return result, log, code

    def _get(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        assert getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
        content = ctypes.create_string_buffer(size.value)
        assert getattr(self._library, f"nvrtcGet{what}")(program, content) == 0
        return content.raw


@pytest.fixture(scope="session")
def nvrtc() -> Nvrtc:
    for name in ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"):
        try:
            return Nvrtc(ctypes.CDLL(name))
        except OSError:
            continue
    pytest.skip("no libnvrtc is in the loader's path (LD_LIBRARY_PATH)")


@each_architecture
def test_nvrtc(host: Host, nvrtc: Nvrtc, architecture: int) -> None:
    if architecture not in nvrtc.architectures():
        pytest.skip(f"this NVRTC does not compile for compute capability {architecture / 10}")
    option = f"--gpu-architecture=sm_{architecture}"
    for kind in KINDS if architecture == ALL_AT else SOME:
        result, log, code = nvrtc.compile(host.source(kind), option, *OPTIONS)
        assert result == 0, (kind.name, log)
        assert "warning #" not in log, (kind.name, log)
        assert code.startswith(b"\x7fELF")
        assert b"lms_pack" in code
        assert b"lms_unpack" in code


def test_an_error_is_seen(host: Host, nvrtc: Nvrtc) -> None:
    result, log, _ = nvrtc.compile(
        host.source(Kind.BYTE).replace("return __popc", "return bullet"), *OPTIONS
    )
    assert result != 0
    assert "bullet" in log
