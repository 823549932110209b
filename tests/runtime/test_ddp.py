"""DistributedDataParallel, whose reducer compares storages that may be paged out.

One process and Gloo: what a bucket of gradients goes through is the same. tests/gpu has NCCL.
"""

import pytest
from simcuda.process import run_sim


def training(device, when, options):
    """Whether the losses are the same with LMS on, whether anything moved, and the races."""
    import torch
    import torch.distributed as dist
    from torch import nn

    def train(started=lambda: None):
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)]
        model = nn.parallel.DistributedDataParallel(
            nn.Sequential(*layers).cuda(), device_ids=[0], **options
        )
        started()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            loss = model(torch.randn(16, 64).cuda()).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
        return losses

    def enable():
        torch.cuda.set_enabled_lms(True)
        torch.cuda.lms._set_stress(True)

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.cuda.set_size_lms(1 << 10)
    expected = train()
    if when == "before":
        enable()
        found = train()
    else:
        found = train(enable)
    return found == expected, torch.cuda.lms.stats()["page_out_count"] > 0, device.races()


@pytest.mark.parametrize(
    ("when", "options"),
    [
        ("before", {}),
        ("after", {}),
        ("before", {"gradient_as_bucket_view": True}),
        ("before", {"static_graph": True}),
    ],
    ids=str,
)
def test_training(when, options):
    """LMS is turned on before or after the model is wrapped."""
    assert run_sim(training, when, options, mib=64) == [True, True, []]
