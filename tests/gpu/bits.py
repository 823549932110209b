"""The same code without LMS and with little memory, compared bit for bit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from results import as_bytes


def gpus() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def deterministic() -> None:
    torch.manual_seed(0)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


@contextlib.contextmanager
def lms(limit: int, *, stress: bool = False) -> Iterator[None]:
    """LMS on, for storages of 4 KiB and more."""
    torch.cuda.set_size_lms(1 << 12)
    torch.cuda.set_limit_lms(limit)
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    torch.cuda.reset_accumulated_memory_stats()
    torch.cuda.lms._set_stress(stress)
    torch.cuda.lms._set_verify_clean(stress)
    before = torch.cuda.lms.stats()["clean_violations"]
    try:
        yield
    finally:
        torch.cuda.lms._set_stress(False)
        after = torch.cuda.lms.stats()["clean_violations"]
        torch.cuda.lms._set_verify_clean(False)
        torch.cuda.set_limit_lms(0)
        torch.cuda.set_enabled_lms(False)
    assert after == before, "something wrote what LMS took for unchanged"


def assert_same_bits(run: Callable[[], Any], *, limit: int, stress: bool = False) -> None:
    """run() gives the same bits with LMS off, and with LMS and that many bytes on the GPU.

    Some of CUDA's sparse kernels do not give the same bits twice: then close numbers are enough.
    """

    def reference() -> Any:
        deterministic()
        return run()

    expected = reference()
    again = reference()
    deterministic()
    with lms(limit, stress=stress):
        found = run()
        moved = torch.cuda.lms.stats()["page_in_count"]
        if as_bytes(expected) != as_bytes(again):
            torch.testing.assert_close(found, expected)
        else:
            assert as_bytes(found) == as_bytes(expected)
    assert as_bytes(expected)
    assert moved > 0, "nothing was moved: the limit is too high to show anything"
