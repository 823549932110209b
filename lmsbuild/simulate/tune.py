"""What fits: the largest value of a parameter, and the smallest GPU memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lmsbuild import console
from lmsbuild.errors import ProgramError, TraceError
from lmsbuild.simulate import lms_report
from lmsbuild.simulate.link import Link
from lmsbuild.simulate.planner import Machine, Planner, Simulation
from lmsbuild.simulate.trace import Trace

# Says how far a search is: what is tried now, how many tries are done, and how many are left.
Report = Callable[[str, int, int], None]

_EVERYTHING = 1 << 62  # bytes: with so much memory, everything fits
_PRECISION = 1000  # the smallest memory is found to one part in so many
_BEYOND = (0.05, 0.02, 0.01, 0.0)  # parts of what was found that are tried beyond it, 0: the next


def _say_nothing(text: str, done: int, left: int) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What an iteration has to fit.

    Attributes:
        link: between GPU and host.
        host_memory: bytes that LMS may pin; None if there is enough.
        slowdown: an iteration may take so many times as long as with everything on the GPU; None
            for any time.
    """

    link: Link
    host_memory: int | None = None
    slowdown: float | None = None

    @property
    def depend_on_the_plan(self) -> bool:
        """Whether a plan has to be good. One for a little less memory can be the better one."""
        return self.host_memory is not None or self.slowdown is not None


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """An iteration with an amount of GPU memory.

    Attributes:
        peak_bytes: GPU memory that it needs with everything on the GPU; None if the program failed.
        simulation: None if it does not fit with LMS.
        problem: why it does not fit, or nothing.
    """

    peak_bytes: int | None
    simulation: Simulation | None
    problem: str

    @property
    def fits_without_lms(self) -> bool:
        """Whether LMS is not necessary."""
        return self.simulation is not None and self.simulation.fits


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The largest values of a parameter that fit.

    Attributes:
        with_lms: the largest one.
        without_lms: the largest one with which LMS is not necessary; None if there is none.
        tried: all values that were tried, and what came of them.
    """

    with_lms: int
    without_lms: int | None
    tried: dict[int, Attempt]


def attempt(compiled: Planner, trace: Trace, gpu_memory: int, conditions: Conditions) -> Attempt:
    """Whether an iteration fits in so many bytes of GPU memory, as PyTorch reserves them.

    Raises:
        TraceError: the trace has no complete iteration.
    """
    peak = compiled.simulate(trace, _machine(_EVERYTHING, conditions.link)).peak_bytes
    try:
        found = compiled.simulate(
            trace, _machine(gpu_memory, conditions.link), conditions.host_memory
        )
    except TraceError as error:
        problem = str(error).removeprefix("does not fit: ")  # whoever shows it says so, too
        return Attempt(peak_bytes=peak, simulation=None, problem=problem)
    factor = found.planned.seconds / found.compute_seconds if found.compute_seconds else 1.0
    if not found.fits and conditions.slowdown is not None and factor > conditions.slowdown:
        problem = f"it would take {factor:.2f} times as long as with everything on the GPU"
        return Attempt(peak_bytes=peak, simulation=None, problem=problem)
    return Attempt(peak_bytes=peak, simulation=found, problem="")


def largest_value(
    compiled: Planner,
    record: Callable[[int], Trace],
    gpu_memory: int,
    conditions: Conditions,
    values: range,
    report: Report = _say_nothing,
) -> Tuned:
    """The largest value of a parameter with which an iteration fits.

    A larger value is taken to need more. Values are doubled until one does not fit, and the ones in
    between are bisected. A program that fails with another value than the first is taken to be too
    large. Times and host memory need not grow with the value, so some values up to
    5 % above are tried, too.

    Args:
        compiled: the planner.
        record: makes a trace for a value.
        gpu_memory: bytes that PyTorch may reserve.
        conditions: what the iteration has to fit besides.
        values: that may be tried, in ascending order.
        report: says how far the search is.

    Raises:
        ProgramError: the program fails with the smallest value, not even that fits, or all do.
        TraceError: a trace has no complete iteration.
    """
    tried: dict[int, Attempt] = {}

    def at(value: int, left: int) -> Attempt:
        if value not in tried:
            report(f"tune: {value}", len(tried), left)
            try:
                tried[value] = attempt(compiled, record(value), gpu_memory, conditions)
            except ProgramError as error:
                if value == values[0]:
                    raise
                if error.detail:
                    console.detail(error.detail)
                tried[value] = Attempt(peak_bytes=None, simulation=None, problem=str(error))
        return tried[value]

    first = at(values[0], len(values).bit_length())
    if first.simulation is None:
        raise ProgramError(
            f"not even {values[0]} fits: {first.problem}; give a lower --low, or more GPU memory"
        )

    def fits(index: int, left: int) -> bool:
        return at(values[index], left).simulation is not None

    best = _last(len(values), fits)
    if conditions.depend_on_the_plan:
        best = _last_beyond(
            best, len(values), lambda i, part: math.ceil(part * abs(values[i]) / values.step), fits
        )
    if best == len(values) - 1 and len(values) > 1:
        raise ProgramError(
            f"{values[-1]}, the largest value that was tried, fits; name a higher one with --high, "
            "or less GPU memory"
        )
    without = None
    if first.fits_without_lms:
        without = values[_last(best + 1, lambda i, left: at(values[i], left).fits_without_lms)]
    return Tuned(with_lms=values[best], without_lms=without, tried=dict(sorted(tried.items())))


def smallest_memory(
    compiled: Planner,
    trace: Trace,
    conditions: Conditions,
    report: Report = _say_nothing,
) -> tuple[int, int]:
    """The least GPU memory that PyTorch has to be able to reserve, with LMS and without (bytes).

    Args:
        compiled: the planner.
        trace: an iteration.
        conditions: what it has to fit besides.
        report: says how far the search is.

    Raises:
        TraceError: the trace has no complete iteration.
    """
    everything = compiled.simulate(trace, _machine(_EVERYTHING, conditions.link))
    enough = _reserved(everything.peak_bytes)
    step = max(1, enough // _PRECISION)
    amounts = range(enough, 0, -step)
    done = 0

    def fits(index: int, left: int) -> bool:
        nonlocal done
        report(f"tune: {amounts[index] / 1e9:.2f} GB", done, left)
        done += 1
        return attempt(compiled, trace, amounts[index], conditions).simulation is not None

    best = _last(len(amounts), fits)
    if conditions.depend_on_the_plan:
        best = _last_beyond(
            best, len(amounts), lambda i, part: math.ceil(part * amounts[i] / step), fits
        )
    return amounts[best], enough


def _last(count: int, holds: Callable[[int, int], bool]) -> int:
    """The last index for which something holds, if it holds for all before and for the first.

    ``holds`` is also given the number of calls that follow at most.
    """
    good, bad = 0, count
    for index in _doubled(count):
        if not holds(index, 2 * (count // max(index, 1)).bit_length()):
            bad = index
            break
        good = index
    return _bisected(good, bad, holds)


def _last_beyond(
    good: int,
    count: int,
    steps: Callable[[int, float], int],
    holds: Callable[[int, int], bool],
) -> int:
    """An index at or after a good one, if something holds here and there behind it.

    ``steps`` says how many indices a part of what is at an index is.
    """
    bad = count
    while bad == count:
        beyond = {good + max(1, steps(good, part)) for part in _BEYOND}
        indices = sorted((index for index in beyond if index < count), reverse=True)
        if not indices:
            break
        for done, index in enumerate(indices):
            if holds(index, len(indices) - done):
                good = index
                break
            bad = index
    return _bisected(good, bad, holds)


def _bisected(good: int, bad: int, holds: Callable[[int, int], bool]) -> int:
    """An index for which something holds, and not for the one after it."""
    while bad - good > 1:
        middle = (good + bad) // 2
        if holds(middle, math.ceil(math.log2(bad - good))):
            good = middle
        else:
            bad = middle
    return good


def _doubled(count: int) -> Iterator[int]:
    """1, 2, 4 and so on, and the last index."""
    index = 1
    while index < count - 1:
        yield index
        index *= 2
    if count > 1:
        yield count - 1


def _machine(gpu_memory: int, link: Link) -> Machine:
    found = lms_report.module("planner").machine(
        gpu_memory, link.out_rate, link.in_rate, link.planned_speedup
    )
    return Machine(**found._asdict())


def _reserved(used: int) -> int:
    """What PyTorch has to be able to reserve so that so many bytes can be in use."""
    return int(used / lms_report.module("planner").IN_USE) + 2
