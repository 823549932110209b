"""The simulated device in this process: how to start it, and a test's hold on it."""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.util
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

_OPTIONS = ("race", "poison", "bytes", "async_", "delay_us", "query_notready", "host_mib", "log")
_OPTIONS += ("timing", "to_host", "to_device")


class Device:
    """Control over the simulated device. Sizes are bytes, device numbers count from 0."""

    def __init__(
        self, runtime: ctypes.CDLL, operators: ctypes.CDLL | None, overridden: int
    ) -> None:
        self._runtime = runtime
        self._operators = operators
        self._names: dict[str, bytes] = {}  # the race checker keeps their addresses
        self.overridden = overridden
        """How many CUDA operators got their CPU semantics."""
        runtime.simcuda_napped.restype = ctypes.c_uint64
        for name in ("race_report", "counts", "launches", "thread_blocks"):
            getattr(runtime, f"simcuda_{name}").restype = ctypes.c_char_p
        live = ("live_streams", "live_events", "live_modules")
        for name in ("used", "host_bytes", "host_ranges", *live):
            getattr(runtime, f"simcuda_{name}").restype = ctypes.c_size_t
        for name in ("race_count", "count", "waiting"):
            getattr(runtime, f"simcuda_{name}").restype = ctypes.c_long
        runtime.simcuda_race_report.argtypes = [ctypes.c_long]
        runtime.simcuda_count.argtypes = [ctypes.c_char_p]
        runtime.simcuda_waiting.argtypes = [ctypes.c_char_p]
        runtime.simcuda_release.argtypes = [ctypes.c_char_p]
        runtime.simcuda_hold.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_double]
        runtime.simcuda_host_view.argtypes = [ctypes.c_void_p]
        runtime.simcuda_host_view.restype = ctypes.c_void_p
        runtime.simcuda_host_access.argtypes = [
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_char_p,
        ]
        runtime.simcuda_operator_begin.argtypes = [ctypes.c_void_p, ctypes.c_int]
        runtime.simcuda_operator_takes.argtypes = [
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_double,
            ctypes.c_double,
        ]
        runtime.simcuda_host_time.restype = ctypes.c_double
        runtime.simcuda_is_live.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        runtime.simcuda_operator_access.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_char_p,
        ]
        runtime.simcuda_plan_fault.argtypes = [
            ctypes.c_char_p,
            ctypes.c_long,
            ctypes.c_int,
            ctypes.c_int,
        ]
        runtime.simcuda_set_capacity.argtypes = [ctypes.c_size_t]
        runtime.simcuda_set_host_limit.argtypes = [ctypes.c_size_t]
        runtime.simcuda_reuse_addresses.argtypes = [ctypes.c_int]

    def restart(self) -> None:
        """Forgets everything, and reads the options from the environment."""
        self._runtime.simcuda_restart()

    # Races -----------------------------------------------------------------------------------

    def races(self) -> list[str]:
        """What the race checker found since the last clear_races(), one line each."""
        count = self._runtime.simcuda_race_count()
        return [self._runtime.simcuda_race_report(i).decode() for i in range(count)]

    def clear_races(self) -> None:
        """Forgets the reports, and the accesses so far."""
        self._runtime.simcuda_clear_races()

    def set_race(self, enabled: bool) -> None:
        """Turns the race checker on or off, and forgets the accesses so far."""
        self._runtime.simcuda_enable_race(int(enabled))

    def host_access(
        self, pointer: int, size: int, write: bool = False, what: str = "the host"
    ) -> None:
        """Tells the race checker that the host touches [pointer, pointer + size) now."""
        self._runtime.simcuda_host_access(pointer, size, int(write), what.encode())

    def kernel(
        self, stream: int, device: int, uses: Iterable[tuple[int, int, bool]], what: str
    ) -> list[int]:
        """Runs a kernel that uses ranges of memory: pointer, size, and whether it writes them.

        Returns where the host finds the bytes of each. The caller runs the kernel at once.

        Raises:
            RuntimeError: the stream is not the device's, or a range is not live memory.
        """
        error = self._runtime.simcuda_operator_begin(stream, device)
        if error:
            raise RuntimeError(f"simulated device: {what} cannot run on its stream, error {error}")
        views = []
        for pointer, size, write in uses:
            if size and not self._runtime.simcuda_is_live(pointer, size):
                raise RuntimeError(
                    "CUDA error: an illegal memory access was encountered\n"
                    f"{what}: the {size} bytes at {pointer:#x} are not live memory"
                )
            self._runtime.simcuda_operator_access(
                stream, pointer, size, int(write), self._names.setdefault(what, what.encode())
            )
            views.append(self.host_view(pointer))
        return views

    # Time ------------------------------------------------------------------------------------

    def takes(self, stream: int, device: int, seconds: float, host_seconds: float) -> None:
        """An operator takes the stream so long, and this thread, which issues it.

        With the option timing, where nothing else takes time but copies. Threads that issue no
        operators do not move the host's time.

        Raises:
            RuntimeError: the stream is not the device's.
        """
        error = self._runtime.simcuda_operator_takes(stream, device, seconds, host_seconds)
        if error:
            raise RuntimeError(f"simulated device: not a stream of the device, error {error}")

    def host_time(self) -> float:
        """What time it is for the host in the model of time, in seconds. With the option timing."""
        return float(self._runtime.simcuda_host_time())

    # Faults and counts -----------------------------------------------------------------------

    def fault(self, api: str, nth: int = 1, error: int = 2, from_: bool = False) -> None:
        """Makes the nth call of `api` from now on return the CUDA error number `error`.

        With `from_`, every later call fails too. The error 2 is "out of memory". Variants of a
        function share a name: cudaStreamCreate, cudaEventCreate, cudaEventRecord, cudaLaunchKernel.
        """
        if nth < 1:
            raise ValueError("nth counts calls from 1")
        self._runtime.simcuda_plan_fault(api.encode(), nth, error, int(from_))

    def clear_faults(self) -> None:
        self._runtime.simcuda_clear_faults()

    def hold(self, api: str, device: int = -1, seconds: float = 120) -> None:
        """Makes calls of `api` wait until release(), but not for longer than so many seconds.

        Those of threads whose current device it is; -1 is any. The simulated machine goes on
        meanwhile. A function that shares a name with others is held under that, see fault().
        """
        self._runtime.simcuda_hold(api.encode(), device, seconds)

    def release(self, api: str = "", *, with_gil: bool = False) -> None:
        """Lets the calls of `api` that are held go on, and those to come; "" is every function.

        With `with_gil`, no other thread gets the GIL meanwhile.
        """
        library = self._library(with_gil)
        if api:
            library.simcuda_release(api.encode())
        else:
            library.simcuda_release_all()

    def waiting(self, api: str) -> int:
        """How many calls of `api` are held now."""
        return int(self._runtime.simcuda_waiting(api.encode()))

    def wait_for(self, api: str, seconds: float = 60) -> int:
        """Until a call of `api` is held; returns how many are, which is 0 if it takes too long."""
        deadline = time.monotonic() + seconds
        while not self.waiting(api) and time.monotonic() < deadline:
            time.sleep(0.001)
        return self.waiting(api)

    def count(self, api: str, *, with_gil: bool = False) -> int:
        """How often `api` was called since the last reset_counts().

        With `with_gil`, no other thread gets the GIL meanwhile.
        """
        return int(self._library(with_gil).simcuda_count(api.encode()))

    def _library(self, with_gil: bool) -> ctypes.CDLL:
        return ctypes.PyDLL(self._runtime._name) if with_gil else self._runtime

    def counts(self) -> dict[str, int]:
        return _parse_counts(self._runtime.simcuda_counts())

    def launches(self) -> dict[str, int]:
        """Kernels that were launched, which fails: the operators that have no CPU semantics."""
        return _parse_counts(self._runtime.simcuda_launches())

    def thread_blocks(self) -> dict[str, int]:
        """The most thread blocks that a launch had of each kernel of a module."""
        return _parse_counts(self._runtime.simcuda_thread_blocks())

    def napped(self) -> float:
        """Seconds that kernels of modules have slept. They take no longer for it."""
        return int(self._runtime.simcuda_napped()) * 1e-9

    def reset_counts(self) -> None:
        self._runtime.simcuda_reset_counts()

    def operators_run(self) -> int:
        """How many operators ran with their CPU semantics, in this process."""
        return int(self._operators.simops_operators_run()) if self._operators else 0

    # Memory ----------------------------------------------------------------------------------

    def used(self, device: int = 0) -> int:
        """Device memory that is allocated from the (simulated) driver."""
        return int(self._runtime.simcuda_used(device))

    def set_cap(self, size: int) -> None:
        """Changes the capacity of every device."""
        self._runtime.simcuda_set_capacity(size)

    def reuse_addresses(self, reuse: bool) -> None:
        """Whether addresses that were freed are handed out again at once, as drivers do."""
        self._runtime.simcuda_reuse_addresses(reuse)

    def set_host_limit(self, size: int) -> None:
        """The most pinned host memory that can be had; 0 is no limit."""
        self._runtime.simcuda_set_host_limit(size)

    def host_view(self, pointer: int) -> int:
        """The address at which the host finds the bytes behind a device pointer."""
        return int(self._runtime.simcuda_host_view(pointer))

    def read(self, pointer: int, size: int) -> bytes:
        """The bytes behind a device pointer now; work in progress is not waited for."""
        return ctypes.string_at(self.host_view(pointer), size)

    def live(self) -> dict[str, int]:
        """What the program has not given back: streams, events, modules and pinned memory."""
        runtime = self._runtime
        return {
            "streams": int(runtime.simcuda_live_streams()),
            "events": int(runtime.simcuda_live_events()),
            "modules": int(runtime.simcuda_live_modules()),
            "host_ranges": int(runtime.simcuda_host_ranges()),
            "host_bytes": int(runtime.simcuda_host_bytes()),
        }


def _parse_counts(text: bytes) -> dict[str, int]:
    pairs = (line.rsplit(" ", 1) for line in text.decode().splitlines())
    return {name: int(count) for name, count in pairs}


def start(
    devices: int = 1,
    mib: int = 64,
    *,
    torch_dir: Path | str | None = None,
    operators: bool = True,
    **options: int,
) -> Device:
    """Starts the simulated device in this process, before torch is imported.

    devices, mib: how many devices, and the memory of each in MiB; 0 devices is a machine without.
    operators: give CUDA operators their CPU semantics, which imports torch.
    options:
      race=1         happens-before checker (on by default)
      poison=1       fill new and freed memory with a pattern (on by default)
      bytes=1        copies move bytes; with 0, memory that nobody writes takes no room here
      async_=0       run each stream in a thread of its own
      delay_us=0     with async_: start each operation up to that many microseconds late
      query_notready=0   how often each event says "not ready" although it is done
      timing=0       give operations durations, in a model of time: takes(), and copies over a link
      to_host=52000, to_device=53600  with timing: the link's bytes per microsecond
      host_mib=0     the most pinned host memory, 0 is no limit
      log=0          faults, races and unsupported calls on stderr
    """
    if "torch" in sys.modules:
        raise RuntimeError("simcuda.start() must be called before torch is imported")
    libraries, runtime = _load(devices, mib, torch_dir, options)
    if not operators:
        return Device(runtime, None, 0)
    import torch  # noqa: F401 (the libraries that it needs have just been loaded)

    return _give_semantics(libraries, runtime)


def restart(device: Device, devices: int = 1, mib: int = 64, **options: int) -> Device:
    """Starts anew, with start()'s options, in a process that was forked before the first use."""
    _choose(devices, mib, options)
    device.restart()
    return device


def start_at_import(devices: int = 1, mib: int = 64, **options: int) -> None:
    """Starts it in the moment in which this process imports torch, if it ever does."""
    sys.meta_path.insert(0, _AtImport(devices, mib, options))


class _AtImport(importlib.abc.MetaPathFinder):
    """Finds torch where it is, and gives it a loader that starts the device around its own."""

    def __init__(self, devices: int, mib: int, options: dict[str, int]) -> None:
        self._start = (devices, mib, None, options)

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            libraries, runtime = _load(*self._start)
            execute(module)
            _give_semantics(libraries, runtime)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _load(
    devices: int, mib: int, torch_dir: Path | str | None, options: dict[str, int]
) -> tuple[Path, ctypes.CDLL]:
    """The folder of the libraries, all of which are loaded, and of them the CUDA runtime."""
    from simcuda.build import build  # not above: python -m simcuda.build imports this package

    _choose(devices, mib, options)
    libraries = build(torch_dir)
    runtime_path = next(libraries.glob("libcudart.so.*"))
    runtime = ctypes.CDLL(str(runtime_path), ctypes.RTLD_GLOBAL)
    # Loaded by now, the libraries that torch's are linked with are found by their sonames.
    for library in sorted(libraries.glob("lib*.so.*")):
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    return libraries, runtime


def _choose(devices: int, mib: int, options: dict[str, int]) -> None:
    """Leaves the options in the environment, where the simulated CUDA runtime finds them."""
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise TypeError(f"unknown options: {unknown}; known are {list(_OPTIONS)}")
    os.environ["SIMCUDA_DEVICES"] = str(devices)
    os.environ["SIMCUDA_MIB"] = str(mib)
    for name in _OPTIONS:
        variable = "SIMCUDA_" + name.rstrip("_").upper()
        if name in options:
            os.environ[variable] = str(int(options[name]))
        elif name != "log":  # SIMCUDA_LOG=1 may come from whoever runs the tests
            os.environ.pop(variable, None)  # what a parent process chose is no concern of ours


def _give_semantics(libraries: Path, runtime: ctypes.CDLL) -> Device:
    runtime.simcuda_take_static_calls()
    semantics = ctypes.CDLL(str(libraries / "libsimops.so"))
    semantics.simops_install.restype = ctypes.c_long
    semantics.simops_operators_run.restype = ctypes.c_long
    return Device(runtime, semantics, semantics.simops_install())
