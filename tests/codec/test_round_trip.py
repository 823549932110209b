"""Every bit comes back, whatever it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from packing import BYTES_OF, CHUNK, FLOATS, GROUP, KINDS, Codec, Host, Kind
from patterns import MANTISSA, hard, normal, relu, words

each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name.lower())


def check(codec: Codec, kind: Kind, data: np.ndarray, name: str = "", **options: int) -> int:
    """Bytes that were written."""
    data = data.view(np.uint8)
    packed = codec.pack(kind, data, **options)
    assert packed.written <= codec.host.most_written(data.nbytes), name
    back = codec.unpack(kind, packed)
    assert np.array_equal(back, data), f"{name}: {np.flatnonzero(back != data)[:9]} differ"
    return packed.written


@each_kind
def test_hard_values(codec: Codec, kind: Kind) -> None:
    count = 5 * CHUNK // BYTES_OF[kind]
    for seed in range(3):
        for name, data in hard(kind, count, seed):
            check(codec, kind, data, name)


@each_kind
def test_what_another_kind_has(codec: Codec, kind: Kind) -> None:
    """The kind is a guess of what a block holds. A wrong guess costs bytes, and no more."""
    for other in KINDS:
        for name, data in hard(other, 2 * CHUNK // BYTES_OF[other], 7):
            check(codec, kind, data, f"{other.name}: {name}")


@pytest.mark.parametrize("kind", [k for k in KINDS if BYTES_OF[k] <= 2], ids=lambda k: k.name)
def test_every_pattern(codec: Codec, kind: Kind) -> None:
    """All values of one or two bytes: in order, where exponents are near, and in no order."""
    every = np.arange(1 << 8 * BYTES_OF[kind]).astype(words(kind))
    check(codec, kind, np.repeat(every, 8), "in order")
    check(codec, kind, np.random.default_rng(0).permutation(np.repeat(every, 8)), "in no order")
    for value in every[:: 1 if every.size < 300 else 97]:
        one = np.zeros(CHUNK // BYTES_OF[kind], words(kind))
        one[int(value) % one.size] = value
        check(codec, kind, one, f"one {value:#x}")


@pytest.mark.parametrize("kind", FLOATS, ids=lambda kind: kind.name.lower())
def test_one_value_is_larger_than_all_others(codec: Codec, kind: Kind) -> None:
    """All the others need the same number of bits, so each lane counts as many as it can."""
    bits = 8 * BYTES_OF[kind]
    highest = ((1 << (bits - 1)) - 1) >> MANTISSA[kind] << MANTISSA[kind]  # an infinity
    for code in range(1, highest >> MANTISSA[kind]):
        values = np.full(CHUNK // BYTES_OF[kind], code << MANTISSA[kind], words(kind))
        values[7] = highest
        check(codec, kind, values, f"code {code}")


@each_kind
@pytest.mark.parametrize(
    "size",
    [
        *(0, 1, 2, 3, 15, 16, 17, 511, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK - 16),
        *(GROUP * CHUNK - 1, GROUP * CHUNK, GROUP * CHUNK + 1, (2 * GROUP + 1) * CHUNK + 7),
    ],
)
def test_sizes(codec: Codec, kind: Kind, size: int) -> None:
    bytes_ = np.random.default_rng(size).integers(0, 3, size, np.uint8)
    values = normal(kind, size) if kind in FLOATS else np.arange(size).astype(words(kind))
    for data in (bytes_, values.view(np.uint8)[:size]):
        if size == 0:
            assert codec.host.buffer_bytes(0) == 0
            continue
        check(codec, kind, data, blocks=1)


@each_kind
@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_parts_and_thread_blocks(codec: Codec, kind: Kind, parts: int) -> None:
    """No chunk depends on how many thread blocks there are, or on where a part ends."""
    data = (normal if kind in FLOATS else _small)(kind, 70 * CHUNK // BYTES_OF[kind] + 5)
    found = []
    for blocks in (1, 2, 5, 40):
        packed = codec.pack(kind, data, parts=parts, blocks=blocks)
        found.append((packed.chunks(), packed.end))
        for others in (1, 3, 33):
            assert np.array_equal(codec.unpack(kind, packed, others), data.view(np.uint8))
    assert all(other == found[0] for other in found)


def _small(kind: Kind, count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 9, count, words(kind))


@each_kind
def test_the_format(codec: Codec, kind: Kind) -> None:
    """What layout.h says of it."""
    for name, data in hard(kind, 2 * CHUNK // BYTES_OF[kind] + 3, 5):
        packed = codec.pack(kind, data, parts=2)
        found = reference.unpack(kind, packed.buffer(), packed.size)
        assert found == data.tobytes(), name


@each_kind
def test_the_same_bytes_again(codec: Codec, kind: Kind) -> None:
    """No garbage: neither what was packed before, nor what was in the buffer."""
    data = (relu if kind in FLOATS else _small)(kind, 20_000)
    first = codec.pack(kind, data).buffer()
    check(codec, kind, np.random.default_rng(2).integers(0, 256, 50_000, np.uint8))
    assert np.array_equal(codec.pack(kind, data).buffer(), first)


def test_the_order_of_lanes(
    codec: Codec, host: Host, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Lanes of a GPU run in any order between two barriers."""
    backward = Codec(host, tmp_path_factory.mktemp("backward"), "-O2", "-DLMS_BACKWARD")
    for kind in KINDS:
        for name, data in hard(kind, 3 * CHUNK // BYTES_OF[kind] + 1, 11):
            packed = codec.pack(kind, data)
            other = backward.pack(kind, data)
            assert np.array_equal(packed.buffer(), other.buffer()), (kind.name, name)
            for each in (codec, backward):
                assert np.array_equal(each.unpack(kind, other), data.view(np.uint8)), name


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    size=st.integers(1, 3 * CHUNK),
    seed=st.integers(0, 1 << 30),
    zeros=st.sampled_from([0.0, 0.001, 0.1, 0.5, 0.95, 0.999]),
    alike=st.integers(0, 8),
    parts=st.integers(1, 2),
    blocks=st.integers(1, 3),
)
def test_anything(codec, kind, size, seed, zeros, alike, parts, blocks) -> None:
    """Words whose upper bits are alike in some values, some of them zero."""
    rng = np.random.default_rng(seed)
    count = -(-size // BYTES_OF[kind])
    data = rng.integers(0, 256, (count, BYTES_OF[kind]), np.uint8)
    top = rng.integers(0, 256, dtype=np.uint8)
    data[:, -1] = np.where(rng.random(count) < 0.99, top ^ data[:, -1] >> alike, data[:, -1])
    data[rng.random(count) < zeros] = 0
    check(codec, kind, data.reshape(-1)[:size], parts=parts, blocks=blocks)
