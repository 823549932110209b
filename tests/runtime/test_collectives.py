"""Collectives: they use memory on streams of their own after the call has returned."""

import ctypes

import torch
from releases import scoped_library, since, size_of
from tensors import evict, is_resident, managed, pattern, raw_address


@since((2, 0), "library of operators that extends another")
def test_memory_is_not_reused_under_a_collective():
    """As NCCL does: the input is read on a stream that PyTorch does not hear of."""
    side = torch.cuda.Stream()
    device_to_device = 3

    def gather(x: torch.Tensor, out: torch.Tensor) -> None:
        side.wait_stream(torch.cuda.current_stream())
        ctypes.CDLL(None).cudaMemcpyAsync(
            ctypes.c_void_p(raw_address(out)),
            ctypes.c_void_p(raw_address(x)),
            ctypes.c_size_t(size_of(x)),
            device_to_device,
            ctypes.c_void_p(side.cuda_stream),
        )

    with scoped_library("c10d", "FRAGMENT") as library:
        library.define("lms_gather(Tensor x, Tensor(a!) out) -> ()")
        library.impl("lms_gather", gather, "CUDA")
        for start in range(2):  # that one has ended says nothing of the next one
            x, out = managed(pattern(2, start)), managed(torch.zeros_like(pattern(2)))
            torch.ops.c10d.lms_gather(x, out)
            evict()
            assert is_resident(x)
            assert is_resident(out)
            x.sum()  # the program may read it meanwhile
            evict()
            fresh = torch.zeros_like(x)  # where x was
            torch.cuda.current_stream().wait_stream(side)
            assert torch.equal(out.cpu(), pattern(2, start, "cpu"))
            assert torch.equal(x.cpu(), pattern(2, start, "cpu"))
            assert fresh.sum().item() == 0
            del x, out, fresh
