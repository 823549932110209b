"""DistributedDataParallel and FSDP2, whose own code compares storages that may be paged out.

One process and Gloo: what a bucket of gradients goes through is the same. tests/gpu has NCCL, two
processes, and such rows with models that people train.
"""

import hardware
import pytest
import simcuda.process
from conftest import ON_HARDWARE
from releases import since


def training(device, row):
    """What is wrong with a row: results that differ, nothing moved, races."""
    import contextlib

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    width, half = 64, torch.bfloat16

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))

        def forward(self, x):
            if "reentrant" not in row:
                return self.body(x)
            return checkpoint(self.body, x, use_reentrant=row["reentrant"])

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            # Its buffers are broadcast. The simulated one does not mix precisions.
            self.norm = nn.Identity() if row.get("low_precision") else nn.BatchNorm1d(width)
            self.layers = nn.ModuleList([Layer() for _ in range(4)])
            if row.get("tied"):
                self.layers[3].body[0].weight = self.layers[0].body[0].weight
            if row.get("branches"):
                self.never = nn.Linear(width, width)
                self.sometimes = nn.Linear(width, width)

        def forward(self, x, step):
            x = self.norm(x)
            for layer in self.layers:
                x = layer(x)
            return x + self.sometimes(x) if row.get("branches") and step % 2 else x

    def ddp(model):
        options = dict(row.get("options", {}))
        if row.get("low_precision"):
            from torch.distributed.fsdp import MixedPrecision

            options["mixed_precision"] = MixedPrecision(param_dtype=half, reduce_dtype=half)
        return nn.parallel.DistributedDataParallel(model, device_ids=[0], **options)

    def fsdp2(model):
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy()
        if row.get("low_precision"):
            policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)
        for layer in model.layers:
            fully_shard(layer, mp_policy=policy)
        return fully_shard(model, mp_policy=policy)

    def local(tensor):
        return (tensor.to_local() if hasattr(tensor, "to_local") else tensor).detach().cpu()

    def train(started=lambda: None):
        torch.manual_seed(0)
        model = (fsdp2 if row.get("sharded") else ddp)(Network().cuda())
        started()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **row.get("optimizer", {}))
        numbers = []
        for step in range(3):
            optimizer.zero_grad(set_to_none=not row.get("zeroed"))
            parts = row.get("parts", 1)
            for part in range(parts):
                x = torch.randn(16, width).cuda()
                last = part == parts - 1
                with contextlib.nullcontext() if last else model.no_sync():
                    with torch.autocast("cuda", half, enabled=row.get("autocast", False)):
                        loss = model(x, step).float().square().mean()
                    loss.backward()
                numbers.append(loss)
            if "clipped" in row:
                parameters = list(model.parameters())
                numbers.append(nn.utils.clip_grad_norm_(parameters, 0.01, **row["clipped"]))
            optimizer.step()
        return [local(result) for result in (*numbers, *model.parameters())]

    def same(results):
        return all(map(torch.equal, expected, results))

    def enable():
        torch.cuda.set_enabled_lms(True)
        torch.cuda.lms._set_stress(True)

    torch.cuda.set_size_lms(1 << 10)
    device.clear_races()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        expected, again = train(), train()
        moved = torch.cuda.lms.stats()["page_out_count"]
        if row.get("late"):
            found = train(enable)
        else:
            enable()
            found = train()
        moved = torch.cuda.lms.stats()["page_out_count"] - moved
        wrong = device.races()
        torch.cuda.lms._set_stress(False)
        torch.cuda.set_enabled_lms(False)
        # With LMS off, two runs may also have agreed by luck.
        stable = same(again) and (same(found) or all(same(train()) for _ in range(5)))
    finally:
        torch.cuda.lms._set_stress(False)
        torch.cuda.set_enabled_lms(False)
        dist.destroy_process_group()
    if not stable:
        wrong.append("LMS off gives other bits each time")
    elif not same(found):
        wrong.append("LMS gives other bits")
    if not moved:
        wrong.append("nothing was moved")
    return wrong


ROWS = {
    "ddp": {},
    "lms_after_ddp": {"late": True},
    "bucket_views": {"options": {"gradient_as_bucket_view": True}},
    "static_graph": {"options": {"static_graph": True}},
    "small_buckets": {"options": {"bucket_cap_mb": 0.01}},
    "unused": {"branches": True, "options": {"find_unused_parameters": True}},
    "tied": {"tied": True},
    "no_sync": {"parts": 3},
    "no_sync_bucket_views": {"parts": 3, "options": {"gradient_as_bucket_view": True}},
    "autocast": {"autocast": True},
    "clipped": {"clipped": {"foreach": False}},
    "clipped_foreach": {"clipped": {}, "options": {"gradient_as_bucket_view": True}},
    "zeroed": {"zeroed": True},
    "zeroed_bucket_views": {"zeroed": True, "options": {"gradient_as_bucket_view": True}},
    "checkpoint": {"reentrant": False},
    "checkpoint_reentrant": {"reentrant": True, "options": {"static_graph": True}},
    "foreach_false": {"optimizer": {"foreach": False}},
    "all": {
        "autocast": True,
        "branches": True,
        "clipped": {"foreach": False},
        "optimizer": {"foreach": False},
        "options": {"find_unused_parameters": True, "gradient_as_bucket_view": True},
        "parts": 2,
        "reentrant": False,
        "tied": True,
        "zeroed": True,
    },
}
# DDP casts gradients on a stream of its own and drops them before the main stream has waited for
# it (mixed_precision_hooks.py). With one bucket the main stream allocates nothing until it has, and
# a page-in must wait, too. No row has small buckets: there PyTorch's own backward pass writes what
# is still being cast, with LMS off as well.
LOW_PRECISION = {
    "low_precision": {"low_precision": True},
    "low_precision_bucket_views": {
        "low_precision": True,
        "options": {"gradient_as_bucket_view": True},
    },
}
SHARDED = {
    "fsdp2": {},
    "foreach_false": {"optimizer": {"foreach": False}},
    "low_precision": {"low_precision": True},
    "checkpoint": {"reentrant": False},
    "checkpoint_reentrant": {"reentrant": True},
    "low_precision_checkpoint": {"low_precision": True, "reentrant": False},
    "clipped": {"clipped": {"foreach": False}},
    "autocast": {"autocast": True},
}


def with_marks(rows):
    newer = since((2, 0), "way to choose how gradients are clipped")
    return [
        pytest.param(row, id=name, marks=[newer] if "foreach" in row.get("clipped", {}) else [])
        for name, row in rows.items()
    ]


@pytest.fixture(scope="module")
def session():
    if ON_HARDWARE:
        pytest.skip(hardware.REASON)
    with simcuda.process.Session(mib=64) as session:
        yield session


@pytest.mark.parametrize("row", with_marks(ROWS))
def test_ddp(row, session):
    assert session.run(training, row) == []


@since((2, 1), "mixed precision in DDP")
@pytest.mark.parametrize("row", LOW_PRECISION.values(), ids=LOW_PRECISION)
def test_low_precision(row, session):
    wrong = session.run(training, row)
    unstable = "LMS off gives other bits each time"
    if wrong == [unstable]:  # seen with 2.15: its hooks run in Gloo's thread, too
        pytest.skip(f"{unstable}: there is nothing to compare with")
    assert wrong == []


@since((2, 6), "fully_shard()")
@pytest.mark.parametrize("row", SHARDED.values(), ids=SHARDED)
def test_fsdp2(row, session):
    assert session.run(training, {**row, "sharded": True}) == []
