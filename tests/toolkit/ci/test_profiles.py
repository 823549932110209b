"""tests/gpu/profiles.py, which reads what a profiler wrote, on events that were made up."""

from __future__ import annotations

from typing import Any

import pytest

from toolkit.helpers.ci_script import load

profiles = load("profiles", "tests/gpu")

PROGRAM, OUT, IN = 7, 20, 21


class Profile:
    """Kernels by stream, each launched at a time; all in microseconds."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def ran(self, name: str, begin: float, took: float, stream: int, launch: float = 0) -> None:
        correlation = {"correlation": len(self.events)}
        call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": launch, "dur": 1}
        kernel = {"cat": "kernel", "name": name, "ts": begin, "dur": took}
        self.events += [
            {**call, "args": correlation},
            {**kernel, "args": {**correlation, "stream": stream}},
        ]


@pytest.fixture
def planned() -> Profile:
    """A norm beside transfers, a convolution that waits for one, a sum that waits for the host."""
    profile = Profile()
    profile.ran("conv", 100, 1000, PROGRAM)
    profile.ran("lms_hash", 1100, 50, PROGRAM)
    profile.ran("norm", 1150, 900, PROGRAM)
    profile.ran("lms_pack", 1200, 800, OUT)
    profile.ran("lms_unpack", 2000, 3050, IN)
    profile.ran("conv", 5050, 1000, PROGRAM)
    profile.ran("sum", 6500, 100, PROGRAM, launch=6400)
    return profile


@pytest.fixture
def in_memory() -> Profile:
    profile = Profile()
    for name, begin, took in (("conv", 0, 1000), ("norm", 1000, 300), ("conv", 1300, 990)):
        profile.ran(name, begin, took, PROGRAM)
    profile.ran("sum", 2290, 100, PROGRAM)
    return profile


def test_what_the_stream_does(planned: Profile) -> None:
    shares = profiles.shares(planned.events)
    assert shares == {
        "operators": 3.0,
        "checks": 0.05,
        "waits, out": 0.0,
        "waits, in": 3.0,
        # From the first call on. What waits for the host waits for no event.
        "waits": 0.1,
    }


def test_gaps(planned: Profile) -> None:
    summary = profiles.summary(planned.events)
    assert summary["event"] == 3.0
    assert summary["host, short"] == 0.45
    assert [(gap["at"], gap["ms"], gap["cause"]) for gap in summary["long"]] == [
        (2.05, 3.0, "event")
    ]


def test_a_wait_for_the_host(planned: Profile) -> None:
    last = list(profiles.gaps(planned.events))[-1]
    assert (last.begin, last.end, last.cause) == (6050, 6500, "host")


def test_kernels_that_take_longer(in_memory: Profile, planned: Profile) -> None:
    found = profiles.slower(in_memory.events, planned.events)
    assert [(kernel.name, kernel.before, kernel.after, kernel.beside) for kernel in found] == [
        ("norm", 0.3, 0.9, "in, out"),
        ("conv", 0.99, 1.0, ""),
        ("conv", 1.0, 1.0, ""),
        ("sum", 0.1, 0.1, ""),
    ]
    assert found[0].at == 1.05


def test_a_kernel_that_only_one_iteration_has(in_memory: Profile, planned: Profile) -> None:
    planned.ran("fill", 7000, 5000, PROGRAM)
    found = profiles.slower(in_memory.events, planned.events)
    assert [kernel.name for kernel in found] == ["norm", "conv", "conv", "sum"]
