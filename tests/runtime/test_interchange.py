"""Memory that other libraries and processes share with PyTorch."""

import ctypes

import pytest
import torch
from conftest import MIB, ON_HARDWARE
from releases import RELEASE, since, untyped_storage
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


@pytest.mark.parametrize("way", WAYS)
def test_what_others_get_while_lms_is_off_stays(way):
    x = managed(pattern(1))
    with torch.cuda.lms.enabled(False):
        kept = WAYS[way](x)
    managed(x)
    evict()
    assert is_resident(x)
    del kept


class Exchange(ctypes.Structure):
    """The part of DLPack's DLPackExchangeAPI that is used here."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("unused", ctypes.c_void_p * 2),
        ("managed", ctypes.c_void_p),
        ("to_object", ctypes.c_void_p),
        ("borrowed", ctypes.c_void_p),
    )


@since((2, 10), "DLPack's C interface")
@pytest.mark.parametrize("function", ["managed", "borrowed"])
def test_the_c_interface_of_dlpack(function):
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype = ctypes.c_void_p
    pointer_of.argtypes = (ctypes.py_object, ctypes.c_char_p)
    # As an extension gets it, which may have looked it up before LMS was turned on.
    pointer = pointer_of(torch._C._dlpack_exchange_api(), b"dlpack_exchange_api")
    take = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(
        getattr(Exchange.from_address(pointer), function)
    )
    x = managed(pattern(1))
    evict()
    assert not is_resident(x)
    tensor = (ctypes.c_void_p * 8)()  # a DLTensor begins with its address, or is pointed to
    assert take(x, tensor) == 0
    address = tensor[0]
    if function == "managed":
        # A DLManagedTensorVersioned: version, context, deleter, flags and the tensor.
        _, _, deleter, _, address = ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))[:5]
    evict()
    assert is_resident(x)
    assert raw_address(x) == address
    if function == "managed":
        ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(deleter)(tensor[0])
    torch.cuda.lms.release(x)


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
