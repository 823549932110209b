"""How far data shrinks. The values are theory's, and a little more for heads and odd values."""

from __future__ import annotations

import numpy as np
import pytest

from packing import BYTES_OF, CHUNK, FILL, FLOATS, GROUP, KINDS, LINE, Codec, Kind
from patterns import normal, relu, words

COUNT = 1 << 18


def ratio(codec: Codec, kind: Kind, data: np.ndarray) -> float:
    return codec.pack(kind, data).written / data.nbytes


@pytest.mark.parametrize(
    ("kind", "dense", "half_zero"),
    [
        (Kind.BFLOAT16, 0.72, 0.43),
        (Kind.FLOAT16, 0.91, 0.53),
        (Kind.FLOAT32, 0.865, 0.475),
    ],
)
def test_floats(codec: Codec, kind: Kind, dense: float, half_zero: float) -> None:
    assert dense - 0.02 < ratio(codec, kind, normal(kind, COUNT)) < dense
    assert half_zero - 0.02 < ratio(codec, kind, relu(kind, COUNT)) < half_zero


@pytest.mark.parametrize("kind", [Kind.INT64, Kind.INT32, Kind.INT16, Kind.BYTE])
def test_integers(codec: Codec, kind: Kind) -> None:
    """The bits of the range, wherever it is, 16 bytes per chunk for its start, and heads."""
    bits = 8 * BYTES_OF[kind]
    for width in (1, 2, 5, bits // 2):
        for low in (0, 1 << (bits - 1), (1 << bits) - 3):
            values = np.random.default_rng(width).integers(0, 1 << width, COUNT, np.uint64)
            data = (values + np.uint64(low)).astype(words(kind))
            if kind == Kind.BYTE and low + (1 << width) > 256:
                continue  # from 255 to 0 is far for bytes, which have no sign
            expected = width / bits + (16 * (kind != Kind.BYTE) + 8) / CHUNK
            assert ratio(codec, kind, data) == pytest.approx(expected, abs=0.001)


@pytest.mark.parametrize("kind", [Kind.INT64, Kind.INT32, Kind.INT16])
def test_small_numbers_of_both_signs(codec: Codec, kind: Kind) -> None:
    values = np.random.default_rng(0).integers(-4, 4, COUNT).astype(words(kind))
    assert ratio(codec, kind, values) < 3 / (8 * BYTES_OF[kind]) + 0.012


def test_masks(codec: Codec) -> None:
    mask = np.random.default_rng(0).integers(0, 2, COUNT, np.uint8)
    assert ratio(codec, Kind.BYTE, mask) == 1 / 8 + 8 / CHUNK


@pytest.mark.parametrize("kind", FLOATS)
def test_zeros(codec: Codec, kind: Kind) -> None:
    """Only heads are left."""
    assert codec.pack(kind, np.zeros(10 * CHUNK, np.uint8)).written == 80


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_shrink_stays_as_it_is(codec: Codec, kind: Kind) -> None:
    data = np.random.default_rng(0).integers(0, 256, 10 * CHUNK + 3, np.uint8)
    packed = codec.pack(kind, data)
    assert (packed.raw, packed.written) == (11, codec.host.most_written(data.nbytes))
    slots = packed.buffer()[codec.host.slots(data.nbytes) :]
    assert np.array_equal(slots[: data.size], data)


def test_a_few_other_values_do_not_matter(codec: Codec) -> None:
    """A few zeros, or values that are far smaller, cost 3 bytes each, and not a wider code."""
    data = normal(Kind.BFLOAT16, COUNT).copy()
    plain = ratio(codec, Kind.BFLOAT16, data)
    chosen = np.random.default_rng(0).choice(COUNT, COUNT // 1024, replace=False)
    for value in (0, 1, 0x8000, 0x0090):
        data[chosen] = value
        assert ratio(codec, Kind.BFLOAT16, data) < plain + 3.2 / 2048


def test_each_chunk_decides(codec: Codec) -> None:
    each = CHUNK // 2
    data = np.concatenate(
        [
            np.random.default_rng(0).integers(0, 1 << 16, each, np.uint16),
            np.zeros(each, np.uint16),
            normal(Kind.BFLOAT16, each),
        ]
    )
    packed = codec.pack(Kind.BFLOAT16, data)
    assert packed.raw == 1
    assert CHUNK < packed.written < 1.75 * CHUNK


def test_only_what_is_used_is_written(codec: Codec) -> None:
    """Whole vectors of 16 bytes from the start of each chunk's place."""
    packed = codec.pack(Kind.BFLOAT16, relu(Kind.BFLOAT16, 100 * CHUNK // 2))
    used = [len(lines.rstrip(bytes([FILL]))) for _, lines in packed.chunks()]
    assert packed.written == sum(-(-size // 16) * 16 for size in used) + 8 * 100


@pytest.mark.parametrize("blocks", [1, 3, 40])
def test_chunks_are_next_to_each_other(codec: Codec, blocks: int) -> None:
    """A chunk takes whole lines, and no more."""
    data = relu(Kind.BFLOAT16, 100 * CHUNK // 2)
    packed = codec.pack(Kind.BFLOAT16, data, blocks=blocks)
    taken = [len(lines) for _, lines in packed.chunks()]
    used = [len(lines.rstrip(bytes([FILL]))) for _, lines in packed.chunks()]
    assert taken == [-(-size // LINE) * LINE for size in used]
    assert packed.end == codec.host.slots(packed.size) + sum(taken)
    assert packed.end < 0.5 * packed.size


def test_zeros_need_no_room(codec: Codec) -> None:
    packed = codec.pack(Kind.FLOAT32, np.zeros(100 * CHUNK, np.uint8))
    assert packed.end == codec.host.slots(packed.size)


def test_any_bits_fit(codec: Codec) -> None:
    data = np.random.default_rng(0).integers(0, 256, 100 * CHUNK + 1, np.uint8)
    packed = codec.pack(Kind.FLOAT32, data)
    assert packed.end <= codec.host.buffer_bytes(packed.size)
    assert packed.end == codec.host.slots(packed.size) + 100 * CHUNK + LINE


def test_the_layout(codec: Codec) -> None:
    host = codec.host
    for size in (1, CHUNK, GROUP * CHUNK, 15 * GROUP * CHUNK, 1 << 20, (1 << 30) + 1, 32 << 30):
        chunks = -(-size // CHUNK)
        lines = 1 + -(-chunks // GROUP)
        assert host.slots(size) % CHUNK == 0
        assert 0 <= host.slots(size) - lines * LINE < CHUNK
        assert host.buffer_bytes(size) == host.slots(size) + chunks * CHUNK
        assert host.buffer_bytes(size) <= size * 1.004 + 2 * CHUNK
        assert host.buffer_bytes(size) // 16 < 1 << 32


@pytest.mark.parametrize("warps", [8, 24])
def test_thread_blocks(codec: Codec, warps: int) -> None:
    """One warp takes at least one group."""
    of_block = warps * GROUP * CHUNK
    for size, blocks in ((1, 1), (of_block, 1), (of_block + 1, 2), (1 << 30, 32)):
        assert codec.host.thread_blocks(size, 32, 32 * warps) == blocks
