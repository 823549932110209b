"""torch.cuda.lms.wrap(): what it brings, and what it refuses."""

import dataclasses
import functools
import types

import pytest
import torch
from releases import since
from tensors import evict, is_resident, managed, pattern


@dataclasses.dataclass
class Inputs:
    x: torch.Tensor


class Slots:
    """As a dataclass with slots, which Python has since 3.10."""

    __slots__ = ("other", "x")
    __dataclass_fields__ = types.MappingProxyType({"x": None, "other": None, "missing": None})


class Native(torch.nn.Module):
    def __init__(self, x):
        super().__init__()
        self.weight = torch.nn.Parameter(x)

    def native(self):
        return is_resident(self.weight)


def test_what_wrap_brings():
    x = managed(pattern(1))
    inputs = Inputs(torch.empty(0))
    inputs.later = x
    slots = Slots()
    slots.x, slots.other = x, slots  # it contains itself
    for function, arguments in (
        (lambda given: is_resident(x), ([x],)),
        (lambda given: is_resident(x), ({"x": {1, x}},)),
        (lambda given: is_resident(x), (Inputs(x),)),
        (lambda given: is_resident(x), (slots,)),
        (lambda given: is_resident(x), (inputs,)),
        (functools.partial(is_resident, x), ()),
        (functools.partial(is_resident, tensor=x), ()),
        (Native(x).native, ()),
    ):
        evict()
        assert not is_resident(x)
        assert torch.cuda.lms.wrap(function)(*arguments)
    slots.other = None


def test_what_cannot_be_wrapped():
    def generator(x):
        yield x

    async def coroutine(x):
        return x

    for target in (generator, coroutine, functools.partial(generator, 1), Inputs, 3):
        with pytest.raises(TypeError, match="no generator or coroutine"):
            torch.cuda.lms.wrap(target)


@since((2, 0), "vjp")
def test_a_wrapped_function_with_another_name_for_backward():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return 2 * x

        @staticmethod
        def vjp(ctx, gradient):
            (x,) = ctx.saved_tensors
            assert is_resident(x)
            return 2 * gradient

    function = torch.cuda.lms.wrap(Double)
    x = managed(pattern(1)).requires_grad_()
    y = function.apply(x)
    evict()
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), torch.full_like(x.cpu(), 2.0))
