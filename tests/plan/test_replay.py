"""Played plans keep what they must, and bad plans are refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from planner import NONE, Block, Machine, Move, Planner, Result, Trace
from shapes import chain, living, lowest_limit, random_trace


def check(trace: Trace, machine: Machine, result: Result) -> None:
    """What must hold of a plan, looked at operator by operator, without the planner's code."""
    size = len(trace.seconds)
    assert result.peak_bytes <= machine.limit
    assert max(result.curve) <= result.peak_bytes
    away: list[set[int]] = [set() for _ in range(size)]
    for move in result.moves:
        if move.copy_after == NONE:
            begin, end = 0, size
        else:
            block = trace.blocks[move.block]
            begin = move.drop_before
            last = block.freed + 1 if not block.persistent else size
            end = move.fetch_before if move.needed_at != NONE else last
            assert move.copy_after <= move.last_use < move.drop_before
        if move.needed_at != NONE:
            assert move.drop_before <= move.fetch_before <= move.needed_at
        for place in range(begin, end):
            away[place % size].add(move.block)
    used: list[set[int]] = [set() for _ in range(size)]
    for place, block_index, _ in trace.accesses:
        used[place].add(block_index)
    for place in range(size):
        assert not used[place] & away[place]
        there = sum(
            b.bytes
            for i, b in enumerate(trace.blocks)
            if (b.persistent or b.allocated <= place <= b.freed) and i not in away[place]
        )
        assert there + trace.unmanaged <= machine.limit, place
    assert result.seconds == pytest.approx(sum(trace.seconds) + result.stall_seconds)
    assert sum(result.stalls) == pytest.approx(result.stall_seconds)
    assert all(
        (stall > 0) == (c != "none") for stall, c in zip(result.stalls, result.causes, strict=True)
    )
    returns = [move for move in result.moves if move.needed_at != NONE]
    assert result.bytes_in == sum(trace.blocks[move.block].bytes for move in returns)
    copied = [move for move in result.moves if move.copies]
    assert result.bytes_out == sum(trace.blocks[move.block].bytes for move in copied)


@pytest.mark.parametrize("seed", range(10))
def test_random_plans_keep_the_limit(planner: Planner, seed: int) -> None:
    generator = random.Random(seed)
    planned = 0
    for _ in range(60):
        trace = random_trace(generator, generator.randint(1, 30), generator.randint(1, 30))
        low, high = lowest_limit(trace), max(living(trace))
        if low >= high:
            continue
        rates = [generator.choice([1.0, 5.0, 20.0, float("inf")]) for _ in range(2)]
        machine = Machine(generator.randint(low, high - 1), *rates, generator.choice([0.0, 0.1]))
        result = planner.plan(trace, machine)
        assert result.problem == ""
        check(trace, machine, result)
        again = planner.replay(trace, machine, result.moves)
        assert again.fault == "none", again.problem
        assert again.seconds == pytest.approx(result.seconds, rel=1e-6)
        assert result.seconds >= result.bound_seconds * (1 - 1e-9)
        planned += 1
    assert planned > 20


def test_the_same_trace_has_the_same_plan(planner: Planner) -> None:
    trace = chain([100] * 20, [1.0] * 20, parameters=[30] * 20, states=2)
    machine = Machine(2500, 50.0, 60.0)
    assert planner.plan(trace, machine) == planner.plan(trace, machine)


# One block that an operator writes and a later one reads, and another that is in the way.
TRACE = Trace(
    seconds=[1.0] * 6,
    accesses=[(0, 0, True), (1, 0, False), (3, 1, True), (5, 0, False)],
    blocks=[Block(10), Block(10, 3, 3)],
)
MACHINE = Machine(10, 10.0, 10.0)
GOOD = Move(block=0, copy_after=1, copies=True, drop_before=3, fetch_before=4, needed_at=5)


def test_a_good_plan(planner: Planner) -> None:
    result = planner.replay(TRACE, MACHINE, [GOOD])
    assert result.fault == "none"
    assert (result.seconds, result.bytes_out, result.bytes_in) == (6.0, 10, 10)
    assert result.peak_bytes == 10


def test_a_copy_starts_before_the_last_use(planner: Planner) -> None:
    """It takes 2 seconds, in which the block is read."""
    machine = Machine(10, 5.0, 10.0)
    trace = replace(TRACE, seconds=[1.0, 2.0, 1.0, 1.0, 1.0, 1.0])
    late = planner.replay(trace, machine, [GOOD])
    early = planner.replay(trace, machine, [replace(GOOD, copy_after=0)])
    assert (late.fault, early.fault) == ("none", "none")
    assert (late.seconds, early.seconds) == (8.0, 7.0)
    assert early.peak_bytes == 10


def test_a_write_after_an_early_copy(planner: Planner) -> None:
    trace = replace(TRACE, accesses=[(0, 0, True), (1, 0, True), (3, 1, True), (5, 0, False)])
    result = planner.replay(trace, MACHINE, [replace(GOOD, copy_after=0)])
    assert result.fault == "untrue", result.problem


# The copy of block 0 ends at 11 s. Then block 1 is fetched.
COPY_AND_FETCH = Trace([1.0] * 4, [(3, 1, False)], [Block(10, 0, 3), Block(4), Block(4, 1, 1)])
ITS_MOVES = [
    Move(0, copy_after=0, copies=True, drop_before=1, fetch_before=NONE, needed_at=NONE),
    Move(1, copy_after=3, copies=False, drop_before=4, fetch_before=5, needed_at=7),
]


def test_memory_that_a_fetch_waits_for_is_not_there_earlier_for_others(planner: Planner) -> None:
    # The fetch of block 1 needs a part of block 0's memory, and block 2 another part.
    result = planner.replay(COPY_AND_FETCH, Machine(10, 1.0, 100.0), ITS_MOVES)
    assert result.fault == "none"
    assert result.starts == [0.0, 11.0, 12.0, 13.0]
    assert result.causes == ["none", "memory", "none", "none"]


def test_who_gets_memory_that_is_not_free_waits_although_other_memory_is(planner: Planner) -> None:
    machine = Machine(100, 1.0, 100.0)  # there is always room for two more
    assert planner.replay(COPY_AND_FETCH, machine, ITS_MOVES).starts == [0.0, 1.0, 2.0, 3.0]
    allocated = planner.replay(COPY_AND_FETCH, machine, ITS_MOVES, handovers=[(0, NONE, 1)])
    assert allocated.fault == "none"
    assert allocated.starts == [0.0, 11.0, 12.0, 13.0]
    fetched = planner.replay(COPY_AND_FETCH, machine, ITS_MOVES, handovers=[(0, 1, NONE)])
    assert fetched.fault == "none"
    assert fetched.starts == pytest.approx([0.0, 1.0, 2.0, 11.04])


def test_drops_come_earlier(planner: Planner) -> None:
    trace = Trace([1.0] * 10, [(0, 0, True), (9, 0, False)], [Block(4)])
    move = Move(0, copy_after=0, copies=True, drop_before=7, fetch_before=8, needed_at=9)
    for earlier, drop in {0.0: 7, 0.25: 6, 0.5: 4, 1.0: 1}.items():
        result = planner.replay(trace, Machine(100, 1.0, 1.0), [move], earlier=earlier)
        assert result.fault == "none"
        assert result.moves == [replace(move, drop_before=drop)]


MUTANTS: dict[str, tuple[Callable[[Move], list[Move]], str]] = {
    "nothing leaves": (lambda good: [], "limit"),
    "dropped before its last use": (
        lambda good: [replace(good, copy_after=0, drop_before=1)],
        "absent",
    ),
    "dropped before its copy": (lambda good: [replace(good, drop_before=1)], "untrue"),
    "dropped too late": (lambda good: [replace(good, drop_before=4)], "limit"),
    "not fetched": (lambda good: [replace(good, fetch_before=NONE, needed_at=NONE)], "absent"),
    "fetched after its use": (lambda good: [replace(good, fetch_before=6)], "malformed"),
    "fetched too early": (lambda good: [replace(good, fetch_before=3)], "limit"),
    "fetched before it leaves": (lambda good: [replace(good, fetch_before=2)], "malformed"),
    "fetched twice": (lambda good: [good, replace(good, copies=False)], "absent"),
    "dropped without a copy": (lambda good: [replace(good, copies=False)], "untrue"),
    "written after the copy": (
        lambda good: [
            replace(good, copy_after=5, last_use=5, drop_before=9, fetch_before=10, needed_at=11)
        ],
        "untrue",
    ),
    "copied after it may be gone": (lambda good: [replace(good, copy_after=2)], "malformed"),
    "of no block": (lambda good: [replace(good, block=7)], "malformed"),
    "of an operator that is not there": (lambda good: [replace(good, copy_after=6)], "malformed"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_bad_plan_is_refused(planner: Planner, mutant: str) -> None:
    change, fault = MUTANTS[mutant]
    result = planner.replay(TRACE, MACHINE, change(GOOD))
    assert result.fault == fault, result.problem
    assert result.problem


@pytest.mark.parametrize("seed", range(5))
def test_mutants_of_planned_moves_are_refused(planner: Planner, seed: int) -> None:
    """Each move of a plan is needed, and each copy."""
    generator = random.Random(seed)
    refused = {"limit": 0, "untrue": 0, "absent": 0}
    for _ in range(20):
        trace = random_trace(generator, 15, 10)
        low, high = lowest_limit(trace), max(living(trace))
        if low >= high:
            continue
        machine = Machine((low + high) // 2, 5.0, 5.0)
        moves = planner.plan(trace, machine).moves
        for k, move in enumerate(moves):
            others = moves[:k] + moves[k + 1 :]
            if move.copies:
                bad = planner.replay(trace, machine, [*others, replace(move, copies=False)])
                assert bad.fault == "untrue"
                refused["untrue"] += 1
            if move.needed_at != NONE:
                gone = replace(move, fetch_before=NONE, needed_at=NONE)
                # The limit, where what it leaves was there when the first iteration began.
                bad = planner.replay(trace, machine, [*others, gone])
                assert bad.fault in ("absent", "limit")
                refused[bad.fault] += 1
        assert planner.replay(trace, machine, []).fault == "limit"
        refused["limit"] += 1
    assert all(count > 5 for count in refused.values())
