r"""What an iteration's movements make of its memory: curves, transfers, absences."""

import bisect
import collections
import heapq

from .planner import DROP, IN, OUT

_PAGE = 4096  # bytes: buffers on the host are whole pages

Transfer = collections.namedtuple("Transfer", "kind block begin end")
Absence = collections.namedtuple("Absence", "block begin end offset")
Absence.__doc__ = """A block is not on the GPU.

Attributes:
    block (int): its index.
    begin, end (float): seconds from the iteration's beginning.
    offset (int): bytes below it, if all absences are drawn on top of each other without overlap.
"""


class History:
    r"""How an iteration goes that is repeated: what is under way at its end goes on at its
    beginning.

    Attributes:
        prediction (planner.Prediction): its totals.
        starts (list of planner.Start): of each operator.
        gpu (list of (float, int)): seconds, and GPU memory in use from then on, in bytes.
        host (list of (float, int)): the same of host memory, in whole pages. It is the least
            that is needed: LMS keeps copies for longer if there is room.
        host_peak_bytes (int): the most of it.
        transfers (list of Transfer): one that goes on past the end is two.
        absences (list of Absence): the same.
    """

    def __init__(self, timeline, name):
        self.prediction = getattr(timeline.totals, name)
        course = getattr(timeline, name)
        self.starts = course.starts
        self._seconds = self.prediction.seconds
        self._blocks = timeline.blocks
        self._ends = [s.seconds + op.seconds for s, op in zip(course.starts, timeline.operators)]
        of_block = collections.OrderedDict()
        for movement in course.movements:
            of_block.setdefault(movement.block, []).append(movement)

        self.gpu = [(start.seconds, start.used_bytes) for start in course.starts]
        self.transfers = [
            Transfer(movement.kind, movement.block, begin, end)
            for movement in course.movements
            if movement.kind != DROP
            for begin, end in self._pieces(movement.begin, movement.end)
        ]
        held = [
            (begin, end, -(-self._blocks[block].bytes // _PAGE) * _PAGE)
            for block, movements in of_block.items()
            for begin, end in self._held(block, movements)
        ]
        points = _sum(held)
        self.host = [point for point in points if point[0] < self._seconds] or points[:1]
        self.host_peak_bytes = max((count for _, count in self.host), default=0)
        absences = [
            (begin, end, block)
            for block, movements in of_block.items()
            for begin, end in self._absent(block, movements)
        ]
        self.absences = _stack(sorted(absences), self._blocks)

    def _pieces(self, begin, end):
        """An interval as parts of the iteration."""
        if end <= begin or self._seconds <= 0:
            return []
        if end - begin >= self._seconds:
            return [(0.0, self._seconds)]
        whole = begin // self._seconds * self._seconds
        begin, end = begin - whole, end - whole
        if end <= self._seconds:
            return [(begin, end)]
        return [(begin, self._seconds), (0.0, end - self._seconds)]

    def _after(self, block, movements, index):
        """What follows a movement, and the seconds to add to its times.

        For a block that lives across iterations, the next iteration follows.
        """
        for movement in movements[index + 1 :]:
            yield movement, 0.0
        if self._blocks[block].allocated < 0:
            for movement in movements[: index + 1]:
                yield movement, self._seconds

    def _last(self, block):
        """When a block is freed; never for one that lives across iterations."""
        freed = self._blocks[block].freed
        return self._ends[freed] if freed >= 0 else float("inf")

    def _absent(self, block, movements):
        for index, movement in enumerate(movements):
            if movement.kind == DROP:
                end = self._last(block)
                for later, seconds in self._after(block, movements, index):
                    if later.kind == IN:
                        end = later.begin + seconds
                        break
                yield from self._pieces(movement.begin, end)

    def _held(self, block, movements):
        """When the host has memory for a block: from a copy to the host until the last copy back
        from it."""
        copied = False
        for index, movement in enumerate(movements):
            if movement.kind == OUT:
                copied = True
                yield from self._pieces(movement.begin, self._released(block, movements, index))
        if not copied:
            # Nothing writes it, so the host has had its bytes since an earlier iteration.
            yield (0.0, self._seconds)

    def _released(self, block, movements, index):
        came_back = None
        for later, seconds in self._after(block, movements, index):
            if later.kind == OUT and came_back is not None:
                return came_back
            if later.kind == IN:
                came_back = later.end + seconds
            elif later.kind == DROP:
                came_back = None  # without a copy: the one that is there is still true
        return self._last(block) if came_back is None else came_back


def _sum(held):
    """A curve of bytes from (begin, end, bytes)."""
    changes = collections.defaultdict(int)
    changes[0.0] = 0
    for begin, end, count in held:
        changes[begin] += count
        changes[end] -= count
    curve, now = [], 0
    for at in sorted(changes):
        now += changes[at]
        curve.append((at, now))
    return curve


def _stack(absences, blocks):
    """Absences with offsets: each at the lowest place that is free for its time."""
    stacked, ending, free = [], [], _Free()
    for begin, end, block in absences:
        while ending and ending[0][0] <= begin:
            free.add(*heapq.heappop(ending)[1])
        count = blocks[block].bytes
        offset = free.take(count)
        heapq.heappush(ending, (end, (offset, offset + count)))
        stacked.append(Absence(block, begin, end, offset))
    return stacked


class _Free:
    """What is free of an endless range, as (low, high) in ascending order."""

    def __init__(self):
        self._gaps = [(0, float("inf"))]

    def take(self, count):
        """The lowest place with so many bytes, which is not free any more."""
        for index, (low, high) in enumerate(self._gaps):
            if high - low >= count:
                self._gaps[index : index + 1] = [(low + count, high)] if high > low + count else []
                return low
        raise AssertionError("the last gap has no end")

    def add(self, low, high):
        if low == high:
            return
        index = bisect.bisect(self._gaps, (low, high))
        if index < len(self._gaps) and self._gaps[index][0] == high:
            high = self._gaps.pop(index)[1]
        if index > 0 and self._gaps[index - 1][1] == low:
            index -= 1
            low = self._gaps.pop(index)[0]
        self._gaps.insert(index, (low, high))
