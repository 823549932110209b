"""Which copies to the host take their time while no operator runs."""

from __future__ import annotations

import random

import pytest

from planner import Block, Machine, Move, Planner, Result, Trace
from shapes import chain, lowest_limit, random_trace


def copies(trace: Trace, machine: Machine, result: Result) -> list[tuple[Move, float, float]]:
    """The copies' times, on a link that makes them in the order of their issue.

    Of those behind one operator, what is needed first is first. In the second of two iterations, so
    that the link has what the one before has left.
    """
    found, free = [], 0.0
    for lap in range(2):
        moves = [move for move in result.moves if move.copies]
        for move in sorted(
            moves, key=lambda move: (move.copy_after, move.last_use, move.needed_at)
        ):
            used = move.copy_after
            begin = max(free, result.starts[used] + trace.seconds[used] + lap * result.seconds)
            free = begin + machine.overhead + trace.blocks[move.block].bytes / machine.out_rate
            if lap == 1:
                found.append((move, begin, free))
    return found


def still(result: Result, begin: float, end: float) -> float:
    """Seconds in which no operator runs."""
    total = 0.0
    for lap in range(4):
        for start, stall in zip(result.starts, result.stalls, strict=True):
            last = start + lap * result.seconds
            total += max(0.0, min(end, last) - max(begin, last - stall))
    return total


def test_a_copy_for_whose_memory_an_operator_waits(planner: Planner) -> None:
    # The first block has 1 second to leave, and takes 8.
    blocks = [Block(40), Block(60, 2, 2)]
    trace = Trace([1.0, 1.0, 1.0, 20.0], [(0, 0, True), (2, 1, True)], blocks)
    result = planner.find_awaited(trace, Machine(60, 5.0, 5.0))
    assert result.stall_seconds == pytest.approx(7)
    assert [move.awaited for move in result.moves] == [True]


def test_a_copy_beside_operators(planner: Planner) -> None:
    blocks = [Block(40), Block(60, 2, 2)]
    trace = Trace([1.0, 5.0, 1.0, 20.0], [(0, 0, True), (2, 1, True)], blocks)
    result = planner.find_awaited(trace, Machine(60, 5.0, 5.0))
    assert result.stall_seconds == pytest.approx(3)  # less than half of 8
    assert [move.awaited for move in result.moves] == [False]


def test_nothing_is_awaited_if_all_is_hidden(planner: Planner) -> None:
    trace = chain([10] * 12, [1.0] * 12)
    result = planner.find_awaited(trace, Machine(70, 100.0, 100.0))
    assert result.moves
    assert not any(move.awaited for move in result.moves)


def test_nothing_is_awaited_if_everything_fits(planner: Planner) -> None:
    result = planner.find_awaited(chain([10] * 3, [1.0] * 3), Machine(70, 1.0, 1.0))
    assert (result.fits, result.moves) == (True, [])


def test_half_of_the_time(planner: Planner) -> None:
    """As computed here, for random programs."""
    found = {True: 0, False: 0}
    for seed in range(80):
        trace = random_trace(random.Random(seed), 12, 10)
        machine = Machine(lowest_limit(trace), 6.0, 6.0)
        result = planner.find_awaited(trace, machine)
        for move, begin, end in copies(trace, machine, result):
            part = still(result, begin, end) / (end - begin)
            if abs(part - 0.5) > 0.01:
                assert move.awaited == (part > 0.5), (seed, move, begin, end)
                found[move.awaited] += 1
        assert not any(move.awaited for move in result.moves if not move.copies)
    assert min(found.values()) > 20, found
