"""The conda package of PyTorch with LMS: solved, installed, pinned, removed; it pages out."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import companions
import pytest
from conftest import MACHINE, ROOT, User, check_pages_out, succeeded

LOADED = """\
import torch
with open("/proc/self/maps") as maps:
    names = {line.split()[-1] for line in maps if "/" in line}
print(*sorted(name for name in names if "/libcudart.so." in name or "/libcublas.so." in name))
"""
PIN = 'conda config --env --append pinned_packages "pytorch=*=*lms*"'
CREATE = 'conda create -n {} -c ./graft/channel -c conda-forge "pytorch[build=*lms*]"'


def create(user: User, name: str) -> User:
    succeeded(user.run(CREATE.format(name), user.folder))
    return dataclasses.replace(user, name=name)


@pytest.fixture(scope="module")
def grafted(forge: User, graft: Path) -> User:
    """An environment with the package."""
    return create(forge, "grafted")


def test_cuda_comes_from_the_environments_lib(grafted: User) -> None:
    found = succeeded(grafted.python(LOADED, SIMCUDA_DEVICES="0")).split()
    assert [name.rsplit("/", 1)[0] for name in found] == [str(grafted.prefix / "lib")] * 2


def test_it_pages_out(grafted: User) -> None:
    check_pages_out(grafted)


def test_numpy_is_there(grafted: User) -> None:
    code = "import torch; print(torch.ones(2).numpy().sum(), torch.tensor([1.0]).item())"
    result = grafted.python(code, PYTHONWARNINGS="error")
    assert (succeeded(result).split(), result.stderr) == (["2.0", "1.0"], "")


def test_its_scripts_run(grafted: User) -> None:
    line = "conda run -n grafted torchrun --help"
    assert "usage: torchrun" in succeeded(grafted.run(line, ROOT))


@pytest.mark.parametrize(
    ("machine", "wanted", "named"),
    [
        ({"__glibc": "2.17"}, "", "__glibc"),
        ({"__cuda": ""}, "", "__cuda"),
        ({"__cuda": "12.9"}, "", "__cuda"),
        ({}, "python=3.8", "python"),
        ({}, "torchvision", "libtorch"),  # conda-forge's
    ],
)
def test_refusals(grafted: User, machine: dict[str, str], wanted: str, named: str) -> None:
    found = {name: version for name, version in {**MACHINE, **machine}.items() if version}
    line = f"{CREATE.format('refused')} {wanted}"
    result = grafted.run(line, grafted.folder, LMS_TEST_MACHINE=json.dumps(found))
    assert result.returncode == 1
    assert "Cannot solve" in result.stderr
    assert named in result.stderr
    assert not (grafted.prefix.parent / "refused").exists()


def test_a_pin_keeps_it(forge: User, graft: Path) -> None:
    # Without the request for LMS, which conda's other commands would keep as well.
    user = create(forge, "pinned")
    (user.prefix / "conda-meta" / "wanted").write_text("pytorch\n")
    before = user.installed()["pytorch"]
    succeeded(user.conda(PIN))
    for line in ("install -c conda-forge torchvision", "update --all -c conda-forge"):
        result = user.conda(f"conda {line}")
        assert result.returncode == 1, line
        assert "Cannot solve" in result.stderr
    succeeded(user.conda("conda update --all -c ./graft/channel -c conda-forge"))
    assert user.installed()["pytorch"] == before


def test_without_a_pin_torchvision_replaces_it(forge: User, graft: Path) -> None:
    user = create(forge, "unpinned")
    (user.prefix / "conda-meta" / "wanted").write_text("pytorch\n")
    succeeded(user.conda("conda install -c conda-forge torchvision"))
    assert "_lms" not in user.installed()["pytorch"]


def test_nothing_of_it_stays_behind(forge: User, graft: Path) -> None:
    user = create(forge, "removed")
    succeeded(user.python("import torch.distributed.run"))  # which Python compiles
    assert list((user.prefix / companions.SITE / "torch").rglob("*.pyc"))
    succeeded(user.conda("conda remove pytorch"))
    assert not (user.prefix / companions.SITE / "torch").exists()
    assert user.python("import torch").returncode == 1
