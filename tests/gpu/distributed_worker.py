"""One of the processes that test_distributed.py launches: every case with LMS off, then on.

    torchrun --standalone --nproc-per-node 2 distributed_worker.py OUT

The first process leaves in OUT, as JSON, what is wrong with each case: nothing, if all is well.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

sys.path.append(str(Path(__file__).resolve().parent.parent / "runtime"))

from bits import assert_same_bits
from training import ROWS, WIDTH, network, train

MIB = 1 << 20


def sharded(reshard: bool) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = network()
    for block in model:
        fully_shard(block, reshard_after_forward=reshard)
    return fully_shard(model, reshard_after_forward=reshard)


def seed() -> int:
    """Each process has data of its own."""
    return dist.get_rank()


def local(results: Any) -> Any:
    losses, parameters = results
    return losses, [p.to_local() if hasattr(p, "to_local") else p for p in parameters]


def ddp(**options: Any) -> Any:
    model = nn.parallel.DistributedDataParallel(
        network(), device_ids=[torch.cuda.current_device()], **options
    )
    return train(model, seed=seed())


def fsdp2(reshard: bool) -> Any:
    return local(train(sharded(reshard), seed=seed()))


def all_reduce() -> Any:
    results = []
    tensors = [torch.full((WIDTH, WIDTH), float(i + seed())).cuda() for i in range(12)]
    for tensor in tensors:
        work = dist.all_reduce(tensor, async_op=True)
        results.append(torch.ones(WIDTH, WIDTH, device="cuda") * 3)  # makes others move
        work.wait()
        results.append(tensor * 2)
    return results


def all_gather() -> Any:
    """The inputs are read by operators, and their memory wanted, while they are gathered."""
    results = []
    tensors = [torch.full((ROWS, WIDTH), float(i + seed())).cuda() for i in range(8)]
    for tensor in tensors:
        gathered = torch.empty(dist.get_world_size() * ROWS, WIDTH, device="cuda")
        work = dist.all_gather_into_tensor(gathered, tensor, async_op=True)
        results.append(tensor.sum())
        torch.cuda.reclaim_inactive()
        results.append(torch.full_like(tensor, -1.0) * 2)
        work.wait()
        results.append(gathered * 2)
    return results


def reduce_scatter() -> Any:
    results = []
    for i in range(8):
        whole = torch.full((2 * ROWS, WIDTH), float(i + seed())).cuda() + 1
        part = torch.empty(2 * ROWS // dist.get_world_size(), WIDTH, device="cuda")
        dist.reduce_scatter_tensor(part, whole)
        results.append(part * 2)
    return [result + 1 for result in results]  # by then some were paged out


def functional() -> Any:
    from torch.distributed import _functional_collectives as collectives

    x = torch.full((ROWS, WIDTH), float(seed())).cuda()
    return [collectives.all_reduce(x * i, "sum", dist.group.WORLD) + 1 for i in range(8)]


CASES: dict[str, tuple[Callable[[], Any], int]] = {
    "ddp": (ddp, 80 * MIB),
    "ddp_bucket_views": (lambda: ddp(gradient_as_bucket_view=True), 80 * MIB),
    "ddp_static_graph": (lambda: ddp(static_graph=True), 80 * MIB),
    "fsdp2": (lambda: fsdp2(True), 48 * MIB),
    "fsdp2_no_reshard": (lambda: fsdp2(False), 64 * MIB),
    "all_reduce": (all_reduce, 24 * MIB),
    "all_gather": (all_gather, 48 * MIB),
    "reduce_scatter": (reduce_scatter, 48 * MIB),
    "functional": (functional, 32 * MIB),
}


def main() -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    wrong = {}
    for name, (run, limit) in CASES.items():
        try:
            assert_same_bits(run, limit=limit)
            text = ""
        except Exception:
            text = traceback.format_exc()
            print(f"{name}:\n{text}", file=sys.stderr, flush=True)
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, text)
        wrong[name] = "\n".join(filter(None, found))
        if dist.get_rank() == 0:
            Path(sys.argv[1]).write_text(json.dumps(wrong))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
