"""Models that run out of memory, and what they compute with Large Model Support.

Each is run without a cap for reference. At a cap below that run's peak it must fail without LMS,
and compute the same bits with LMS.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from job import MODELS, Ending, Mode, Report
from runner import Runner, cap_of

Reference = Callable[[str, Mode], Report]

MIB = 1 << 20
PAGE = 20 * MIB
"""Bytes by which PyTorch's expandable segments grow."""

every_workload = pytest.mark.parametrize(
    ("model", "mode"),
    [pytest.param(model, mode, id=f"{model}-{mode.value}") for model in MODELS for mode in Mode],
)


def assert_same(report: Report, reference: Report) -> None:
    assert report.ending is Ending.FINISHED, report.message
    assert report.values == reference.values
    assert report.state_sha256 == reference.state_sha256


def assert_swapped(report: Report) -> None:
    assert report.ending is Ending.FINISHED, report.message
    assert report.page_out_bytes > 0
    assert report.page_in_bytes > 0
    assert report.pinned_blocks == 0, "blocks stayed pinned after their operators had ended"
    assert not report.races


def assert_swapped_and_same(report: Report, reference: Report) -> None:
    assert_swapped(report)
    assert_same(report, reference)


@every_workload
def test_reference_computes_something(model: str, mode: Mode, reference: Reference) -> None:
    report = reference(model, mode)
    assert len(set(report.values)) > 1, "every step gave the same: nothing was learnt or run"
    assert len(report.state_sha256) == 64
    assert not report.races


@every_workload
def test_fails_at_the_cap_without_lms(
    model: str, mode: Mode, any_runner: Runner, reference: Reference
) -> None:
    report = any_runner.run(any_runner.job(model, mode, cap_bytes=cap_of(reference(model, mode))))
    assert report.ending is Ending.OUT_OF_MEMORY, report.message


@every_workload
def test_same_bits_at_the_cap(model: str, mode: Mode, runner: Runner, reference: Reference) -> None:
    """The cap is set_per_process_memory_fraction; LMS has to find the limit itself."""
    expected = reference(model, mode)
    cap = cap_of(expected)
    report = runner.run(runner.job(model, mode, cap_bytes=cap, lms=True))
    assert_swapped(report)
    # On a GPU, when what is free lies in pieces between the tensors that it uses, a convolution
    # may take another algorithm. LMS says so; the next test is without pieces.
    if runner.simulated or not report.out_of_memory_caught:
        assert_same(report, expected)
    assert report.peak_reserved_bytes <= cap


@every_workload
def test_same_bits_at_the_cap_without_fragments(
    model: str, mode: Mode, runner: Runner, reference: Reference
) -> None:
    expected = reference(model, mode)
    cap = cap_of(expected)
    if cap < 3 * PAGE:
        pytest.skip(f"the cap is {cap / MIB:.0f} MiB, and such segments grow by 20 MiB")
    job = runner.job(model, mode, cap_bytes=cap, expandable_segments=True, lms=True)
    report = runner.run(job)
    assert report.out_of_memory_caught == 0
    assert_swapped_and_same(report, expected)
    # PyTorch holds the cap but for the page that it maps last.
    assert report.peak_reserved_bytes <= cap + PAGE


@every_workload
def test_same_bits_within_the_limit(
    model: str, mode: Mode, runner: Runner, reference: Reference
) -> None:
    """The limit is set_limit_lms on a device with room enough; LMS comes on after the model."""
    expected = reference(model, mode)
    limit = cap_of(expected)
    report = runner.run(runner.job(model, mode, limit_bytes=limit, lms=True, enable_late=True))
    assert_swapped_and_same(report, expected)
    # The limit is soft: what an operator makes counts once it has ended.
    assert report.resident_peak_bytes <= limit + report.pinned_peak_bytes
    assert report.peak_bytes < expected.peak_bytes


@pytest.mark.parametrize("model", ["resnet", "gpt"])
def test_same_bits_on_a_small_device(model: str, runner: Runner, reference: Reference) -> None:
    """Neither cap nor limit: the device itself is too small."""
    if not runner.simulated:
        pytest.skip("a real device has the memory it has")
    expected = reference(model, Mode.TRAIN)
    size = cap_of(expected) // MIB * MIB
    without = runner.run(runner.job(model, Mode.TRAIN, device_bytes=size))
    assert without.ending is Ending.OUT_OF_MEMORY, without.message
    report = runner.run(runner.job(model, Mode.TRAIN, device_bytes=size, lms=True))
    assert_swapped_and_same(report, expected)


@pytest.mark.parametrize("model", ["resnet", "gpt"])
def test_swaps_nothing_without_pressure(model: str, runner: Runner, reference: Reference) -> None:
    if runner.oracle:
        pytest.skip("the oracle pages out without pressure")
    expected = reference(model, Mode.TRAIN)
    report = runner.run(runner.job(model, Mode.TRAIN, lms=True))
    assert_same(report, expected)
    assert report.page_out_bytes == 0
    assert not report.races


def test_error_that_lms_cannot_prevent_says_why(runner: Runner, reference: Reference) -> None:
    """Less memory than one operator needs: the message has LMS's own account."""
    cap = reference("resnet", Mode.TRAIN).peak_bytes // 20
    report = runner.run(runner.job("resnet", Mode.TRAIN, cap_bytes=cap, lms=True))
    assert report.ending is Ending.OUT_OF_MEMORY, report.message
    message = report.message.lower()
    for word in ("lms", "limit", "resident", "pinned", "host", "aten::"):
        assert word in message, f"{word!r} is not in: {report.message}"
