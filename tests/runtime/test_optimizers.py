"""Optimizers' steps: for-each and fused kernels, on parameters and state that are paged out."""

import pytest
import torch
from releases import since
from stress import assert_same_bits
from training import train

OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "Adam": (torch.optim.Adam, {"amsgrad": True}),
    "AdamW": (torch.optim.AdamW, {}),
}


FUSED = since((2, 3), "fused step of these optimizers")


@pytest.mark.parametrize("kernel", ["foreach", pytest.param("fused", marks=FUSED)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps(name, kernel):
    optimizer, options = OPTIMIZERS[name]
    assert_same_bits(lambda: train(lambda p: optimizer(p, **options, **{kernel: True})))


@pytest.mark.parametrize("fused", [False, pytest.param(True, marks=FUSED)])
def test_capturable_steps(fused):
    # The step count is a tensor on the device, too.
    options = {"fused": True} if fused else {}
    assert_same_bits(lambda: train(lambda p: torch.optim.AdamW(p, capturable=True, **options)))
