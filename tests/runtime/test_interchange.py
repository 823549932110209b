"""Memory that other libraries and processes share with PyTorch."""

import pytest
import torch
from conftest import MIB, ON_HARDWARE
from releases import RELEASE, untyped_storage
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


class InNode(torch.autograd.Function):
    """Calls a function in the backward pass."""

    @staticmethod
    def forward(ctx, x, called):
        ctx.called = called
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.called()
        return gradient, None


def in_node(called):
    x = torch.ones(1, device="cuda", requires_grad=True)
    InNode.apply(x, called).backward()


def in_region(called):
    torch.cuda.lms.wrap(called)()


WAYS = {
    "dlpack": lambda x: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)),
    "array interface": lambda x: x.__cuda_array_interface__,
    "exclude": torch.cuda.lms.exclude,
    "slice": lambda x: untyped_storage(x)[: MIB // 2],
}


@pytest.mark.parametrize("watching", [True, False])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("where", [in_node, in_region])
def test_what_others_have_stays_for_longer_than_the_operator(where, way, watching):
    if way == "slice" and RELEASE < (2, 0):
        pytest.skip("storages have types there, and other slices")
    if not watching:
        torch.cuda.set_enabled_lms(False)
        torch.cuda.set_enabled_lms(True)
    x = managed(pattern(1))
    kept = []
    where(lambda: kept.append(WAYS[way](x)))
    torch.cuda.lms._watch()
    managed(x)
    evict()
    assert is_resident(x)
    if way == "dlpack":
        x.add_(1)
        evict()
        junk = [pattern(1, start=5) for _ in range(8)]
        assert torch.equal(kept[0].cpu(), pattern(1, start=1, device="cpu"))
        del junk


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
