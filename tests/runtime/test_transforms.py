"""torch.func: its wrappers have no storage of their own, and their operators call others."""

import pytest
import torch
from stress import assert_same_bits
from training import WIDTH, inputs, network

func = pytest.importorskip("torch.func", reason="before 2.0 it is functorch, another package")


def vmap():
    return torch.vmap(lambda a, b: (a @ b).sin())(
        torch.stack([inputs(WIDTH)] * 4), torch.randn(4, WIDTH, WIDTH).cuda()
    )


def grad():
    return func.grad(lambda x: (x @ x).sin().sum())(inputs(WIDTH))


def jvp():
    return func.jvp(lambda x: (x @ x).sin(), (inputs(WIDTH),), (inputs(WIDTH),))


def forward_mode():
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        x = forward_ad.make_dual(inputs(WIDTH), inputs(WIDTH))
        return tuple(forward_ad.unpack_dual((x @ x).sin()))


def hessian():
    return func.hessian(lambda x: (x.sin() * x).sum())(inputs(1))


def per_sample_gradients():
    model = network()

    def loss(parameters, x):
        return func.functional_call(model, parameters, (x,)).square().sum()

    return torch.vmap(func.grad(loss), (None, 0))(dict(model.named_parameters()), inputs())


@pytest.mark.parametrize(
    "transform", [vmap, grad, jvp, forward_mode, hessian, per_sample_gradients]
)
def test_transform(transform):
    assert_same_bits(transform)
