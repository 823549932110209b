"""What a page-in waits for: the last use of its own memory. The race checker judges."""

import contextlib
import ctypes

import pytest
import torch
from conftest import MIB
from past import cudart
from tensors import evict, floats, managed, pattern, raw_address, stat, turn_on

SIZE = 4  # MiB: cut from a large segment


def write(address, mib):
    """Work on the current stream that uses memory, and that no operator shows."""
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    size = ctypes.c_size_t(int(mib * MIB))
    assert cudart().cudaMemsetAsync(ctypes.c_void_p(address), 1, size, stream) == 0


@contextlib.contextmanager
def storage():
    x = managed(torch.empty(floats(SIZE), device="cuda"))
    yield raw_address(x)
    x.fill_(1)


@contextlib.contextmanager
def small_storage():
    torch.cuda.set_size_lms(2 * SIZE * MIB)
    x = torch.empty(floats(SIZE), device="cuda")
    yield raw_address(x)


@contextlib.contextmanager
def workspace():
    address = torch.cuda.caching_allocator_alloc(SIZE * MIB)
    yield address
    torch.cuda.caching_allocator_delete(address)


@pytest.mark.parametrize("other", [storage, small_storage, workspace])
def test_a_page_in_waits_for_the_last_use_of_its_memory(other):
    held = managed(pattern(SIZE))
    place = raw_address(held)
    evict()
    with other() as address:
        assert address == place
        write(address, SIZE)
    held.add_(1)
    assert raw_address(held) == place
    assert torch.equal(held.cpu(), pattern(SIZE, start=1, device="cpu"))


def test_memory_that_was_used_while_lms_was_off():
    gone = managed(pattern(SIZE))  # at the lower address, which is given out first
    held = managed(pattern(SIZE))
    evict()
    gone.sum()
    held.sum()
    place = raw_address(gone)
    del gone
    torch.cuda.set_enabled_lms(False)
    x = torch.empty(floats(SIZE), device="cuda")
    assert raw_address(x) == place
    turn_on()
    evict()
    write(raw_address(x), SIZE)
    del x  # no operator has used it since
    held.add_(1)
    assert raw_address(held) == place
    assert torch.equal(held.cpu(), pattern(SIZE, start=1, device="cpu"))


@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_page_in_into_pieces_waits_for_each(written):
    whole = managed(pattern(3 * SIZE))
    place = raw_address(whole)
    evict()
    pieces = [managed(torch.empty(floats(SIZE), device="cuda")) for _ in range(3)]
    assert [raw_address(piece) - place for piece in pieces] == [0, SIZE * MIB, 2 * SIZE * MIB]
    last = pieces.pop(written)
    pieces.clear()
    write(raw_address(last), SIZE)
    del last
    whole.add_(1)
    assert raw_address(whole) == place
    assert torch.equal(whole.cpu(), pattern(3 * SIZE, start=1, device="cpu"))


def test_a_part_of_the_memory_is_not_known():
    whole = managed(pattern(3 * SIZE))
    place = raw_address(whole)
    evict()
    torch.cuda.set_size_lms(2 * SIZE * MIB)
    pieces = [torch.empty(floats(SIZE), device="cuda") for _ in range(3)]
    assert [raw_address(piece) - place for piece in pieces] == [0, SIZE * MIB, 2 * SIZE * MIB]
    torch.cuda.set_size_lms(MIB)
    managed(pieces[0])
    managed(pieces[2])
    del pieces[2], pieces[0]  # which LMS sees
    write(raw_address(pieces[0]), SIZE)
    pieces.clear()  # and this not
    whole.add_(1)
    assert raw_address(whole) == place
    assert torch.equal(whole.cpu(), pattern(3 * SIZE, start=1, device="cpu"))


def test_memory_of_a_large_segment_that_becomes_a_small_one(device):
    # Of requests for small segments the native allocator tells nobody.
    held = managed(pattern(0.5))
    evict()
    torch.cuda.empty_cache()
    device.reuse_addresses(True)
    large = managed(pattern(SIZE))
    place = raw_address(large)
    evict()
    torch.cuda.empty_cache()
    torch.cuda.set_size_lms(MIB)
    below = []
    while raw_address(x := torch.empty(floats(0.5), device="cuda")) < place:
        below.append(x)
    assert raw_address(x) == place
    write(raw_address(x), 0.5)
    del x
    held.add_(1)
    assert raw_address(held) == place
    assert torch.equal(held.cpu(), pattern(0.5, start=1, device="cpu"))


def recorded(device, work):
    """How many events the work records."""
    device.reset_counts()
    work()
    return device.count("cudaEventRecord")


def test_a_page_in_does_not_wait_for_what_is_queued_later(device):
    # Nothing is asked of the home stream when the last use of the memory is known.
    x = managed(pattern(SIZE))
    evict()
    torch.cuda.synchronize()
    known = recorded(device, lambda: x.add_(1))
    torch.cuda.empty_cache()
    evict()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    y = torch.cuda.caching_allocator_alloc(SIZE * MIB)  # and not known
    torch.cuda.caching_allocator_delete(y)
    unknown = recorded(device, lambda: x.add_(1))
    assert stat("page_in_count") == 2
    assert known == unknown - 1


def waits_of_page_outs(device, mib):
    """How often a stream waits for another one in four page-outs that follow one of 8 MiB."""
    first = managed(pattern(8))
    evict()
    tensors = [managed(pattern(mib, start=k)) for k in range(4)]
    device.reset_counts()
    evict()
    waits = device.count("cudaStreamWaitEvent")
    expected = [pattern(mib, start=k, device="cpu") for k in range(4)]
    assert all(map(torch.equal, (x.cpu() for x in tensors), expected))
    assert torch.equal(first.cpu(), pattern(8, device="cpu"))
    return waits


@pytest.mark.usefixtures("uncompressed")
def test_the_copies_to_the_host_take_turns_on_two_streams(device):
    """So a copy of the program does not have to wait for all that are queued.

    A turn ends with the copy that makes 8 MiB: there are four, and one for the small tensors.
    Kernels that compress take no turns.
    """
    assert waits_of_page_outs(device, 8) - waits_of_page_outs(device, 2) == 3
