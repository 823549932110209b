"""When memory runs out all the same."""

import pytest
import torch
from releases import since
from simcuda.process import run_sim
from tensors import evict, floats, is_resident, managed, pattern, stat


def test_message_accounts_for_the_memory():
    x = managed(pattern(1))
    with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
        torch.ones(floats(80), device="cuda")
    text = str(caught.value)
    assert "Large Model Support (LMS) could not make room" in text
    for part in ("asked for 80.00 MiB", "limit", "resident", "pinned", "held", "host memory"):
        assert part in text, part
    assert "aten::" in text
    assert torch.equal(x.cpu(), pattern(1, device="cpu"))


def test_an_input_that_cannot_be_brought():
    x = managed(pattern(8))
    evict()
    blocker = torch.empty(60 << 20, dtype=torch.uint8, device="cuda")
    with torch.cuda.lms.resident(blocker):
        # An operator that allocates first, and one that does not allocate.
        with pytest.raises(torch.cuda.OutOfMemoryError, match="CUDA out of memory"):
            x.clone()
        with pytest.raises(RuntimeError, match="CUDA out of memory"):
            x.add_(1)
        assert not is_resident(x)
    del blocker
    assert torch.equal(x.cpu(), pattern(8, device="cpu"))


def test_no_host_memory(device):
    device.set_host_limit(8 << 20)
    kept = []

    def fill():
        while len(kept) < 40:
            kept.append(managed(pattern(4, start=len(kept))))

    with pytest.raises(torch.cuda.OutOfMemoryError, match="host memory cannot be pinned"):
        fill()
    # Both memories are full: to exchange two storages takes a free place in one of them.
    del kept[-2:]
    for i, tensor in enumerate(kept):
        assert torch.equal(tensor.cpu(), pattern(4, start=i, device="cpu"))


@pytest.mark.usefixtures("uncompressed")
@pytest.mark.parametrize("api", ["cudaMemcpyAsync", "cudaEventRecord", "cudaStreamWaitEvent"])
def test_a_page_out_that_fails_loses_nothing(device, api):
    x = managed(pattern(2))
    device.fault(api, nth=1, error=999)
    evict()
    device.clear_faults()
    assert is_resident(x)
    assert stat("host_used_bytes") == 0, "what was copied is not believed"
    assert torch.equal(x.cpu(), pattern(2, device="cpu"))
    evict()
    assert not is_resident(x)
    assert torch.equal(x.cpu(), pattern(2, device="cpu"))


@pytest.mark.usefixtures("uncompressed")
def test_a_page_in_that_fails_can_be_tried_again(device):
    x = managed(pattern(2))
    evict()
    device.fault("cudaMemcpyAsync", nth=1, error=999)
    with pytest.raises(RuntimeError):
        x.add_(1)
    device.clear_faults()
    x.add_(1)
    assert torch.equal(x.cpu(), pattern(2, start=1, device="cpu"))


@pytest.mark.usefixtures("uncompressed")
def test_a_page_in_that_fails_in_a_node_with_hooks(device):
    """What such a node has used stays, without its copy. What was not brought has nothing else."""
    w = managed(pattern(1))
    x = pattern(1, start=3).requires_grad_()
    y = x * w
    y.grad_fn.register_hook(lambda *_: None)
    loss = y.sum()
    evict()
    device.fault("cudaMemcpyAsync", error=999, from_=True)
    with pytest.raises(RuntimeError):
        loss.backward()
    device.clear_faults()
    assert torch.equal(w.cpu(), pattern(1, device="cpu"))


def test_the_process_goes_on_after_an_out_of_memory_error():
    kept = [managed(pattern(4, start=i)) for i in range(8)]
    for _ in range(3):
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(200 << 20, dtype=torch.uint8, device="cuda")
    for i, tensor in enumerate(kept):
        assert torch.equal(tensor.cpu(), pattern(4, start=i, device="cpu"))


def no_pager(device):
    import ctypes

    import torch

    torch.cuda.set_size_lms(1 << 12)
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    size = 1 << 20
    x = torch.arange(size // 4, dtype=torch.float32).cuda()
    x.add_(1)
    foreign = ctypes.c_void_p()
    cuda = ctypes.CDLL(None)
    assert cuda.cudaSetDevice(1) == 0
    assert cuda.cudaMalloc(ctypes.byref(foreign), size) == 0
    assert cuda.cudaMemset(foreign, 0, size) == 0
    assert cuda.cudaSetDevice(0) == 0

    class Array:
        def __init__(self, **interface):
            self.__cuda_array_interface__ = interface

    y = torch.as_tensor(
        Array(shape=(size // 4,), typestr="<f4", data=(foreign.value, False), version=3),
        device="cuda:1",
    )
    torch.cuda.reclaim_inactive()
    moved = not torch.cuda.lms.is_resident(x)
    device.fault("cudaStreamCreate", 1, 2, from_=True)
    device.reset_counts()
    # The first of its inputs has a device of which LMS can make nothing.
    x.copy_(y)
    calls = device.count("cudaStreamCreate")
    device.clear_faults()
    return moved, calls > 0, x.abs().sum().item(), device.races()


@since((2, 0), "storage that throws when it is read")
def test_a_device_that_lms_cannot_use():
    # The inputs on the others are brought, and stay, all the same.
    assert run_sim(no_pager, devices=2) == [True, True, 0, []]
