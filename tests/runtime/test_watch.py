"""Operators that are only counted, and the moment from which LMS looks at them."""

from __future__ import annotations

import ctypes
import json
import runpy
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from conftest import CAPACITY, MIB
from cxx import HERE, compile_cxx
from hardware import simulated
from releases import since, size_of
from simcuda.process import run_sim
from tensors import evict, floats, is_resident, managed, pattern, raw_address, stat

PROBE = HERE.parents[1] / "lmsbuild/data/probe.py"


@pytest.fixture(scope="module")
def observers(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = tmp_path_factory.mktemp("observers") / "observers.so"
    options = ("-shared", "-fPIC", "-Wl,--no-as-needed", "-ltorch_cpu")
    compile_cxx(HERE / "observers.cpp", library, *options)
    return ctypes.CDLL(str(library))


@pytest.fixture(autouse=True)
def only_counting(clean_slate: None) -> None:
    torch.cuda.set_enabled_lms(False)
    torch.cuda.set_enabled_lms(True)
    assert stat("watching") == 0


def test_nothing_is_looked_at_far_from_the_limit():
    x = managed(pattern(1))
    assert stat("adopted") == 0
    assert stat("resident_bytes") == 0
    assert stat("watching") == 0
    assert "LMS does not track what operators use yet." in torch.cuda.lms.explain()
    assert torch.equal(x.cpu(), pattern(1, device="cpu"))


def test_a_twentieth_of_the_limit():
    limit = stat("limit_bytes")
    x = pattern(2)
    assert limit / 20 > 2 * MIB
    assert stat("watching") == 0
    y = pattern(2)
    assert stat("watching") == 1
    assert "does not track" not in torch.cuda.lms.explain()
    managed(x)
    evict()
    assert not is_resident(x)
    assert torch.equal(x.cpu(), y.cpu())


def test_what_is_recorded_counts_once(tmp_path):
    x = pattern(1)
    assert stat("watching") == 0
    with torch.cuda.lms.record(tmp_path / "trace.json"):
        x.add_(1)
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert trace["unmanaged_bytes"] == 0
    assert any(event[0] == "known" and event[2] == size_of(x) for event in trace["events"])


def test_more_than_the_device_holds():
    tensors = [managed(pattern(4, start=i)) for i in range(20)]
    assert len(tensors) * 4 * MIB > CAPACITY
    assert stat("page_out_count") > 0
    for i, tensor in enumerate(tensors):
        assert torch.equal(tensor.cpu(), pattern(4, start=i, device="cpu"))


def test_one_request_for_all():
    # It fits when what was there before is paged out, of which nothing is known.
    before = managed(pattern(2))
    with pytest.raises(torch.cuda.OutOfMemoryError, match="Large Model Support"):
        torch.empty(CAPACITY - 2 * MIB, dtype=torch.uint8, device="cuda")
    managed(before)
    assert torch.empty(CAPACITY - 2 * MIB, dtype=torch.uint8, device="cuda").is_cuda
    assert not is_resident(before)


def test_the_trial_of_doctor():
    trial = runpy.run_path(str(PROBE))["_trial"]
    trial.__globals__["_TRIAL_BYTES"] = MIB  # far from the limit, as on a GPU
    assert trial(torch) == ""
    assert torch.cuda.get_enabled_lms()


@pytest.mark.parametrize(
    "look",
    [
        pytest.param(lambda: torch.cuda.set_limit_lms(40 * MIB), id="limit"),
        pytest.param(torch.cuda.reclaim_inactive, id="reclaim_inactive"),
        pytest.param(lambda: torch.cuda.lms._set_stress(True), id="stress"),
    ],
)
def test_what_calls_for_a_look(look):
    x = managed(pattern(1))
    look()
    assert stat("watching") == 1
    assert evict_count() == 0, "no operator has been seen to use it"
    managed(x)
    assert evict_count() == 1
    assert torch.equal(x.cpu(), pattern(1, device="cpu"))


def evict_count() -> int:
    """How many storages are idle as far as operators were seen to use them."""
    before = stat("page_out_count")
    assert torch.cuda.lms._library.lms_reclaim_inactive(None) == 0
    return stat("page_out_count") - before


def test_a_limit_that_was_set_before():
    torch.cuda.set_enabled_lms(False)
    torch.cuda.set_limit_lms(40 * MIB)
    torch.cuda.set_enabled_lms(True)
    assert stat("watching") == 1
    torch.cuda.set_limit_lms(0)
    assert stat("watching") == 1, "what is known stays known"


@since((2, 5), "pools of memory")
def test_a_pool_calls_for_a_look():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = pattern(1)
    assert stat("watching") == 1
    assert torch.equal(x.cpu(), pattern(1, device="cpu"))


@since((2, 0), "library of operators that extends another")
def test_collectives_call_for_a_look():
    seen = []
    with torch.library._scoped_library("c10d", "FRAGMENT") as library:
        library.define("lms_watched(Tensor x) -> ()")
        library.impl("lms_watched", lambda x: seen.append(stat("watching")), "CUDA")
        torch.ops.c10d.lms_watched(pattern(1))
    assert seen == [1]


def test_distributed_calls_for_a_look():
    def on(device: Any) -> int:
        import torch
        import torch.distributed

        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        )
        torch.cuda.set_enabled_lms(True)
        torch.ones(4, device="cuda")
        watching = torch.cuda.lms.stats()["watching"]
        torch.distributed.destroy_process_group()
        return watching

    assert run_sim(on) == 1


# Operators that run when LMS begins to look ---------------------------------------------------


class Running:
    """An operator of another thread, on x, that waits between two parts of its work."""

    current: Running | None = None

    def __init__(
        self, x: torch.Tensor, first: Callable[[], None], then: Callable[[], None]
    ) -> None:
        self.arrived, self.go_on = threading.Event(), threading.Event()
        self.errors: list[BaseException] = []
        self.parts = [first, then]

        Running.current = self
        self.thread = threading.Thread(target=self._call, args=(x,))
        self.thread.start()

    def _call(self, x: torch.Tensor) -> None:
        try:
            torch.ops.lms_watch.run(x)
        except BaseException as error:
            self.errors.append(error)

    def work(self) -> None:
        self.parts[0]()
        self.arrived.set()
        assert self.go_on.wait(60)
        self.parts[1]()

    def arrive(self) -> Running:
        assert self.arrived.wait(60)
        return self

    def finish(self) -> None:
        self.go_on.set()
        self.thread.join()
        Running.current = None
        assert self.errors == []


def run_current(x: torch.Tensor) -> None:
    assert Running.current
    Running.current.work()


LIBRARY = torch.library.Library("lms_watch", "DEF")
LIBRARY.define("run(Tensor x) -> ()")
LIBRARY.impl("run", run_current, "CUDA")


def nothing() -> None:
    pass


def fill_unseen(x: torch.Tensor, stream: torch.cuda.Stream) -> None:
    """As a kernel does: all bytes become 1, on a stream that the operator does not show."""
    assert raw_address(x) != 0
    arguments = ctypes.c_void_p(raw_address(x)), 1, ctypes.c_size_t(size_of(x))
    handle = ctypes.c_void_p(stream.cuda_stream)
    assert ctypes.CDLL(None).cudaMemsetAsync(*arguments, handle) == 0


def copy_unseen(out: torch.Tensor, x: torch.Tensor, stream: torch.cuda.Stream) -> None:
    addresses = ctypes.c_void_p(raw_address(out)), ctypes.c_void_p(raw_address(x))
    size, handle = ctypes.c_size_t(size_of(x)), ctypes.c_void_p(stream.cuda_stream)
    device_to_device = 3
    assert ctypes.CDLL(None).cudaMemcpyAsync(*addresses, size, device_to_device, handle) == 0


def ones_bytes(x: torch.Tensor) -> bool:
    return bool((x.cpu().view(torch.int32) == 0x01010101).all())


def test_nothing_moves_before_a_counted_operator_ends():
    x = managed(pattern(1))
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    running = Running(x, nothing, lambda: fill_unseen(x, side)).arrive()
    torch.cuda.set_limit_lms(1)
    managed(x)  # this one is seen, and leaves it idle
    assert evict_count() == 0
    assert is_resident(x)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="until the operators that began before"):
        torch.empty(CAPACITY, dtype=torch.uint8, device="cuda")
    running.finish()
    assert evict_count() == 1
    assert ones_bytes(x)


def test_the_work_of_a_counted_operator_is_waited_for():
    x, out = managed(pattern(1)), managed(torch.zeros(floats(1), device="cuda"))
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    running = Running(x, lambda: copy_unseen(out, x, side), nothing).arrive()
    torch.cuda.set_limit_lms(1)
    managed(x)  # both only read it, so neither waits for the other
    running.finish()
    assert evict_count() == 1
    fresh = torch.zeros(floats(1), device="cuda")
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(out.cpu(), pattern(1, device="cpu"))
    assert torch.equal(x.cpu(), pattern(1, device="cpu"))
    assert fresh.sum().item() == 0


def test_an_operator_that_began_while_lms_was_off():
    x = managed(pattern(1))
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    torch.cuda.lms._watch()  # nothing is counted any more
    torch.cuda.set_enabled_lms(False)
    running = Running(x, nothing, lambda: fill_unseen(x, side)).arrive()
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    managed(x)
    assert evict_count() == 0
    assert is_resident(x)
    torch.cuda.synchronize()
    running.finish()
    assert evict_count() == 1
    assert ones_bytes(x)


def test_a_region_that_began_while_lms_was_off():
    x = managed(pattern(1))
    torch.cuda.lms._watch()
    torch.cuda.set_enabled_lms(False)
    counts = []

    @torch.cuda.lms.wrap
    def native(x: torch.Tensor) -> None:
        torch.cuda.set_enabled_lms(True)
        torch.cuda.lms._watch()
        managed(x)
        counts.append(evict_count())

    native(x)
    assert counts == [0]
    assert evict_count() == 1
    torch.cuda.set_enabled_lms(False)
    assert torch.equal(x.cpu(), pattern(1, device="cpu"))


def test_operators_inside_of_one_that_was_only_counted():
    x, y = managed(pattern(1)), managed(pattern(1, start=3))

    def inner() -> None:
        torch.cuda.set_limit_lms(1)
        address = raw_address(x)
        assert address
        (x + y).sum()  # seen, and what it used is idle
        torch.empty(floats(2), device="cuda")
        assert evict_count() == 0
        assert raw_address(x) == address

    running = Running(x, nothing, inner).arrive()
    running.finish()
    evict()
    assert not is_resident(x)
    assert torch.equal(x.cpu(), pattern(1, device="cpu"))


def test_an_address_that_a_counted_operator_asks_for():
    x = managed(pattern(1))
    addresses = []
    running = Running(x, lambda: addresses.append(x.data_ptr()), nothing).arrive()
    torch.cuda.set_limit_lms(1)
    running.finish()
    assert addresses == [raw_address(x)]
    assert stat("held_bytes") == 0, "it was for the operator only"
    managed(x)
    assert evict_count() == 1


def test_an_address_that_is_handed_out_meanwhile():
    x = managed(pattern(1))
    x.data_ptr()
    torch.cuda.set_limit_lms(1)
    managed(x)
    assert evict_count() == 0
    torch.cuda.lms.release(x)
    managed(x)
    assert evict_count() == 1


@pytest.fixture
def gate(observers: ctypes.CDLL) -> Iterator[ctypes.CDLL]:
    """Closed, the next operator waits at it that PyTorch wants counted, and LMS has not yet."""
    torch.cuda.lms._watch()  # nothing is counted any more
    observers.add_gate()  # before LMS in PyTorch's list of callbacks
    torch.cuda.set_enabled_lms(False)
    torch.cuda.set_enabled_lms(True)
    yield observers
    observers.open_gate()
    observers.remove_gate()


def test_an_operator_that_is_counted_too_late(gate):
    x, clean = pattern(1), pattern(1, start=5)
    errors: list[BaseException] = []

    def write() -> None:
        try:
            torch._foreach_add_([x, clean], 1)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=write)
    gate.close_gate()
    thread.start()
    gate.wait_at_gate()
    torch.cuda.set_limit_lms(40 * MIB)
    managed(x)
    managed(clean)
    assert evict_count() == 2
    managed(clean)  # it keeps its host copy, of which the operator does not know
    assert (is_resident(x), is_resident(clean)) == (False, True)
    gate.open_gate()
    thread.join()
    assert errors == []
    managed(x)
    managed(clean)
    assert evict_count() == 2
    assert torch.equal(x.cpu(), pattern(1, start=1, device="cpu"))
    assert torch.equal(clean.cpu(), pattern(1, start=6, device="cpu"))


def test_nothing_moves_before_that_operator_ends(gate):
    x = pattern(1)
    torch.cuda.synchronize()
    gate.close_gate()
    running = Running(x, nothing, lambda: fill_unseen(x, torch.cuda.default_stream()))
    gate.wait_at_gate()
    torch.cuda.set_limit_lms(40 * MIB)
    managed(x)
    assert evict_count() == 1
    gate.open_gate()
    running.arrive()
    assert is_resident(x)
    managed(x)
    assert evict_count() == 0
    running.finish()
    assert evict_count() == 1
    assert ones_bytes(x)


def added_to(x: torch.Tensor, errors: list[BaseException]) -> threading.Thread:
    """Starts a thread that adds 1 to x."""

    def add() -> None:
        try:
            torch._foreach_add_([x], 1)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=add)
    thread.start()
    return thread


@simulated
def test_nothing_leaves_while_storages_are_brought_for_that_operator(gate, device):
    x, other = pattern(1), managed(pattern(1).to("cuda:1"))
    errors: list[BaseException] = []
    gate.close_gate()
    thread = added_to(x, errors)
    gate.wait_at_gate()
    torch.cuda.set_limit_lms(40 * MIB)
    managed(x)
    assert evict_count() == 1
    device.hold("cudaDeviceSynchronize", device=1)
    gate.open_gate()
    assert device.wait_for("cudaDeviceSynchronize")  # the first GPU's storages have been brought
    count = evict_count()
    device.release("cudaDeviceSynchronize")
    thread.join()
    assert (errors, count) == ([], 0)
    assert torch.equal(x.cpu(), pattern(1, start=1, device="cpu"))
    assert torch.equal(other.cpu(), pattern(1, device="cpu"))


@simulated
def test_two_operators_that_are_counted_too_late(gate, device):
    tensors = [pattern(1), pattern(1, start=5)]
    torch.cuda.synchronize()
    errors: list[BaseException] = []
    threads = []
    for x in tensors:
        gate.close_gate()  # who waits goes on waiting
        threads.append(added_to(x, errors))
        gate.wait_at_gate()
    torch.cuda.set_limit_lms(40 * MIB)
    for x in tensors:
        managed(x)
    assert evict_count() == 2
    torch.cuda.empty_cache()
    device.hold("cudaMalloc", device=0)
    gate.open_gate()
    assert device.wait_for("cudaMalloc")  # for the first page-in
    time.sleep(0.1)  # the other operator gets as far as it can
    device.release("cudaMalloc")
    for thread in threads:
        thread.join()
    assert errors == []
    for x, start in zip(tensors, (1, 6), strict=True):
        assert torch.equal(x.cpu(), pattern(1, start=start, device="cpu"))


def test_a_range_that_only_has_an_operators_name(observers):
    x = managed(pattern(1))
    torch.cuda.lms._watch()
    managed(x)
    values = []

    @ctypes.CFUNCTYPE(None)
    def inside() -> None:
        evict()
        values.append(x[-1].item())

    for _ in range(2):
        observers.in_range(inside)
    assert values == [pattern(1, device="cpu")[-1].item()] * 2


@since((2, 2), "the FakeTensors of these releases")
def test_what_is_traced_with_symbolic_shapes():
    """What is traced has no memory, and no size in bytes that is a number."""
    torch.cuda.lms._watch()
    torch._dynamo.reset()
    function = torch.compile(lambda x: (x.relu() + 1) * 2, dynamic=True, backend="aot_eager")
    x = managed(pattern(1))
    evict()
    got = function(x)
    managed(got)
    torch.cuda.reclaim_inactive()
    assert not is_resident(x)
    assert torch.equal(got.cpu(), (pattern(1, device="cpu").relu() + 1) * 2)


@since((2, 2), "the FakeTensors of these releases")
def test_what_is_being_traced_is_not_shown(monkeypatch):
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=False)
    how = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
    fake = mode.from_tensor(torch.empty(floats(1), device="cuda"), symbolic_context=how)
    assert isinstance(fake.shape[0], torch.SymInt)
    x = managed(pattern(1))
    with FunctionalTensorMode():
        functional = FunctionalTensor.to_functional(fake)
    assert isinstance(functional.untyped_storage().size(), torch.SymInt)
    assert functional.untyped_storage().device.type == "cuda"
    monkeypatch.setattr(torch.cuda.lms, "_unseen", True)
    torch.cuda.reclaim_inactive()
    assert not is_resident(x)
