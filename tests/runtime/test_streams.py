"""Order between streams. The race checker judges; each test also compares bytes."""

import contextlib
import ctypes

import pytest
import torch
from conftest import MIB
from faults import UNKNOWN
from hardware import simulated
from past import write_unseen
from tensors import evict, floats, is_resident, managed, older, pattern, raw_address, turn_on


def test_page_out_waits_for_the_streams_that_used_it():
    side = torch.cuda.Stream()
    x = managed(pattern(2))
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.mul_(2)
    evict()  # from the main stream, which has not waited for the side stream
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(x.cpu(), pattern(2, device="cpu") * 2)


def test_memory_is_not_reused_under_a_reader_on_another_stream():
    side = torch.cuda.Stream()
    x = managed(pattern(2))
    evict()
    x.sum()  # clean from now on: the next page-out copies nothing
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x + 1
    evict()
    other = torch.zeros(floats(2), device="cuda")
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(y.cpu(), pattern(2, start=1, device="cpu"))
    assert other.sum().item() == 0


def at_once(work):
    work()


def in_a_node(work):
    """In a hook of an autograd node, whose uses end with it."""
    x = torch.zeros(1, device="cuda", requires_grad=True)
    x.register_hook(lambda gradient: work())
    x.sum().backward()


@pytest.mark.parametrize("run", [at_once, in_a_node])
@pytest.mark.parametrize("older", [False, True], ids=["managed", "older_than_lms"])
def test_a_page_in_is_not_put_under_a_reader_on_another_stream(run, older):
    # The program allocates nothing on the main stream before that has waited, but LMS does. In a
    # node: as DistributedDataParallel's mixed precision, which casts gradients on a stream of its
    # own, drops them, and goes on to the next parameter.
    side = torch.cuda.Stream()
    torch.cuda.set_enabled_lms(not older)
    tensors = [pattern(2)]
    out = torch.empty_like(tensors[0])
    turn_on()
    held = managed(pattern(2, start=3))
    with torch.cuda.lms.resident(*tensors, out):
        evict()
    side.wait_stream(torch.cuda.current_stream())

    def work():
        with torch.cuda.stream(side):
            torch.mul(tensors[0], 2, out=out)
        place = raw_address(tensors[0])
        tensors.clear()
        held.add_(1)
        assert raw_address(held) == place

    run(work)
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(out.cpu(), pattern(2, device="cpu") * 2)
    assert torch.equal(held.cpu(), pattern(2, start=4, device="cpu"))


def test_every_stream_waits_for_the_page_in():
    side = torch.cuda.Stream()
    x = managed(pattern(2))
    side.wait_stream(torch.cuda.current_stream())
    evict()
    a = x + 1  # pages in for the main stream
    with torch.cuda.stream(side):
        b = x + 2  # and this one was never told to wait for the main stream
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(a.cpu(), pattern(2, start=1, device="cpu"))
    assert torch.equal(b.cpu(), pattern(2, start=2, device="cpu"))


def test_memory_goes_back_in_the_order_of_its_own_stream():
    # Allocated on the side stream, paged in and dropped by the main stream.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x = managed(pattern(2))
    torch.cuda.current_stream().wait_stream(side)
    evict()
    x.sum()
    side.wait_stream(torch.cuda.current_stream())
    del x
    with torch.cuda.stream(side):
        fresh = torch.zeros(floats(2), device="cuda")
    torch.cuda.current_stream().wait_stream(side)
    assert fresh.sum().item() == 0


def test_memory_goes_back_behind_a_page_in_that_its_own_stream_has_not_seen():
    # As above, but the main stream runs nothing that the side stream would have to wait for.
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = managed(pattern(2))
    evict()
    torch.cuda.lms.wrap(is_resident)(x)
    assert is_resident(x)
    del x
    with torch.cuda.stream(side):
        fresh = torch.zeros(floats(2), device="cuda")
        assert fresh.sum().item() == 0


@pytest.mark.parametrize("told", ["data_ptr", "resident", "exclude"])
def test_what_is_told_may_be_used_on_any_stream(told, writer):
    """As without LMS: nobody waits for what was there long ago."""
    x, target = managed(pattern(1)), pattern(1, start=5)
    torch.cuda.synchronize()
    with torch.cuda.lms.resident(target):
        evict()
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.cuda.lms.resident(target))
        if told == "data_ptr":
            x.data_ptr()
        elif told == "resident":
            stack.enter_context(torch.cuda.lms.resident(x))
        else:
            torch.cuda.lms.exclude(x)
        with torch.cuda.stream(torch.cuda.Stream()):
            writer.copy(x, target, 0, 0, MIB)
            torch.cuda.current_stream().synchronize()
    assert torch.equal(target.cpu(), pattern(1, device="cpu"))


def test_data_ptr_of_what_an_operator_has_brought(writer):
    x, target = managed(pattern(1)), pattern(1, start=5)
    torch.cuda.synchronize()
    with torch.cuda.lms.resident(target):
        evict()
        x.sum()  # this stream waits for it
        with torch.cuda.stream(torch.cuda.Stream()):
            x.data_ptr()
            writer.copy(x, target, 0, 0, MIB)
            torch.cuda.current_stream().synchronize()
    assert torch.equal(target.cpu(), pattern(1, device="cpu"))


def test_record_stream_reaches_the_native_allocator():
    side = torch.cuda.Stream()
    x = managed(pattern(2))
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x.mul(2)
        x.record_stream(side)
    del x
    fresh = torch.zeros(floats(2), device="cuda")
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(y.cpu(), pattern(2, device="cpu") * 2)
    assert fresh.sum().item() == 0


def test_record_stream_of_another_device():
    x, y = managed(pattern(1)), managed(pattern(1, start=3))
    evict()
    x.record_stream(torch.cuda.Stream(device="cuda:1"))
    y.record_stream(torch.cuda.default_stream("cuda:1"))
    evict()
    assert is_resident(x)  # only the native allocator orders devices
    assert is_resident(y)
    assert torch.equal(x.cpu(), pattern(1, device="cpu"))
    assert torch.equal(y.cpu(), pattern(1, start=3, device="cpu"))
    del x, y
    assert torch.cuda.memory_allocated() == 0


def test_record_stream_survives_a_page_out():
    side = torch.cuda.Stream()
    x = managed(pattern(2))
    x.record_stream(side)
    evict()
    x.sum()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x.mul(2)
    del x
    # Enough of them that one would get the memory if it could be had.
    fresh = [torch.zeros(floats(2), device="cuda") for _ in range(12)]
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(y.cpu(), pattern(2, device="cpu") * 2)
    assert all(f.sum().item() == 0 for f in fresh)


def test_enabled_after_tensors_exist_on_other_streams():
    torch.cuda.set_enabled_lms(False)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x = pattern(2)
        x.add_(1)
    turn_on()
    torch.cuda.current_stream().wait_stream(side)
    managed(x)
    evict()
    fresh = torch.zeros(floats(2), device="cuda")
    with torch.cuda.stream(side):
        again = torch.zeros(floats(2), device="cuda")
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(x.cpu(), pattern(2, start=1, device="cpu"))
    assert fresh.sum().item() == 0
    assert again.sum().item() == 0


def test_turned_off_after_it_has_chosen_a_stream():
    # LMS does not know where x was allocated, and brings it on another stream. What uses it after
    # LMS was turned off is ordered with its own stream only.
    side = torch.cuda.Stream()
    x, out = older(2, torch.cuda.current_stream())
    managed(x)
    evict()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.add_(1)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.set_enabled_lms(False)
    torch.mul(x, 2, out=out)
    del x
    with torch.cuda.stream(side):
        others = [torch.zeros_like(out) for _ in range(4)]
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(out.cpu(), pattern(2, start=1, device="cpu") * 2)
    assert all(other.sum().item() == 0 for other in others)


def test_two_devices_and_a_peer_copy():
    x = managed(pattern(2))
    evict()
    y = x.to("cuda:1")
    managed(y)
    torch.cuda.lms._set_stress(True)
    z = y.to("cuda:0") + x
    torch.cuda.lms._set_stress(False)
    evict()
    assert torch.cuda.lms.stats(1)["page_out_count"] > 0
    assert torch.equal(z.cpu(), pattern(2, device="cpu") * 2)
    assert torch.equal(y.cpu(), pattern(2, device="cpu"))
    assert y.device.index == 1


class Foreign:
    """A stream that is not PyTorch's, and that goes when its user has done with it."""

    def __enter__(self):
        self.handle = ctypes.c_void_p()
        assert ctypes.CDLL(None).cudaStreamCreate(ctypes.byref(self.handle)) == 0
        self.stream = torch.cuda.ExternalStream(self.handle.value)
        return self.stream

    def __exit__(self, *_):
        torch.cuda.current_stream().wait_stream(self.stream)
        assert ctypes.CDLL(None).cudaStreamDestroy(self.handle) == 0


def test_a_stream_that_is_destroyed():
    older = managed(pattern(1, start=7))
    with Foreign() as stream, torch.cuda.stream(stream):
        stream.wait_stream(torch.cuda.default_stream())
        x = pattern(1)  # made, used, and used by others there
        x.add_(1)
        older.add_(1)
    evict()
    assert not is_resident(x)
    assert not is_resident(older)
    fresh = torch.zeros(floats(4), device="cuda")
    x.add_(1)
    older.add_(1)
    evict()
    assert torch.equal(x.cpu(), pattern(1, start=2, device="cpu"))
    assert torch.equal(older.cpu(), pattern(1, start=9, device="cpu"))
    assert fresh.sum().item() == 0
    del x, older


@simulated
def test_a_page_out_that_fails_after_its_stream_is_destroyed(device):
    with Foreign() as stream, torch.cuda.stream(stream):
        stream.wait_stream(torch.cuda.default_stream())
        x = pattern(1)
        x.add_(1)
    before = torch.cuda.lms.get_compression()
    torch.cuda.lms.set_compression("off")  # so that it copies
    device.fault("cudaMemcpyAsync", error=UNKNOWN)
    evict()
    device.clear_faults()
    torch.cuda.lms.set_compression(before)
    assert is_resident(x)
    assert torch.equal(x.cpu(), pattern(1, start=1, device="cpu"))


@pytest.mark.parametrize("run", [at_once, in_a_node])
def test_a_page_in_after_a_reader_whose_stream_is_destroyed(run):
    held = managed(pattern(1, start=3))
    evict()
    tensors = [pattern(1)]
    out = torch.empty_like(tensors[0])

    def work():
        with Foreign() as stream, torch.cuda.stream(stream):
            stream.wait_stream(torch.cuda.default_stream())
            torch.mul(tensors[0], 2, out=out)
            tensors.clear()
        held.add_(1)

    run(work)
    assert torch.equal(out.cpu(), pattern(1, device="cpu") * 2)
    assert torch.equal(held.cpu(), pattern(1, start=4, device="cpu"))


def test_streams_are_not_remembered_for_ever(device):
    # What LMS knows of a stream has events, at least one for each operator on a stream that is not
    # PyTorch's. Those of a stream that is forgotten are used again for another.
    with contextlib.ExitStack() as alive:  # so that no two have the same handle
        streams = [alive.enter_context(Foreign()) for _ in range(300)]
        before = device.live()["events"]
        for stream in streams:
            x = torch.empty(floats(1), device="cuda")
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                x.zero_()
            torch.cuda.synchronize()
            del x
        made = device.live()["events"] - before
    assert made < 100


def test_a_release_waits_for_streams_of_other_devices():
    x = managed(pattern(1))
    source = managed(pattern(1, start=7, device="cuda:1"))
    torch.cuda.lms.exclude(source)
    far = torch.cuda.Stream(device="cuda:1")
    for index in range(2):
        far.wait_stream(torch.cuda.current_stream(index))
    x.record_stream(far)
    with torch.cuda.stream(far):
        write_unseen(x, source)
    torch.cuda.lms.release(x)
    evict()
    assert not is_resident(x)
    assert torch.equal(x.cpu(), pattern(1, start=7, device="cpu"))


def test_brought_on_a_stream_of_the_user_and_freed():
    side = torch.cuda.Stream()
    x, out = older(2, side)
    with torch.cuda.stream(side):
        managed(x)
    evict()
    with Foreign() as stream:
        stream.wait_stream(side)
        with torch.cuda.stream(stream):
            managed(x)  # brought there
        side.wait_stream(stream)
        with torch.cuda.stream(side):
            torch.mul(x, 2, out=out)
        del x  # in the order of the stream on which it was made
        with torch.cuda.stream(stream):
            others = [torch.zeros_like(out) for _ in range(4)]
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(out.cpu(), pattern(2, device="cpu") * 2)
    assert all(other.sum().item() == 0 for other in others)
    del others
