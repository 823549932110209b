"""Plans whose blocks have places."""

from __future__ import annotations

import ctypes
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from planner import FOLLOW, compile_planner

MIB = 1 << 20
OPERATOR, ALLOCATED, KNOWN, READ, WRITTEN, FREED, STEP, MARK = range(8)  # as in record/trace.h


@dataclass(frozen=True)
class Planned:
    places: int  # bytes
    bytes_out: int
    stay: int  # operators, of all blocks, between the last use and the drop


class Library:
    def __init__(self, library: Path) -> None:
        self._plan = ctypes.CDLL(str(library)).lms_plan_with_places
        self._plan.restype = ctypes.c_int64

    def plan(self, events: list[tuple[int, int, int]], limit: int, *, places: bool) -> Planned:
        numbers = [number for event in events for number in event]
        found = (ctypes.c_int64 * 2)()
        had = self._plan(
            ctypes.c_int64(len(events)),
            (ctypes.c_int64 * len(numbers))(*numbers),
            ctypes.c_int64(limit),
            ctypes.c_double(50e9),
            ctypes.c_bool(places),
            found,
        )
        assert had >= 0
        return Planned(had, found[0], found[1])


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder = tmp_path_factory.mktemp("planning")
    return Library(compile_planner(folder, "-O1", source="planning.cpp", others=FOLLOW))


def program(seed: int, layers: int) -> list[tuple[int, int, int]]:
    """Layers that write faster than the link copies, and whose tensors are needed again."""
    chance = random.Random(seed)
    sizes = [chance.choice((1, 1, 2, 2, 3, 4)) * 25 * MIB for _ in range(layers)]
    events = [(MARK, 0, 0)]
    for k, size in enumerate(sizes, 1):
        events += [(OPERATOR, 0, 0), (ALLOCATED, k, size), (WRITTEN, k, 0)]
        events += [(READ, k - 1, 0)] if k > 1 else []
    for k in range(layers, 0, -1):
        gradient = layers + k
        events += [(OPERATOR, 0, 0), (ALLOCATED, gradient, sizes[k - 1])]
        events += [(WRITTEN, gradient, 0), (READ, k, 0), (FREED, k, 0), (FREED, gradient, 0)]
    return [*events, (MARK, 0, 2 * layers * 200_000), (STEP, 0, 0)]


def test_plans_with_places_copy_no_more(library: Library) -> None:
    """Blocks give up their memory earlier, if there are no other places within the limit."""
    earlier = 0
    for seed in range(6):
        events = program(seed, 40)
        limit = 1000 * MIB
        plain = library.plan(events, limit, places=False)
        placed = library.plan(events, limit, places=True)
        assert plain.places == 0
        assert 0 < placed.places <= limit + limit // 200
        assert placed.bytes_out == plain.bytes_out > 0
        earlier += placed.stay < plain.stay
    assert 0 < earlier < 6  # some need no other places
