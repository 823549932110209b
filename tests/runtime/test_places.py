"""Plans that say where on the device each block has its memory."""

from __future__ import annotations

import gc
from functools import cache

import pytest
import torch
from conftest import MIB, ON_HARDWARE, start_within
from hardware import simulated
from layers import Layers
from releases import since
from simcuda.turns import retries
from tensors import evict, floats, stat

# How fast packed blocks move varies on the simulated device, and with it the plans: not each of
# them has places.
pytestmark = [
    since((2, 1), "hooks of all optimizers"),
    pytest.mark.usefixtures("kept_plans", "uncompressed"),
]

LIMIT = 26 * MIB
SIZES = (3, 2, 5, 1.5, 2.5, 4, 2)  # MiB; that no two are the same keeps free memory in pieces
PLACED = 30  # iterations after which plans have places, and all blocks are in theirs


@pytest.fixture
def expected() -> list[torch.Tensor]:
    """The results without LMS. Plans are forgotten, and the statistics are 0 after it."""
    torch.cuda.set_enabled_lms(False)
    gc.collect()
    torch.cuda.empty_cache()
    found = without_lms()
    start_within(LIMIT)
    return found


@cache
def without_lms() -> list[torch.Tensor]:
    return run(Layers(SIZES), range(2 * PLACED))


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    """Whether all bits are: there may be numbers that are not equal to themselves."""
    pairs = zip(found, expected, strict=True)
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs)


def run(program: Layers, numbers: range) -> list[torch.Tensor]:
    found = []
    for k in numbers:
        found.append(program.run(k).cpu())
        torch.cuda.lms._wait_for_plans()
    return found


@simulated  # on a GPU, no request of this program need fail
def test_each_block_gets_its_place(expected):
    program = Layers(SIZES)
    found = run(program, range(PLACED))
    counts = torch.cuda.lms.stats()
    failed = retries()
    found += run(program, range(PLACED, 2 * PLACED - 4))
    last = torch.cuda.lms.stats()
    found += run(program, range(2 * PLACED - 4, 2 * PLACED))
    now = torch.cuda.lms.stats()
    assert same(found, expected)
    assert now["plan_departures"] == 0
    # All that comes back, and what a layer allocates: two tensors in each pass.
    back = now["page_in_count"] - last["page_in_count"]
    assert now["placed_count"] - last["placed_count"] == 4 * 4 * len(SIZES) + back
    assert now["planned_iterations"] - counts["planned_iterations"] == PLACED
    # Nothing has to be moved to make free memory whole, and no request fails.
    assert now["compacted_count"] == counts["compacted_count"]
    assert retries() == failed
    assert torch.cuda.max_memory_reserved() <= LIMIT


def test_places_whose_memory_was_given_back_are_made_again(expected):
    program = Layers(SIZES)
    found = run(program, range(PLACED))
    evict()
    torch.cuda.empty_cache()
    found += run(program, range(PLACED, PLACED + 4))
    placed = stat("placed_count")
    found += run(program, range(PLACED + 4, 2 * PLACED))
    assert same(found, expected)
    assert stat("placed_count") - placed >= (PLACED - 4) * len(SIZES)


def test_places_that_are_lost_again_and_again_are_given_up(expected):
    """The plan before them is taken back, and what was known of it counts again."""
    program = Layers(SIZES)
    found, plans = run(program, range(PLACED)), []
    for k in range(PLACED, 2 * PLACED - 4):
        before = stat("plans")
        evict()
        torch.cuda.empty_cache()
        found += run(program, range(k, k + 1))
        plans.append(stat("plans") - before)
    placed = stat("placed_count")
    found += run(program, range(2 * PLACED - 4, 2 * PLACED))
    assert same(found, expected)
    assert stat("placed_count") == placed
    # They are lost for the fifth time in the sixth iteration.
    assert ON_HARDWARE or plans[:8] == [0] * 8


def test_places_for_which_there_is_no_memory_become_smaller(expected):
    """The native allocator keeps memory for small blocks apart, of which a plan knows nothing."""
    with torch.cuda.stream(torch.cuda.Stream()):
        small = torch.zeros(1, device="cuda")
    start_within(LIMIT + 2 * MIB)
    program = Layers(SIZES)
    found = run(program, range(16))
    placed = stat("placed_count")
    found += run(program, range(16, 20))
    # At once, not only when plans use so much less of the limit that they happen to fit. On a GPU,
    # no request of this program need fail, and without failures there are no places.
    assert ON_HARDWARE or stat("placed_count") - placed >= 4 * len(SIZES)
    found += run(program, range(20, PLACED))
    placed = stat("placed_count")
    found += run(program, range(PLACED, 2 * PLACED))
    assert same(found, expected)
    assert ON_HARDWARE or stat("placed_count") - placed >= PLACED * len(SIZES)
    assert small.item() == 0


@simulated
def test_places_are_compared_once_more_in_the_way_that_is_kept():
    """When plans have begun to compress, which is another way than the one places were tried in."""

    def ended(lms: bool) -> tuple[list[torch.Tensor], list[tuple[int, int, int]]]:
        program = Layers(SIZES, activation=torch.relu)
        found, counts = [], []
        for k in range(36):
            before = torch.cuda.lms.stats() if lms else {}
            found.append(program.run(k).cpu())
            if lms:
                torch.cuda.lms._wait_for_plans()
                after = torch.cuda.lms.stats()
                names = ("placed_count", "compressed_count", "plans")
                counts.append(tuple(after[name] - before[name] for name in names))
        return found, counts

    torch.cuda.set_enabled_lms(False)
    without, _ = ended(lms=False)
    start_within(LIMIT)
    torch.cuda.lms.set_compression("auto")
    torch.cuda.lms._keep_plans(True, 2)  # compressed copies; which are fastest here is chance
    found, counts = ended(lms=True)
    torch.cuda.lms._keep_plans(False)
    assert same(found, without)
    placed = [count > 0 for count, _, _ in counts]
    first = placed.index(True)
    doubted = first + placed[first:].index(False)
    again = doubted + placed[doubted:].index(True)
    assert not any(count for _, count, _ in counts[:first])
    # Of those before, one copies if the planner finds that to count on compression is of no use.
    assert sum(count > 0 for _, count, _ in counts[first:doubted]) > 5
    assert all(count for _, count, _ in counts[doubted - 1 : again + 2])
    assert again - doubted > 3  # the first one is not timed
    # The plan before places is taken back, and then the one that had them.
    assert [plans for _, _, plans in counts[doubted - 1 : again]] == [0] * (again - doubted + 1)
    assert all(placed[again:])


def test_a_departure_from_a_plan_with_places(expected):
    other = torch.zeros(floats(1.5), device="cuda")
    program = Layers(SIZES)
    found = run(program, range(PLACED))
    for k in range(PLACED, 2 * PLACED):
        if k % 5 == 0:
            torch.sin(other)  # nothing of the plan
        found += run(program, range(k, k + 1))
    assert same(found, expected)
    assert stat("plan_departures") > 0
