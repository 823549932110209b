"""A conda package of the real PyTorch: solved, installed, imported, and paging memory out."""

from __future__ import annotations

import json
import subprocess

import pytest
from conftest import MACHINE, ROOT, User

LOADED = """\
import torch
with open("/proc/self/maps") as maps:
    names = {line.split()[-1] for line in maps if "/" in line}
print(*sorted(name for name in names if "/libcudart.so." in name or "/libcublas.so." in name))
"""

SWAP = """\
import ctypes, sys
import torch

operators = ctypes.CDLL(f"{sys.prefix}/lib/libsimops.so")
operators.simops_install.restype = ctypes.c_long
assert operators.simops_install() > 0
torch.cuda.set_enabled_lms(True)
tensors = [torch.full((4 << 20,), float(value), device="cuda") for value in range(8)]  # 16 MiB each
assert torch.cuda.lms.stats()["page_out_count"] > 0, torch.cuda.lms.explain()
assert [tensor.sum().item() / (4 << 20) for tensor in tensors] == list(range(8))
print("paged out", torch.cuda.lms.stats()["page_out_bytes"] >> 20, "MiB")
"""


def succeeded(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_readme_works_as_printed(installed: User) -> None:
    assert len(installed.lines) == 3
    assert "set_enabled_lms(True)" in installed.lines[2]
    succeeded(installed.run(installed.lines[2], installed.folder))


def test_cuda_comes_from_the_environments_lib(installed: User) -> None:
    found = succeeded(installed.python(LOADED, SIMCUDA_DEVICES="0")).split()
    assert [name.rsplit("/", 1)[0] for name in found] == [str(installed.prefix / "lib")] * 2


def test_it_pages_out(installed: User) -> None:
    output = succeeded(installed.python(SWAP, SIMCUDA_DEVICES="1", SIMCUDA_MIB="64"))
    assert output.startswith("paged out ")


def test_its_scripts_run(installed: User) -> None:
    assert "usage: torchrun" in succeeded(installed.run("conda run -n lms torchrun --help", ROOT))


@pytest.mark.parametrize(
    ("machine", "wanted", "named"),
    [
        ({"__glibc": "2.17"}, "", "__glibc"),
        ({"__cuda": ""}, "", "__cuda"),
        ({"__cuda": "12.9"}, "", "__cuda"),
        ({}, "python=3.8", "python"),
    ],
)
def test_refusals(installed: User, machine: dict[str, str], wanted: str, named: str) -> None:
    found = {name: version for name, version in {**MACHINE, **machine}.items() if version}
    line = f"{installed.lines[1].replace(' lms ', ' refused ')} {wanted}"
    result = installed.run(line, installed.folder, LMS_TEST_MACHINE=json.dumps(found))
    assert result.returncode == 1
    assert "Cannot solve" in result.stderr
    assert named in result.stderr
    assert not (installed.prefix.parent / "refused").exists()
