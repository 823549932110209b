"""The hash that kernels compute of what they pack, beside one that is written in Python."""

from __future__ import annotations

import random

import numpy as np
import pytest

from packing import CHUNK, KINDS, Codec, Kind

MASK = (1 << 64) - 1
STRANDS, VECTOR = 32, 16  # of a chunk; bytes
SIZES = (1, 15, 16, 17, 511, 512, 2047, 2048, 2049, 5 * CHUNK + 24, 40 * CHUNK)


def step(lane: int, word: int) -> int:
    lane = (lane ^ word) * 0xD6E8FEB86659FD93 & MASK
    return lane ^ lane >> 29


def mix(value: int) -> int:
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return value ^ value >> 31


def hash_of(values: bytes) -> int:
    total = 0
    for chunk, begin in enumerate(range(0, len(values), CHUNK)):
        data = values[begin : begin + CHUNK]
        for strand in range(STRANDS):
            low, high = 1, 2
            for at in range(strand * VECTOR, len(data), STRANDS * VECTOR):
                vector = data[at : at + VECTOR].ljust(VECTOR, b"\0")
                low = step(low, int.from_bytes(vector[:8], "little"))
                high = step(high, int.from_bytes(vector[8:], "little"))
            position = chunk * STRANDS + strand + 1
            low = step(low, position * 0x9E3779B97F4A7C15 & MASK)
            total += mix(step(low, high))
    return mix(total & MASK ^ len(values))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.mark.parametrize("size", SIZES)
def test_the_hash_of_what_is_packed(codec: Codec, kind: Kind, size: int) -> None:
    values = random.Random(size).randbytes(size)
    data = np.frombuffer(values, np.uint8)
    expected = hash_of(values)
    for parts, blocks in ((1, 1), (min(3, -(-size // 4096)), 4)):
        packed = codec.pack(kind, data, parts, blocks)
        assert packed.hash == expected
        assert codec.unpack(kind, packed, blocks + 1).tobytes() == values


@pytest.mark.parametrize("size", SIZES)
def test_other_bits_have_another_hash(codec: Codec, kind: Kind, size: int) -> None:
    """Whatever the chunk is packed to, one changed bit of it is seen."""
    values = np.zeros(size, np.uint8)
    values[::7] = 3
    packed = codec.pack(kind, values)
    generator = random.Random(size)
    rest = size % CHUNK
    whole = size - rest
    for _ in range(8):
        other = values.copy()
        bit = generator.randrange(size * 8)
        other[bit // 8] ^= np.uint8(1 << bit % 8)
        assert codec.pack(kind, other).hash != packed.hash
    if rest:  # which is stored as it is
        head = packed.parts[0][128 + whole // CHUNK * 8 :][:4].view(np.uint32)[0]
        packed.parts[0][int(head) * 16 + rest - 1] ^= 1
        with pytest.raises(ValueError, match="another hash"):
            codec.unpack(kind, packed)
