"""One of the processes that distributed.py starts: each row with LMS off, then on.

    python distributed_worker.py OUT ROW ...

The first process leaves in OUT, as JSON, what came out of each row. It ends at the first row that
fails: then the processes may no longer agree on what they exchange.

BACKEND is what they talk over. With LMS_SIMULATED_MIB they have simulated GPUs of that size, and
small models.
With LMS_STRESS=1 everything idle is paged out at each allocation.
"""

from __future__ import annotations

import dataclasses
import datetime
import gc
import hashlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "runtime"), str(HERE.parent / "simcuda")]
SIMULATED_MIB = int(os.environ.get("LMS_SIMULATED_MIB", "0"))
if SIMULATED_MIB:
    import simcuda

    DEVICE = simcuda.start(devices=2, mib=SIMULATED_MIB)  # before torch is imported

import distributed  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from bits import assert_same_bits, deterministic, lms  # noqa: E402
from distributed_models import LARGE, SMALL, local, missing, training  # noqa: E402
from distributed_models import ROWS as MODEL_ROWS  # noqa: E402
from results import as_bytes  # noqa: E402
from torch import nn  # noqa: E402
from training import ROWS, WIDTH, network, train  # noqa: E402

MIB = 1 << 20
STRESS = os.environ.get("LMS_STRESS") == "1"
SHARE = 0.4
"""Of the memory that a model's training takes without LMS: what LMS gets."""
PATIENCE = datetime.timedelta(seconds=60)
"""For the other process, when a row has ended."""


@dataclasses.dataclass(kw_only=True)
class Outcome:
    wrong: str = ""  # what is, or nothing
    skipped: str = ""  # why
    summary: str = ""


def sharded(reshard: bool) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = network()
    for block in model:
        fully_shard(block, reshard_after_forward=reshard)
    return fully_shard(model, reshard_after_forward=reshard)


def seed() -> int:
    """Each process has data of its own."""
    return dist.get_rank()


def own_parts(results: Any) -> Any:
    losses, parameters = results
    return losses, [local(parameter) for parameter in parameters]


def ddp(**options: Any) -> Any:
    model = nn.parallel.DistributedDataParallel(
        network(), device_ids=[torch.cuda.current_device()], **options
    )
    return train(model, seed=seed())


def fsdp2(reshard: bool) -> Any:
    return own_parts(train(sharded(reshard), seed=seed()))


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


COLLECTIVES: dict[str, tuple[Callable[[], Any], int]] = {
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


def with_fixed_limit(name: str) -> Outcome:
    run, limit = COLLECTIVES[name]
    assert_same_bits(run, limit=limit)
    return Outcome(summary=f"limit {limit / 1e6:.0f} MB")


def digests(results: list[torch.Tensor]) -> list[str]:
    """One for each tensor; numbers as they are."""
    return [
        str(result.item()) if result.dim() == 0 else hashlib.sha256(piece[-1]).hexdigest()
        for result, piece in zip(results, as_bytes(results), strict=True)
    ]


def difference(found: list[str], expected: list[str]) -> str:
    """Where they differ, or nothing."""
    places = [i for i, pair in enumerate(zip(found, expected, strict=True)) if len({*pair}) == 2]
    if not places:
        return ""
    first = places[0]
    number = f"{len(places)} of {len(found)} losses, norms and parameters differ"
    return f"{number}: number {first} is {found[first]}, and {expected[first]} with LMS off"


def clear_races() -> list[str]:
    """What the simulated device has found so far."""
    if not SIMULATED_MIB:
        return []
    races = DEVICE.races()
    DEVICE.clear_races()
    return list(races)


def with_share_of_peak(name: str) -> Outcome:
    """The limit is a share of the peak with LMS off in this process."""
    if missing(MODEL_ROWS[name]):
        return Outcome(skipped=missing(MODEL_ROWS[name]))
    run = training(MODEL_ROWS[name], SMALL if SIMULATED_MIB else LARGE)

    def measured() -> tuple[list[str], int]:
        gc.collect()
        deterministic()
        # Otherwise new memory would be filled.
        torch.utils.deterministic.fill_uninitialized_memory = False
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        try:
            return digests(run()), torch.cuda.max_memory_allocated() - before
        finally:
            torch.use_deterministic_algorithms(False)

    expected, peak = measured()
    again, _ = measured()
    if difference(again, expected):
        return Outcome(skipped=f"not deterministic with LMS off: {difference(again, expected)}")
    limit = int(peak * SHARE)
    own_races = clear_races()
    with lms(limit, stress=STRESS):
        found, _ = measured()
        stats = torch.cuda.lms.stats()
        gc.collect()
    moved = stats["page_out_bytes"]
    summary = f"peak {peak / 1e6:.0f} MB, limit {limit / 1e6:.0f} MB, out {moved / 1e6:.0f} MB"
    if stats.get("release_caught"):
        summary += f", writes caught {stats['release_caught']}"
    wrong = difference(found, expected)
    races = clear_races()
    if own_races:
        summary += f", {len(own_races)} races with LMS off"
    elif races:
        wrong += "".join(f"\n{race}" for race in races[:3])
    if not stats["page_out_count"]:
        wrong = "nothing was moved: the limit is too high to show anything"
    return Outcome(wrong=wrong, summary=summary)


def run_row(name: str) -> Outcome:
    began = time.perf_counter()
    try:
        run = with_fixed_limit if name in COLLECTIVES else with_share_of_peak
        outcome = run(name)
    except Exception as error:
        print(f"{name}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        outcome = Outcome(wrong=f"{type(error).__name__}: {error}")
    gc.collect()
    torch.cuda.empty_cache()
    outcome.summary = f"{outcome.summary}; {time.perf_counter() - began:.1f} s".lstrip("; ")
    return outcome


def of_all(outcome: Outcome, group: Any) -> Outcome:
    """What came out of both processes."""
    found: list[Any] = [None] * dist.get_world_size()
    try:
        dist.all_gather_object(found, dataclasses.asdict(outcome), group=group)
    except RuntimeError as error:  # it failed, or is waiting for this one
        outcome.wrong += f"\nthe other process did not answer: {error}"
        return outcome
    joined = {name: [each[name] for each in found if each[name]] for name in ("wrong", "skipped")}
    return Outcome(
        wrong="\n".join(dict.fromkeys(joined["wrong"])),
        skipped="\n".join(dict.fromkeys(joined["skipped"])),
        summary=outcome.summary,
    )


def main() -> int:
    out, *names = sys.argv[1:]
    assert set(distributed.ROWS) == {*COLLECTIVES, *MODEL_ROWS}
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(os.environ["BACKEND"], timeout=2 * PATIENCE)
    group = dist.new_group(backend="gloo", timeout=PATIENCE)
    outcomes = {}
    for name in names:
        outcome = of_all(run_row(name), group)
        outcomes[name] = dataclasses.asdict(outcome)
        if dist.get_rank() == 0:
            beside = Path(out + ".new")
            beside.write_text(json.dumps(outcomes))
            beside.rename(out)
        if outcome.wrong:
            sys.stdout.flush()
            os._exit(1)  # no goodbye to a group that may be waiting
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
