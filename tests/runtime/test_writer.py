"""A C++ extension that writes past the dispatcher: random programs, right every time.

tests/gpu/writer.py runs more steps of the same on a GPU.
"""

import hardware
import pytest
import torch
import unseen
from conftest import DEVICE, ON_HARDWARE
from releases import since

KIB = 1 << 10
STEPS = 300
LARGE = 32  # some memory is of large segments, and some of small ones
SCALE = LARGE if ON_HARDWARE else 1

paged_out_throws = since((2, 0), "storages that throw")


def no_races(writer):
    races = unseen.unrepaired(DEVICE.races(), writer)
    DEVICE.clear_races()
    assert races == [], races


def run(writer, seed, modes, scale=SCALE, **options):
    limit, largest = 192 * KIB * scale, 64 * KIB * scale
    torch.cuda.set_limit_lms(limit)
    programs = unseen.Programs(
        writer, seed=seed, limit=limit, largest=largest, modes=modes, **options
    )
    try:
        unseen.run(programs, STEPS, lambda: no_races(writer))
        no_races(writer)
    finally:
        programs.live.clear()
        DEVICE.clear_races()
    return programs


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("at_home", [True, False], ids=["home", "streams"])
@pytest.mark.parametrize("mode", ["operator", "wrap"])
def test_brought(mode, at_home, seed, writer):
    """The extension's tensors were brought just before, by an operator or by wrap()."""
    run(writer, seed, [mode], at_home=at_home)
    assert torch.cuda.lms.stats()["page_out_count"] > 0


@paged_out_throws
@pytest.mark.parametrize("seed", range(3))
def test_not_brought(seed, writer):
    """What is paged out is refused, and all else is written."""
    programs = run(writer, seed, ["bare"])
    assert programs.counts["refused"] > 0
    assert torch.cuda.lms.stats()["page_out_count"] > 0


@paged_out_throws
@pytest.mark.parametrize("seed", range(2))
def test_segments_that_change(writer, device, seed):
    """The device hands out the addresses of large segments again, as small ones."""
    device.reuse_addresses(True)
    run(writer, seed, unseen.MODES, LARGE)
    assert torch.cuda.lms.stats()["page_out_count"] > 0


@hardware.simulated
def test_the_programs_are_right(writer):
    """With LMS off: what fails here is wrong with the programs."""
    torch.cuda.set_enabled_lms(False)
    for seed in range(3):
        assert run(writer, seed, ["operator", "bare"]).counts["unseen_copy"] > 0
