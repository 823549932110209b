"""TorchScript."""

import pytest
import torch
from stress import assert_same_bits
from training import inputs, network

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


def traced():
    return torch.jit.trace(network(), inputs())


def scripted():
    return torch.jit.script(network())


@pytest.mark.parametrize("make", [traced, scripted])
def test_script(make):
    def run():
        model, x = make(), inputs().requires_grad_()
        # The first calls are profiled, and the later ones optimized.
        outputs = [model(x) for _ in range(4)]
        outputs[-1].sum().backward()
        return outputs, x.grad

    assert_same_bits(run)


def test_no_fused_kernels():
    # They take their inputs' addresses before they allocate their outputs.
    assert not torch._C._jit_can_fuse_on_gpu()
