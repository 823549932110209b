"""Blocks whose transfers take less time than their bytes would."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from test_replay import check

from planner import NONE, Block, Machine, Move, Planner, Result, Trace
from shapes import chain, living, lowest_limit, random_trace, resnet, unet


def compressed(trace: Trace, share: float) -> Trace:
    blocks = [replace(block, share=share) for block in trace.blocks]
    return replace(trace, blocks=blocks)


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_a_share_is_a_faster_link(planner: Planner, share: float) -> None:
    trace = chain([10] * 12, [1.0] * 12)
    machine = Machine(70, 2.0, 2.0)
    faster = Machine(70, 2.0 / share, 2.0 / share)
    small = compressed(trace, share)
    expected = planner.replay(trace, faster, planner.plan(trace, machine).moves)
    assert planner.replay(small, machine, planner.plan(trace, machine).moves) == expected
    result = planner.plan(small, machine)
    check(small, machine, result)
    assert result.seconds == pytest.approx(planner.plan(trace, faster).seconds, rel=1e-3)
    assert planner.on_demand(small, machine) == planner.on_demand(trace, faster)


def test_only_what_shrinks_keeps_the_pace_of_kernels(planner: Planner) -> None:
    trace = chain([10] * 12, [1.0] * 12)
    machine = Machine(70, 2.0, 2.0, out_pace=0.5, in_pace=0.8)
    moves = planner.plan(trace, machine).moves
    plain = Machine(70, 2.0, 2.0)
    assert planner.replay(trace, machine, moves) == planner.replay(trace, plain, moves)
    small = compressed(trace, 0.4)
    same = Machine(70, 2.0 / 0.8, 2.0 / 0.5)
    assert planner.replay(small, machine, moves).seconds == pytest.approx(
        planner.replay(trace, same, moves).seconds
    )


def test_what_shrinks_leaves_first(planner: Planner) -> None:
    # Two blocks of one size, used at the same distances; one of them has to be away.
    blocks = [Block(10), Block(10), Block(10, 2, 2)]
    accesses = [(0, 0, True), (1, 1, True), (2, 2, True), (3, 0, False), (3, 1, False)]
    trace = Trace([1.0, 1.0, 1.0, 1.0], accesses, blocks)
    machine = Machine(20, 10.0, 10.0)
    for shrinks in (0, 1):
        blocks[shrinks], blocks[1 - shrinks] = Block(10, share=0.1), Block(10)
        result = planner.plan(trace, machine)
        assert {move.block for move in result.moves} == {shrinks}


def test_resnet_below_the_bound_of_copies(planner: Planner) -> None:
    trace = resnet()
    machine = Machine(int(0.5 * max(living(trace))), 55e9, 55e9)
    copied = planner.plan(trace, machine)
    result = planner.plan_with_compression(compressed(trace, 0.65), machine)
    assert result.compressed
    assert result.bound_seconds == pytest.approx(copied.bound_seconds)
    assert result.seconds < 0.8 * copied.bound_seconds


def test_nothing_is_compressed_while_copies_are_hidden(planner: Planner) -> None:
    trace = chain([10] * 12, [1.0] * 12)
    hidden = planner.plan_with_compression(compressed(trace, 0.5), Machine(70, 100.0, 100.0))
    assert hidden.moves
    assert not hidden.compressed
    slow = planner.plan_with_compression(compressed(trace, 0.5), Machine(70, 1.0, 1.0))
    assert slow.compressed
    assert slow.seconds < planner.plan(trace, Machine(70, 1.0, 1.0)).seconds


def test_what_is_not_known_yet_may_shrink(planner: Planner) -> None:
    trace = chain([10] * 12, [1.0] * 12)
    assert planner.plan_with_compression(trace, Machine(70, 1.0, 1.0)).compressed
    assert not planner.plan_with_compression(trace, Machine(70, 100.0, 100.0)).compressed


def plain(trace: Trace, result: Result) -> Trace:
    """With what the plan copies as it is."""
    blocks = list(trace.blocks)
    for move in result.moves:
        if not move.packs:
            blocks[move.block] = replace(blocks[move.block], share=1.0)
    return replace(trace, blocks=blocks)


def packed(trace: Trace, moves: Sequence[Move]) -> float:
    """Seconds that transfers of compressed blocks take on a link of 1 byte per second."""
    seconds = 0.0
    for move in moves:
        block = trace.blocks[move.block]
        if block.share < 1:
            ways = move.copies + (move.needed_at != NONE)
            seconds += ways * block.bytes * block.share
    return seconds


def slow_unet() -> Trace:
    trace = unet()
    return replace(trace, seconds=[3 * seconds for seconds in trace.seconds])


def test_what_need_not_be_compressed_is_copied(planner: Planner) -> None:
    trace = compressed(slow_unet(), 0.64)
    machine = Machine(int(0.4 * max(living(trace))), 55e9, 55e9)
    expected = planner.plan_with_compression(trace, machine)
    result = planner.copy_plainly(trace, machine)
    moves = [replace(move, packs=True) for move in result.moves]
    assert moves == expected.moves
    assert expected.seconds < planner.plan(slow_unet(), machine).seconds
    as_they_are = plain(trace, result)
    check(as_they_are, machine, result)
    before, after = packed(trace, moves), packed(as_they_are, moves)
    assert 0 < after < 0.6 * before
    # What they save is worth more than the time that they take.
    longer = result.seconds - expected.seconds
    assert longer < 0.15 * (before - after) / 55e9


def test_where_the_link_decides_all_is_compressed(planner: Planner) -> None:
    trace = compressed(resnet(), 0.64)
    machine = Machine(int(0.5 * max(living(trace))), 55e9, 55e9)
    result = planner.copy_plainly(trace, machine)
    assert result.moves
    assert all(move.packs for move in result.moves)
    assert result.seconds == planner.plan_with_compression(trace, machine).seconds


@pytest.mark.parametrize(("share", "packs"), [(0.4, True), (0.9, False)])
def test_a_link_that_is_just_fast_enough(planner: Planner, share: float, packs: bool) -> None:
    # A block has 4 seconds to leave and 4 to come back, and needs 4.12 as it is. If rates are a
    # little lower, it needs 4.43. Packed, it takes part of the operators' multiprocessors.
    blocks = [Block(40, share=share), Block(60, 2, 2)]
    trace = Trace([1.0, 4.0, 1.0, 4.0], [(0, 0, True), (2, 1, True)], blocks)
    result = planner.copy_plainly(trace, Machine(60, 9.7, 9.7))
    assert result.compressed
    assert [move.packs for move in result.moves] == [packs]


def test_random_plans_stay_valid(planner: Planner) -> None:
    found = set()
    for seed in range(60):
        generator = random.Random(seed)
        trace = random_trace(generator, 12, 10)
        shares = [generator.choice([0.3, 0.6, 0.9, 1.0]) for _ in trace.blocks]
        blocks = [replace(b, share=share) for b, share in zip(trace.blocks, shares, strict=True)]
        trace = replace(trace, blocks=blocks)
        machine = Machine(lowest_limit(trace), 6.0, 6.0)
        expected = planner.plan_with_compression(trace, machine)
        result = planner.copy_plainly(trace, machine)
        if not expected.moves or not expected.compressed:
            assert result == expected
            continue
        check(plain(trace, result), machine, result)
        for block, shape in enumerate(blocks):
            # A block goes one way in all of its moves.
            ways = {move.packs for move in result.moves if move.block == block}
            assert len(ways) <= 1
            if shape.share < 1:
                found |= ways
    assert found == {True, False}
