"""Bytes that are not as they were."""

from __future__ import annotations


def flipped(data: bytes, at: int) -> bytes:
    """The data with another byte at this place."""
    return data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :]
