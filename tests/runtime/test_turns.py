"""Plans with places for programs of many sizes, in a model of time: each run is the same."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hardware import simulated
from releases import since
from simcuda.process import run_sim
from test_allocators import NAMES

pytestmark = [simulated, since((2, 1), "expandable segments")]

ITERATIONS = 26
LAST = 6  # iterations at the end; what LMS tries has been tried by then


def turns(device, sizes, weights, limit, iterations):
    """Iterations that allocate tensors of these sizes (MiB), and use them in the other order.

    The first tensors are used with weights, of the same sizes, that outlive the iterations. Returns
    whether LMS changes no result, and for each iteration how many requests failed at first, and how
    many storages were moved on the device and got their places.
    """
    import torch

    mib = 1 << 20
    stream = torch.cuda.current_stream().cuda_stream

    def full(size, value):
        return torch.full((int(size * mib) // 4,), float(value), device="cuda")

    def takes_a_millisecond(tensor):
        device.takes(stream, 0, 1e-3, 20e-6)
        return tensor

    def iteration(kept, number):
        held, sum_ = [], torch.zeros((), device="cuda")
        for k, size in enumerate(sizes):
            held.append(takes_a_millisecond(kept[k] * 2 if k in kept else full(size, k + number)))
        while held:
            tensor = held.pop()
            gradient = takes_a_millisecond(tensor * 2)
            if len(held) in kept:
                takes_a_millisecond(kept[len(held)].add_(gradient, alpha=1e-3))
            sum_ = takes_a_millisecond(sum_ + (gradient[-1] + tensor[0]))
            del tensor, gradient
        torch.cuda.lms.step()
        torch.cuda.lms._wait_for_plans()
        torch.cuda.synchronize()
        return float(sum_)

    def start():
        return {k: full(size, k) for k, size in enumerate(sizes[:weights])}

    def counts():
        lms = torch.cuda.lms.stats()
        native = torch.cuda.memory_stats()["num_alloc_retries"]
        return lms["out_of_memory_retries"] + native, lms["compacted_count"], lms["placed_count"]

    torch.cuda.set_limit_lms(int(limit * mib))
    torch.cuda.set_size_lms(4096)
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms.set_compression("off")
    torch.cuda.lms._keep_plans(True)
    kept, found, changes = start(), [], []
    for number in range(iterations):
        before = counts()
        found.append(iteration(kept, number))
        changes.append([b - a for a, b in zip(before, counts(), strict=True)])
    torch.cuda.set_enabled_lms(False)
    kept = start()
    expected = [iteration(kept, number) for number in range(iterations)]
    return found == expected, changes


def run(
    sizes: Sequence[float], weights: int, part: float, expandable: bool
) -> list[tuple[int, int, int]]:
    """``changes`` of turns(), with a limit of this part of the sizes, and 3 MiB."""
    environment = dict.fromkeys(NAMES, "expandable_segments:True") if expandable else {}
    limit = sum(sizes) * part + sum(sizes[:weights]) + 3
    same, changes = run_sim(
        turns,
        sizes,
        weights,
        limit,
        ITERATIONS,
        mib=2048,
        environment=environment,
        timing=1,
        to_host=4000,
        to_device=4000,
    )
    assert same
    return [tuple(change) for change in changes]


@pytest.mark.parametrize(
    ("seed", "expandable"), [*((seed, False) for seed in range(12)), (6, True), (10, True)]
)
def test_in_the_end_nothing_fails_and_nothing_moves(seed, expandable):
    choice = random.Random(seed)
    unit = 8 if expandable else 1  # such segments grow by 20 MiB
    count = choice.randint(8, 16)
    sizes = [unit * choice.choice((1.5, 2, 2.5, 3, 4, 5, 6)) for _ in range(count)]
    weights = 0 if seed < 6 else 2
    changes = run(sizes, weights, choice.choice((0.5, 0.6, 0.7)), expandable)
    assert [change[:2] for change in changes[-LAST:]] == [(0, 0)] * LAST


def test_places_if_blocks_have_to_be_moved():
    """Although no request fails."""
    changes = run((12, 12, 20, 48, 16, 40, 48, 40), 0, 0.6, expandable=True)
    failed, moved, placed = zip(*changes, strict=True)
    assert sum(failed) == 0
    assert moved[4] > 0
    assert sum(moved[-LAST:]) == 0
    assert min(placed[-LAST:]) >= 16


def test_no_places_if_nothing_fails_and_nothing_moves():
    """Except in the first iteration, for which there is no plan."""
    changes = run((2.5, 1.5, 5, 3, 3, 2, 1.5, 1.5, 1.5, 3, 4), 0, 0.6, expandable=False)
    failed, moved, placed = zip(*changes, strict=True)
    assert sum(failed[1:]) == sum(moved) == 0
    assert sum(placed) == 0
