"""An operator that goes on without memory that it asked for is counted, and warned about."""

import contextlib
import warnings

import pytest
import torch
from conftest import CAPACITY
from tensors import stat


def _frugal(x, wanted):
    """x * 2, with a workspace if it gets one, as cuDNN's convolutions do."""
    with contextlib.suppress(torch.cuda.OutOfMemoryError):
        torch.empty(wanted, dtype=torch.uint8, device=x.device)
    return x * 2


def _greedy(x, wanted):
    torch.empty(wanted, dtype=torch.uint8, device=x.device)
    return x * 2


LIBRARY = torch.library.Library("lms_caught", "DEF")
for name, kernel in (("frugal", _frugal), ("greedy", _greedy)):
    LIBRARY.define(f"{name}(Tensor x, int wanted) -> Tensor")
    LIBRARY.impl(name, kernel, "CUDA")
frugal, greedy = torch.ops.lms_caught.frugal, torch.ops.lms_caught.greedy


@pytest.fixture
def always_warn():
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


@pytest.mark.usefixtures("always_warn")
def test_an_operator_that_goes_on_is_counted_and_warned_about():
    x = torch.ones(1024, device="cuda")
    with pytest.warns(UserWarning, match="lms_caught::frugal went on without 128.00 MiB"):
        y = frugal(x, 2 * CAPACITY)
    assert stat("out_of_memory_caught") == 1
    assert (y.cpu() == 2).all()


@pytest.mark.usefixtures("always_warn")
def test_nothing_is_said_without_a_reason():
    x = torch.ones(1024, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frugal(x, 1024)
        # The caller sees these errors, and what runs afterwards is not blamed.
        with pytest.raises(torch.cuda.OutOfMemoryError):
            greedy(x, 2 * CAPACITY)
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(2 * CAPACITY, dtype=torch.uint8, device="cuda")
        frugal(x, 1024)
    assert stat("out_of_memory_caught") == 0


def test_outside_of_operators_it_is_the_callers_business():
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.cuda.caching_allocator_alloc(2 * CAPACITY)
    torch.ones(1024, device="cuda").add_(1)
    assert stat("out_of_memory_caught") == 0
