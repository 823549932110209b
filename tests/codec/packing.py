"""The runtime's codec: the host's part, and the kernels' source compiled for the CPU.

Both are compiled by g++ and called through ctypes. No torch is needed.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
# ci/mutants.py sets this to its copy, which contains a bug.
RUNTIME = Path(os.environ.get("LMS_RUNTIME", HERE.parent.parent / "patches" / "runtime"))
SOURCES = RUNTIME / "torch/csrc/cuda/lms/codec"

CHUNK, GROUP, LINE, ALIGN = 2048, 16, 128, 4096  # bytes; chunks; bytes; bytes
FILL = 0xA5  # what is in memory that nothing was written to


class Kind(IntEnum):
    NONE = 0
    BFLOAT16 = 1
    FLOAT16 = 2
    FLOAT32 = 3
    FLOAT8_E4 = 4
    FLOAT8_E5 = 5
    INT64 = 6
    INT32 = 7
    INT16 = 8
    BYTE = 9


KINDS = [kind for kind in Kind if kind is not Kind.NONE]
FLOATS = [kind for kind in KINDS if kind <= Kind.FLOAT8_E5]
BYTES_OF = dict(zip(KINDS, (2, 2, 4, 1, 1, 8, 4, 2, 1), strict=True))  # of a value


class _Call(ctypes.Structure):
    _fields_ = (
        ("parts", ctypes.POINTER(ctypes.c_void_p)),
        ("sizes", ctypes.POINTER(ctypes.c_uint64)),
        ("count", ctypes.c_uint64),
        ("blocks", ctypes.c_uint),
        ("pace", ctypes.c_uint64),
        ("counts", ctypes.POINTER(ctypes.c_uint64)),
        ("slot", ctypes.c_void_p),
    )


def compile_cxx(sources: Sequence[Path], library: Path, *options: str) -> ctypes.CDLL:
    command = [
        *shlex.split(os.environ.get("CXX", "g++")),
        *("-std=c++17", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"),
        *(options or ("-O1",)),
        *(f"-I{RUNTIME}", f"-I{HERE}"),
        *map(str, sources),
        *("-o", str(library)),
    ]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


class Host:
    """The functions of host.cpp. Sizes are bytes."""

    def __init__(self, folder: Path) -> None:
        sources = [*sorted(SOURCES.glob("*.cpp")), HERE / "host.cpp"]
        self._library = library = compile_cxx(sources, folder / "libcodec.so")
        size, text = ctypes.c_uint64, ctypes.c_char_p
        for name, result, *parameters in (
            ("source", text, ctypes.c_int),
            ("kind_of", ctypes.c_int, text),
            ("name", text, ctypes.c_int),
            ("slots", size, size),
            ("buffer_bytes", size, size),
            ("most_written", size, size),
            ("thread_blocks", ctypes.c_uint, size, ctypes.c_uint, ctypes.c_uint),
            ("choices", None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p),
            ("totals", None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, *[ctypes.c_void_p] * 2),
        ):
            function = getattr(library, f"lms_{name}")
            function.restype, function.argtypes = result, parameters

    def source(self, kind: Kind) -> str:
        """CUDA C++."""
        return str(self._library.lms_source(kind).decode())

    def kind_of(self, scalar_type: str) -> Kind:
        return Kind(self._library.lms_kind_of(scalar_type.encode()))

    def name(self, kind: Kind) -> str:
        return str(self._library.lms_name(kind).decode())

    def slots(self, size: int) -> int:
        return int(self._library.lms_slots(size))

    def buffer_bytes(self, size: int) -> int:
        return int(self._library.lms_buffer_bytes(size))

    def most_written(self, size: int) -> int:
        return int(self._library.lms_most_written(size))

    def thread_blocks(self, size: int, most: int, threads: int) -> int:
        return int(self._library.lms_thread_blocks(size, most, threads))

    def choices(self, shrinks: Sequence[bool]) -> list[bool]:
        """Whether a block is packed at each page-out, if it would shrink or not then."""
        packs = (ctypes.c_bool * len(shrinks))()
        values = (ctypes.c_bool * len(shrinks))(*shrinks)
        self._library.lms_choices(values, len(shrinks), packs)
        return list(packs)

    def totals(self, blocks: Sequence[tuple[Kind, int, int]], kind: Kind) -> tuple[list, list]:
        """(blocks, bytes, written) of the kind and of all; the ratios of both."""
        rows = (ctypes.c_uint64 * (3 * len(blocks)))(*[value for row in blocks for value in row])
        sums, ratios = (ctypes.c_uint64 * 6)(), (ctypes.c_double * 2)()
        self._library.lms_totals(rows, len(blocks), kind, sums, ratios)
        return [tuple(sums[:3]), tuple(sums[3:])], list(ratios)


@dataclass
class Packed:
    """A block in its buffer.

    Attributes: the parts of the buffer; bytes of the block; what the kernel says it wrote; the hash
    of the block; how long it has waited on the CPU, where nothing else takes time.
    """

    kind: Kind
    parts: list[np.ndarray]
    size: int
    written: int  # bytes
    raw: int  # chunks
    end: int  # bytes of the buffer that are needed
    hash: int
    waited: int = 0  # nanoseconds

    def buffer(self) -> np.ndarray:
        return np.concatenate(self.parts)

    def kept(self) -> list[np.ndarray]:
        """The parts after the host has cut the buffer off behind the last chunk."""
        parts, left = [], -(-self.end // ALIGN) * ALIGN
        for part in self.parts:
            if left > 0:
                parts.append(part[:left].copy() if left < part.size else part)
            left -= part.size
        return parts

    def chunks(self) -> list[tuple[int, bytes]]:
        """How each chunk is packed, and its lines. Their order in the buffer does not matter."""
        buffer = self.buffer()
        heads = [LINE + i // GROUP * LINE + i % GROUP * 8 for i in range(-(-self.size // CHUNK))]
        places = [int(buffer[head : head + 4].view(np.uint32)[0]) * 16 for head in heads]
        ends = dict(pairwise([*sorted({*places}), self.end]))
        found = []
        for head, place in zip(heads, places, strict=True):
            how = int(buffer[head + 4 : head + 8].view(np.uint32)[0])
            # What is empty may have the place of the next chunk.
            empty = how & 0xFFFF == 0 and self.kind in (*FLOATS, Kind.BYTE)
            found.append((how, b"" if empty else buffer[place : ends[place]].tobytes()))
        return found


def aligned(size: int) -> np.ndarray:
    """Bytes at an address that is a multiple of ALIGN, filled with FILL."""
    memory = np.full(size + ALIGN, FILL, np.uint8)
    offset = -memory.ctypes.data % ALIGN
    return memory[offset : offset + size]


class Codec:
    """Kernels on the CPU, of some kinds."""

    def __init__(
        self, host: Host, folder: Path, *options: str, kinds: Sequence[Kind] = KINDS
    ) -> None:
        self.host = host
        self._kernels = {}

        # Before there are threads, because the library has one text at a time.
        units = {kind: folder / f"kernels_{kind.name.lower()}.cpp" for kind in kinds}
        for kind, unit in units.items():
            unit.write_text(f'#include "cpu.h"\n{host.source(kind)}\nLMS_INTERFACE(this)\n')

        def compile_kind(kind: Kind) -> tuple[Kind, ctypes.CDLL]:
            unit = units[kind]
            # The project's warnings are those of the host's code; the text is CUDA.
            flags = ("-Wno-unused-function", *(options or ("-O2",)))
            return kind, compile_cxx([unit], unit.with_suffix(".so"), *flags)

        with ThreadPoolExecutor(2) as pool:
            for kind, library in pool.map(compile_kind, kinds):
                library.lms_pack_of_this.argtypes = library.lms_unpack_of_this.argtypes = [
                    ctypes.c_void_p,
                    ctypes.c_uint64,
                    _Call,
                ]
                library.lms_pack_of_this.restype = ctypes.c_bool
                library.lms_unpack_of_this.restype = ctypes.c_bool
                self._kernels[kind] = library

    def pack(
        self,
        kind: Kind,
        data: np.ndarray,
        parts: int = 1,
        blocks: int = 3,
        *,
        pace: int = 0,
        clock: int = 0,
    ) -> Packed:
        """Packs bytes into a buffer of some parts, with some thread blocks of one warp.

        They write no more than 1 MiB in `pace` nanoseconds. The clock is set forward by `clock` ns
        when the first of them waits, or back.

        Asserts that nothing is written beside what the kernel says that it writes.
        """
        size = data.nbytes
        source = aligned(size)
        source[:] = data.view(np.uint8)
        need = self.host.buffer_bytes(size)
        each = -(-need // parts // ALIGN) * ALIGN
        memory = [aligned(each + 64) for _ in range(parts)]
        counts = (ctypes.c_uint64 * 3)(0, 0, clock % 2**64)
        library = self._kernels[kind]
        buffer = [part[:each] for part in memory]
        slot = (ctypes.c_uint64 * 4)()
        slot[3] = 1 << 32  # an earlier check has found a difference
        call = _call(buffer, blocks, counts, slot, pace)
        clean = library.lms_pack_of_this(source.ctypes.data, size, call)
        assert clean, "the tally is not zero"
        assert list(slot[1:]) == [0] * 3, "the slot has partial sums, or still differs"
        assert all((part[each:] == FILL).all() for part in memory), "written behind a part"
        assert np.array_equal(source, data.view(np.uint8)), "the source has changed"
        packed = Packed(kind, buffer, size, 0, 0, 0, int(slot[0]), int(counts[2]))
        whole = packed.buffer()
        packed.written, packed.raw, packed.end = (int(v) for v in whole[:24].view(np.uint64))
        assert counts[1] == packed.written + 24, "the summary counts something else"
        assert (whole[packed.end :] == FILL).all(), "written behind the end"
        return packed

    def unpack(self, kind: Kind, packed: Packed, blocks: int = 2) -> np.ndarray:
        """The bytes, from what is kept of the buffer. Asserts that nothing is written behind.

        Raises:
            ValueError: the bytes have another hash than those that were packed.
        """
        target = aligned(packed.size + 64)
        counts = (ctypes.c_uint64 * 2)()
        kept = packed.kept()
        slot = (ctypes.c_uint64 * 4)(packed.hash)
        same = self._kernels[kind].lms_unpack_of_this(
            target.ctypes.data, packed.size, _call(kept, blocks, counts, slot)
        )
        if not same:
            raise ValueError("what comes back has another hash")
        assert list(slot) == [packed.hash, 0, 0, 0], "the slot has changed"
        assert (target[packed.size :] == FILL).all(), "written behind the block"
        assert counts[0] <= packed.written, "more is read than was written"
        return target[: packed.size]


def _call(
    parts: Sequence[np.ndarray], blocks: int, counts: object, slot: object, pace: int = 0
) -> _Call:
    addresses = (ctypes.c_void_p * len(parts))(*[part.ctypes.data for part in parts])
    sizes = (ctypes.c_uint64 * len(parts))(*[part.size for part in parts])
    state = ctypes.cast(slot, ctypes.c_void_p)
    return _Call(addresses, sizes, len(parts), blocks, pace, ctypes.cast(counts, _U64S), state)


_U64S = ctypes.POINTER(ctypes.c_uint64)
