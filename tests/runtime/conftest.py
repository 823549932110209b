"""The runtime's tests share two simulated GPUs of 64 MiB, with the race checker on.

They run in an environment whose PyTorch has LMS, which `make test` creates. If LMS_TEST_DEVICE is
"gpu", they run on two real GPUs and use the same amount of memory. With one GPU, tests that need a
second one are skipped. So are tests of what only the simulation can do. LMS_TEST_COMPRESSION is the
setting of torch.cuda.lms.set_compression() for all of them; it is "off" by default.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "simcuda"))

import hardware
import simcuda
import simcuda.process

MIB = 1 << 20
CAPACITY = 64 * MIB
ON_HARDWARE = hardware.wanted()

# Events are late, as on a GPU. What the host is told to be done, the race checker takes to be
# ordered.
DEVICE: Any = (
    hardware.Hardware(CAPACITY)
    if ON_HARDWARE
    else simcuda.start(devices=2, mib=CAPACITY // MIB, query_notready=1)
)

import torch  # noqa: E402 (the simulated device comes first)
from cxx import HERE, compile_cxx  # noqa: E402

torch.cuda.init()

DEVICES = torch.cuda.device_count()

SECOND_DEVICE = re.compile("invalid device|device ordinal|device_count\\(\\)", re.IGNORECASE)
"""Matches the messages of errors about a device that does not exist."""

COMPRESSION = os.environ.get("LMS_TEST_COMPRESSION", "off")

SMALL = 1 << 12
"""Size in bytes of the smallest storage that is paged out in these tests."""


if ON_HARDWARE:
    # Before the tests import it, because code in a separate process would get a simulated device.
    simcuda.process.run_sim = DEVICE.run_sim


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """Skips a test that needs a second GPU if there is only one."""
    try:
        return (yield)
    except (AssertionError, RuntimeError) as error:
        if DEVICES > 1 or not SECOND_DEVICE.search(str(error)):
            raise
    # Not inside the except block, where the traceback of the error would keep the test's tensors.
    pytest.skip("two GPUs are needed, and there is one")


@pytest.fixture
def device() -> Any:
    return DEVICE


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The functions of unseen.cpp, which also write them."""
    import unseen

    return unseen.Extension(tmp_path_factory.mktemp("unseen"))


@pytest.fixture(scope="session")
def extension(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The functions of extension.cpp, which use storages without the dispatcher."""
    library = tmp_path_factory.mktemp("extension") / "extension.so"
    compile_cxx(HERE / "extension.cpp", library, "-shared", "-fPIC")
    loaded = ctypes.CDLL(str(library))
    loaded.drop_memory.argtypes = loaded.read_throws.argtypes = [ctypes.c_void_p]
    loaded.drop_memory.restype = None
    loaded.read_throws.restype = ctypes.c_bool
    return loaded


@pytest.fixture(autouse=True, scope="session")
def first_page_outs() -> None:
    """Loads the runtime's kernels, which waits for the device. The page-outs of tests must not."""
    torch.cuda.set_size_lms(SMALL)
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    for index in range(DEVICES):
        x = torch.zeros(SMALL, device=index)
        x.sum()
        torch.cuda.reclaim_inactive()
        assert not torch.cuda.lms.is_resident(x)
        del x
    torch.cuda.empty_cache()


class Imported:
    """Modules that the garbage collector does not look through.

    They are never garbage, and to look through them would take a tenth of a second for each test.
    """

    def __init__(self) -> None:
        self._frozen = 0

    def freeze(self) -> None:
        """Call it when nothing of a test is left. Does nothing unless many have been imported."""
        if len(sys.modules) > self._frozen + 20:
            self._frozen = len(sys.modules)
            gc.collect()
            gc.freeze()


IMPORTED = Imported()


def forget_errors() -> None:
    """Frees the tensors of a test that failed: pytest keeps its frames for debuggers."""
    for name in ("last_exc", "last_value", "last_traceback"):
        if hasattr(sys, name):
            delattr(sys, name)
    gc.collect()


@pytest.fixture
def uncompressed(clean_slate: None) -> None:
    """For tests of copies, for which the copy engine is called."""
    torch.cuda.lms.set_compression("off")


@pytest.fixture(autouse=True)
def clean_slate(first_page_outs: None) -> Iterator[None]:
    """Starts each test with LMS on and watching, small storages managed and no memory in use.

    Fails the test if the race checker reports anything, or if the test does not free its memory.
    """
    forget_errors()
    IMPORTED.freeze()
    torch.cuda.set_size_lms(SMALL)
    torch.cuda.lms.set_compression(COMPRESSION)
    torch.cuda.set_limit_lms(0)
    torch.cuda.set_host_limit_lms(0)
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    torch.cuda.reclaim_inactive()  # Begins to watch, for which it waits for the device.
    if ON_HARDWARE:
        DEVICE.reset()
    DEVICE.clear_races()
    for index in range(DEVICES):
        torch.cuda.reset_accumulated_memory_stats(index)
        torch.cuda.reset_peak_memory_stats(index)
    yield
    DEVICE.clear_faults()
    if not ON_HARDWARE:
        DEVICE.release()
    DEVICE.set_host_limit(0)
    DEVICE.set_cap(CAPACITY)
    if not ON_HARDWARE:
        DEVICE.reuse_addresses(False)
    torch.cuda.lms._set_stress(False)
    torch.cuda.lms._set_late(False)
    torch.cuda.lms._set_shuffle(False)
    torch.cuda.lms._set_verify_clean(False)
    torch.cuda.lms._set_unchecked(False)
    gc.collect()
    races = DEVICE.races()
    torch.cuda.set_limit_lms(0)
    torch.cuda.set_enabled_lms(False)
    torch.cuda.set_per_process_memory_fraction(1.0)
    if ON_HARDWARE:
        DEVICE.reset()
        torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.lms.trim_host()
    assert races == []
    for index in range(DEVICES):
        assert torch.cuda.lms.stats(index)["host_bytes"] == 0, "a host buffer was not given back"


@pytest.fixture
def kept_plans() -> Iterator[None]:
    """Plans are made and followed, although times mean nothing here."""
    torch.cuda.lms.set_planning(True)
    torch.cuda.lms._keep_plans(True)
    yield
    torch.cuda.lms._keep_plans(False)
    torch.cuda.lms.set_planning(True)


def start_within(limit: int) -> None:
    """Turns LMS on, with no plan and all statistics at 0. `limit` is in bytes."""
    torch.cuda.empty_cache()
    torch.cuda.set_limit_lms(limit)
    torch.cuda.set_enabled_lms(True)
    torch.cuda.reset_accumulated_memory_stats()
    torch.cuda.reset_peak_memory_stats()


def program_of(name: str) -> Any:
    """A fixture: the program that is compiled from `name`.cpp, once for a module."""

    @pytest.fixture(scope="module")
    def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
        output = tmp_path_factory.mktemp(name) / name
        compile_cxx(HERE / f"{name}.cpp", output)
        return output

    return program
