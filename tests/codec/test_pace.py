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


MOST = 2 * 256 * 256  # ns: naps of a chunk at most, and the one with which the clock is set


def expected(written: int, warps: int = 1) -> float:
    """Nanoseconds. Here, warps run one after the other, and each is as slow as all at once."""
    return warps * written / MIB * PACE


@pytest.mark.parametrize("kind", KINDS)
def test_it_waits_for_the_link(codec: Codec, kind: Kind) -> None:
    data = np.random.default_rng(0).integers(0, 256, 2 * MIB, np.uint8)
    packed = codec.pack(kind, data, blocks=1, pace=PACE)
    assert packed.waited == pytest.approx(expected(2 * MIB), rel=0.05)


@pytest.mark.parametrize("warps", [2, 3, 7])
def test_warps_share_the_link(codec: Codec, warps: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, 2 * MIB, np.uint8)
    packed = codec.pack(Kind.BYTE, data, blocks=warps, pace=PACE)
    assert packed.waited == pytest.approx(expected(2 * MIB, warps), rel=0.05)


def test_warps_without_data_take_no_share(codec: Codec) -> None:
    data = np.random.default_rng(0).integers(0, 256, MIB // 8, np.uint8)  # four groups of chunks
    packed = codec.pack(Kind.BYTE, data, blocks=64, pace=PACE)
    assert packed.waited == pytest.approx(expected(MIB // 8, 4), rel=0.1)


@pytest.mark.parametrize("warps", [1, 16])
def test_naps_that_are_too_long_are_made_up_for(host: Host, tmp_path: Path, warps: int) -> None:
    """A chunk is due after each 47 ns, or each 750 ns."""
    codec = Codec(host, tmp_path, "-O1", "-DLMS_NAP=2000", kinds=[Kind.BYTE])
    data = np.random.default_rng(0).integers(0, 256, 2 * MIB, np.uint8)
    packed = codec.pack(Kind.BYTE, data, blocks=warps, pace=PACE)
    assert packed.waited == pytest.approx(expected(2 * MIB, warps), rel=0.05)


def test_what_has_shrunk_is_written_sooner(codec: Codec) -> None:
    packed = codec.pack(Kind.BFLOAT16, normal(Kind.BFLOAT16, COUNT), blocks=1, pace=PACE)
    assert packed.written < 0.75 * 2 * MIB
    assert packed.waited == pytest.approx(expected(packed.written), rel=0.05)


def test_the_bytes_are_the_same(codec: Codec) -> None:
    data = normal(Kind.BFLOAT16, COUNT)
    plain, paced = codec.pack(Kind.BFLOAT16, data), codec.pack(Kind.BFLOAT16, data, pace=PACE)
    assert plain.waited == 0
    assert np.array_equal(plain.buffer(), paced.buffer())
    assert np.array_equal(codec.unpack(Kind.BFLOAT16, paced), data.view(np.uint8))


def test_time_without_writes_is_lost(codec: Codec) -> None:
    data = np.random.default_rng(0).integers(0, 256, 4 * MIB, np.uint8)
    packed = codec.pack(Kind.BYTE, data, blocks=1, pace=PACE, clock=10**9)
    assert packed.waited == pytest.approx(expected(4 * MIB), rel=0.05)


@pytest.mark.parametrize("clock", [-PACE, -(10**9)])
def test_a_clock_that_was_set_back_stops_nothing(codec: Codec, clock: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, MIB, np.uint8)
    packed = codec.pack(Kind.BYTE, data, blocks=1, pace=PACE, clock=clock)
    assert PACE < packed.waited < 1.05 * PACE + MOST


def test_a_clock_that_stands_still_stops_nothing(host: Host, tmp_path: Path) -> None:
    codec = Codec(host, tmp_path, "-O1", "-DLMS_NAP=0", kinds=[Kind.BYTE])
    data = np.random.default_rng(0).integers(0, 256, MIB, np.uint8)
    packed = codec.pack(Kind.BYTE, data, pace=PACE)
    assert packed.waited == 0
    assert np.array_equal(codec.unpack(Kind.BYTE, packed), data)
