"""What happens in a simulated iteration: the movements have to explain the totals."""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from lmsbuild.simulate.planner import Machine, Planner
from lmsbuild.simulate.trace import read_trace
from tests.toolkit.simulate.traces import MB, Recording, training

LIMITS = [200 * MB, 75 * MB, 60 * MB, 40 * MB]
COURSES = ["planned", "on_demand"]


def timeline(compiled: Planner, recording: Recording, folder: Path, limit: int) -> Any:
    trace = read_trace(recording.write(folder / "trace.json"))
    machine = Machine(limit=limit, out_rate=2e9, in_rate=1e9, overhead=0)
    found = compiled.timeline(trace, machine)
    return found


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("name", COURSES)
def test_the_totals_follow(name: str, limit: int, compiled: Planner, tmp_path: Path) -> None:
    found = timeline(compiled, training(), tmp_path, limit)
    course, totals = getattr(found, name), getattr(found.totals, name)
    assert len(found.operators) == len(course.starts) == found.totals.operators == 24
    assert len(found.blocks) == found.totals.blocks
    moved: dict[str, int] = defaultdict(int)
    for movement in course.movements:
        moved[movement.kind] += found.blocks[movement.block].bytes
    assert (moved["out"], moved["in"]) == (totals.bytes_out, totals.bytes_in)
    assert found.totals.fits == (limit == LIMITS[0])
    assert bool(course.movements) != found.totals.fits
    stalls = [start.stall_seconds for start in course.starts]
    assert sum(stalls) == pytest.approx(totals.stall_seconds)
    assert [bool(start.cause) for start in course.starts] == [stall > 0 for stall in stalls]
    assert max(op.living_bytes for op in found.operators) == found.totals.peak_bytes
    end = 0.0
    for start, op in zip(course.starts, found.operators, strict=True):
        assert start.seconds == pytest.approx(end + start.stall_seconds)
        end = start.seconds + op.seconds
    assert end == pytest.approx(totals.seconds)


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("name", COURSES)
def test_what_is_used_is_there(name: str, limit: int, compiled: Planner, tmp_path: Path) -> None:
    found = timeline(compiled, training(), tmp_path, limit)
    course, size = getattr(found, name), found.totals.operators
    last = {m.block: m.kind for m in course.movements if m.kind != "out"}
    # A block whose last movement gave its memory up begins the next iteration on the host.
    away = {block for block, kind in last.items() if kind == "drop"}
    away -= {block for block in away if found.blocks[block].freed >= 0}
    used = defaultdict(set)
    for access in found.accesses:
        used[access.place].add(access.block)
    movements = defaultdict(list)
    for movement in course.movements:
        movements[movement.place].append(movement)
    for place in range(size):
        for movement in movements[place]:
            if movement.kind == "in":
                assert movement.block in away
                away.remove(movement.block)
                assert movement.end - movement.begin == pytest.approx(
                    found.blocks[movement.block].bytes / 1e9
                )
            elif movement.kind == "drop":
                assert movement.block not in away
                away.add(movement.block)
                assert movement.begin == movement.end
            else:
                assert movement.end - movement.begin == pytest.approx(
                    found.blocks[movement.block].bytes / 2e9
                )
        assert not used[place] & away
        assert course.starts[place].used_bytes <= limit


@pytest.mark.parametrize("name", COURSES)
def test_blocks_that_nobody_uses_leave_first(name: str, compiled: Planner, tmp_path: Path) -> None:
    recording = Recording()
    recording.block("known", 100 * MB)
    for _ in range(3):
        recording.operator("op", recording.block("allocated", MB))
        recording.free(recording.blocks)
        recording.step()
    found = timeline(compiled, recording, tmp_path, 50 * MB)
    (movement,) = getattr(found, name).movements
    assert (movement.kind, found.blocks[movement.block].bytes) == ("drop", 100 * MB)
    assert getattr(found.totals, name).bytes_out == 0


def test_links_work_on_one_transfer_at_a_time(compiled: Planner, tmp_path: Path) -> None:
    found = timeline(compiled, training(), tmp_path, 40 * MB)
    for name in COURSES:
        for kind in ("out", "in"):
            transfers = [m for m in getattr(found, name).movements if m.kind == kind]
            assert len(transfers) > 1
            for before, after in itertools.pairwise(transfers):
                assert after.begin >= before.end - 1e-12
