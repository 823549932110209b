"""The fewest bytes that have to move, as a linear program: blocks may leave in part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from planner import Machine, Trace
from shapes import living


@dataclass(frozen=True)
class Gap:
    """Attributes: the operators without a use; whether one follows; the write before it."""

    bytes: int
    places: tuple[int, ...]
    returns: bool
    written: tuple[int, int] | None


@dataclass(frozen=True)
class Least:
    """Bytes: of each direction on its own, and of both together."""

    into: float
    out: float
    both: float


def gaps_of(trace: Trace) -> list[Gap]:
    """Not the planner's own, on purpose."""
    size = len(trace.seconds)
    gaps = []
    for i, block in enumerate(trace.blocks):
        uses: dict[int, bool] = {}
        if not block.persistent:
            uses[block.allocated] = True
        for place, used, writes in trace.accesses:
            if used == i:
                uses[place] = uses.get(place, False) or writes
        order = sorted(uses)
        writers = [place for place in order if uses[place]]
        if not order:
            gaps.append(Gap(block.bytes, tuple(range(size)), False, None))
        for n, begin in enumerate(order):
            before = [place for place in writers if place <= begin]
            written = (i, (before or writers)[-1]) if writers else None
            if n + 1 < len(order):
                end, returns = order[n + 1], True
            elif block.persistent:
                end, returns = order[0] + size, True
            else:
                end, returns = block.freed + 1, False
            places = tuple(place % size for place in range(begin + 1, end))
            if places:
                gaps.append(Gap(block.bytes, places, returns, written))
    return gaps


def least(trace: Trace, machine: Machine) -> Least:
    gaps = gaps_of(trace)
    copies = {
        written: n for n, written in enumerate(dict.fromkeys(g.written for g in gaps if g.written))
    }
    count = len(gaps) + len(copies)
    excess = np.array(living(trace), dtype=float) - machine.limit
    rows, columns, values = [], [], []
    limits = []
    for place in np.flatnonzero(excess > 0):
        limits.append(-excess[place])
    row_of = {place: n for n, place in enumerate(np.flatnonzero(excess > 0))}
    into, out = np.zeros(count), np.zeros(count)
    for n, gap in enumerate(gaps):
        for place in gap.places:
            if place in row_of:
                rows.append(row_of[place])
                columns.append(n)
                values.append(-float(gap.bytes))
        into[n] = gap.bytes if gap.returns else 0
        if gap.written:
            out[len(gaps) + copies[gap.written]] = gap.bytes
            # What is away was copied since its last write.
            rows += [len(limits)] * 2
            columns += [n, len(gaps) + copies[gap.written]]
            values += [1.0, -1.0]
            limits.append(0.0)
    matrix = coo_matrix((values, (rows, columns)), shape=(len(limits), count)).tocsr()

    def solve(cost: np.ndarray) -> float:
        answer = linprog(cost, A_ub=matrix, b_ub=limits, bounds=(0, 1), method="highs")
        assert answer.success, answer.message
        return float(answer.fun)

    return Least(solve(into), solve(out), solve(into + out))
