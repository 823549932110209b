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


def turns(device, sizes, weights, period, limit, iterations):
    """Whether LMS changes no result, races, and changes of the counts in each iteration.

    The counts are those of simcuda.turns.
    """
    import torch
    from simcuda.turns import Turns, counts, turn_on

    turn_on(limit)
    program, found, changes = Turns(device, sizes, weights, period), [], []
    for number in range(iterations):
        before = counts()
        found.append(program.run(number))
        changes.append([b - a for a, b in zip(before, counts(), strict=True)])
    planned = torch.cuda.lms.stats()["planned_iterations"]
    torch.cuda.set_enabled_lms(False)
    # What an iteration returns does not depend on the sizes.
    small = Turns(device, [1e-3] * len(sizes), weights, period)
    same = found == [small.run(number) for number in range(iterations)]
    return same, device.races(), planned, changes


def run(
    sizes: Sequence[float],
    weights: int,
    limit: float,
    *,
    expandable: bool,
    iterations: int = ITERATIONS,
    period: int = 0,
) -> list[list[int]]:
    """The changes that turns() returns, with a limit in MiB."""
    environment = dict.fromkeys(NAMES, "expandable_segments:True") if expandable else {}
    same, races, planned, changes = run_sim(
        turns,
        sizes,
        weights,
        period,
        limit,
        iterations,
        mib=2048,
        environment=environment,
        timing=1,
        to_host=4000,
        to_device=4000,
    )
    assert same
    assert races == []
    assert planned > 0
    return changes


@pytest.mark.parametrize(
    ("seed", "expandable"), [*((seed, False) for seed in range(12)), (6, True), (10, True)]
)
def test_in_the_end_nothing_fails_and_nothing_moves(seed, expandable):
    choice = random.Random(seed)
    unit = 8 if expandable else 1  # such segments grow by 20 MiB
    count = choice.randint(8, 16)
    sizes = [unit * choice.choice((1.5, 2, 2.5, 3, 4, 5, 6)) for _ in range(count)]
    weights = 0 if seed < 6 else 2
    limit = sum(sizes) * choice.choice((0.5, 0.6, 0.7)) + sum(sizes[:weights]) + 3
    changes = run(sizes, weights, limit, expandable=expandable)
    assert [change[:2] for change in changes[-LAST:]] == [[0, 0]] * LAST


def test_places_if_blocks_have_to_be_moved():
    """Although no request fails."""
    changes = run((12, 12, 20, 48, 16, 40, 48, 40), 0, 144, expandable=True)
    failed, moved, placed = zip(*changes, strict=True)
    assert sum(failed) == 0
    assert moved[4] > 0
    assert sum(moved[-LAST:]) == 0
    assert min(placed[-LAST:]) >= 16


def test_no_places_if_nothing_fails_and_nothing_moves():
    """A block takes all of a segment, so that free memory is never in pieces."""
    changes = run((10,) * 4, 0, 34, expandable=False)
    assert changes == [[0, 0, 0]] * ITERATIONS


def test_places_leave_a_page_for_small_blocks():
    """Otherwise the native allocator returns all that is free, which has places."""
    sizes = (24, 16, 40, 12, 20, 32, 16)
    limit = 203  # MiB, ten pages of 20 and something
    changes = run(sizes, len(sizes), limit, expandable=True, iterations=32, period=8)
    failed, _, placed = zip(*changes, strict=True)
    assert sum(failed[-16:]) == 0
    assert min(placed[-16:]) >= 2 * len(sizes)


def larger_part(device, sizes, limit, iterations):
    """Whether LMS changes no result, how many plans it makes, and what has places in the end.

    The driver has no memory when plans with places use a larger part of the limit, for the first
    time.
    """
    import torch
    from simcuda.turns import Turns, counts, turn_on

    def plans():
        return torch.cuda.lms.stats()["plans"]

    turn_on(limit)
    program, found = Turns(device, sizes), []
    while len(found) < iterations - 4:
        if plans() == 2:
            device.fault("cudaMalloc", 1, from_=True)
        found.append(program.run(len(found)))
        device.clear_faults()
    placed = counts()[2]
    found += [program.run(number) for number in range(iterations - 4, iterations)]
    torch.cuda.set_enabled_lms(False)
    program = Turns(device, sizes)
    same = found == [program.run(number) for number in range(iterations)]
    return same, plans(), counts()[2] - placed


def test_places_of_a_larger_part_that_cannot_be_had():
    """The plan before it is made again and kept, and nothing that was found out is forgotten."""
    sizes = (1.5, 1.5, 2.5, 6, 2, 5, 6, 5)
    same, plans, placed = run_sim(
        larger_part, sizes, 20.7, 40, mib=512, timing=1, to_host=4000, to_device=4000
    )
    assert same
    assert plans == 4
    assert placed >= 4 * 2 * len(sizes)
