"""Plans against the optimum: of all plans where they can be tried, else of a linear program."""

from __future__ import annotations

import random

import pytest

from linear import least
from planner import Machine, Planner, Trace
from shapes import chain, living, llama, lowest_limit, random_trace, resnet

CHOICES = 20_000.0
# Times the optimum, for time and for bytes, each on its own: a plan has to do for both.
WORST_TIME, MEAN_TIME = 1.3, 1.01
WORST_BYTES, MEAN_BYTES = 2.0, 1.01


def machine_for(trace: Trace, generator: random.Random) -> Machine | None:
    low, high = lowest_limit(trace), max(living(trace))
    if low >= high:
        return None
    rates = [generator.choice([1.0, 5.0, 20.0]) for _ in range(2)]
    return Machine(generator.randint(low, high - 1), *rates, generator.choice([0.0, 0.1]))


def test_small_traces_against_every_plan(planner: Planner) -> None:
    # Small traces are the hard ones: with four blocks, one wrong choice is a quarter of all bytes.
    # The mean is what a trace of thousands of blocks comes close to.
    generator = random.Random(20)
    times, moved = [], []
    for seed in range(1500):
        trace = random_trace(generator, generator.randint(2, 8), generator.randint(1, 6))
        machine = machine_for(trace, generator)
        if machine is None:
            continue
        found = planner.search(trace, machine, CHOICES)
        if found is None:
            continue
        result = planner.plan(trace, machine)
        assert not result.problem, (seed, result.problem)
        seconds, fewest = found
        assert result.bound_seconds <= seconds * (1 + 1e-9), seed
        assert result.bound_in + result.bound_out <= fewest, seed
        assert result.seconds >= seconds * (1 - 1e-9), seed
        times.append(result.seconds / seconds if seconds else 1.0)
        # With unequal rates more bytes in the fast direction can be better.
        if machine.out_rate == machine.in_rate:
            moved.append(result.bytes_moved / fewest if fewest else 1.0 + result.bytes_moved)
    report = (
        f"{len(times)} traces: time at most {max(times):.3f} and in the mean"
        f" {sum(times) / len(times):.3f} of the optimum; {len(moved)} of them: bytes"
        f" {max(moved):.3f} and {sum(moved) / len(moved):.3f}"
    )
    print(report)
    assert len(times) > 500
    assert len(moved) > 200
    assert max(times) <= WORST_TIME, report
    assert sum(times) / len(times) <= MEAN_TIME, report
    assert max(moved) <= WORST_BYTES, report
    assert sum(moved) / len(moved) <= MEAN_BYTES, report


def test_the_bounds_are_those_of_the_linear_program(planner: Planner) -> None:
    generator = random.Random(21)
    compared = 0
    for seed in range(120):
        trace = random_trace(generator, generator.randint(3, 40), generator.randint(2, 60))
        machine = machine_for(trace, generator)
        if machine is None:
            continue
        optimum = least(trace, machine)
        result = planner.plan(trace, machine)
        assert not result.problem, (seed, result.problem)
        # It is exact where the repeating choice is found, and never above.
        assert result.bound_in <= optimum.into + 1e-6 * (1 + optimum.into), seed
        assert result.bound_in >= 0.9 * optimum.into - 1, seed
        assert result.bound_out <= optimum.out + 1e-6 * (1 + optimum.out), seed
        assert result.bytes_moved >= optimum.both - 1e-6 * (1 + optimum.both), seed
        compared += 1
    assert compared > 80


@pytest.mark.parametrize("seed", range(6))
def test_random_traces_with_many_blocks(planner: Planner, seed: int) -> None:
    generator = random.Random(100 + seed)
    trace = random_trace(generator, 120, 400, largest=200, uses=5)
    low, high = lowest_limit(trace), max(living(trace))
    machine = Machine((low + high) // 2 if low < high else low, 300.0, 200.0)
    optimum = least(trace, machine)
    result = planner.plan(trace, machine)
    assert not result.problem
    ratio = result.bytes_moved / optimum.both if optimum.both else 1.0
    print(f"bytes moved {ratio:.3f} x the linear program's")
    # Fetches need memory beside what stays, and the program knows no time.
    assert ratio <= 1.35


SHAPES = {
    "resnet": (resnet(), [20.0e9, 16.3e9, 12.0e9]),
    "llama": (llama(), [64.9e9, 45.8e9]),
    "hill": (chain([1e8] * 200, [1e-3] * 200), [15e9, 10e9, 5e9]),
    "states": (
        chain([5e6] * 200, [5e-4] * 200, parameters=[1.5e7] * 200, states=2),
        [9e9, 6e9],
    ),
}


@pytest.mark.parametrize(
    ("shape", "limit"), [(shape, limit) for shape in SHAPES for limit in SHAPES[shape][1]]
)
def test_training(planner: Planner, shape: str, limit: float) -> None:
    trace = SHAPES[shape][0]
    machine = Machine(int(limit), 52e9, 55e9, 1e-5)
    result = planner.plan(trace, machine)
    assert not result.problem
    optimum = least(trace, machine)
    time = result.seconds / result.bound_seconds
    moved = result.bytes_moved / optimum.both
    report = f"{shape} at {limit / 1e9:.1f} GB: time {time:.4f}, bytes {moved:.4f} of the bounds"
    print(report)
    assert moved <= 1.03, report
    assert time <= 1.06, report
    assert result.peak_bytes <= machine.limit


def test_a_plan_is_faster_than_on_demand(planner: Planner) -> None:
    for trace, limits in SHAPES.values():
        for limit in limits:
            machine = Machine(int(limit), 52e9, 55e9, 1e-5)
            assert planner.plan(trace, machine).seconds < planner.on_demand(trace, machine).seconds
