"""A small Python over storages.cpp: tensors of the patched c10 on the simulated device."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_bool, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path

MIB = 1 << 20


class OperatorError(Exception):
    """What PyTorch raises as RuntimeError."""


class Lms:
    """The libraries of a Build, loaded."""

    def __init__(self, cudart: Path, c10: Path, c10_cuda: Path, storages: Path) -> None:
        self.cuda, _, self.runtime, self.calls = (
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL) for path in (cudart, c10, c10_cuda, storages)
        )
        for lib, name, result, arguments in (
            (self.calls, "failure", c_char_p, ()),
            (self.calls, "listening", c_bool, ()),
            (self.calls, "tensor_new", c_void_p, (c_size_t, c_int)),
            (self.calls, "tensor_delete", None, (c_void_p,)),
            (self.calls, "storage_of", c_void_p, (c_void_p,)),
            (self.calls, "fill", c_bool, (c_void_p, c_uint32)),
            (self.calls, "check", c_bool, (c_void_p, c_uint32, POINTER(c_bool))),
            (self.calls, "fill_unseen", c_bool, (c_void_p, c_uint32)),
            (self.calls, "train_batch_norm", c_bool, (c_void_p, c_uint32)),
            (self.calls, "operator_begin", c_void_p, (c_char_p,)),
            (self.calls, "operator_end", None, (c_void_p,)),
            (self.calls, "data", c_bool, (c_void_p, c_int, POINTER(c_void_p))),
            (self.calls, "plain_address", c_void_p, (c_void_p,)),
            (self.calls, "resize", c_bool, (c_void_p, c_size_t)),
            (self.calls, "raw_alloc", c_bool, (c_size_t, POINTER(c_void_p))),
            (self.calls, "raw_allocate", c_bool, (c_size_t, POINTER(c_void_p))),
            (self.calls, "raw_delete", None, (c_void_p,)),
            (self.calls, "empty_cache", c_bool, ()),
            (self.calls, "record_stream", c_bool, (c_void_p, c_int64)),
            (self.calls, "pool_stream", c_int64, ()),
            (self.calls, "default_stream", c_int64, ()),
            (self.calls, "set_stream", None, (c_int64,)),
            (self.calls, "synchronize", c_bool, ()),
            (self.calls, "reserved_bytes", c_int64, ()),
            (self.calls, "allocated_bytes", c_int64, ()),
            (self.runtime, "lms_last_error", c_char_p, ()),
            (self.runtime, "lms_set_limit", c_int, (c_size_t,)),
            (self.runtime, "lms_set_size", c_int, (c_size_t,)),
            (self.runtime, "lms_set_host_limit", c_int, (c_size_t,)),
            (self.runtime, "lms_reclaim_inactive", c_int, (POINTER(c_size_t),)),
            (self.runtime, "lms_stat_count", c_size_t, ()),
            (self.runtime, "lms_stat_name", c_char_p, (c_size_t,)),
            (self.runtime, "lms_stats", c_int, (c_int, POINTER(c_int64))),
            (self.runtime, "lms_release_address", c_int, (c_void_p,)),
            (self.runtime, "lms_is_resident", c_int, (c_void_p,)),
            (self.runtime, "lms_hold", c_int, (c_void_p,)),
            (self.runtime, "lms_release", c_int, (c_void_p,)),
            (
                self.runtime,
                "lms_begin_region",
                c_int,
                (POINTER(c_void_p), c_size_t, POINTER(c_int)),
            ),
            (self.runtime, "lms_set_option", c_int, (c_char_p, c_int)),
            (self.cuda, "simcuda_race_count", ctypes.c_long, ()),
            (self.cuda, "simcuda_race_report", c_char_p, (ctypes.c_long,)),
            (self.cuda, "simcuda_plan_fault", None, (c_char_p, ctypes.c_long, c_int, c_int)),
            (self.cuda, "simcuda_host_bytes", c_size_t, ()),
        ):
            function = getattr(lib, name)
            function.restype = result
            function.argtypes = arguments
        if hasattr(self.calls, "raw_alloc_with_stream"):  # PyTorch 1.5
            self.calls.raw_alloc_with_stream.restype = c_bool
            self.calls.raw_alloc_with_stream.argtypes = (c_size_t, c_int64, POINTER(c_void_p))

    def do(self, name: str, *arguments: object) -> None:
        """A call of storages.cpp that can fail. Raises OperatorError."""
        if not getattr(self.calls, name)(*arguments):
            raise OperatorError(self.calls.failure().decode())

    def lms(self, name: str, *arguments: object) -> None:
        """A call of the runtime's C interface. Raises OperatorError."""
        if getattr(self.runtime, "lms_" + name)(*arguments):
            raise OperatorError(self.runtime.lms_last_error().decode())

    def enable(self, on: bool = True) -> None:
        self.lms("set_enabled", int(on))

    def reclaim(self) -> int:
        """Bytes paged out."""
        count = c_size_t()
        self.lms("reclaim_inactive", byref(count))
        return count.value

    def stats(self, device: int = 0) -> dict[str, int]:
        count = self.runtime.lms_stat_count()
        values = (c_int64 * count)()
        self.lms("stats", device, values)
        return {self.runtime.lms_stat_name(i).decode(): values[i] for i in range(count)}

    def races(self) -> list[str]:
        return [
            self.cuda.simcuda_race_report(i).decode() for i in range(self.cuda.simcuda_race_count())
        ]

    def fault(self, api: str, nth: int = 1, *, forever: bool = False) -> None:
        """The nth call from now on fails with "out of memory"."""
        self.cuda.simcuda_plan_fault(api.encode(), nth, 2, int(forever))

    @contextmanager
    def operator(self, name: bytes = b"aten::some_operator") -> Iterator[None]:
        op = self.calls.operator_begin(name)
        try:
            yield
        finally:
            self.calls.operator_end(op)

    @contextmanager
    def stream(self, stream: int) -> Iterator[None]:
        self.calls.set_stream(stream)
        try:
            yield
        finally:
            self.calls.set_stream(self.calls.default_stream())

    def raw(self, name: str, size: int, *stream: int) -> int:
        memory = c_void_p()
        self.do(name, size, *stream, byref(memory))
        assert memory.value
        return memory.value


class Tensor:
    """Bytes on a device; `fill` and `same` are operators."""

    WAYS = ("data()", "data() const", "unsafe_data<T>()", "data<T>() const")

    def __init__(self, lms: Lms, size: int, device: int = 0) -> None:
        self._lms = lms
        self._handle = lms.calls.tensor_new(size, device)
        if not self._handle:
            raise OperatorError(lms.calls.failure().decode())

    def __del__(self) -> None:
        if self._handle:
            self._lms.calls.tensor_delete(self._handle)

    @property
    def storage(self) -> int:
        return int(self._lms.calls.storage_of(self._handle))

    def fill(self, seed: int) -> Tensor:
        self._lms.do("fill", self._handle, seed)
        return self

    def same(self, seed: int) -> bool:
        """Whether it holds what fill(seed) wrote."""
        same = c_bool()
        self._lms.do("check", self._handle, seed, byref(same))
        return same.value

    def fill_unseen(self, seed: int) -> None:
        """Fills it, too, by a kernel that LMS does not see."""
        self._lms.do("fill_unseen", self._handle, seed)

    def train_batch_norm(self, seed: int) -> None:
        """Fills it, too, in an operator that does not say so."""
        self._lms.do("train_batch_norm", self._handle, seed)

    def address(self, way: str = "data()") -> int:
        """StorageImpl::data(), or another of `WAYS`."""
        address = c_void_p()
        self._lms.do("data", self._handle, self.WAYS.index(way), byref(address))
        return address.value or 0

    def plain_address(self) -> int:
        return self._lms.calls.plain_address(self._handle) or 0

    def resize(self, size: int) -> None:
        self._lms.do("resize", self._handle, size)

    def record_stream(self, stream: int) -> None:
        self._lms.do("record_stream", self._handle, stream)

    @property
    def resident(self) -> bool:
        return bool(self._lms.runtime.lms_is_resident(self.storage) != 0)
