"""A conda package of torch-lms beside the official torch, and beside packages of it that are named
and laid out as conda-forge's."""

from __future__ import annotations

import dataclasses
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import companions
import pytest
from conftest import ROOT, User, depends_of
from test_install import SWAP, succeeded

from lmsbuild.conda.channel import Channel
from lmsbuild.registry import load_registry
from lmsbuild.tools.cache import default_cache
from lmsbuild.tools.cache_content import in_use
from lmsbuild.tools.download import Target
from lmsbuild.tools.fetch import fetch_wheel

WHERE = "import torch\nprint(torch.__file__, torch.cuda.lms._path())"


@pytest.fixture(scope="module")
def packed(installed: User) -> User:
    """Somebody with a channel of torch-lms."""
    tag, out = load_registry().default, installed.folder / "addon"
    for line in (
        f"addon --tag {tag.name} --out {out}",
        f"conda --wheel {out}/torch_lms-*.whl --out {out}",
        f"channel add {out}/channel {out}/linux-64/torch-lms-*.conda",
    ):
        succeeded(installed.run(f"python -m lmsbuild {line}", ROOT))
    return installed


@pytest.fixture(scope="module")
def official(installed: User) -> Iterator[Path]:
    """The official wheel."""
    with in_use(default_cache()):
        target = Target(python=companions.PYTHON, architecture=platform.machine())
        yield fetch_wheel(f"torch=={load_registry().default.version}", target, default_cache()).path


def needs(user: User) -> list[str]:
    """What PyTorch depends on, besides the machine."""
    return [spec for spec in depends_of(user) if not spec.startswith("__")]


@pytest.fixture(scope="module")
def beside(packed: User, official: Path) -> User:
    """An environment with torch-lms from the channel, and torch from pip."""
    user = dataclasses.replace(packed, name="addon")
    line = "conda create -n addon -c ./addon/channel -c conda-forge torch-lms "
    succeeded(user.run(line + shlex.join(needs(user)), user.folder))
    pip = [sys.executable, "-m", "pip", "--python", user.prefix / "bin" / "python"]
    options = ["--quiet", "--no-deps", "--no-compile", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", *options, official], check=True)
    return user


@pytest.fixture(scope="module")
def forged(packed: User, official: Path) -> User:
    """An environment with torch-lms from the channel, and pytorch as conda-forge packs it."""
    user = dataclasses.replace(packed, name="forged")
    work = user.folder / "forge"
    cuda = load_registry().default.cuda
    made = companions.condas_pytorch(work / "out", work / "stage", official, needs(user), cuda)
    Channel(user.folder / "forge-channel").add(made, lambda _: None)
    shutil.rmtree(work)
    channels = "-c ./addon/channel -c ./forge-channel -c conda-forge"
    succeeded(user.run(f"conda create -n forged {channels} pytorch torch-lms", user.folder))
    return user


def check(user: User) -> None:
    site = user.prefix / companions.SITE
    torch, library = succeeded(user.python(WHERE, SIMCUDA_DEVICES="1")).split()
    assert Path(torch) == site / "torch" / "__init__.py"
    assert Path(library).is_relative_to(site / "torch_lms" / "releases")
    output = succeeded(user.python(SWAP, SIMCUDA_DEVICES="1", SIMCUDA_MIB="64"))
    assert output.startswith("paged out ")


def test_it_pages_out_with_pypis_torch(beside: User) -> None:
    check(beside)


def test_it_pages_out_with_condas_pytorch(forged: User) -> None:
    libraries = forged.prefix / companions.SITE / "torch" / "lib"
    assert (libraries / "libc10.so").resolve() == (forged.prefix / "lib" / "libc10.so").resolve()
    version = succeeded(forged.python("import torch\nprint(torch.__version__)"))
    assert version.strip() == load_registry().default.version
    check(forged)
