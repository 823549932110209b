"""The runtime's Packer, compiled for the torch under test, with a C interface (packer.cpp)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch
from cxx import CUDA_OPTIONS, HERE, compile_cxx
from scalar_types import SCALAR_TYPES


class PackError(RuntimeError):
    """An exception of the runtime's C++ code."""


def load(folder: Path, *options: str) -> ctypes.CDLL:
    """Compiles the packer into a library in the folder."""
    library = folder / "packer.so"
    compile_cxx(HERE / "packer.cpp", library, "-shared", "-fPIC", *CUDA_OPTIONS, *options)
    return opened(library)


def opened(library: Path | str) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(library))
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    parts = (pointer, pointer, size)
    block = (pointer, number, pointer, size, *parts)
    grid = (ctypes.c_uint, ctypes.c_uint)
    for name, result, *parameters in (
        ("error", ctypes.c_char_p),
        ("forget_images", None),
        ("kind_of", number, ctypes.c_char_p),
        ("buffer_bytes", size, size),
        ("new", pointer, number),
        ("delete", None, pointer),
        ("use_hashes", ctypes.c_bool, pointer),
        ("check", number, pointer, pointer, pointer, size, pointer),
        ("caught", ctypes.c_uint64, pointer),
        ("corrupted", ctypes.c_bool, pointer),
        ("available", ctypes.c_bool, pointer, number),
        ("why", ctypes.c_char_p, pointer, number),
        ("fits", ctypes.c_bool, pointer, size, *parts),
        ("pack", number, *block, *grid, pointer, ctypes.c_double),
        ("repack", number, *block, pointer, *grid, pointer),
        ("unpack", number, *block, *grid, pointer),
        ("direction_new", pointer),
        ("direction_delete", None, pointer),
        ("takes", ctypes.c_bool, pointer, size),
        ("staged_bytes", size, pointer, size),
        ("pack_staged", number, *block, *grid, pointer, pointer, ctypes.c_double, pointer),
        ("unpack_staged", number, *block, *grid, pointer, pointer, size),
        ("written", ctypes.c_uint64, pointer),
        ("end", size, pointer),
    ):
        function = getattr(loaded, f"packer_{name}")
        function.restype, function.argtypes = result, parameters
    return loaded


class Packer:
    """The runtime's Packer of one device. Streams are torch.cuda.Stream, or None for the default.

    Kinds are numbers, see kind_of(). Parts are (address, bytes) of pinned host memory. With
    `hashes`, pack() hashes each block, and unpack() stops the device if it has another hash.

    Attributes:
        threads: those of each thread block, a multiple of 32.
        rate: the most bytes per second that pack() writes; 0: as many as the link takes.
    """

    threads = 256
    rate = 0.0

    def __init__(self, library: ctypes.CDLL, device: int = 0, *, hashes: bool = False) -> None:
        self._library = library
        self._self = library.packer_new(device)
        self._directions: dict[str, int] = {}
        if hashes and not library.packer_use_hashes(self._self):
            raise PackError("the release check is not available")

    def close(self) -> None:
        if self._self:
            self._library.packer_delete(self._self)
            self._self = None
        while self._directions:
            self._library.packer_direction_delete(self._directions.popitem()[1])

    def __enter__(self) -> Packer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def kind_of(self, dtype: torch.dtype | str) -> int:
        """The kind of torch's type, or of the type with this name in C++; 0: it is not packed."""
        name = dtype if isinstance(dtype, str) else SCALAR_TYPES.get(dtype, "")
        return int(self._library.packer_kind_of(name.encode()))

    def buffer_bytes(self, size: int) -> int:
        return int(self._library.packer_buffer_bytes(size))

    def available(self, kind: int) -> bool:
        return bool(self._library.packer_available(self._self, kind))

    def why(self, kind: int) -> str:
        return str(self._library.packer_why(self._self, kind).decode())

    def fits(self, data: int, size: int, parts: Sequence[tuple[int, int]]) -> bool:
        return bool(self._library.packer_fits(data, size, *_parts(parts)))

    def pack(
        self,
        kind: int,
        data: int,
        size: int,
        parts: Sequence[tuple[int, int]],
        blocks: int = 32,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        self._run("pack", kind, data, size, parts, blocks, stream, self.rate)

    def unpack(
        self,
        kind: int,
        data: int,
        size: int,
        parts: Sequence[tuple[int, int]],
        blocks: int = 32,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        self._run("unpack", kind, data, size, parts, blocks, stream)

    def takes(self, size: int) -> bool:
        """Whether a block of so many bytes can go by way of device memory."""
        return bool(self._library.packer_takes(self._direction("in"), size))

    def staged_bytes(self, size: int) -> int:
        """How large a buffer has to be for pack_staged()."""
        return int(self._library.packer_staged_bytes(self._direction("out"), size))

    def pack_staged(
        self,
        kind: int,
        data: int,
        size: int,
        parts: Sequence[tuple[int, int]],
        blocks: int = 32,
        stream: torch.cuda.Stream | None = None,
        share: float = 0.75,
    ) -> int:
        """By way of device memory, where so many bytes per byte are expected.

        Returns where the pieces end in the buffer, in bytes.
        """
        pieces = ctypes.c_size_t()
        more = (self._direction("out"), share, ctypes.byref(pieces))
        self._run("pack_staged", kind, data, size, parts, blocks, stream, *more)
        return pieces.value

    def unpack_staged(
        self,
        kind: int,
        data: int,
        size: int,
        parts: Sequence[tuple[int, int]],
        blocks: int = 32,
        stream: torch.cuda.Stream | None = None,
        pieces: int = 0,
    ) -> None:
        """By way of device memory. Wait for what packs into the buffer first.

        Without waiting, `pieces` has to be what pack_staged() returned.
        """
        more = (self._direction("in"), pieces)
        self._run("unpack_staged", kind, data, size, parts, blocks, stream, *more)

    def _direction(self, name: str) -> int:
        if name not in self._directions:
            made = self._library.packer_direction_new()
            if not made:
                raise PackError(self._library.packer_error().decode())
            self._directions[name] = made
        return self._directions[name]

    def repack(
        self, kind: int, data: int, size: int, parts: Sequence[tuple[int, int]], differs: int
    ) -> None:
        """Packs again if the number of 32 bits at this address of the device is not 0."""
        call = self._library.packer_repack
        if call(self._self, kind, data, size, *_parts(parts), differs, 32, self.threads, 0) < 0:
            raise PackError(self._library.packer_error().decode())

    def check(self, data: int, size: int, parts: Sequence[tuple[int, int]]) -> None:
        """Compares a block with the hash of what was packed into the buffer, for caught()."""
        if self._library.packer_check(self._self, parts[0][0], data, size, 0) < 0:
            raise PackError(self._library.packer_error().decode())

    def caught(self) -> int:
        """How many check()s have found a difference."""
        return int(self._library.packer_caught(self._self))

    def corrupted(self) -> bool:
        """Whether unpack() has found a difference."""
        return bool(self._library.packer_corrupted(self._self))

    def written(self, parts: Sequence[tuple[int, int]]) -> int:
        """Bytes that pack() wrote to the buffer. Wait for it first."""
        return int(self._library.packer_written(parts[0][0]))

    def end(self, parts: Sequence[tuple[int, int]]) -> int:
        """Bytes of the buffer that have to be kept. Wait for what packs into it first."""
        return int(self._library.packer_end(parts[0][0]))

    def _run(self, name, kind, data, size, parts, blocks, stream, *more) -> None:
        handle = stream.cuda_stream if stream else 0
        call = getattr(self._library, f"packer_{name}")
        grid = (blocks, self.threads)
        if call(self._self, kind, data, size, *_parts(parts), *grid, handle, *more) < 0:
            raise PackError(self._library.packer_error().decode())


def _parts(parts: Sequence[tuple[int, int]]) -> tuple[object, object, int]:
    addresses = (ctypes.c_void_p * len(parts))(*[address for address, _ in parts])
    sizes = (ctypes.c_size_t * len(parts))(*[length for _, length in parts])
    return addresses, sizes, len(parts)
