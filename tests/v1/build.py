"""Builds c10 and c10_cuda of a patched checkout against the simulated libcudart.

By the checkout's own CMake files. CUDA's headers come as packages, libcudart is tests/simcuda's.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "simcuda"))

from simcuda import stubs  # noqa: E402

DEVICE = HERE.parent / "simcuda" / "device"
CUDA_MAJOR = 10
_FLAGS = ("-O1", "-g", "-DNDEBUG")


def run(*command: str | Path) -> str:
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert result.returncode == 0, f"{command[0]}: {result.stdout}{result.stderr}"[-6000:]
    return result.stdout


class Build:
    """The libraries of one checkout, in one folder."""

    def __init__(self, source: Path, cuda: tuple[Path, ...], folder: Path) -> None:
        self.source = source
        self.folder = folder
        self._cuda = cuda

    def make(self, *options: str) -> list[Path]:
        """Builds libcudart, libc10 and libc10_cuda. `options` are CMake's, such as -DUSE_LMS=0."""
        device = self.device()
        run(
            "cmake",
            f"-DSOURCE={self.source}",
            f"-DCUDA_HEADERS={';'.join(map(str, self._cuda))}",
            f"-DCUDART={device}",
            f"-DCMAKE_CXX_FLAGS={' '.join((*_FLAGS, '-Wall', '-Wno-deprecated-declarations'))}",
            *options,
            "-S",
            HERE,
            "-B",
            self.folder,
        )
        run("cmake", "--build", self.folder, "--parallel", "2")
        return [device, self.folder / "c10/libc10.so", self.folder / "c10/cuda/libc10_cuda.so"]

    def storages(self, libraries: list[Path]) -> Path:
        """storages.cpp, linked to them."""
        output = self.folder / "libstorages.so"
        includes = [f"-I{self.source}", f"-I{self.folder}"]
        includes += [f"-isystem{path}" for path in self._cuda]
        flags = [self.standard(), "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Werror"]
        flags += ["-Wno-init-list-lifetime"]  # c10's ArrayRef, before 1.3
        source = HERE / "storages.cpp"
        run("g++", *flags, *_FLAGS, *includes, source, *libraries, "-Wl,-z,defs", "-o", output)
        return output

    def standard(self) -> str:
        """The option for the language that the release is written in."""
        text = (self.source / "c10" / "CMakeLists.txt").read_text()
        found = re.search(r"^set\(CMAKE_CXX_STANDARD (\d+)\)", text, re.MULTILINE)
        assert found, "c10 names no standard of C++"
        return f"-std=c++{found[1]}"

    def device(self) -> Path:
        """libcudart: what is simulated, and errors for the rest of what c10_cuda calls."""
        sources = sorted(DEVICE.glob("*.cpp"))
        simulated = re.findall(
            r"^SIMCUDA_API [^(]*?\b(\w+)\(",
            "".join(source.read_text() for source in sources),
            re.MULTILINE,
        )
        users = [*self.source.glob("c10/cuda/**/*.cpp"), *self.source.glob("c10/cuda/*.h")]
        called = re.findall(r"\b(cuda[A-Z]\w+)\(", "".join(user.read_text() for user in users))
        unit, others = self.folder / "device.cpp", self.folder / "unsupported.c"
        unit.write_text("".join(f'#include "{source}"\n' for source in sources))
        others.write_text(stubs.unsupported_source(set(called) - set(simulated)))
        objects = [self.folder / "device.o", self.folder / "unsupported.o"]
        major = f"-DSIMCUDA_CUDART_MAJOR={CUDA_MAJOR}"
        hidden = ("-fPIC", "-fvisibility=hidden")
        run("g++", "-c", "-std=c++17", major, *_FLAGS, *hidden, unit, "-o", objects[0])
        run("gcc", "-c", "-fPIC", others, "-o", objects[1])
        output = self.folder / f"libcudart.so.{CUDA_MAJOR}"
        run("g++", "-shared", "-pthread", *objects, "-o", output, f"-Wl,-soname,{output.name}")
        return output
