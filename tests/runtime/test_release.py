"""What no operator shows is written to memory that is about to be given up."""

import warnings

import pytest
import torch
from hardware import simulated
from past import write_unseen
from releases import since
from simcuda.process import run_sim
from tensors import evict, is_resident, managed, pattern, raw_address, stat


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def resident_source(start):
    """Stays, so that to read its address is allowed."""
    source = managed(pattern(1, start=start))
    torch.cuda.lms.exclude(source)
    return source


def test_a_write_to_a_clean_block_is_kept():
    y = managed(torch.zeros_like(pattern(1)))
    evict()
    y.sum()  # on the device again, and its host copy is true
    write_unseen(y, resident_source(7))
    evict()
    assert not is_resident(y)
    assert torch.equal(y.cpu(), pattern(1, start=7, device="cpu"))


def test_a_write_to_a_dirty_block_is_kept(device):
    other = managed(pattern(1))
    evict()  # under pressure from here
    assert not is_resident(other)
    source = resident_source(7)
    y = torch.zeros_like(source)
    y.add_(1)  # changed, and its last use that was seen is marked
    write_unseen(y, source)
    evict()
    # The copy to the host did not wait for the write. What it read is not believed.
    device.clear_races()
    assert not is_resident(y)
    assert torch.equal(y.cpu(), pattern(1, start=7, device="cpu"))


def test_a_write_on_another_stream_that_used_the_block(device):
    other = managed(pattern(1))
    evict()
    assert not is_resident(other)
    source = resident_source(7)
    y = torch.zeros_like(source)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y.add_(1)
        write_unseen(y, source)
    evict()
    device.clear_races()
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(y.cpu(), pattern(1, start=7, device="cpu"))


def test_a_page_in_waits_for_the_check_of_its_host_copy():
    source = torch.full_like(pattern(2), 7)
    torch.cuda.lms.exclude(source)
    first, y = managed(pattern(2)), managed(pattern(2))
    evict()
    torch.cat([first[:1], y[:1]])  # on the device again, and their host copies are true
    address = raw_address(first)
    assert address < raw_address(y)
    write_unseen(y, source)
    del first
    evict()
    # It goes where the other one was, whose last use came before the check.
    assert bool((y == 7).all())
    assert raw_address(y) == address


@pytest.mark.parametrize("offset", [0, 1 << 17, (1 << 18) - 1])
def test_one_number_is_enough(offset):
    y = managed(pattern(1))
    evict()
    y.sum()
    source = torch.full((1,), 3.5, device="cuda")
    torch.cuda.lms.exclude(source)
    write_unseen(y[offset : offset + 1], source)
    evict()
    expected = pattern(1, device="cpu")
    expected[offset] = 3.5
    assert torch.equal(y.cpu(), expected)


def test_again_and_again():
    y = managed(pattern(1))
    for round_ in range(5):
        evict()
        assert torch.equal(y.cpu(), pattern(1, start=round_, device="cpu"))
        write_unseen(y, resident_source(round_ + 1))
        torch.cuda.lms.release(y)


@since((2, 0), "writes that no operator shows: the seam and the hooks see every access")
def test_it_is_counted():
    y = managed(pattern(1))
    evict()
    y.sum()
    evict()
    torch.cuda.synchronize()
    assert stat("release_caught") == 0, "nothing was written"
    y.sum()
    write_unseen(y, resident_source(7))
    evict()
    torch.cuda.synchronize()
    assert stat("release_caught") == 1
    assert "no operator had reported it" in torch.cuda.lms.explain()
    torch.cuda.reset_accumulated_memory_stats()
    assert stat("release_caught") == 0
    assert "no operator had reported it" not in torch.cuda.lms.explain()
    managed(y)
    write_unseen(y, resident_source(8))
    evict()
    torch.cuda.synchronize()
    assert stat("release_caught") == 1


@since((2, 0), "writes that no operator shows: the seam and the hooks see every access")
def test_without_the_check_it_is_lost(uncompressed):
    """So that what tests/gpu/check.py measures without the check is without it."""
    torch.cuda.lms._set_unchecked(True)
    y = managed(torch.zeros_like(pattern(1)))
    evict()
    y.sum()
    write_unseen(y, resident_source(7))
    evict()
    torch.cuda.synchronize()
    assert stat("release_caught") == 0
    assert torch.equal(y.cpu(), torch.zeros_like(pattern(1, device="cpu")))


def warned(_):
    import ctypes
    import warnings

    import torch

    torch.cuda.set_size_lms(1 << 12)
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    base = getattr(torch._C, "TensorBase", None) or torch._C._TensorBase
    x = torch.zeros(1 << 18, dtype=torch.int32, device="cuda")
    x.sum()
    torch.cuda.reclaim_inactive()  # the host has the bytes
    told = []
    for value in (1, 2):
        x.abs()  # the last operator that is seen
        address = ctypes.c_void_p(base.data_ptr(x))
        assert ctypes.CDLL(None).cudaMemset(address, value, ctypes.c_size_t(1 << 20)) == 0
        torch.cuda.reclaim_inactive()
        torch.cuda.synchronize()
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            torch.empty(1 << 18, device="cuda")
        told.append([str(warning.message) for warning in found])
    return (*told, torch.cuda.lms.stats()["release_caught"])


@simulated
@since((2, 0), "writes that no operator shows: the seam and the hooks see every access")
def test_a_warning_names_the_operator_once():
    first, second, caught = run_sim(warned)
    assert caught == 2
    assert len(first) == 1
    assert "It was last used by aten::abs. Nothing is lost" in first[0]
    assert second == []


def without_kernels(device, aside):
    import ctypes

    import torch

    torch.cuda.set_size_lms(1 << 12)
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    device.fault("nvrtcVersion", 1, 11, True)
    clean, dirty = (torch.zeros(1 << 18, dtype=torch.int32, device="cuda") for _ in range(2))
    (clean + dirty).sum()
    torch.cuda.reclaim_inactive()
    base = getattr(torch._C, "TensorBase", None) or torch._C._TensorBase
    faults = device.counts()["nvrtcVersion"]
    stream = torch.cuda.Stream() if aside else torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        clean.sum()
        dirty.add_(1)
        for tensor in (clean, dirty):  # after the last use that an operator shows
            address = ctypes.c_void_p(base.data_ptr(tensor))
            handle = ctypes.c_void_p(stream.cuda_stream)
            status = ctypes.CDLL(None).cudaMemsetAsync(address, 1, ctypes.c_size_t(1 << 20), handle)
            assert status == 0
    torch.cuda.reclaim_inactive()
    assert not torch.cuda.lms.is_resident(clean)
    assert not torch.cuda.lms.is_resident(dirty)
    right = all(bool((tensor.cpu() == 0x01010101).all()) for tensor in (clean, dirty))
    return faults, right, device.races(), "nvrtcVersion" in torch.cuda.lms.explain()


@simulated
@pytest.mark.parametrize("aside", [False, True])
def test_without_kernels(aside, tmp_path):
    """Then everything is copied, behind all that is queued."""
    environment = {"PYTORCH_KERNEL_CACHE_PATH": str(tmp_path)}
    assert run_sim(without_kernels, aside, environment=environment) == [1, True, [], True]


def older_than_lms(device):
    import torch

    device.fault("nvrtcVersion", 1, 11, True)
    x = torch.arange(1 << 20, dtype=torch.int32, device="cuda")
    torch.cuda.set_size_lms(1 << 12)
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    x.sum()
    torch.cuda.reclaim_inactive()
    away = not torch.cuda.lms.is_resident(x)
    others = [torch.full((1 << 20,), 7, dtype=torch.int32, device="cuda") for _ in range(4)]
    right = torch.equal(x.cpu(), torch.arange(1 << 20, dtype=torch.int32))
    right = right and all(bool((other == 7).all()) for other in others)
    return away, right, device.races()


@simulated
def test_without_kernels_and_older_than_lms(tmp_path):
    """No stream orders the next use of its memory after the copy."""
    environment = {"PYTORCH_KERNEL_CACHE_PATH": str(tmp_path)}
    assert run_sim(older_than_lms, environment=environment) == [True, True, []]
