"""Traces with something special about them."""

from __future__ import annotations

import math
import random

import pytest
from test_replay import check

from planner import NONE, Block, Machine, Planner, Trace
from shapes import Recorder, chain, living, unet


def test_everything_fits(planner: Planner) -> None:
    trace = chain([10] * 5, [1.0] * 5)
    result = planner.plan(trace, Machine(max(living(trace))))
    assert result.fits
    assert result.moves == []
    assert result.problem == ""
    assert (result.seconds, result.stall_seconds) == (sum(trace.seconds), 0)
    assert result.bound_seconds == result.seconds
    assert result.peak_bytes == max(living(trace))


def test_an_operator_that_alone_exceeds_the_limit(planner: Planner) -> None:
    trace = Trace([1.0, 1.0], [(0, 0, True), (1, 0, False), (1, 1, False)], [Block(60), Block(50)])
    result = planner.plan(trace, Machine(100))
    assert (result.infeasible, result.infeasible_bytes) == (1, 110)
    assert result.problem == "operator 1 (op1) alone needs 110 bytes, and the limit is 100"
    assert result.moves == []


def test_unmanaged_bytes_count(planner: Planner) -> None:
    trace = Trace([1.0], [(0, 0, True)], [Block(60)], unmanaged=50)
    assert planner.plan(trace, Machine(100)).infeasible_bytes == 110


def test_an_empty_trace(planner: Planner) -> None:
    result = planner.plan(Trace([], [], []), Machine(0))
    assert result.fits
    assert result.seconds == 0


def test_a_block_of_no_bytes_stays(planner: Planner) -> None:
    blocks = [Block(0), Block(10), Block(10, 1, 1)]
    trace = Trace([1.0] * 3, [(0, 0, True), (0, 1, True), (1, 2, True), (2, 0, False)], blocks)
    result = planner.plan(trace, Machine(10, 10.0, 10.0))
    assert {move.block for move in result.moves} == {1}


def test_a_persistent_block_that_is_used_once(planner: Planner) -> None:
    trace = Trace([1.0] * 4, [(0, 0, True), (2, 1, True)], [Block(10), Block(10, 2, 2)])
    machine = Machine(10, 10.0, 10.0)
    result = planner.plan(trace, machine)
    check(trace, machine, result)
    (move,) = result.moves
    assert (move.block, move.copy_after, move.needed_at, move.copies) == (0, 0, 4, True)
    # The copy takes operator 1, the fetch operator 3.
    assert result.seconds == 4


def test_a_copy_starts_when_the_block_was_written_last(planner: Planner) -> None:
    """What reads it takes as long as the copy."""
    blocks = [Block(40), Block(60, 2, 2)]
    trace = Trace([1.0, 8.0, 1.0, 20.0], [(0, 0, True), (1, 0, False), (2, 1, True)], blocks)
    result = planner.plan(trace, Machine(60, 5.0, 5.0))
    (move,) = result.moves
    assert (move.copy_after, move.last_use, move.drop_before) == (0, 1, 2)
    assert result.stall_seconds == 0


def test_copies_are_in_the_order_of_last_uses(planner: Planner) -> None:
    """What is needed longest was written first, and is copied last."""
    blocks = [Block(40, 0, 6), Block(40, 1, 6), Block(60, 4, 4)]
    accesses = [(0, 0, True), (1, 1, True), (2, 1, False), (3, 0, False), (4, 2, True)]
    accesses += [(6, 0, False), (6, 1, False)]
    trace = Trace([1.0, 1.0, 8.0, 8.0, 1.0, 20.0, 1.0], accesses, blocks)
    result = planner.plan(trace, Machine(80, 5.0, 5.0))
    moves = [(move.block, move.copy_after, move.last_use) for move in result.moves]
    assert moves == [(1, 1, 2), (0, 1, 3)]
    assert result.stall_seconds == 0


def test_what_was_written_in_the_iteration_before_is_copied_first(planner: Planner) -> None:
    blocks = [Block(40), Block(60, 2, 2)]
    accesses = [(1, 0, False), (2, 1, True), (3, 0, True)]
    trace = Trace([8.0, 1.0, 1.0, 8.0], accesses, blocks)
    result = planner.plan(trace, Machine(60, 5.0, 5.0))
    (move,) = result.moves
    assert (move.copy_after, move.last_use, move.copies) == (0, 1, True)


def test_a_temporary_block_that_is_used_once_and_kept_needs_no_fetch(planner: Planner) -> None:
    trace = Trace([1.0] * 4, [(0, 0, True), (2, 1, True)], [Block(10, 0, 3), Block(10, 2, 2)])
    result = planner.plan(trace, Machine(10, 10.0, 10.0))
    (move,) = result.moves
    assert (move.block, move.fetch_before, move.needed_at) == (0, NONE, NONE)
    assert (result.bytes_out, result.bytes_in, result.seconds) == (10, 0, 4.0)


def test_a_block_that_nothing_uses_leaves_for_nothing(planner: Planner) -> None:
    trace = Trace([1.0] * 2, [(0, 1, True)], [Block(10), Block(10)])
    result = planner.plan(trace, Machine(10))
    (move,) = result.moves
    assert (move.block, move.copy_after, move.copies) == (0, NONE, False)
    assert (result.bytes_moved, result.seconds) == (0, 2.0)


def test_blocks_that_nothing_uses_leave_before_others(planner: Planner) -> None:
    trace = chain([3e8] * 24, [4e-3] * 24, parameters=[1e8] * 24, states=2, kept=4)
    used = max(living(trace))
    draw = random.Random(0)
    sizes = (110_000_000, 130_000_000, 90_000_000, 300_000_000)
    trace.blocks += [Block(draw.choice(sizes)) for _ in range(24)]
    for more in (10_000_000, 100_000_000, 250_000_000, 500_000_000):
        result = planner.plan(trace, Machine(used + more, 25e9, 25e9, 1e-5))
        assert (result.bytes_out, result.bytes_in) == (0, 0), more


def test_what_is_only_read_is_never_copied_out(planner: Planner) -> None:
    """Inference with parameters that do not fit."""
    recorder = Recorder()
    weights = [recorder.persistent(10) for _ in range(20)]
    for weight in weights:
        recorder.run(1.0, [weight])
    trace = recorder.finish()
    machine = Machine(100, 10.0, 10.0)
    result = planner.plan(trace, machine)
    check(trace, machine, result)
    assert result.bytes_out == 0
    # Of 200 bytes half stays, and a fetch needs room beside what is used.
    assert 100 <= result.bytes_in <= 120
    assert result.stall_seconds == 0
    # Least recently used first would fetch every block.
    assert planner.on_demand(trace, machine).bytes_in == 200


def test_a_second_page_out_of_what_was_only_read_needs_no_copy(planner: Planner) -> None:
    accesses = [(0, 0, True), (2, 1, True), (4, 0, False), (6, 2, True)]
    blocks = [Block(10), Block(10, 2, 2), Block(10, 6, 6)]
    result = planner.plan(Trace([1.0] * 8, accesses, blocks), Machine(10, 10.0, 10.0))
    assert [(move.copy_after, move.copies) for move in result.moves] == [(0, True), (4, False)]
    assert (result.bytes_out, result.bytes_in) == (10, 20)


def test_generation_with_growing_caches(planner: Planner) -> None:
    """Each token makes a block for each layer, and reads all of the layer's blocks before."""
    recorder = Recorder()
    layers, tokens = 6, 12
    caches: list[list[int]] = [[] for _ in range(layers)]
    for _ in range(tokens):
        for cache in caches:
            block = recorder.new(10)
            recorder.run(1.0, cache, [block])
            cache.append(block)
    trace = recorder.finish()
    machine = Machine(max(living(trace)) // 2, 40.0, 40.0)
    result = planner.plan(trace, machine)
    check(trace, machine, result)
    # Written once: whatever leaves again has a true copy.
    assert result.bytes_out <= layers * tokens * 10
    assert result.seconds <= planner.on_demand(trace, machine).seconds


@pytest.mark.parametrize(("out_rate", "in_rate"), [(1000.0, 10.0), (10.0, 1000.0)])
def test_unequal_directions(planner: Planner, out_rate: float, in_rate: float) -> None:
    trace = chain([10] * 30, [0.1] * 30)
    machine = Machine(150, out_rate, in_rate)
    result = planner.plan(trace, machine)
    check(trace, machine, result)
    assert result.seconds <= 1.06 * result.bound_seconds
    slow = machine.limit and result.excess_bytes / min(out_rate, in_rate)
    assert result.seconds > slow


@pytest.mark.parametrize("part", [0.9, 0.8, 0.7, 0.6, 0.5, 0.45, 0.4])
def test_few_large_blocks(planner: Planner, part: float) -> None:
    """Which of them leave is a matter of time, not of bytes alone."""
    trace = unet()
    machine = Machine(int(part * max(living(trace))), 52e9, 55e9, 1e-5)
    result = planner.plan(trace, machine)
    assert not result.problem
    report = f"{part} of the peak: time {result.seconds / result.bound_seconds:.4f} of the bound"
    print(report)
    assert result.seconds <= 1.035 * result.bound_seconds, report


def test_an_infinite_link(planner: Planner) -> None:
    trace = chain([10] * 30, [0.1] * 30)
    machine = Machine(100, math.inf, math.inf)
    result = planner.plan(trace, machine)
    check(trace, machine, result)
    assert result.seconds == pytest.approx(sum(trace.seconds))
    assert result.bound_seconds == pytest.approx(result.seconds)


def test_operators_that_take_no_time(planner: Planner) -> None:
    trace = chain([10] * 30, [0.0] * 30)
    machine = Machine(100, 10.0, 20.0)
    result = planner.plan(trace, machine)
    check(trace, machine, result)
    assert result.seconds <= 1.06 * result.bound_seconds


@pytest.mark.parametrize(
    ("trace", "machine", "problem"),
    [
        (Trace([1.0], [(0, 3, True)], [Block(1)]), Machine(1), "a block that is not there"),
        (Trace([math.nan], [], []), Machine(1), "no valid duration"),
        (Trace([1.0], [], [Block(-5)]), Machine(1), "a negative size"),
        (Trace([1.0], [], [Block(5, 0, 1)]), Machine(1), "not freed after its allocation"),
        (Trace([1.0] * 2, [(1, 0, True)], [Block(5, 0, 0)]), Machine(1), "outside of its life"),
        (Trace([1.0], [], [], unmanaged=-1), Machine(1), "unmanaged bytes are negative"),
        (Trace([1.0], [], []), Machine(-1), "limit is negative"),
        (Trace([1.0], [], []), Machine(1, out_rate=0.0), "rate is not positive"),
        (Trace([1.0], [], []), Machine(1, in_rate=math.nan), "rate is not positive"),
        (Trace([1.0], [], []), Machine(1, overhead=-1.0), "overhead of a transfer"),
    ],
)
def test_what_is_no_trace(planner: Planner, trace: Trace, machine: Machine, problem: str) -> None:
    assert problem in planner.plan(trace, machine).problem
