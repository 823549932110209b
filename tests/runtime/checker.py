"""The release check, compiled for the torch under test, with a C interface (kernels.cpp)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch
from cxx import CUDA_OPTIONS, HERE, compile_cxx


class CheckError(RuntimeError):
    """An exception of the runtime's C++ code."""


def load(folder: Path, *options: str) -> ctypes.CDLL:
    """Compiles the checker into a library in the folder."""
    library = folder / "kernels.so"
    compile_cxx(HERE / "kernels.cpp", library, "-shared", "-fPIC", *CUDA_OPTIONS, *options)
    return opened(library)


def opened(library: Path | str) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(library))
    pointer, size, slot = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32
    for name, result, *parameters in (
        ("error", ctypes.c_char_p),
        ("hide_libraries", None, ctypes.c_bool),
        ("hide_function", None, ctypes.c_char_p),
        ("forget_images", None),
        ("target_of", ctypes.c_int64, ctypes.c_int),
        ("checker_new", pointer, ctypes.c_int),
        ("checker_delete", None, pointer),
        ("checker_available", ctypes.c_bool, pointer),
        ("checker_why", ctypes.c_char_p, pointer),
        ("checker_take", ctypes.c_int64, pointer),
        ("checker_give", None, pointer, slot),
        ("checker_hash", ctypes.c_int64, pointer, slot, pointer, size, pointer),
        (
            "checker_check",
            ctypes.c_int64,
            pointer,
            slot,
            pointer,
            size,
            pointer,
            pointer,
            size,
            pointer,
        ),
        ("checker_caught", ctypes.c_uint64, pointer),
        ("checker_last_caught", slot, pointer),
    ):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, parameters
    return loaded


class Checker:
    """The runtime's Checker of one device. Streams are torch.cuda.Stream, or None for the default.

    Parts are (address, bytes) of pinned host memory.
    """

    def __init__(self, library: ctypes.CDLL, device: int = 0) -> None:
        self._library = library
        self._self = library.checker_new(device)

    def close(self) -> None:
        if self._self:
            self._library.checker_delete(self._self)
            self._self = None

    def __enter__(self) -> Checker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def available(self) -> bool:
        return bool(self._library.checker_available(self._self))

    def why(self) -> str:
        return str(self._library.checker_why(self._self).decode())

    def take(self) -> int:
        return self._done(self._library.checker_take(self._self))

    def give(self, slot: int) -> None:
        self._library.checker_give(self._self, slot)

    def hash(
        self, slot: int, data: int, size: int, stream: torch.cuda.Stream | None = None
    ) -> None:
        self._done(self._library.checker_hash(self._self, slot, data, size, _handle(stream)))

    def check(
        self,
        slot: int,
        data: int,
        size: int,
        parts: Sequence[tuple[int, int]],
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        addresses = (ctypes.c_void_p * len(parts))(*[address for address, _ in parts])
        sizes = (ctypes.c_size_t * len(parts))(*[length for _, length in parts])
        self._done(
            self._library.checker_check(
                self._self, slot, data, size, addresses, sizes, len(parts), _handle(stream)
            )
        )

    def caught(self) -> int:
        return int(self._library.checker_caught(self._self))

    def last_caught(self) -> int:
        return int(self._library.checker_last_caught(self._self))

    def _done(self, result: int) -> int:
        if result < 0:
            raise CheckError(self._library.error().decode())
        return result


def _handle(stream: torch.cuda.Stream | None) -> int:
    return stream.cuda_stream if stream else 0
