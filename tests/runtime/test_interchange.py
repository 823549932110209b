"""Memory that other libraries and processes share with PyTorch."""

import pytest
import torch
from conftest import ON_HARDWARE
from releases import untyped_storage
from tensors import evict, is_resident, managed, pattern, raw_address, stat


@pytest.mark.parametrize("way", ["dlpack", "array interface"])
def test_memory_of_others_is_never_moved(way):
    x = managed(pattern(1))
    evict()

    class Other:
        """Another library's array, which is x's memory."""

        __cuda_array_interface__ = x.__cuda_array_interface__

    if way == "dlpack":
        y = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))
    else:
        y = torch.as_tensor(Other(), device="cuda")
    assert raw_address(y) == raw_address(x)
    y.add_(1)
    evict()
    assert is_resident(x)
    assert is_resident(y)
    assert raw_address(y) == raw_address(x)
    assert torch.equal(x.cpu(), pattern(1, start=1, device="cpu"))
    assert torch.equal(y.cpu(), pattern(1, start=1, device="cpu"))
    del y
    torch.cuda.lms.release(x)
    evict()
    assert not is_resident(x)
    assert stat("held_bytes") == 0


def test_ipc_holds_the_storage():
    x = managed(pattern(1))
    evict()
    if ON_HARDWARE:
        shared = untyped_storage(x)._share_cuda_()
    else:  # the handle itself needs a driver
        with pytest.raises(RuntimeError, match="not supported by the simulated device"):
            untyped_storage(x)._share_cuda_()
    evict()
    assert is_resident(x)
    assert torch.equal(x.cpu(), pattern(1, device="cpu"))
    if ON_HARDWARE:  # the process that it is shared with has done with it
        untyped_storage(x)._release_ipc_counter(*shared[4:6], device=x.device)
        del x
        torch.cuda.ipc_collect()
        assert stat("held_bytes") == 0
