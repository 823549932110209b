"""Kernels write no faster than they should. On the CPU, only their waiting takes time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from packing import KINDS, Codec, Host, Kind
from patterns import normal

MIB = 1 << 20
PACE = 24_000  # ns for 1 MiB: 44 GB/s
COUNT = 1 << 20  # values


def expected(written: int, pace: int = PACE) -> float:
    """Nanoseconds that the link takes."""
    return written / MIB * pace


@pytest.mark.parametrize("kind", KINDS)
def test_it_waits_for_the_link(codec: Codec, kind: Kind) -> None:
    data = np.random.default_rng(0).integers(0, 256, 2 * MIB, np.uint8)
    packed = codec.pack(kind, data, pace=PACE)
    assert packed.waited == pytest.approx(expected(2 * MIB), rel=0.05)


def test_what_has_shrunk_is_written_sooner(codec: Codec) -> None:
    packed = codec.pack(Kind.BFLOAT16, normal(Kind.BFLOAT16, COUNT), pace=PACE)
    assert packed.written < 0.75 * 2 * MIB
    assert packed.waited == pytest.approx(expected(packed.written), rel=0.05)


def test_the_bytes_are_the_same(codec: Codec) -> None:
    data = normal(Kind.BFLOAT16, COUNT)
    plain, paced = codec.pack(Kind.BFLOAT16, data), codec.pack(Kind.BFLOAT16, data, pace=PACE)
    assert plain.waited == 0
    assert np.array_equal(plain.buffer(), paced.buffer())
    assert np.array_equal(codec.unpack(Kind.BFLOAT16, paced), data.view(np.uint8))


def test_the_last_turn_may_not_have_ended(codec: Codec) -> None:
    data = np.random.default_rng(0).integers(0, 256, MIB, np.uint8)
    packed = codec.pack(Kind.BYTE, data, pace=PACE, turn=2 * PACE)
    assert packed.waited == pytest.approx(3 * PACE, rel=0.05)


def test_a_clock_that_was_set_back_stops_nothing(codec: Codec) -> None:
    data = np.random.default_rng(0).integers(0, 256, MIB, np.uint8)
    packed = codec.pack(Kind.BYTE, data, pace=PACE, turn=10**9)
    assert packed.waited == pytest.approx(PACE, rel=0.05)


def test_a_clock_that_stands_still_stops_nothing(host: Host, tmp_path: Path) -> None:
    codec = Codec(host, tmp_path, "-O1", "-DLMS_NAP=0", kinds=[Kind.BYTE])
    data = np.random.default_rng(0).integers(0, 256, MIB, np.uint8)
    packed = codec.pack(Kind.BYTE, data, pace=PACE)
    assert packed.waited == 0
    assert np.array_equal(codec.unpack(Kind.BYTE, packed), data)
