"""A conda package of torch-lms beside the official torch of PyPI."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import companions
import pytest
from conftest import User, check_pages_out, depends_of, succeeded


@pytest.fixture(scope="module")
def beside(made: User, forge: User, graft: Path, official: Path) -> User:
    """An environment with torch-lms from the channel, and the files of PyPI's torch."""
    user = dataclasses.replace(made, name="addon")
    needs = [spec for spec in depends_of(graft) if not spec.startswith("__")]
    line = "conda create -n addon -c ./dist/channel -c conda-forge torch-lms "
    succeeded(user.run(line + shlex.join(needs), user.folder))
    companions.link(official, user.prefix / companions.SITE)
    return user


def test_it_pages_out_with_pypis_torch(beside: User) -> None:
    assert "pytorch" not in beside.installed()
    check_pages_out(beside)
