"""CUDA graphs and private pools: captures inside compiled code, and what else happens meanwhile."""

import contextlib
import ctypes
import gc
import threading

import pytest
import torch
from conftest import MIB, ON_HARDWARE
from cxx import CUDA_OPTIONS, HERE, compile_cxx
from faults import NOT_READY
from hardware import simulated
from past import write_unseen
from releases import since
from simcuda.process import run_sim
from tensors import evict, is_resident, managed, older, pattern, raw_address, turn_on


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


def test_what_is_there_when_lms_is_off_during_a_capture_stays():
    """LMS does not see what such a graph uses."""
    x = managed(pattern(1))
    evict()
    torch.cuda.set_enabled_lms(False)
    y = pattern(1, start=5)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        graph.capture_begin()
        addresses = [raw_address(x), raw_address(y)]
        with contextlib.suppress(RuntimeError):  # the simulated device records no graph
            graph.capture_end()
    turn_on()
    z = pattern(1)
    managed(x), managed(y), managed(z)
    evict()
    assert not is_resident(z)
    assert [raw_address(x), raw_address(y)] == addresses
    for tensor in (x, y):
        torch.cuda.lms.release(tensor)
        evict()
        assert not is_resident(tensor)


@since((2, 0), "allocator that answers for LMS")
def test_a_workspace_that_a_graph_uses_is_no_storage_that_is_held(tmp_path):
    """cuBLAS's, which lives as long as its handle. LMS does not move it, held or not."""
    compile_cxx(HERE / "memory.cpp", tmp_path / "memory.so", "-shared", "-fPIC", *CUDA_OPTIONS)
    memory = ctypes.CDLL(str(tmp_path / "memory.so"))
    memory.make_workspace.restype = ctypes.c_void_p
    held = torch.cuda.lms.stats()["held_bytes"]
    workspace = memory.make_workspace(ctypes.c_size_t(MIB))
    torch.cuda.set_enabled_lms(False)
    x = managed(pattern(1))
    capture(lambda: None)
    turn_on()
    managed(x)
    assert torch.cuda.lms.stats()["held_bytes"] == held + MIB  # of the storage
    memory.free_workspace(ctypes.c_void_p(workspace))
    del x
    assert torch.cuda.lms.stats()["held_bytes"] == held


@pytest.mark.parametrize("how", ["released", "memory that is used again"])
def test_a_graph_that_was_captured_while_lms_was_off_and_is_gone(how):
    torch.cuda.set_enabled_lms(False)
    x = pattern(1)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        graph.capture_begin()
        with contextlib.suppress(RuntimeError):  # the simulated device records no graph
            graph.capture_end()
    if how == "released":
        torch.cuda.lms.release(x)
    else:
        address = raw_address(x)
        del x
        x = pattern(1)
        assert raw_address(x) == address
    turn_on()
    managed(x)
    evict()
    assert not is_resident(x)


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
def test_what_is_paged_in_is_not_the_pools():
    x = managed(pattern(1))
    evict()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        before = pool.use_count()
        x.sum()
        assert pool.use_count() == before
        inside = pattern(1)
    pools = {
        segment["address"]: tuple(segment["segment_pool_id"])
        for segment in torch.cuda.memory_snapshot()
    }

    def pool_of(tensor):
        address = raw_address(tensor)
        return pools[max(start for start in pools if start <= address)]

    assert pool_of(x) == (0, 0)
    assert pool_of(inside) == tuple(pool.id)


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


@since((2, 5), "pools of memory")
def test_memory_of_a_pool_that_is_gone_is_nobodys(device):
    if not ON_HARDWARE:
        device.reuse_addresses(True)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = pattern(1)
    address = raw_address(x)
    torch.cuda.synchronize()
    del x, pool
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_enabled_lms(False)
    outside = [pattern(1) for _ in range(24)]
    turn_on()
    assert address in map(raw_address, outside)
    for tensor in outside:
        managed(tensor)
    evict()
    assert not any(map(is_resident, outside))


def capture(body):
    """Captures what body() does; an error if the capture was ended by it."""
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        graph.capture_begin()
        try:
            body()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(side)


@since((2, 5), "pools of memory")
def test_a_pool_goes_on_after_a_capture():
    pool, side, made = torch.cuda.MemPool(), torch.cuda.Stream(), []
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.cuda.use_mem_pool(pool):
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        made.append(torch.empty(1 << 18, device="cuda"))
        graph.capture_end()
        made.append(pattern(1))
    managed(made[1])
    evict()
    assert is_resident(made[1])


def test_other_devices_go_on_during_a_capture():
    # Each CUDA call that waits, asks an event or takes memory would break the capture.
    tensors = [managed(pattern(1, start, "cuda:1")) for start in range(3)]
    # They get host memory only during the capture.
    new = [managed(pattern(12, start, "cuda:1")) for start in range(2)]
    with torch.cuda.lms.resident(*new):
        evict()
    before = torch.cuda.lms.stats(1)["page_out_count"]

    def use():
        evict()
        for tensor in tensors:
            tensor.add_(1)
            evict()

    capture(use)
    assert torch.cuda.lms.stats(1)["page_out_count"] == before + 2 + 3
    for start, tensor in enumerate(tensors):
        assert torch.equal(tensor.cpu(), pattern(1, start + 1, "cpu"))
    for start, tensor in enumerate(new):
        assert torch.equal(tensor.cpu(), pattern(12, start, "cpu"))


@pytest.mark.parametrize("device", [0, 1])
def test_host_memory_may_be_pinned_and_unpinned_during_a_capture(device):
    def reserve_and_trim():
        torch.cuda.lms.reserve_host(64 << 20, device)
        sizes.append(torch.cuda.lms.stats(device)["host_bytes"])
        torch.cuda.lms.trim_host()

    torch.cuda.mem_get_info(device)
    sizes = []
    capture(reserve_and_trim)
    assert sizes[0] >= 64 << 20


@since((2, 5), "pools of memory")
def test_what_a_node_uses_beside_a_pool_does_not_stay():
    pool = torch.cuda.MemPool()

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(weight)
            return x * weight

        @staticmethod
        def backward(ctx, gradient):
            (weight,) = ctx.saved_tensors
            result = gradient * weight
            with torch.cuda.use_mem_pool(pool):
                result = result + torch.ones_like(weight)
            return result, None

    x, weight = pattern(1).requires_grad_(), managed(pattern(1, start=3))
    Scale.apply(x, weight).sum().backward()
    assert torch.equal(x.grad.cpu(), pattern(1, start=4, device="cpu"))
    assert torch.cuda.lms.stats()["held_bytes"] == 0
    evict()
    assert not is_resident(weight)


@pytest.mark.parametrize("used", [False, True], ids=["paged out", "brought back"])
def test_a_storage_may_die_during_a_capture(used):
    x, y = [managed(pattern(1))], managed(pattern(1, start=3))
    evict()
    if used:
        x[0].sum()
    capture(x.clear)
    torch.cuda.synchronize()
    evict()
    assert torch.equal(y.cpu(), pattern(1, start=3, device="cpu"))
    assert torch.cuda.lms.stats()["host_used_bytes"] > 0  # y's own copy, and nobody else's
    assert torch.cuda.lms.stats()["host_used_bytes"] < 2 << 20


def dies_under_a_reader(meanwhile=contextlib.nullcontext):
    """A tensor dies during a capture, and its memory is used again."""
    # The stream on which it was allocated is not known, and LMS has chosen another one.
    side = torch.cuda.Stream()
    x, out = older(2, side)
    tensors = [x]
    del x
    torch.cuda.current_stream().wait_stream(side)
    managed(tensors[0])
    evict()
    managed(tensors[0])
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.mul(tensors[0], 2, out=out)
    with meanwhile():
        capture(tensors.clear)
        others = [torch.zeros_like(out) for _ in range(4)]
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(out.cpu(), pattern(2, device="cpu") * 2)
    assert all(other.sum().item() == 0 for other in others)


def test_what_dies_during_a_capture_goes_back_behind_its_uses():
    dies_under_a_reader()


def test_what_is_released_during_a_capture_is_waited_for():
    x, source = managed(pattern(1)), managed(pattern(1, start=7))
    torch.cuda.lms.exclude(source)
    x.data_ptr()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        write_unseen(x, source)
    capture(lambda: torch.cuda.lms.release(x))
    evict()
    assert not is_resident(x)
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(x.cpu(), pattern(1, start=7, device="cpu"))


def test_a_page_in_where_something_died_during_a_capture():
    x, y = [managed(pattern(2))], managed(pattern(2, start=3))
    out = torch.empty_like(y)
    evict()
    managed(x[0])  # where a page-out has noted the last use
    place = raw_address(x[0])
    torch.mul(x[0], 2, out=out)
    capture(x.clear)
    y.add_(1)
    assert raw_address(y) == place
    assert torch.equal(out.cpu(), pattern(2, device="cpu") * 2)
    assert torch.equal(y.cpu(), pattern(2, start=4, device="cpu"))


@simulated
def test_what_died_during_a_capture_goes_back_before_its_uses_have_ended(device):
    @contextlib.contextmanager
    def nothing_is_ready():
        device.fault("cudaEventQuery", 1, NOT_READY, from_=True)
        yield
        device.clear_faults()

    dies_under_a_reader(nothing_is_ready)


def around_a_failed_capture(device, how):
    """What becomes of a tensor before a capture that fails, and after it.

    The allocator is told of its end, or not, as in releases whose capture_end() fails before that.
    Or it fails before LMS has looked at it.
    """
    import contextlib
    import ctypes
    import gc

    import torch

    torch.cuda.set_size_lms(1 << 12)
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    torch.cuda.reclaim_inactive()

    def use_one():
        device.reset_counts()
        x = torch.ones(1 << 18, device="cuda")
        x.sum()
        torch.cuda.reclaim_inactive()
        paged_out = not torch.cuda.lms.is_resident(x)
        return paged_out, x.sum().item(), device.count("cudaStreamIsCapturing")

    use_one()
    before = use_one()
    graph = torch.cuda.CUDAGraph()
    if how == "unseen":
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin()
            for fails in (torch.cuda.synchronize, graph.capture_end):
                with contextlib.suppress(RuntimeError):
                    fails()
    elif how == "told":
        with contextlib.suppress(RuntimeError), torch.cuda.graph(graph):
            torch.ones(1 << 18, device="cuda").sum().item()
        del graph
        gc.collect()
    else:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            graph.capture_begin()
            torch.ones(1 << 18, device="cuda")
            stream, captured = ctypes.c_void_p(side.cuda_stream), ctypes.c_void_p()
            ctypes.CDLL(None).cudaStreamEndCapture(stream, ctypes.byref(captured))
    use_one()
    return before, use_one()


@pytest.mark.parametrize("how", ["told", "not told", "unseen"])
def test_lms_goes_on_after_a_failed_capture(how):
    # In a process of its own: the native allocator does not recover from it in every way.
    before, after = run_sim(around_a_failed_capture, how)
    assert before[:2] == after[:2] == [True, 1 << 18]
    # PyTorch itself asks once.
    assert after[2] - before[2] <= 1, "a stream that captures nothing is asked whether it does"


@pytest.mark.skipif(
    not hasattr(torch._C, "_cuda_beginAllocateCurrentThreadToPool"),
    reason="in this PyTorch all threads allocate from a pool in use, or there is none",
)
def test_a_pool_of_one_thread_is_not_everybodys():
    pool, begun, done = torch.cuda.MemPool(), threading.Event(), threading.Event()
    inside = []

    def owner():
        with torch.cuda.use_mem_pool(pool):
            inside.append(managed(pattern(1)))
            begun.set()
            done.wait()

    thread = threading.Thread(target=owner)
    thread.start()
    begun.wait()
    x = managed(pattern(1))
    done.set()
    thread.join()
    evict()
    assert not is_resident(x)
    assert is_resident(inside[0])
