"""A conda package of torch-lms beside the official torch of PyPI."""

from __future__ import annotations

import dataclasses
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import User, check_pages_out, depends_of, succeeded


@pytest.fixture(scope="module")
def beside(made: User, forge: User, graft: Path, official: Path) -> User:
    """An environment with torch-lms from the channel, and torch from pip."""
    user = dataclasses.replace(made, name="addon")
    needs = [spec for spec in depends_of(graft) if not spec.startswith("__")]
    line = "conda create -n addon -c ./dist/channel -c conda-forge torch-lms "
    succeeded(user.run(line + shlex.join(needs), user.folder))
    pip = [sys.executable, "-m", "pip", "--python", user.prefix / "bin" / "python"]
    options = ["--quiet", "--no-deps", "--no-compile", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", *options, official], check=True)
    return user


def test_it_pages_out_with_pypis_torch(beside: User) -> None:
    assert "pytorch" not in beside.installed()
    check_pages_out(beside)
