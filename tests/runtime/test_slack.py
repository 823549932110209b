"""How much of the memory plans use when free memory is in pieces."""

from __future__ import annotations

import itertools

import pytest
from cxx import HERE, compile_cxx, run_cxx


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    program = tmp_path_factory.mktemp("slack") / "slack"
    compile_cxx(HERE / "slack.cpp", program)
    return program


def parts(program, seconds, failed, iterations=60):
    """The parts, in hundredths, that plans used one after the other."""
    lines = [f"{part} {seconds(part)} {int(failed(part))}" for part in range(80, 100)]
    used = [int(word) for word in run_cxx(program, str(iterations), *lines).split()]
    assert len(used) == iterations
    return [part for part, _ in itertools.groupby(used)]


def test_all_is_used_while_nothing_fails(program):
    assert parts(program, lambda part: part, lambda part: False) == [99]


def test_less_is_used_until_nothing_fails(program):
    assert parts(program, lambda part: part, lambda part: part > 96) == [99, 98, 97, 96]


def test_the_fastest_part_is_used_in_the_end(program):
    """Less memory costs time, and at 97 the native allocator stops to wait."""
    seconds = {99: 1.0, 98: 1.01, 97: 0.9}
    found = parts(program, lambda part: seconds.get(part, 1.2 - part / 1000), lambda part: True)
    assert found == [99, 98, 97, 96, 95, 94, 97]


def test_less_that_makes_nothing_faster_is_given_up(program):
    assert parts(program, lambda part: 2 - part / 100, lambda part: True) == [99, 98, 97, 96, 99]


def test_the_last_step_can_be_a_step_too_far(program):
    """Nothing fails at 98, but copying more takes longer than the failures did."""
    assert parts(program, lambda part: 2 - part / 100, lambda part: part > 98) == [99, 98, 99]


def test_there_is_a_least_part(program):
    assert parts(program, lambda part: part, lambda part: True)[-1] == 85
