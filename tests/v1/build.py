"""Builds c10 and c10_cuda of a patched checkout against the simulated libcudart.

CUDA's headers come as packages, libcudart is tests/simcuda's device. The compiler is the system's.
"""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "simcuda"))

from simcuda import stubs  # noqa: E402

DEVICE = HERE.parent / "simcuda" / "device"
CUDA_MAJOR = 10
RUNTIME = "torch/csrc/cuda/lms"

# What configure_file() would make of the templates, with every option off.
_MACROS = {
    "c10/macros/cmake_macros.h": (
        "#pragma once\n#define C10_BUILD_SHARED_LIBS\n#define C10_DISABLE_NUMA\n"
    ),
    "c10/cuda/impl/cuda_cmake_macros.h": "#pragma once\n#define C10_CUDA_BUILD_SHARED_LIBS\n",
}
_FLAGS = ("-O1", "-g", "-fPIC", "-DNDEBUG", "-fvisibility=hidden", "-pthread")


def run(*command: str | Path) -> str:
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert result.returncode == 0, f"{command[0]}: {result.stdout}{result.stderr}"[-6000:]
    return result.stdout


class Build:
    """The libraries of one checkout, in one folder.

    Attributes:
        folder: where everything is built.
        library: tests/v1/storages.cpp, linked to them.
    """

    def __init__(self, source: Path, cuda: tuple[Path, ...], folder: Path) -> None:
        self.source = source
        self.folder = folder
        self._includes = [f"-I{source}", f"-I{folder}", *(f"-isystem{path}" for path in cuda)]
        for name, text in _MACROS.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def make(self) -> Path:
        """Builds everything; returns the library for the tests."""
        c10 = self._compile(
            [p for folder in ("core", "core/impl", "util") for p in self._sources(f"c10/{folder}")],
            "-std=c++11",
            "-DC10_BUILD_MAIN_LIB",
        )
        main = ("-DC10_CUDA_BUILD_MAIN_LIB", "-Wno-deprecated-declarations")
        cuda = self._compile(
            [p for folder in ("cuda", "cuda/impl") for p in self._sources(f"c10/{folder}")],
            "-std=c++11",
            *main,
        )
        # As the CMake hook has it.
        lms = self._compile(self._sources(RUNTIME), "-std=c++17", "-Wall", "-Werror", *main)
        base = self._link("libc10.so", c10)
        device = self._device(cuda)
        over = self._link("libc10_cuda.so", [*cuda, *lms], base, device)
        test = self._compile([HERE / "storages.cpp"], "-std=c++11", "-Wall", "-Werror")
        return self._link("libstorages.so", test, over, base, device)

    def _sources(self, folder: str) -> list[Path]:
        found = sorted((self.source / folder).glob("*.cpp"))
        assert found, f"no C++ file in {folder}"
        return found

    def _compile(self, sources: list[Path], *flags: str) -> list[Path]:
        def compile_one(source: Path) -> Path:
            output = self.folder / f"{source.parent.name}_{source.stem}.o"
            run("g++", "-c", *flags, *_FLAGS, *self._includes, source, "-o", output)
            return output

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(compile_one, sources))

    def _link(self, name: str, objects: list[Path], *libraries: Path) -> Path:
        output = self.folder / name
        run(
            "g++",
            "-shared",
            "-pthread",
            *objects,
            *libraries,
            "-o",
            output,
            f"-Wl,-soname,{name},-z,defs,-rpath,$ORIGIN",
        )
        return output

    def _device(self, users: list[Path]) -> Path:
        """libcudart: what is simulated, and errors for the rest of what is called."""
        unit = self.folder / "device.cpp"
        sources = sorted(DEVICE.glob("*.cpp"))
        unit.write_text("".join(f'#include "{source}"\n' for source in sources))
        simulated = set(
            re.findall(
                r"^SIMCUDA_API [^(]*?\b(\w+)\(",
                "".join(source.read_text() for source in sources),
                re.MULTILINE,
            )
        )
        missing = set(re.findall(r"\bU (cuda\w+)", run("nm", "-u", *users))) - simulated
        others = self.folder / "unsupported.c"
        others.write_text(stubs.unsupported_source(missing))
        objects = [self.folder / "device.o", self.folder / "unsupported.o"]
        major = f"-DSIMCUDA_CUDART_MAJOR={CUDA_MAJOR}"
        run("g++", "-c", "-std=c++17", major, *_FLAGS, unit, "-o", objects[0])
        run("gcc", "-c", "-fPIC", others, "-o", objects[1])
        output = self.folder / f"libcudart.so.{CUDA_MAJOR}"
        run("g++", "-shared", "-pthread", *objects, "-o", output, f"-Wl,-soname,{output.name}")
        return output
