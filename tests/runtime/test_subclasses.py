"""Tensor subclasses and modes."""

import io
import warnings

import pytest
import torch
from releases import since
from stress import assert_same_bits
from tensors import evict, is_resident, managed, pattern
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from training import inputs, network


class Named(torch.Tensor):
    """Has memory of its own, and overrides functions."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs or {})


class Pair(torch.Tensor):
    """Wraps two tensors, and has no memory."""

    @staticmethod
    def __new__(cls, one, other):
        return torch.Tensor._make_wrapper_subclass(
            cls, one.shape, dtype=one.dtype, device=one.device
        )

    def __init__(self, one, other):
        self.one = one
        self.other = other

    def __tensor_flatten__(self):
        return ["one", "other"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Pair(inner["one"], inner["other"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        def on(name):
            def part(value):
                return getattr(value, name) if isinstance(value, Pair) else value

            return function(*tree_map(part, args), **tree_map(part, kwargs or {}))

        one, other = on("one"), on("other")
        return Pair(one, other) if isinstance(one, torch.Tensor) else one


def test_with_memory_of_its_own():
    def run():
        x = inputs().as_subclass(Named)
        y = (x @ x.t()).softmax(-1) @ x
        return y.as_subclass(torch.Tensor)

    assert_same_bits(run)


def test_wrapper():
    def run():
        pair = Pair(inputs(), inputs())
        result = (pair * 2 + pair).relu_()
        return result.one, result.other

    assert_same_bits(run)


class Plain(Pair):
    """Does not say what it wraps."""

    __tensor_flatten__ = property()  # so that hasattr() finds none


@since((2, 1), "rules for subclasses that wrap others")
@pytest.mark.parametrize("kind", [Pair, Plain])
def test_a_wrapper_is_saved(kind):
    """PyTorch knows one by its address, which is 0."""
    pair = kind(managed(pattern(1)), managed(pattern(1, start=1)))
    evict()
    file = io.BytesIO()
    torch.save(pair, file)
    file.seek(0)
    found = torch.load(file, weights_only=False)
    assert torch.equal(found.other.cpu(), pattern(1, start=1, device="cpu"))
    del found
    evict()
    assert not is_resident(pair.one)


@since((2, 1), "rules for subclasses that wrap others")
def test_a_tensor_that_cannot_be_read_keeps_no_other_from_being_shown():
    class Half(Pair):
        def __init__(self, one, other):
            """Its attributes are still missing."""

    x = managed(pattern(1))
    half = Half(x, x)
    torch.cuda.set_enabled_lms(False)
    torch.cuda.set_enabled_lms(True)
    torch.cuda.reclaim_inactive()
    assert not is_resident(x)
    del half


@since((2, 1), "rules for subclasses that wrap others")
@pytest.mark.parametrize("kind", [Pair, Plain])
def test_resident_holds_what_is_wrapped(kind):
    pair = kind(managed(pattern(1)), managed(pattern(1, start=1)))
    evict()
    assert not torch.cuda.lms.is_resident(pair)
    with torch.cuda.lms.resident(pair):
        evict()
        assert is_resident(pair.one)
        assert is_resident(pair.other)
    evict()
    assert not is_resident(pair.one)


def test_mode():
    class Nothing(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    def run():
        with Nothing():
            model, x = network(), inputs().requires_grad_()
            model(x).sum().backward()
        return x.grad

    assert_same_bits(run)


@since((2, 2), "the FakeTensors of these releases")
def test_a_fake_tensor_is_not_asked_for_its_address():
    """Which warns."""
    with FakeTensorMode():
        fake = torch.empty(1 << 20, device="cuda")
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.cuda.lms.exclude(fake)
    finally:
        torch.set_warn_always(always)
