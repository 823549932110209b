"""Mixed precision: autocast's cache of casts, and GradScaler."""

import pytest
import torch
from releases import since
from stress import assert_same_bits
from torch import nn
from training import inputs, network

HALF = since((2, 1), "half precision on the CPU, which the simulated device needs")


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=HALF)])
@pytest.mark.parametrize("fused", [False, True])
def test_scaled_steps(dtype, fused):
    def run():
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), fused=fused)
        make = getattr(torch.amp, "GradScaler", None)  # before 2.3 in torch.cuda.amp
        options = {"init_scale": 4.0, "growth_interval": 2}
        scaler = make("cuda", **options) if make else torch.cuda.amp.GradScaler(**options)
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype):
                x = inputs()
                loss = (model(x) + model(x + 1)).square().mean()
            scaler.scale(loss).backward()
            if not fused:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        return loss, model.state_dict(), scaler.state_dict()

    assert_same_bits(run)
