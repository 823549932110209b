"""How much of the memory plans use when free memory is in pieces."""

from __future__ import annotations

import itertools

from conftest import program_of
from cxx import run_cxx

program = program_of("slack")


def parts(program, seconds, failed, iterations=60):
    """The parts, in thousandths, that plans used one after the other.

    seconds(part): of an iteration, or of several ones that take turns.
    """
    lines = []
    for part in range(800, 1000):
        times = seconds(part)
        times = times if isinstance(times, tuple) else (times,)
        lines.append(" ".join(map(str, (part, int(failed(part)), *times))))
    used = [int(word) for word in run_cxx(program, str(iterations), *lines).split()]
    assert len(used) == iterations
    return [part for part, _ in itertools.groupby(used)]


def test_more_is_used_if_nothing_fails(program):
    assert parts(program, lambda part: 2 - part / 1000, lambda part: False) == [985, 995]


def test_more_that_makes_nothing_faster_is_given_up(program):
    assert parts(program, lambda part: part, lambda part: part > 985) == [985, 995, 985]


def test_a_part_without_a_plan_is_given_up(program):
    found = parts(program, lambda part: part, lambda part: 2 if part < 970 else 1)
    assert found == [985, 975, 965, 975]


def test_one_fast_iteration_is_not_enough(program):
    """Requests fail in two of three iterations, which take longer then."""
    seconds = {985: 1.0, 995: (0.9, 1.1, 1.1)}
    found = parts(program, lambda part: seconds.get(part, 2), lambda part: part > 985)
    assert found == [985, 995, 985]


def later(program, seconds, failed=12):
    """Iterations with the larger part take these seconds later, and requests begin to fail."""
    times = {985: 1.0, 995: (0.9,) * 12 + (seconds,) * 48}
    fails = {995: failed}
    return parts(program, lambda part: times.get(part, 2), lambda part: fails.get(part, 0))


def test_more_that_fails_later_is_given_up(program):
    assert later(program, 1.1) == [985, 995, 985]


def test_more_that_is_faster_although_it_fails_is_kept(program):
    assert later(program, 0.95) == [985, 995]


def test_more_that_does_not_fail_is_kept(program):
    """What makes iterations slow later is something else then."""
    assert later(program, 1.1, failed=0) == [985, 995]


def test_less_is_used_until_nothing_fails(program):
    assert parts(program, lambda part: part, lambda part: part > 955) == [985, 975, 965, 955]


def test_the_fastest_part_is_used_in_the_end(program):
    """Less memory costs time, and at 965 the native allocator stops to wait."""
    seconds = {985: 1.0, 975: 1.01, 965: 0.9}
    found = parts(program, lambda part: seconds.get(part, 1.2 - part / 10000), lambda part: True)
    assert found == [985, 975, 965, 955, 945, 935, 965]


def test_less_that_makes_nothing_faster_is_given_up(program):
    found = parts(program, lambda part: 2 - part / 1000, lambda part: True)
    assert found == [985, 975, 965, 955, 985]


def test_the_last_step_can_be_a_step_too_far(program):
    """Nothing fails at 975, but copying more takes longer than the failures did."""
    found = parts(program, lambda part: 2 - part / 1000, lambda part: part > 975)
    assert found == [985, 975, 985]


def test_there_is_a_least_part(program):
    assert parts(program, lambda part: part, lambda part: True)[-1] == 855
