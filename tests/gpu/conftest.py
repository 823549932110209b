"""Tests that need a CUDA GPU; the Python that runs them has the torch with LMS.

python -m pytest tests/gpu
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# For results.py; this folder's own modules come first.
sys.path.append(str(Path(__file__).parent.parent / "runtime"))

from bits import gpus


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if gpus() == 0 or not hasattr(torch.cuda, "set_enabled_lms"):
        reason = "there is no CUDA GPU" if gpus() == 0 else "this torch has no LMS"
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def lms_off() -> Iterator[None]:
    """Each test starts and ends with LMS off and with its settings at their defaults."""
    yield
    torch.cuda.lms._set_stress(False)
    torch.cuda.lms._set_verify_clean(False)
    torch.cuda.set_limit_lms(0)
    torch.cuda.set_enabled_lms(False)
    torch.cuda.set_size_lms(1 << 20)
    torch.cuda.empty_cache()
