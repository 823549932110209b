"""The state machine of a storage: what is allowed, and that the rest throws."""

import subprocess
from pathlib import Path

import torch

HERE = Path(__file__).parent
RUNTIME = HERE.parents[1] / "patches" / "runtime"
TORCH = Path(torch.__file__).parent

ALLOWED = {
    "resident>paging out",
    "paging out>paged out",
    "paging out>resident",
    "paged out>paging in",
    "paging in>resident",
    "paging in>paging out",
    "paging in>paged out",
    "resident>freed",
    "paging out>freed",
    "paged out>freed",
    "paging in>freed",
}


def test_transitions(tmp_path):
    program = tmp_path / "state"
    command = [
        "g++",
        "-std=c++20",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
    ]
    command += [f"-I{RUNTIME}", f"-I{TORCH}/include", str(HERE / "state.cpp"), "-o", str(program)]
    command += [f"-L{TORCH}/lib", "-lc10", f"-Wl,-rpath,{TORCH}/lib"]
    subprocess.run(command, check=True)
    output = subprocess.run([program], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert set(output.splitlines()) == ALLOWED
