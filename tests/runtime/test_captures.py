"""CUDA graphs that are captured inside compiled code."""

import contextlib

import torch
from releases import since
from tensors import evict, is_resident, managed, pattern, raw_address, turn_on


def test_what_a_captured_region_uses_stays():
    """Its kernels are no operators: only the region tells what the graph replays."""

    class Compiled:
        constants = None

        @torch.cuda.lms.region
        def __call__(self, inputs):
            graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                graph.capture_begin()
                address = raw_address(inputs[0])
                with contextlib.suppress(RuntimeError):  # the simulated device records no graph
                    graph.capture_end()
            torch.cuda.current_stream().wait_stream(side)
            return address

    x, other = managed(pattern(1)), managed(pattern(1))
    evict()
    address = Compiled()([x])
    other.sum()
    evict()
    assert is_resident(x)
    assert raw_address(x) == address
    assert not is_resident(other)
    assert torch.equal(x.cpu(), pattern(1, device="cpu"))


@since((2, 5), "pools of memory")
def test_a_pool_that_others_use_goes_on():
    # A graph that goes gives up its share of a pool, perhaps while another one allocates there.
    pool = torch.cuda.MemPool()
    old = not hasattr(torch._C, "_cuda_beginAllocateCurrentThreadToPool")  # up to 2.6
    begin = "_cuda_beginAllocateToPool" if old else "_cuda_beginAllocateCurrentThreadToPool"
    end = "_cuda_endAllocateCurrentStreamToPool" if old else "_cuda_endAllocateToPool"
    getattr(torch._C, begin)(0, pool.id)
    torch._C._cuda_releasePool(0, pool.id)
    x = managed(pattern(1))
    evict()
    getattr(torch._C, end)(0, pool.id)
    assert is_resident(x)
    assert torch.cuda.lms.stats()["page_out_count"] == 0
    assert torch.equal(x.cpu(), pattern(1, device="cpu"))


@since((2, 5), "pools of memory")
def test_a_pool_from_before_lms_is_left_alone():
    torch.cuda.set_enabled_lms(False)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = pattern(1)
    outside = pattern(1)
    turn_on()
    managed(x)
    managed(outside)
    evict()
    assert is_resident(x)
    assert not is_resident(outside)
    assert torch.equal(x.cpu(), pattern(1, device="cpu"))
