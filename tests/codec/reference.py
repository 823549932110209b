"""The format of layout.h, read by other code than the kernels': slow, and one value at a time."""

from __future__ import annotations

import numpy as np

from packing import BYTES_OF, CHUNK, GROUP, LINE, Kind

# Bits of the code, and where it is in a value.
CODES = {
    Kind.BFLOAT16: (8, 7),
    Kind.FLOAT16: (5, 10),
    Kind.FLOAT32: (8, 23),
    Kind.FLOAT8_E4: (4, 3),
    Kind.FLOAT8_E5: (5, 2),
}
RAW = 15


def fields(packed: bytes, at: int, count: int, widths: tuple[int, int]) -> list[list[int]]:
    """The values of two fields, whose pieces are stored by width."""
    octets = -(-count // 8)
    found = [[0] * (8 * octets) for _ in widths]
    for piece in (32, 16, 8, 4, 2, 1):
        for values, width in zip(found, widths, strict=True):
            if width & piece == 0:
                continue
            shift = width & (piece - 1)
            for octet in range(octets):
                word = int.from_bytes(packed[at : at + piece], "little")
                at += piece
                for i in range(8):
                    values[8 * octet + i] |= (word >> (i * piece) & ((1 << piece) - 1)) << shift
    return [values[:count] for values in found] + [[at]]


def floats(kind: Kind, meta: int, packed: bytes) -> list[int]:
    count, width, base, odd = meta & 4095, meta >> 12 & 15, meta >> 16 & 255, meta >> 24
    size = CHUNK // BYTES_OF[kind]
    bits, place = CODES[kind]
    at = 0
    present = [count > 0] * size
    if 0 < count < size:
        at = size // 8
        bitmap = int.from_bytes(packed[:at], "little")
        present = [bool(bitmap >> i & 1) for i in range(size)]
        assert sum(present) == count
    rests, codes, (at,) = fields(packed, at, count, (8 * BYTES_OF[kind] - bits, width))
    codes = [code + base for code in codes]
    at += at % 2
    for i in range(odd):
        index = int.from_bytes(packed[at + 2 * i : at + 2 * i + 2], "little")
        codes[index] = packed[at + 2 * odd + i]
    values = iter(zip(codes, rests, strict=True))
    found = []
    for there in present:
        code, rest = next(values) if there else (0, 0)
        sign = rest >> place << (8 * BYTES_OF[kind] - 1)
        found.append(sign | code << place | rest & ((1 << place) - 1))
    return found


def integers(kind: Kind, meta: int, packed: bytes) -> list[int]:
    width, base, at = meta & 4095, meta >> 16 & 255, 0
    bits = 8 * BYTES_OF[kind]
    flip = 0 if kind == Kind.BYTE else 1 << (bits - 1)
    if kind != Kind.BYTE:
        base, at = int.from_bytes(packed[:8], "little"), 16
    _, codes, _ = fields(packed, at, CHUNK // BYTES_OF[kind], (0, width))
    return [((code + base) & ((1 << bits) - 1)) ^ flip for code in codes]


def unpack(kind: Kind, buffer: np.ndarray, size: int) -> bytes:
    """The bytes of a block from its buffer."""
    memory, found = buffer.tobytes(), b""
    for chunk in range(-(-size // CHUNK)):
        head = LINE + chunk // GROUP * LINE + chunk % GROUP * 8
        where = int.from_bytes(memory[head : head + 4], "little") * 16
        meta = int.from_bytes(memory[head + 4 : head + 8], "little")
        packed = memory[where : where + CHUNK]
        left = size - chunk * CHUNK
        if left < CHUNK or meta >> 12 & 15 == RAW:
            found += packed[: min(left, CHUNK)]
            continue
        values = (floats if kind in CODES else integers)(kind, meta, packed)
        found += b"".join(value.to_bytes(BYTES_OF[kind], "little") for value in values)
    return found
