"""LMS's mark in a torch's version."""

from __future__ import annotations

import pytest

from lmsbuild.errors import DamagedWheelError
from lmsbuild.wheel.version import assigned, mark_metadata

HEADER = b"Metadata-Version: 2.1\nName: torch\nVersion: 9.1.0+cu130\n"


def test_the_version_in_the_header_is_marked() -> None:
    description = b"\nVersion: 9.1.0+cu130\n"
    marked = mark_metadata(HEADER + description, "a wheel")
    assert marked == HEADER.replace(b"cu130", b"cu130.lms1") + description


def test_metadata_without_a_description_is_marked() -> None:
    assert mark_metadata(HEADER, "a wheel") == HEADER.replace(b"cu130", b"cu130.lms1")


def test_the_ends_of_lines_stay() -> None:
    windows = (HEADER + b"\nVersion: none\n").replace(b"\n", b"\r\n")
    assert mark_metadata(windows, "a wheel") == windows.replace(b"cu130", b"cu130.lms1")


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        (HEADER + b"Version: 9.1.0\n", "a wheel: METADATA names its version 2 times"),
        (b"Name: torch\n\nVersion: 9.1.0\n", "a wheel: METADATA names its version 0 times"),
        (b"Version: new\n", "a wheel: METADATA has no valid version"),
    ],
)
def test_metadata_without_one_version(metadata: bytes, problem: str) -> None:
    with pytest.raises(DamagedWheelError, match=problem):
        mark_metadata(metadata, "a wheel")


def test_what_a_module_assigns() -> None:
    text = "from typing import Optional\ncuda: Optional[str] = '13.0'\n__version__ = \"9.1.0\"\n"
    assert assigned(text, "cuda") == "13.0"
    assert assigned(text, "__version__") == "9.1.0"
    assert assigned(text, "hip") is None
