"""Plans: LMS learns which iterations repeat, and acts on the plans for them."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import unseen
from conftest import DEVICE, MIB, ON_HARDWARE, start_within
from hardware import simulated
from releases import scoped_library, since
from simcuda.process import run_sim
from tensors import evict, floats, is_resident, managed, pattern, raw_address, stat

pytestmark = [since((2, 1), "hooks of all optimizers"), pytest.mark.usefixtures("kept_plans")]

LAYERS = 12
LIMIT = 32 * MIB  # the training below needs 50


class Chain:
    """Layers of 1 MiB each, every one of which keeps 2 MiB for its backward pass."""

    def __init__(self) -> None:
        self.weights = [(pattern(1, start=k) * 1e-4).requires_grad_() for k in range(LAYERS)]
        self.optimizer = torch.optim.SGD(self.weights, lr=1e-3, momentum=0.9, foreach=False)

    def train(
        self,
        x: torch.Tensor,
        between: Callable[[], object] = lambda: None,
        before: Callable[[int, torch.Tensor], object] = lambda k, x: None,
    ) -> float:
        """Calls before() with the number and input of each layer, and between() in the middle."""
        self.optimizer.zero_grad()
        for k, weight in enumerate(self.weights):
            before(k, x)
            x = torch.sin(x * weight[: x.numel()])
            if k == LAYERS // 2:
                between()
        loss = x.sum()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def train(
    iterations: int,
    *,
    size: Callable[[int], float] = lambda _: 1,
    between: Callable[[int], object] = lambda _: None,
) -> list[float]:
    chain = Chain()
    found = []
    for k in range(iterations):
        found.append(chain.train(pattern(size(k), start=k), lambda k=k: between(k)))
        torch.cuda.lms._wait_for_plans()
    return found


def expected(iterations: int, **program: Any) -> list[float]:
    """The losses without LMS. Plans are forgotten, and the statistics are 0 after it."""
    torch.cuda.set_enabled_lms(False)
    losses = train(iterations, **program)
    start_within(LIMIT)
    return losses


def test_an_iteration_that_repeats_is_planned():
    losses = expected(9)
    assert train(9) == losses
    # On a GPU, a second one may follow, which uses another part of the limit.
    assert stat("plans") == 1 or (ON_HARDWARE and stat("plans") == 2)
    assert stat("planned_iterations") >= 4
    assert stat("plan_departures") == 0
    assert stat("copied_ahead_count") > 0
    assert torch.cuda.max_memory_reserved() <= LIMIT


def test_all_page_ins_of_a_planned_iteration_are_ahead():
    train_until_planned()
    chain = Chain()
    for k in range(8):
        before = torch.cuda.lms.stats()
        chain.train(pattern(1, start=k))
        torch.cuda.lms._wait_for_plans()
    after = torch.cuda.lms.stats()
    moved = {name: after[name] - before[name] for name in ("page_in_count", "prefetch_count")}
    assert moved["page_in_count"] == moved["prefetch_count"] > 0


def ahead(chain: Chain, **program: Any) -> tuple[int, int]:
    """Page-ins of planned iterations, and how many of them were ahead."""
    for k in range(14):
        if k == 6:
            before = torch.cuda.lms.stats()
        chain.train(pattern(1, start=k), **program)
        torch.cuda.lms._wait_for_plans()
    after = torch.cuda.lms.stats()
    assert after["planned_iterations"] - before["planned_iterations"] == 8
    return tuple(after[name] - before[name] for name in ("page_in_count", "prefetch_count"))


def check_ahead(back: int, early: int) -> None:
    """All, but for one in an iteration on a GPU, where free memory may lie in pieces."""
    assert 0 < early <= back
    assert early == back or (ON_HARDWARE and early >= back - 8)


def test_a_plan_does_not_count_on_what_stays():
    expected(1)
    chain = Chain()
    for weight in chain.weights[:4]:
        torch.cuda.lms.exclude(weight)
    check_ahead(*ahead(chain))


def test_a_plan_knows_what_lives_on_from_the_iteration_before():
    """Gradients, until zero_grad() is called between the passes."""
    expected(1)
    chain = Chain()
    zero, chain.optimizer.zero_grad = chain.optimizer.zero_grad, lambda: None
    check_ahead(*ahead(chain, between=zero))


def test_an_iteration_that_repeats_seldom_is_planned():
    expected(1)
    chain, planned = Chain(), []
    for k in range(73):
        before = stat("planned_iterations")
        chain.train(pattern(0.5 if k % 18 == 17 else 1, start=k))
        torch.cuda.lms._wait_for_plans()
        planned.append(stat("planned_iterations") - before)
    assert planned[70] == planned[71] == 1


def test_what_follows_an_unknown_iteration_is_planned():
    """A metric, say, of another size each second time."""
    expected(1)
    chain = Chain()
    for k in range(30):
        between = (lambda k=k: pattern(1 + k / 64)) if k % 2 else (lambda: None)
        chain.train(pattern(1, start=k), between=between)
        torch.cuda.lms._wait_for_plans()
    assert stat("planned_iterations") >= 8


def waits_of_the_host(device):
    """Iterations that were planned in each third: in the second, the host waits for its data."""
    import torch
    from simcuda.hill import hill

    torch.cuda.set_limit_lms(40 << 20)
    torch.cuda.set_enabled_lms(True)
    torch.cuda.set_size_lms(4096)
    torch.cuda.lms.set_compression("off")
    stream = torch.cuda.current_stream().cuda_stream
    planned = []
    for k in range(75):
        wait = 0.1 if 25 <= k < 31 else 0.0  # seconds
        hill(device, at_the_peak=lambda wait=wait: device.takes(stream, 0, 0.0, wait))
        if k % 25 == 24:
            planned.append(torch.cuda.lms.stats()["planned_iterations"])
    return planned


@simulated
def test_a_plan_is_not_blamed_for_what_the_host_waits_for():
    first, _, last = run_sim(waits_of_the_host, mib=512, timing=1, to_host=4000, to_device=4000)
    assert first > 10
    assert last - first > 35


def test_what_a_plan_transfers_can_be_moved_meanwhile():
    """Storages move on the device, also while they are copied, and keep their bytes."""
    losses = expected(14)
    chain = Chain()
    found = []
    for k in range(14):
        torch.cuda.lms._set_shuffle(k > 6)
        found.append(chain.train(pattern(1, start=k)))
        torch.cuda.lms._wait_for_plans()
    assert found == losses
    assert stat("planned_iterations") > 8


def train_until_planned() -> None:
    torch.cuda.set_limit_lms(LIMIT)
    train(7)
    assert stat("planned_iterations") > 0


@simulated
def test_a_plan_moves_nothing_while_lms_is_turned_off():
    losses = expected(8)
    found = []
    chain = Chain()
    other = torch.ones(floats(1), device="cuda:1")
    off = threading.Thread(target=torch.cuda.set_enabled_lms, args=(False,))

    def finish(_: torch.Tensor) -> None:
        if off.is_alive():
            DEVICE.release("cudaDeviceSynchronize")
            off.join()

    chain.weights[-1].register_hook(finish)  # the first of the backward pass
    for k in range(8):
        if k == 7:
            assert stat("planned_iterations") > 0
            DEVICE.hold("cudaDeviceSynchronize", device=1)
            off.start()
            # The first GPU's storages have been brought then.
            assert DEVICE.wait_for("cudaDeviceSynchronize")
        found.append(chain.train(pattern(1, start=k)))
        torch.cuda.lms._wait_for_plans()
    assert not torch.cuda.get_enabled_lms()
    assert found == losses
    assert other.sum().item() == floats(1)


def test_without_planning_all_is_on_demand():
    losses = expected(8)
    torch.cuda.lms.set_planning(False)
    assert not torch.cuda.lms.get_planning()
    assert train(8) == losses
    assert stat("page_in_count") > 0
    assert stat("plans") == stat("prefetch_count") == stat("copied_ahead_count") == 0


def test_a_departure_goes_on_on_demand():
    def more(k: int) -> None:
        if k in (7, 8):
            torch.empty(floats(3), device="cuda").fill_(k).sum().item()

    losses = expected(12, between=more)
    assert train(12, between=more) == losses
    assert stat("plan_departures") > 0
    assert stat("planned_iterations") >= 3


def test_each_of_several_shapes_has_its_plan():
    def size(k: int) -> float:
        return (1, 0.75)[k * k // 3 % 2]

    losses = expected(24, size=size)
    assert train(24, size=size) == losses
    assert stat("plans") >= 2
    assert stat("planned_iterations") >= 8


def test_other_sizes_are_no_repetition():
    def size(k: int) -> float:
        return 1 - k / 32

    losses = expected(8, size=size)
    assert train(8, size=size) == losses
    assert stat("page_in_count") > 0
    assert stat("plans") == 0


def test_a_new_limit_is_a_new_plan():
    train_until_planned()
    plans = stat("plans")
    chain = Chain()
    torch.cuda.set_limit_lms(26 * MIB)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for k in range(8):
        chain.train(pattern(1, start=k))
        torch.cuda.lms._wait_for_plans()
    assert stat("plans") > plans
    assert torch.cuda.max_memory_reserved() <= 26 * MIB


def test_iterations_without_an_optimizer():
    weights = [pattern(4, start=k) for k in range(12)]
    torch.cuda.set_limit_lms(LIMIT)
    sums = []
    for _ in range(8):
        x = torch.ones(floats(4), device="cuda")
        for weight in weights:
            x = torch.sin(x * weight)
        sums.append(x.sum().item())
        torch.cuda.lms.step()
        torch.cuda.lms._wait_for_plans()
    assert len(set(sums)) == 1
    assert stat("planned_iterations") >= 3


def test_several_optimizers():
    """Steps that take turns are one iteration, as in the training of a GAN."""

    def losses(iterations: int) -> list[float]:
        chains = [Chain(), Chain()]
        found = []
        for k in range(iterations):
            for n, chain in enumerate(chains):
                found.append(chain.train(pattern(1 - n / 4, start=k)))
                torch.cuda.lms._wait_for_plans()
            planned.append(stat("planned_iterations"))
        return found

    planned: list[int] = []
    torch.cuda.lms.set_planning(False)
    torch.cuda.set_limit_lms(LIMIT)
    expected_losses = losses(16)
    torch.cuda.lms.set_planning(True)
    torch.cuda.reset_accumulated_memory_stats()
    assert losses(16) == expected_losses
    assert planned[-1] - planned[-4] == 3, "two steps are one iteration"


def test_an_optimizer_for_each_parameter():
    weights = [pattern(2, start=k).requires_grad_() for k in range(12)]
    optimizers = [torch.optim.SGD([w], lr=1e-3, momentum=0.9, foreach=False) for w in weights]
    torch.cuda.set_limit_lms(LIMIT)
    planned = []
    for _ in range(12):
        x = torch.ones(floats(2), device="cuda")
        for weight in weights:
            x = torch.sin(x * weight)
        x.sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.lms._wait_for_plans()
        planned.append(stat("planned_iterations"))
    assert planned[-1] - planned[-4] == 3, "twelve steps are one iteration"


def test_steps_that_take_turns_no_longer():
    chains = [Chain(), Chain()]
    torch.cuda.set_limit_lms(LIMIT)
    for k in range(20):
        chains[k % 2].train(pattern(1 - k % 2 / 4, start=k))
    planned = stat("planned_iterations")
    del chains[1]
    for k in range(24):
        chains[0].train(pattern(1, start=k))
        torch.cuda.lms._wait_for_plans()
    assert stat("planned_iterations") > planned + 6


def test_blocks_that_die_early():
    """A plan may name blocks that the program has freed by then."""
    chain = Chain()
    torch.cuda.set_limit_lms(LIMIT)
    for k in range(7):
        chain.train(pattern(1, start=k))
        torch.cuda.lms._wait_for_plans()
    planned = stat("planned_iterations")
    assert planned > 0
    chain.optimizer.state.clear()
    del chain.weights[3:]
    chain.optimizer.param_groups[0]["params"] = chain.weights
    chain.train(pattern(1))
    assert stat("planned_iterations") == planned


@pytest.mark.parametrize("other", [0, 1])
def test_a_capture_between_iterations(other):
    """A step can be part of a captured graph, whatever LMS follows on another device."""
    train_until_planned()
    if other:
        with torch.cuda.device(other):
            train(7)
    chain = Chain()
    x = pattern(1)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.cuda.lms.step()
        x * 2
    planned = stat("planned_iterations")
    for k in range(4):
        chain.train(pattern(1, start=k))
        torch.cuda.lms._wait_for_plans()
    assert stat("planned_iterations") > planned


@simulated
def test_a_plan_that_is_slower_is_not_followed():
    """Planned iterations get slower here, which is not the plan's fault."""
    torch.cuda.lms._keep_plans(False)
    torch.cuda.set_limit_lms(LIMIT)
    chain = Chain()
    seen = [0, 0, 0]
    # On demand, of any iteration but the first, which pins memory. LMS measures from one optimizer
    # step to the next, which is why half as much is added below.
    longest = 0.0
    for k in range(40):
        start, pause = time.monotonic(), 1.5 * longest if stat("planned_iterations") else 0
        chain.train(pattern(1, start=k), lambda pause=pause: time.sleep(pause))
        torch.cuda.lms._wait_for_plans()
        seen.append(stat("planned_iterations"))
        if 0 < seen[-1] == seen[-4]:
            break
        if k > 0 and seen[-1] == 0:
            longest = max(longest, time.monotonic() - start)
    assert 0 < seen[-1] == seen[-4]


@simulated
@pytest.mark.parametrize("times", [1, 30])
def test_a_plan_takes_less_if_the_native_allocator_tries_again(times):
    """It does in every iteration here, because the device refuses memory for another stream. If it
    does so only in the first one, a second plan takes more, and then the first one is back."""
    side = torch.cuda.Stream()

    def refuse(k: int) -> None:
        torch.cuda.empty_cache()
        DEVICE.fault("cudaMalloc")
        address = torch.cuda.caching_allocator_alloc(4096, stream=side)
        torch.cuda.caching_allocator_delete(address)

    expected(1)
    train(30, between=lambda k: refuse(k) if k < times else None)
    assert stat("planned_iterations") > 4
    assert torch.cuda.memory_stats()["num_alloc_retries"] >= times
    assert stat("plans") == 2 if times == 1 else stat("plans") > 3


class Line:
    """Tensors of 1 MiB, more than the limit. One operator uses each, so that whatever the plan and
    however long operators take, the next tensor is on its way between some of them."""

    def __init__(self) -> None:
        torch.cuda.set_limit_lms(LIMIT)
        self.tensors = [pattern(1, start=k) for k in range(4 * LAYERS)]
        self.runs = 0
        for _ in range(8):
            self.run()
        assert stat("planned_iterations") > 0

    def use(self) -> Iterator[list[torch.Tensor]]:
        """One iteration; yields, after each operator, what is on its way for the next ones."""
        for k, tensor in enumerate(self.tensors):
            tensor.add_(1)
            yield [x for x in self.tensors[k + 1 : k + 3] if on_its_way(x)]
        torch.cuda.lms.step()
        torch.cuda.lms._wait_for_plans()
        self.runs += 1

    def run(self, look: Callable[[list[torch.Tensor]], object] = lambda waiting: None) -> None:
        for waiting in self.use():
            if waiting:
                look(waiting)

    def check(self) -> None:
        for k, tensor in enumerate(self.tensors):
            assert torch.equal(tensor.cpu(), pattern(1, start=k + self.runs, device="cpu"))


def on_its_way(tensor: torch.Tensor) -> bool:
    """A plan has begun to page it in, and nothing may read it yet."""
    try:
        raw_address(tensor)
    except RuntimeError:
        return is_resident(tensor)
    return False


def test_what_is_on_its_way_cannot_be_read_unseen(writer):
    """Extensions do not wait for what a plan brings: they read it, or are refused."""
    line = Line()
    target = torch.zeros(floats(1), device="cuda")
    torch.cuda.lms.exclude(target)  # or it may be what is refused
    read: list[tuple[torch.Tensor, torch.Tensor]] = []
    refused = []

    def look(waiting: list[torch.Tensor]) -> None:
        for tensor in (*waiting, *line.tensors):  # no operator before the first
            fetched = is_resident(tensor)
            try:
                writer.copy(tensor, target, 0, 0, MIB)
            except unseen.PagedOut:
                refused.append(fetched)
            else:
                read.append((target.cpu(), tensor.cpu()))  # it departs from the plan
                target.zero_()

    for _ in range(3):
        line.run(look)
        line.run()
    assert any(refused)
    assert read
    assert all(torch.equal(seen, true) for seen, true in read)
    line.check()


@simulated
@since((2, 2), "storages that are copied when they are written")
def test_a_storage_that_goes_while_its_operator_waits():
    train_until_planned()
    a, x = managed(pattern(1)), managed(pattern(1, start=3))
    evict()
    x.sum()
    torch.cuda.empty_cache()
    full = torch.empty_like(x)  # the rest of the segment
    torch.cuda.lms.step()  # neither has been used since
    DEVICE.hold("cudaMalloc")
    thread = threading.Thread(target=a.copy_, args=(x,))  # the page-in of `a` waits for memory
    thread.start()
    assert DEVICE.wait_for("cudaMalloc")
    y = torch._lazy_clone(x)  # LMS does not manage the memory any more
    DEVICE.release("cudaMalloc")
    thread.join()
    for _ in range(2):
        torch.cuda.lms.step()
    del full
    for tensor in (a, x, y):
        assert torch.equal(tensor.cpu(), pattern(1, start=3, device="cpu"))


def on_their_way() -> list[Any]:
    """Storages that a plan has begun to page in, and whose tensors are gone."""
    for waiting in Line().use():
        if waiting:
            return [tensor.untyped_storage() for tensor in waiting]
    raise AssertionError("nothing is on its way")


@since((2, 10), "storages that know their Python objects")
@simulated
def test_lms_is_turned_off_while_only_python_has_what_is_on_its_way():
    """A second reference to such a storage takes the GIL, which another thread may have."""
    storages = on_their_way()
    gc.collect()
    freed = torch.empty(floats(1 / 64), device="cuda").untyped_storage()
    DEVICE.hold("cudaStreamWaitEvent")
    thread = threading.Thread(target=torch.cuda.set_enabled_lms, args=(False,))
    thread.start()
    assert DEVICE.wait_for("cudaStreamWaitEvent")
    faulthandler.dump_traceback_later(120, exit=True)  # a deadlock with the GIL
    sys.setswitchinterval(60)
    DEVICE.release("cudaStreamWaitEvent", with_gil=True)
    ctypes.PyDLL(None).usleep(500_000)  # with the GIL, as any function in C
    del freed  # waits for the mutex of LMS
    sys.setswitchinterval(0.005)
    thread.join()
    faulthandler.cancel_dump_traceback_later()
    del storages  # until here, only Python had them


def test_a_graph_writes_what_a_plan_has_copied():
    train_until_planned()
    chain = Chain()

    def train(captured: int) -> None:
        inputs = []

        def before(k: int, x: torch.Tensor) -> None:
            inputs.append(x)
            if k == captured:
                with torch.cuda.graph(torch.cuda.CUDAGraph()):
                    for tensor in filter(is_resident, inputs):
                        tensor.data.mul_(1)

        chain.train(pattern(1), before=before)
        torch.cuda.lms._wait_for_plans()

    for _ in range(8):
        train(-1)
    for k in range(LAYERS):
        copied = stat("copied_ahead_count")
        train(k)
        assert stat("copied_ahead_count") > copied or k == 0  # nothing was made yet
        train(-1)


def test_a_copy_starts_when_the_operator_begins_that_uses_its_block_last():
    torch.cuda.set_limit_lms(8 * MIB)
    weights = [torch.zeros(1, device="cuda", requires_grad=True) for _ in range(LAYERS)]
    optimizer = torch.optim.SGD(weights, lr=1e-3, foreach=False)
    count = {"add": 0, "sin": 0}
    for _ in range(14):
        optimizer.zero_grad()
        x = pattern(1)
        for weight in weights:
            numbers = [stat("copied_ahead_count")]
            sum_ = x + weight  # which only sin() keeps
            numbers.append(stat("copied_ahead_count"))
            x = torch.sin(sum_)
            numbers.append(stat("copied_ahead_count"))
            count["add"] += numbers[1] - numbers[0]
            count["sin"] += numbers[2] - numbers[1]
        x.sum().backward()
        optimizer.step()
        torch.cuda.lms._wait_for_plans()
    assert count["sin"] >= 3, count
    assert count["sin"] > 4 * count["add"], count


LIBRARY = torch.library.Library("lms_late", "DEF")
LIBRARY.define("hold(Tensor(a!) x) -> ()")


def test_what_another_thread_is_about_to_write_is_copied_later(writer):
    """Its operator has begun, and issues the write when others have begun, too."""
    begun, go = threading.Event(), threading.Event()

    def hold(x: torch.Tensor) -> None:
        begun.set()
        assert go.wait(60)
        writer.fill(x, 0, x.numel() * x.element_size(), 0)

    def train(until: int) -> tuple[int, float]:
        """The copies of an iteration, and its loss. The write is issued in this layer."""
        chain = Chain()
        threads: list[threading.Thread] = []

        def before(k: int, x: torch.Tensor) -> None:
            if k == 1:  # plans copy what layers make that are first
                begun.clear()
                go.clear()
                call = torch.ops.lms_late.hold
                threads.append(threading.Thread(target=call, args=(x.detach(),)))
                threads[-1].start()
                assert begun.wait(60)
            if k == until:
                go.set()
                threads[-1].join()

        for _ in range(12):
            copied = stat("copied_ahead_count")
            loss = chain.train(pattern(1), before=before)
            torch.cuda.lms._wait_for_plans()
        return stat("copied_ahead_count") - copied, loss

    with scoped_library("lms_late", "IMPL") as library:
        library.impl("hold", hold, "CUDA")
        copies = set()
        for until in (1, 3):
            torch.cuda.set_enabled_lms(False)
            _, expected = train(until)
            start_within(LIMIT)
            copied, loss = train(until)
            assert loss == expected
            assert stat("release_caught") == 0
            copies.add(copied)
    assert len(copies) == 1
    assert copies != {0}


def test_a_plan_moves_nothing_during_a_capture():
    train_until_planned()
    chain = Chain()
    counts = ("copied_ahead_count", "page_out_count", "prefetch_count")

    def train(captured: int) -> None:
        def before(k: int, x: torch.Tensor) -> None:
            if k == captured:
                weight = chain.weights[k]
                with (
                    torch.cuda.lms.resident(x, weight),
                    torch.cuda.graph(torch.cuda.CUDAGraph()),
                ):
                    now = [stat(name) for name in counts]
                    x * weight[: x.numel()]  # as the plan expects
                    assert [stat(name) for name in counts] == now

        chain.train(pattern(1), before=before)
        torch.cuda.lms._wait_for_plans()

    for _ in range(8):
        train(-1)
    for k in range(LAYERS):
        train(k)
        train(-1)


class Programs(unseen.Programs):
    """With one limit, since plans are forgotten with it."""

    STEPS = tuple(step for step in unseen.Programs.STEPS if step[0] != "change_limit")


@pytest.mark.parametrize("mode", ["operator", "wrap"])
@pytest.mark.parametrize("seed", range(4))
def test_random_programs_that_repeat(mode, seed, writer):
    """Tensors on any stream, views, writes, an extension: each repetition has every byte right."""
    limit = 48 << 10
    torch.cuda.set_limit_lms(limit)
    torch.cuda.lms._set_shuffle(seed % 2 == 1)
    kept = [pattern(1 / 64, start=k) for k in range(6)]
    for n in range(7):
        programs = Programs(writer, seed=seed, limit=limit, largest=limit // 3, modes=[mode])
        try:
            unseen.run(programs, 40, lambda: None)
        finally:
            programs.live.clear()
        for k, tensor in enumerate(kept):
            tensor.add_(1)
            assert tensor[0] == k + n + 1
        torch.cuda.lms.step()
        torch.cuda.lms._wait_for_plans()
    races = unseen.unrepaired(DEVICE.races(), writer)
    DEVICE.clear_races()
    assert races == []
    assert stat("copied_ahead_count") + stat("prefetch_count") > 0


@simulated
@since((2, 3), "storages that refuse access")
def test_what_a_plan_has_brought_may_leave_before_it_is_used():
    """Its page-out waits until it has arrived."""
    line = Line()
    left: list[int] = []

    def look(waiting: list[torch.Tensor]) -> None:
        evict()
        left.append(sum(not is_resident(tensor) for tensor in waiting))

    for _ in range(3):
        line.run(look)
        line.run()
    assert sum(left) > 0
    line.check()
    assert DEVICE.races() == []
