"""Slices of storages: storages of their own, with an address in the memory of another one."""

from __future__ import annotations

import pytest
import torch
from conftest import MIB
from releases import since, untyped_storage
from simcuda.process import run_sim
from tensors import evict, is_resident, managed, pattern

BEGIN, END = 4 << 10, 8 << 10  # bytes


def sliced(x: torch.Tensor) -> torch.Tensor:
    """A tensor with a part of x's memory: elements 1024 to 2047."""
    return torch.tensor([], device="cuda").set_(untyped_storage(x)[BEGIN:END], 0, (1024,))


def expected() -> torch.Tensor:
    return pattern(1, device="cpu")[1024:2048]


def test_what_a_slice_reads():
    x = managed(pattern(1))
    part = sliced(x)
    evict()
    other = torch.full_like(x, 7)  # takes the memory of what has left
    assert torch.equal(part.cpu(), expected())
    assert bool((other == 7).all())
    assert torch.cuda.lms.is_resident(x)


def test_what_is_written_through_a_slice():
    x = managed(pattern(1))
    part = sliced(x)
    evict()
    other = torch.full_like(x, 7)
    part.add_(1)
    assert torch.equal(x.cpu()[1024:2048], expected() + 1)
    assert bool((other == 7).all())


def test_a_slice_under_a_limit():
    torch.cuda.set_limit_lms(8 * MIB)
    x = managed(pattern(1))
    part = sliced(x)
    others = [managed(pattern(1, start=k)) for k in range(16)]
    assert torch.equal(part.cpu(), expected())
    for k, other in enumerate(others):
        assert torch.equal(other.cpu(), pattern(1, start=k, device="cpu"))


def test_a_slice_outlives_the_tensor():
    x = managed(pattern(1))
    part = sliced(x)
    del x
    evict()
    others = [torch.full((MIB // 4,), 7.0, device="cuda") for _ in range(4)]
    assert torch.equal(part.cpu(), expected())
    del others


def test_the_bytes_of_a_slice_of_a_slice():
    x = managed(pattern(1))
    part = untyped_storage(x)[BEGIN:END][16:32]
    evict()
    other = torch.full_like(x, 7)
    assert bytes(part.tolist()) == expected().numpy().tobytes()[16:32]
    assert bool((other == 7).all())


def test_a_slice_that_is_made_while_lms_is_off():
    torch.cuda.set_enabled_lms(False)
    x = pattern(1)
    part = sliced(x)
    torch.cuda.set_enabled_lms(True)
    managed(x)
    evict()
    other = torch.full_like(x, 7)
    assert torch.equal(part.cpu(), expected())
    assert bool((other == 7).all())


def test_a_slice_that_is_made_while_lms_is_off_of_what_has_moved():
    x = managed(pattern(1))
    evict()
    other = torch.full_like(x, 7)  # has the memory that x had
    torch.cuda.set_enabled_lms(False)
    part = sliced(x)
    torch.cuda.set_enabled_lms(True)
    assert torch.equal(part.cpu(), expected())
    assert bool((other == 7).all())


def test_a_slice_that_was_held():
    x = managed(pattern(1))
    part = sliced(x)
    with torch.cuda.lms.resident(x, part):
        pass
    torch.cuda.lms.release(x)
    evict()
    assert not is_resident(x)


def test_a_slice_of_what_has_moved():
    x = managed(pattern(1))
    evict()
    other = torch.full_like(x, 7)
    part = sliced(x)
    part.add_(1)
    torch.cuda.lms.release(x)
    assert torch.equal(part.cpu(), expected() + 1)
    assert bool((other == 7).all())


def before_lms(device, used, then):
    """A slice that is made before LMS is turned on for the first time."""
    import torch

    x = torch.arange(1 << 18, dtype=torch.float32, device="cuda")
    storage = x.untyped_storage() if hasattr(x, "untyped_storage") else x._storage()
    part = torch.tensor([], device="cuda").set_(storage[4096:8192], 0, (1024,))
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    x.sum()
    if used:
        part.sum()
    torch.cuda.reclaim_inactive()
    other = torch.full_like(x, 7)
    if then == "off and on":
        torch.cuda.set_enabled_lms(False)
        torch.cuda.set_enabled_lms(True)
        torch.cuda.lms._watch()
    elif then == "told":
        x.data_ptr()
    results = []
    for use in (lambda: part.add_(1), lambda: part.cpu()):
        try:
            use()
            results.append("")
        except RuntimeError as error:
            results.append(str(error))
    same = bool((other == 7).all()) and float(x[0]) == 0
    return results, same, float(x[1024]), device.races()


# Storages of 1.13 cannot refuse access.
STALE = pytest.param(False, marks=since((2, 0), "storages that refuse access"))


@pytest.mark.parametrize("then", ["", "off and on", "told"])
@pytest.mark.parametrize("used", [True, STALE])
def test_a_slice_that_is_made_before_lms(used, then):
    results, same, value, races = run_sim(before_lms, used, then)
    assert (same, races) == (True, [])
    if used:
        assert (results, value) == (["", ""], 1025)
    else:
        assert all("moved after a slice of it" in text for text in results)
        assert value == 1024
