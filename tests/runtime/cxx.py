"""Compiles a test's C++ against the torch under test and the runtime's headers, and runs it.

If torch is for another architecture than this machine, $CXX has to compile for that architecture,
and $LMS_TEST_EMULATOR is the command that runs programs.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import torch

HERE = Path(__file__).parent
# ci/mutants.py sets this to its copy, which contains a bug.
RUNTIME = Path(os.environ.get("LMS_RUNTIME", HERE.parents[1] / "patches" / "runtime"))
TORCH = Path(torch.__file__).parent


_CUDA = (torch.version.cuda or "0").split(".")[0] + "000"
# For code that includes CUDA headers and calls PyTorch's CUDA libraries.
CUDA_OPTIONS = (
    f"-DCUDART_VERSION={_CUDA}",
    f"-DCUDA_VERSION={_CUDA}",  # c10's headers of 1.13 ask for it
    "-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE",
    f"-I{HERE.parent / 'simcuda' / 'cuda_shim'}",
    "-Wl,--no-as-needed",
    "-lc10_cuda",
)


def compile_cxx(source: Path, output: Path, *options: str) -> None:
    command = [
        *shlex.split(os.environ.get("CXX", "g++")),
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


def run_cxx(program: Path, *arguments: str) -> str:
    """Returns the output of the program. Raises subprocess.CalledProcessError if it fails."""
    emulator = shlex.split(os.environ.get("LMS_TEST_EMULATOR", ""))
    command = [*emulator, str(program), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
