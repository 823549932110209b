"""Addresses that leave PyTorch: the storage stays where it is."""

import contextlib
import ctypes
import inspect

import pytest
import torch
from releases import RELEASE, since, untyped_storage
from simcuda.process import run_sim
from tensors import evict, floats, is_resident, managed, pattern, raw_address, stat, turn_on
from torch.cuda import lms_launch
from torch.utils import dlpack

EXPORTS = {
    "data_ptr": lambda t: t.data_ptr(),
    "storage.data_ptr": lambda t: untyped_storage(t).data_ptr(),
    "view.data_ptr": lambda t: t[4:].data_ptr(),
    "to_dlpack": dlpack.to_dlpack,
    "__dlpack__": lambda t: t.__dlpack__(),
    "__cuda_array_interface__": lambda t: t.__cuda_array_interface__,
}


@pytest.mark.parametrize("export", EXPORTS)
def test_exported_storages_stay(export):
    x = managed(pattern(1))
    evict()
    kept = EXPORTS[export](x)
    address = raw_address(x)
    evict()
    assert is_resident(x)
    assert raw_address(x) == address
    assert torch.cuda.lms.stats()["held_bytes"] == 1 << 20
    del kept
    torch.cuda.lms.release(x)
    evict()
    assert not is_resident(x)
    assert torch.equal(x.cpu(), pattern(1, device="cpu"))


def test_what_was_written_through_an_address_is_kept(device):
    x = managed(pattern(1))
    evict()
    x.sum()
    address = x.data_ptr()
    ctypes.memset(device.host_view(address), 0, 4096)
    torch.cuda.lms.release(x)
    evict()
    assert x[:1024].cpu().abs().sum() == 0


def test_resident_holds_and_lets_go():
    x, y = managed(pattern(1)), managed(pattern(1, start=9))
    evict()
    with torch.cuda.lms.resident(x, y):
        evict()
        assert is_resident(x)
        assert is_resident(y)
        with torch.cuda.lms.resident(x):
            pass
        evict()
        assert is_resident(x)
    evict()
    assert not is_resident(x)
    assert not is_resident(y)


@since((2, 5), "pools of memory")
def test_memory_of_a_pool_is_never_moved():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.ones(1 << 20, device="cuda")
    managed(x)
    address = raw_address(x)
    evict()
    assert is_resident(x)
    assert raw_address(x) == address


def test_a_region_keeps_its_inputs(device):
    class Compiled:
        constants = None

        @torch.cuda.lms.region
        def __call__(self, inputs):
            addresses = [raw_address(t) for t in inputs]
            torch.cuda.lms._set_stress(True)
            scratch = torch.empty(1 << 20, device="cuda")
            torch.cuda.lms._set_stress(False)
            assert [raw_address(t) for t in inputs] == addresses
            result = inputs[0] + inputs[1]
            inputs.clear()
            return result, scratch

    x, y = managed(pattern(1)), managed(pattern(1, start=5))
    evict()
    result, _ = Compiled()([x, y])
    assert torch.equal(result.cpu(), pattern(1, device="cpu") * 2 + 5)
    evict()
    assert not is_resident(x)


@since((2, 0), "Inductor")
def test_inductor_calls_are_regions():
    from torch._inductor import output_code

    regions = {
        name
        for name, value in vars(output_code).items()
        if isinstance(value, type) and hasattr(vars(value).get("__call__"), "__wrapped__")
    }
    expected = {"CompiledFxGraph"}
    if "NotImplementedError" not in inspect.getsource(output_code.CompiledAOTI.__call__):
        expected.add("CompiledAOTI")
    assert regions == expected


@since((2, 0), "process group for tests")
def test_collectives_keep_their_buffers():
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        x = managed(pattern(1))
        work = dist.all_reduce(x, async_op=True)
        evict()
        assert is_resident(x), "a collective may still be using it"
        work.wait()
        x.sum()
        evict()
        assert not is_resident(x)
    finally:
        dist.destroy_process_group()


def test_nothing_moves_during_a_capture():
    x, y = managed(pattern(1)), managed(pattern(1, start=2))
    evict()
    x.sum()
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        graph.capture_begin()
        try:
            z = x * 2
            assert torch.cuda.reclaim_inactive() == 0
            with pytest.raises(RuntimeError, match="while a CUDA graph is captured"):
                y.add_(1)
        finally:
            with contextlib.suppress(RuntimeError):  # the simulated device records no graph
                graph.capture_end()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    evict()
    assert is_resident(x), "the graph replays this address"
    assert is_resident(z)
    assert torch.equal(y.cpu(), pattern(1, start=2, device="cpu"))


def test_what_is_excluded_stays_until_it_is_released():
    model = torch.nn.BatchNorm1d(floats(1), device="cuda")
    extra = managed(pattern(1))
    model(torch.ones(2, floats(1), device="cuda"))
    torch.cuda.lms.exclude(model, extra)
    evict()
    kept = [model.weight, model.bias, model.running_mean, extra]
    assert all(is_resident(tensor) for tensor in kept)
    torch.cuda.lms.release(model, extra)
    evict()
    assert not any(is_resident(tensor) for tensor in kept)


def test_what_is_excluded_before_lms_is_turned_on():
    torch.cuda.set_enabled_lms(False)
    x, released, other = (pattern(1, start=k) for k in range(3))
    dead = pattern(1)
    torch.cuda.lms.exclude(x.view(2, -1), released, dead)
    torch.cuda.lms.release(released)
    allocated = torch.cuda.memory_allocated()
    del dead
    assert torch.cuda.memory_allocated() == allocated - (1 << 20), "it is kept alive"
    turn_on()
    for tensor in (x, released, other):
        managed(tensor)
    evict()
    assert [is_resident(tensor) for tensor in (x, released, other)] == [True, False, False]
    torch.cuda.set_enabled_lms(False)
    turn_on()
    managed(x)
    evict()
    assert is_resident(x), "until it is released"
    torch.cuda.lms.release(x)
    evict()
    assert not is_resident(x)


@pytest.mark.parametrize("again", [False, True])
def test_lms_is_turned_on_in_a_resident_block(again):
    torch.cuda.set_enabled_lms(False)
    x = pattern(1)
    with torch.cuda.lms.resident(x):
        address = raw_address(x)
        for _ in range(1 + again):
            torch.cuda.set_enabled_lms(False)
            turn_on()
            managed(x)
            evict()
            assert is_resident(x)
            assert raw_address(x) == address
    evict()
    assert not is_resident(x)


def test_resident_takes_modules():
    model = torch.nn.Linear(1024, 1024, device="cuda")
    managed(model.weight)
    evict()
    with torch.cuda.lms.resident(model):
        evict()
        assert is_resident(model.weight)
    evict()
    assert not is_resident(model.weight)


def test_what_is_handed_to_nccl_is_on_the_device():
    """DataParallel and torch.cuda.nccl call it without an operator."""

    def scenario(device):
        import torch

        seen = []

        def nccl(tensors, *_):
            seen.append([torch.cuda.lms.is_resident(t) for t in tensors])
            torch.cuda.reclaim_inactive()
            seen.append([torch.cuda.lms.is_resident(t) for t in tensors])

        names = ("_broadcast_coalesced", "_nccl_all_reduce")
        for name in names:
            setattr(torch._C, name, nccl)
        torch.cuda.set_enabled_lms(True)
        tensors = [torch.zeros(1 << 20, device="cuda").add_(1) for _ in range(2)]
        for name in names:
            torch.cuda.reclaim_inactive()
            assert not torch.cuda.lms.is_resident(tensors[0])
            getattr(torch._C, name)(tensors, [0])
        return seen

    assert run_sim(scenario, mib=64) == [[True, True]] * 4


def test_nccl_on_streams_that_it_is_given():
    def scenario(device):
        import ctypes

        import torch

        side = torch.cuda.Stream()
        address = getattr(torch._C, "TensorBase", torch.Tensor).data_ptr

        def nccl(inputs, outputs, op, streams, comms):
            (x,), (out,), (stream,) = inputs, outputs, streams
            ctypes.CDLL(None).cudaMemcpyAsync(
                ctypes.c_void_p(address(out)),
                ctypes.c_void_p(address(x)),
                ctypes.c_size_t(4 << 20),
                3,
                ctypes.c_void_p(stream.cuda_stream),
            )

        torch._C._nccl_all_reduce = nccl
        torch.cuda.set_enabled_lms(True)
        torch.cuda.lms._watch()
        x, out = torch.arange(1.0 * (1 << 20)).cuda(), torch.zeros(1 << 20, device="cuda")
        x.sum()
        torch.cuda.reclaim_inactive()
        side.wait_stream(torch.cuda.current_stream())
        torch._C._nccl_all_reduce([x], [out], 0, [side], None)
        torch.cuda.reclaim_inactive()
        torch.zeros(1 << 20, device="cuda").add_(1)
        torch.cuda.current_stream().wait_stream(side)
        return torch.equal(out.cpu(), torch.arange(1.0 * (1 << 20))), device.races()

    assert run_sim(scenario, mib=64) == [True, []]


@since((2, 8), "the stager of checkpoints")
def test_a_checkpoint_is_staged_without_holding_the_model():
    from torch.distributed.checkpoint._state_dict_stager import StateDictStager

    x = managed(pattern(1))
    evict()
    staged = StateDictStager().stage({"x": x})
    assert torch.equal(staged["x"].cpu(), pattern(1, device="cpu"))
    assert stat("held_bytes") == 0
    evict()
    assert not is_resident(x)


def test_the_smallest_storages_are_not_managed():
    """CUDA graphs have some of 8 bytes, which no captured operator has as an input."""
    torch.cuda.set_size_lms(0)
    assert torch.cuda.get_size_lms() == 0
    seed, x = managed(torch.ones(1, device="cuda")), managed(torch.ones(4, device="cuda"))
    evict()
    assert is_resident(seed)
    assert not is_resident(x)
    assert x.sum().item() == 4


def interrupts(monkeypatch, name):
    """Makes a function of the library raise when it returns, as Python does after a long wait."""
    begin = getattr(torch.cuda.lms._library, name)

    def interrupted(*arguments):
        begin(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.cuda.lms._library, name, interrupted)


def fill(x):
    untyped_storage(x).fill_(0)


def hook(x):
    torch.cuda.lms._as_hook(lambda x: x.sum())(x)


def compiled(x):
    lms_launch.call(lambda code, x: x.sum(), None, x)


@pytest.mark.parametrize(
    ("name", "enabled", "called"),
    [
        ("lms_begin_region", True, fill),
        ("lms_begin_hook", True, hook),
        ("lms_begin_compiled", True, compiled),
        ("lms_count_region", False, fill),
        ("lms_count_region", False, hook),
    ],
)
def test_an_interrupt_when_a_region_has_begun(monkeypatch, name, enabled, called):
    if called is compiled and RELEASE < (2, 0):
        pytest.skip("there is no torch.compile")
    x, y = managed(pattern(1)), managed(pattern(1, start=3))
    torch.cuda.set_enabled_lms(enabled)
    interrupts(monkeypatch, name)
    with pytest.raises(KeyboardInterrupt):
        called(x)
    monkeypatch.undo()
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    managed(x)
    y.sum()
    evict()
    assert not is_resident(x)
    assert not is_resident(y)
