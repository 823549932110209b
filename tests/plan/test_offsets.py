"""Offsets for what has memory at known times."""

from __future__ import annotations

import ctypes
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from planner import compile_planner


@dataclass(frozen=True)
class Span:
    bytes: int
    begin: int
    end: int

    def times(self, period: int) -> set[int]:
        return {time % period for time in range(self.begin, self.end)}


class Packer:
    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        for name in ("lms_load", "lms_offsets", "lms_heirs"):
            getattr(self._library, name).restype = ctypes.c_int64

    def load(self, spans: Sequence[Span], period: int) -> int:
        arguments = (len(spans), _numbers(spans), period)
        return int(self._library.lms_load(*map(_argument, arguments)))

    def offsets(self, spans: Sequence[Span], period: int, limit: int) -> list[int] | None:
        found = (ctypes.c_int64 * len(spans))()
        arguments = (len(spans), _numbers(spans), period, limit, found)
        return list(found) if self._library.lms_offsets(*map(_argument, arguments)) else None

    def heirs(
        self, spans: Sequence[Span], period: int, offsets: Sequence[int]
    ) -> list[tuple[int, int]]:
        count = len(spans)
        places = (ctypes.c_int64 * count)(*offsets)
        found = (ctypes.c_int64 * (2 * count * count))()
        arguments = (count, _numbers(spans), period, places, found)
        pairs = int(self._library.lms_heirs(*map(_argument, arguments)))
        return [(found[2 * k], found[2 * k + 1]) for k in range(pairs)]


def _numbers(spans: Sequence[Span]) -> ctypes.Array[ctypes.c_int64]:
    numbers = [number for span in spans for number in (span.bytes, span.begin, span.end)]
    return (ctypes.c_int64 * len(numbers))(*numbers)


def _argument(value: object) -> object:
    return ctypes.c_int64(value) if isinstance(value, int) else value


@pytest.fixture(scope="module")
def packer(tmp_path_factory: pytest.TempPathFactory) -> Packer:
    folder = tmp_path_factory.mktemp("offsets")
    return Packer(compile_planner(folder, "-O1", "-D_GLIBCXX_ASSERTIONS", source="offsets.cpp"))


def check(spans: Sequence[Span], period: int, limit: int, offsets: Sequence[int]) -> None:
    assert len(offsets) == len(spans)
    for span, offset in zip(spans, offsets, strict=True):
        assert 0 <= offset <= limit - span.bytes
    for (a, x), (b, y) in itertools.combinations(zip(spans, offsets, strict=True), 2):
        apart = x + a.bytes <= y or y + b.bytes <= x
        assert apart or not a.times(period) & b.times(period)


def most(spans: Sequence[Span], period: int) -> int:
    """Bytes that are needed at the same time, the plain way."""
    return max(sum(s.bytes for s in spans if t in s.times(period)) for t in range(period))


def program(seed: int, count: int, period: int) -> list[Span]:
    chance = random.Random(seed)
    spans = []
    for _ in range(count):
        begin = chance.randrange(period)
        spans.append(Span(chance.randint(1, 9), begin, begin + chance.randint(1, period // 2)))
    return spans


def test_the_load_is_what_is_needed_at_the_same_time(packer: Packer) -> None:
    for seed in range(100):
        spans = program(seed, 12, 20)
        assert packer.load(spans, 20) == most(spans, 20)


def test_what_is_not_needed_at_the_same_time_shares_memory(packer: Packer) -> None:
    assert packer.offsets([Span(5, 0, 2), Span(5, 2, 4)], 10, 5) == [0, 0]


def test_the_end_of_an_iteration_meets_the_beginning_of_the_next(packer: Packer) -> None:
    spans = [Span(5, 8, 12), Span(5, 1, 3)]
    assert packer.offsets(spans, 10, 9) is None
    check(spans, 10, 10, packer.offsets(spans, 10, 10))
    assert packer.offsets([Span(5, 8, 12), Span(5, 2, 8)], 10, 5) == [0, 0]


def test_what_is_needed_all_the_time_lies_at_the_bottom(packer: Packer) -> None:
    spans = [Span(9, 3, 5), Span(2, 4, 14), Span(3, 0, 10)]
    offsets = packer.offsets(spans, 10, 14)
    check(spans, 10, 14, offsets)
    assert offsets == [5, 0, 2]
    assert packer.offsets(spans, 10, 13) is None
    assert packer.offsets(spans[1:], 10, 4) is None


def test_the_largest_first_is_not_always_right(packer: Packer) -> None:
    """The best order has to be found: here, the largest one fits only above a smaller one."""
    found = 0
    for seed in range(200):
        spans = program(seed, 10, 12)
        limit = most(spans, 12)
        offsets = packer.offsets(spans, 12, limit)
        if offsets is not None:
            check(spans, 12, limit, offsets)
            found += offsets != _largest_first(spans, 12)
    assert found > 0


def _largest_first(spans: Sequence[Span], period: int) -> list[int]:
    offsets: dict[int, int] = {}
    for i in sorted(range(len(spans)), key=lambda i: (-spans[i].bytes, i)):
        taken = sorted(
            (offsets[j], offsets[j] + spans[j].bytes)
            for j in offsets
            if spans[i].times(period) & spans[j].times(period)
        )
        offset = 0
        for begin, end in taken:
            if begin - offset >= spans[i].bytes:
                break
            offset = max(offset, end)
        offsets[i] = offset
    return [offsets[i] for i in range(len(spans))]


def test_nearly_all_programs_fit_into_their_load(packer: Packer) -> None:
    fits = 0
    for seed in range(100):
        spans = program(seed, 60, 100)
        limit = most(spans, 100)
        offsets = packer.offsets(spans, 100, limit)
        if offsets is not None:
            check(spans, 100, limit, offsets)
            fits += 1
    assert fits >= 95


def test_large_programs_fit_into_little_more(packer: Packer) -> None:
    for seed in range(5):
        spans = program(seed, 300, 400)
        limit = most(spans, 400) * 102 // 100
        offsets = packer.offsets(spans, 400, limit)
        assert offsets is not None
        check(spans, 400, limit, offsets)


def test_each_call_finds_the_same_offsets(packer: Packer) -> None:
    spans = program(0, 60, 100)
    limit = most(spans, 100)
    assert packer.offsets(spans, 100, limit) == packer.offsets(spans, 100, limit)


def test_who_gets_whose_memory(packer: Packer) -> None:
    """Looked at byte by byte: who had it last before the time at which a span gets it."""
    for seed in range(20):
        spans = program(seed, 12, 20)
        limit = 2 * most(spans, 20)
        offsets = packer.offsets(spans, 20, limit)
        assert offsets is not None
        expected = set()
        for after, byte in itertools.product(range(len(spans)), range(limit)):
            had = [k for k, span in enumerate(spans) if 0 <= byte - offsets[k] < span.bytes]
            if after in had:
                since = {k: (spans[after].begin - spans[k].end) % 20 for k in had}
                expected.add((min(had, key=since.__getitem__), after))
        pairs = packer.heirs(spans, 20, offsets)
        assert set(pairs) == expected
        assert len(pairs) == len(expected)


def test_none_if_more_is_needed_at_the_same_time(packer: Packer) -> None:
    for seed in range(50):
        spans = program(seed, 20, 30)
        assert packer.offsets(spans, 30, most(spans, 30) - 1) is None


def test_nothing_needs_nothing(packer: Packer) -> None:
    assert packer.load([], 10) == 0
    assert packer.offsets([], 10, 0) is None
