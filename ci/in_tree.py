"""Builds the runtime with a release's own torch/CMakeLists.txt, and tests the result.

    python ci/in_tree.py SOURCE PYTHON [TEST ...]

SOURCE is a checkout that the patches were applied to. PYTHON is an interpreter whose torch is of
the same release, has LMS, and may be modified: its libtorch_lms.so is replaced by the one that
CMake builds, and restored after the tests. TESTs are arguments for pytest; the default is
tests/runtime.

The rest of PyTorch is not built. Its headers and libraries are those of the official wheel, and
tests/intree/CMakeLists.txt has stand-ins for CMake's other targets.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HARNESS = ROOT / "tests" / "intree"
RUNTIME = "torch/csrc/cuda/lms"
# The files of the release that are tested, or are included by those.
REAL = ("torch/CMakeLists.txt", "cmake/public/utils.cmake")
REAL_FOLDERS = (RUNTIME, "torch/csrc/jit/backends/nnapi")
STAND_INS = {
    "cmake/public/cuda.cmake": "",  # looks for a CUDA toolkit
    "torch/lib/libshm/CMakeLists.txt": "add_library(shm INTERFACE)\n",
    "torch/csrc/init_flatbuffer_module.cpp": "",  # before 2.0
}


# pip's beside this Python, or the system's.
CMAKE = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")


class BuildError(Exception):
    """A command of the build failed. The message contains its output."""


@dataclass(frozen=True, kw_only=True)
class Against:
    """What the library is built against.

    Attributes:
        torch: folder of the torch package, with include/ and lib/.
        cuda: folders of unpacked CUDA header packages.
        flags: for the compiler: the official wheel's ABI.
        standard: of C++, such as 17.
    """

    torch: Path
    cuda: tuple[Path, ...]
    flags: tuple[str, ...]
    standard: int


class InTree:
    """The CMake files of a release, in a new folder."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.tree = folder / "tree"
        self.build = folder / "build"
        for name in REAL:
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / name, self.tree / name)
        for name in REAL_FOLDERS:
            if (source / name).is_dir():
                shutil.copytree(source / name, self.tree / name)
        for name, text in STAND_INS.items():
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            (self.tree / name).write_text(text, encoding="utf-8")

    def configure(self, against: Against, *options: str) -> str:
        """Run CMake with options like -DUSE_LMS=OFF. Returns its output."""
        headers = [path for root in against.cuda for path in sorted(root.glob("nvidia/*/include"))]
        (cudart, *_) = [
            path for root in against.cuda for path in root.glob("nvidia/*/lib/libcudart.so.*")
        ]
        return run(
            CMAKE,
            *("-S", HARNESS, "-B", self.build),
            f"-DSOURCE={self.tree}",
            f"-DTORCH={against.torch}",
            f"-DCUDA_HEADERS={';'.join(map(str, headers))}",
            f"-DCUDART={cudart}",
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DCMAKE_CXX_STANDARD={against.standard}",
            f"-DCMAKE_CXX_FLAGS={' '.join(against.flags)}",
            f"-DCMAKE_INSTALL_PREFIX={self.build / 'installed'}",
            *options,
        )

    def install(self) -> Path:
        """Build and install libtorch_lms.so, and its seam if it has one. Returns its path."""
        seam = ["torch_lms_seam"] if (self.tree / RUNTIME / "seam").is_dir() else []
        run(CMAKE, "--build", self.build, "--parallel", "2", "--target", "torch_lms", *seam)
        built = self.build / "torch" / "libtorch_lms.so"
        # It is installed before the runtime, and is not built here. CMake installs the link.
        built.with_name("libtorch_python.so").symlink_to(built.name)
        run(CMAKE, "--install", self.build)
        return self.build / "installed" / "lib" / built.name


def run(*command: str | Path | None) -> str:
    """Run a command. Returns its output. Raises BuildError."""
    if command[0] is None:
        raise BuildError("there is no cmake (pip install cmake)")
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"{command[0]}: {done.stdout}{done.stderr}"[-6000:])
    return done.stdout


def abi_flags(cxx11_abi: int, abi_version: int | None) -> tuple[str, ...]:
    """The flags that cmake/Dependencies.cmake and the official build's compiler use."""
    version = () if abi_version is None else (f"-fabi-version={abi_version}",)
    return (f"-D_GLIBCXX_USE_CXX11_ABI={cxx11_abi}", *version)


def main(source: Path, python: str, tests: Sequence[str]) -> int:
    from disposable import DisposableTorch, environment

    with DisposableTorch(python) as torch, tempfile.TemporaryDirectory() as name:
        tag = torch.tag
        build = InTree(source, Path(name))
        build.configure(
            Against(
                torch=torch.folder,
                cuda=torch.cuda,
                flags=abi_flags(tag.cxx11_abi, tag.abi_version),
                standard=tag.cxx_standard,
            )
        )
        library = build.install()
        print(f"built {library.name}: {library.stat().st_size} bytes", flush=True)
        for built in library.parent.glob("libtorch_lms*.so"):
            torch.replace(built)
        return subprocess.run(
            [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen(tests)],
            env=environment(torch.runtime),
        ).returncode


def chosen(tests: Iterable[str]) -> list[str]:
    return list(tests) or [str(ROOT / "tests" / "runtime")]


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
