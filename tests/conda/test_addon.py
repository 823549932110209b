"""A conda package of torch-lms beside the official torch, and beside its libraries as conda-forge
lays them out."""

from __future__ import annotations

import dataclasses
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import companions
import pytest
from conftest import ROOT, User, depends_of
from test_install import SWAP, succeeded

from lmsbuild.conda.stage import site_packages
from lmsbuild.registry import load_registry
from lmsbuild.tools.cache import default_cache
from lmsbuild.tools.cache_content import in_use
from lmsbuild.tools.download import Target
from lmsbuild.tools.fetch import fetch_wheel

WHERE = "import torch\nprint(torch.__file__, torch.cuda.lms._path())"


@pytest.fixture(scope="module")
def beside(installed: User) -> User:
    """An environment with torch-lms from a channel, and torch from pip."""
    user = dataclasses.replace(installed, name="addon")
    tag = load_registry().default
    out = user.folder / "addon"
    for line in (
        f"addon --tag {tag.name} --out {out}",
        f"conda --wheel {out}/torch_lms-*.whl --out {out}",
        f"channel add {out}/channel {out}/linux-64/torch-lms-*.conda",
    ):
        succeeded(user.run(f"python -m lmsbuild {line}", ROOT))
    rest = [spec for spec in depends_of(user) if not spec.startswith("__")]
    line = "conda create -n addon -c ./addon/channel -c conda-forge torch-lms "
    succeeded(user.run(line + shlex.join(rest), user.folder))
    with in_use(default_cache()):
        target = Target(python=companions.PYTHON, architecture=platform.machine())
        wheel = fetch_wheel(f"torch=={tag.version}", target, default_cache()).path
        pip = [sys.executable, "-m", "pip", "--python", user.prefix / "bin" / "python"]
        options = ["--quiet", "--no-deps", "--no-compile", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", *options, wheel], check=True)
    return user


@contextmanager
def condas_layout(prefix: Path) -> Iterator[None]:
    """PyTorch's libraries in the environment's lib, and links to them in torch/lib."""
    folder = prefix / site_packages(companions.PYTHON) / "torch" / "lib"
    moved = [path for path in folder.iterdir() if ".so" in path.name]
    for path in moved:
        path.symlink_to(path.rename(prefix / "lib" / path.name))
    try:
        yield
    finally:
        for path in moved:
            (prefix / "lib" / path.name).replace(path)


def check(user: User) -> None:
    site = user.prefix / site_packages(companions.PYTHON)
    torch, library = succeeded(user.python(WHERE, SIMCUDA_DEVICES="1")).split()
    assert Path(torch) == site / "torch" / "__init__.py"
    assert Path(library).is_relative_to(site / "torch_lms" / "releases")
    output = succeeded(user.python(SWAP, SIMCUDA_DEVICES="1", SIMCUDA_MIB="64"))
    assert output.startswith("paged out ")


def test_it_pages_out_with_pypis_torch(beside: User) -> None:
    check(beside)


def test_it_pages_out_where_torchs_libraries_are_in_the_environments_lib(beside: User) -> None:
    with condas_layout(beside.prefix):
        check(beside)
