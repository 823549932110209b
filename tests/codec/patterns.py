"""Data for the tests of the codec: ordinary values of each kind, and values that are hard on it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from packing import BYTES_OF, CHUNK, FLOATS, Kind

UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
MANTISSA = dict(zip(FLOATS, (7, 10, 23, 3, 2), strict=True))  # bits


def words(kind: Kind) -> type:
    return UNSIGNED[BYTES_OF[kind]]


def floats(kind: Kind, values: np.ndarray) -> np.ndarray:
    """The bits of values, rounded towards zero. Those of float8 saturate."""
    if kind == Kind.FLOAT16:
        return np.clip(values, -65504, 65504).astype(np.float16).view(np.uint16)
    bits = values.astype(np.float32).view(np.uint32)
    if kind == Kind.FLOAT32:
        return bits
    if kind == Kind.BFLOAT16:
        return (bits >> 16).astype(np.uint16)
    mantissa = MANTISSA[kind]
    largest = (1 << (7 - mantissa)) - 1
    exponent = ((bits >> 23) & 255).astype(np.int64) - 127 + largest // 2
    kept = (bits >> (23 - mantissa) & ((1 << mantissa) - 1)).astype(np.int64)
    code = np.clip(exponent, 0, largest) << mantissa | np.where(exponent >= 0, kept, 0)
    return (code | (bits >> 31).astype(np.int64) << 7).astype(np.uint8)


def normal(kind: Kind, count: int, seed: int = 0) -> np.ndarray:
    return floats(kind, np.random.default_rng(seed).standard_normal(count))


def relu(kind: Kind, count: int, seed: int = 0) -> np.ndarray:
    return floats(kind, np.maximum(np.random.default_rng(seed).standard_normal(count), 0))


def hard_floats(kind: Kind, count: int, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Infinities, NaNs with payloads, -0 and denormals among others, in all shares."""
    rng = np.random.default_rng(seed)
    type_, bits, mantissa = words(kind), 8 * BYTES_OF[kind], MANTISSA[kind]
    sign, quiet = type_(1) << type_(bits - 1), type_((1 << mantissa) - 1)
    inf = type_(((1 << (bits - 1 - mantissa)) - 1) << mantissa)
    special = np.array(
        [0, sign, inf, inf | sign, inf | quiet, inf | type_(1), inf | sign | type_(2), 1, quiet,
         sign | type_(1), inf - type_(1)],
        type_,
    )  # fmt: skip
    for share in (0.0005, 0.002, 0.02, 0.5, 1):
        for base in (normal, relu):
            values = base(kind, count, seed).copy()
            chosen = rng.random(count) < share
            values[chosen] = rng.choice(special, chosen.sum())
            yield f"{base.__name__}, {share} special", values
    for value in special:
        yield f"all {int(value):#x}", np.full(count, value, type_)
    few = np.zeros(count, type_)
    few[rng.integers(0, count, 5)] = special[2]
    yield "a few that are not zero", few
    scattered = normal(kind, count, seed).copy()
    scattered[rng.random(count) < 0.01] = 0
    yield "a few zeros", scattered
    wide = floats(kind, np.exp2(rng.uniform(-100, 100, count)))
    yield "all exponents", wide
    wide = wide.copy()
    wide[rng.random(count) < 0.9] = 0
    yield "all exponents and many zeros", wide
    spread = np.repeat(rng.standard_normal(count // 8 + 1) * 2.0 ** rng.integers(-20, 20), 8)
    yield "repeated", floats(kind, spread[:count])
    rare = np.full(count, inf - type_(1 << mantissa), type_)
    odd = rng.choice(count, min(count, 255 * max(1, count * BYTES_OF[kind] // CHUNK)), False)
    rare[odd] = 1
    yield "as many odd values as there may be", rare


def hard_integers(kind: Kind, count: int, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Ranges of every width, on both sides of zero and at both ends."""
    rng = np.random.default_rng(seed)
    type_, bits = words(kind), 8 * BYTES_OF[kind]
    for width in sorted({0, 1, 2, 3, 7, bits // 2, bits // 2 + 1, bits - 2, bits - 1, bits}):
        offsets = rng.integers(0, (1 << width) - 1, count, np.uint64, endpoint=True)
        for low in (0, (1 << bits) - (1 << width >> 1), 1 << (bits - 1), (1 << bits) - 1, 77):
            values = (offsets + np.uint64(low & ((1 << 64) - 1))).astype(type_)
            yield f"{width} bits from {low:#x}", values
    mask = rng.integers(0, 2, count, type_)
    yield "mask", mask
    yield "sparse mask", mask & rng.integers(0, 2, count, type_) & (rng.random(count) < 0.01)
    one = np.zeros(count, type_)
    one[count // 2] = ~type_(0)
    yield "one that is large", one


def hard(kind: Kind, count: int, seed: int = 0) -> Iterator[tuple[str, np.ndarray]]:
    """(name, words) of data that is hard on a kind."""
    rng = np.random.default_rng(seed)
    yield "zeros", np.zeros(count, words(kind))
    yield "any bits", rng.integers(0, 256, count * BYTES_OF[kind], np.uint8).view(words(kind))
    mixed = [normal(kind, count, seed) if kind in FLOATS else np.arange(count).astype(words(kind))]
    mixed.append(np.zeros(count, words(kind)))
    each = CHUNK // BYTES_OF[kind]
    turns = np.arange(count) // each % 2
    yield "chunks that take turns", np.where(turns == 0, *mixed)
    yield from (hard_floats if kind in FLOATS else hard_integers)(kind, count, seed)
