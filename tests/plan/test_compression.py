"""Blocks whose transfers take less time than their bytes would."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_replay import check

from planner import Block, Machine, Planner, Trace
from shapes import chain, living, resnet


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
