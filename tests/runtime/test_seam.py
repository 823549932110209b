"""PyTorch 1.13: what stands between its libraries and the functions of its allocator."""

import contextlib
import ctypes
import subprocess
from pathlib import Path

import pytest
import torch
from conftest import CAPACITY, DEVICE, MIB
from releases import RELEASE
from simcuda.process import run_sim
from tensors import evict, floats, is_resident, managed, pattern, stat, turn_on

LIB = Path(torch.__file__).parent / "lib"
ALLOCATOR = "_ZN3c104cuda20CUDACachingAllocator"

pytestmark = pytest.mark.skipif(RELEASE >= (2, 0), reason="here the allocator is a class")


def capture(fill):
    """Runs the function while a graph is captured, on a stream of its own."""
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        graph.capture_begin()
        result = fill()
        with contextlib.suppress(RuntimeError):  # the simulated device records no graph
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(side)
    return graph, result


@pytest.mark.parametrize("lms", [False, True], ids=["off", "on"])
def test_what_a_graph_allocated_stays(lms):
    torch.cuda.set_enabled_lms(lms)
    before = pattern(1)
    graph, x = capture(lambda: torch.empty(floats(1), device="cuda"))
    x.copy_(pattern(1, start=3, device="cpu"))
    turn_on()
    managed(x)
    managed(before)
    after = managed(pattern(1))
    evict()
    assert is_resident(x)
    # While LMS is off, it does not see what a graph uses.
    assert is_resident(before) == (not lms)
    assert not is_resident(after)
    assert torch.equal(x.cpu(), pattern(1, start=3, device="cpu"))
    del graph


def raw_alloc(size):
    """As Thrust's temporary memory is allocated."""
    allocate = ctypes.CDLL(str(LIB / "libtorch_lms_seam.so"))[ALLOCATOR + "9raw_allocEm"]
    allocate.argtypes, allocate.restype = [ctypes.c_size_t], ctypes.c_void_p
    return allocate(size)


@pytest.mark.parametrize("allocate", [raw_alloc, torch.cuda.caching_allocator_alloc])
def test_memory_that_is_no_storage_gets_room(allocate):
    kept = [managed(pattern(8, start=i)) for i in range(7)]
    address = allocate(32 * MIB)
    assert stat("page_out_count") > 0
    torch.cuda.caching_allocator_delete(address)
    for i, tensor in enumerate(kept):
        assert torch.equal(tensor.cpu(), pattern(8, start=i, device="cpu"))


def test_an_operator_that_allocates_nothing_is_refused_cleanly():
    """A callback cannot throw; the operator's kernel must not be launched all the same."""
    x = managed(pattern(1))
    evict()
    blocker = torch.cuda.caching_allocator_alloc(CAPACITY - 2 * MIB)
    torch.cuda.empty_cache()
    DEVICE.fault("cudaMalloc", 1, 2, from_=True)
    for write in (lambda: x.add_(1), lambda: x.zero_()):
        with pytest.raises(torch.cuda.OutOfMemoryError, match="Large Model Support"):
            write()
    DEVICE.clear_faults()
    torch.cuda.caching_allocator_delete(blocker)
    assert torch.equal(x.cpu(), pattern(1, device="cpu"))


def test_the_fraction_that_was_set_before_counts():
    def scenario(device):
        import torch

        torch.cuda.set_per_process_memory_fraction(0.5)
        torch.cuda.set_enabled_lms(True)
        torch.zeros(1 << 20, device="cuda").add_(1)
        limit = torch.cuda.lms.stats()["limit_bytes"]
        return limit <= 32 << 20

    assert run_sim(scenario, mib=64)


def test_libraries_that_were_loaded_before_are_refused():
    """Their calls do not come to the seam: LMS must not say that it is on."""

    def scenario(device):
        import ctypes
        import importlib.util
        import pathlib

        import simcuda

        found = importlib.util.find_spec("torch").submodule_search_locations[0]
        lib = pathlib.Path(found) / "lib"
        device = simcuda.start(mib=64, operators=False)
        ctypes.CDLL(str(lib / "libtorch_cuda.so"), ctypes.RTLD_GLOBAL)
        import torch

        assert device._runtime.simcuda_take_static_calls() > 0
        try:
            torch.cuda.set_enabled_lms(True)
        except RuntimeError as error:
            return [str(error), torch.cuda.get_enabled_lms()]
        return ["", torch.cuda.get_enabled_lms()]

    message, enabled = run_sim(scenario, start=False)
    assert "before PyTorch's libraries" in message
    assert not enabled


def test_the_seam_exports_its_own_functions_only():
    names = subprocess.run(
        ["nm", "-D", "--defined-only", str(LIB / "libtorch_lms_seam.so")],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.split()[2::3]
    foreign = [n for n in names if n != "lms_seam" and not n.startswith("_ZN3c104cuda")]
    assert foreign == []
    core = ctypes.CDLL(str(LIB / "libc10_cuda.so"))
    assert all(hasattr(core, name) for name in names if name != "lms_seam")
