"""Runs code while all idle storages are paged out at each allocation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from results import as_bytes
from tensors import stat


@contextlib.contextmanager
def stress() -> Iterator[None]:
    """Manages storages of any size, and compares clean ones with their host copies."""
    torch.cuda.set_size_lms(1)
    torch.cuda.lms._set_stress(True)
    torch.cuda.lms._set_verify_clean(True)
    before = stat("clean_violations")
    yield
    torch.cuda.lms._set_stress(False)
    after = stat("clean_violations")
    assert after == before, "an operator wrote an argument that its schema does not mark"


def assert_same_bits(run: Callable[[], Any]) -> None:
    """Checks that run() has the same results with LMS off, and under stress with LMS on."""
    torch.cuda.set_enabled_lms(False)
    torch.manual_seed(0)
    expected = as_bytes(run())
    torch.cuda.set_enabled_lms(True)
    torch.manual_seed(0)
    with stress():
        found = as_bytes(run())
    assert expected
    assert found == expected
    assert stat("page_in_count") > 0, "nothing was moved"
