"""A tag's patch files are what `lmsbuild dev refresh` writes: none is stale.

The tags that CI tests; LMS_EVERY_TAG=1, as `make matrix` has it, takes all that have wheels. Those
without are in tests/v1.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lmsbuild.checkout.apply import apply
from lmsbuild.checkout.refresh import refresh
from lmsbuild.errors import NetworkError
from lmsbuild.port.wheeltree import checkout_of_wheel
from lmsbuild.registry import Tag, load_registry
from lmsbuild.tools import git
from lmsbuild.tools.cache import default_cache
from lmsbuild.tools.download import NotOnIndexError, Target
from lmsbuild.tools.fetch import fetch_wheel

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

pytestmark = pytest.mark.network


def tags() -> list[Tag]:
    registry = load_registry()
    if os.environ.get("LMS_EVERY_TAG"):
        return [tag for tag in registry if "graft" in tag.strategies]
    return list(registry.landmarks(PYTHON))


def target_of(tag: Tag) -> Target:
    # The Python files of a wheel do not depend on the Python that it is for.
    python = PYTHON if PYTHON in tag.pythons else tag.pythons[0]
    return Target(python=python, architecture=tag.architectures[0])


def wheel_of(tag: Tag) -> Path:
    """The tag's official wheel; without a mirror the test is skipped."""
    try:
        return fetch_wheel(f"torch=={tag.version}", target_of(tag), default_cache()).path
    except (NetworkError, NotOnIndexError) as error:
        pytest.skip(f"the official wheel cannot be had: {error}")


@pytest.mark.parametrize("tag", tags(), ids=lambda tag: str(tag.name))
def test_apply_and_refresh_leave_every_byte(tag: Tag, tmp_path: Path) -> None:
    checkout = tmp_path / tag.name
    with git.session():
        checkout_of_wheel(wheel_of(tag), tag.version, checkout)
    outcome = apply(tag, upstream_url="", given_source=str(checkout))
    assert outcome.drifted == ()
    assert refresh(load_registry(), checkout, check=True).changed == ()
