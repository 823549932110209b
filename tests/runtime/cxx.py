"""Compiles a test's C++ against the torch under test and the runtime's headers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import torch

HERE = Path(__file__).parent
# ci/mutants.py names its copy, with a bug in it.
RUNTIME = Path(os.environ.get("LMS_RUNTIME", HERE.parents[1] / "patches" / "runtime"))
TORCH = Path(torch.__file__).parent


def compile_cxx(source: Path, output: Path, *options: str) -> None:
    command = [
        "g++",
        "-std=c++20",
        "-DNDEBUG",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        *options,
        f"-I{RUNTIME}",
        f"-I{TORCH}/include",
        str(source),
        "-o",
        str(output),
        f"-L{TORCH}/lib",
        "-lc10",
        f"-Wl,-rpath,{TORCH}/lib",
    ]
    subprocess.run(command, check=True)
