"""Threads that share tensors under a tight limit.

The simulated device counts all host threads as one, so it sees no races between them: what these
tests see is wrong bytes, errors, and threads that wait for each other forever.
"""

from __future__ import annotations

import ctypes
import threading
import time

import pytest
import torch
from conftest import MIB
from faults import NOT_READY, UNKNOWN
from hardware import simulated
from releases import scoped_library, since
from simcuda.process import run_sim
from tensors import evict, managed, pattern

TIMEOUT = 120  # seconds, for the scenario's process; it dumps its threads' stacks before


def shared_tensors(device, threads, rounds, seconds, own_streams, toggled=False, shuffled=False):
    import faulthandler
    import random
    import threading

    import torch

    faulthandler.dump_traceback_later(seconds, exit=True)
    KIB = 1 << 10
    torch.cuda.set_size_lms(4 * KIB)
    torch.cuda.set_limit_lms(160 * KIB)
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._set_shuffle(shuffled)

    def numbers(i):
        return torch.arange(4096 + 512 * i, dtype=torch.int32) % 1021 + i

    plain = [numbers(i) for i in range(12)]
    shared = [tensor.cuda() for tensor in plain]
    torch.cuda.synchronize()
    failures = []
    done = threading.Event()

    def check(what, found, expected):
        if not torch.equal(found.cpu(), expected):
            failures.append(what)

    def read(draw):
        i, j = sorted(draw.sample(range(12), 2))
        n = len(plain[i])
        check("add", shared[i] + shared[j][:n], plain[i] + plain[j][:n])
        check("cat", torch.cat([shared[i], shared[j]]), torch.cat([plain[i], plain[j]]))

    def write_own(draw):
        i = draw.randrange(12)
        own, expected = shared[i].clone(), plain[i].clone()
        for tensor in (own, expected):
            tensor[::3].mul_(2)
            torch._foreach_add_([tensor[:8], tensor[8:]], 5)
            old = not hasattr(tensor, "untyped_storage")  # before 2.0
            storage = tensor._storage() if old else tensor.untyped_storage()
            storage.resize_(storage.nbytes() + 64)
        check("write", own, expected)

    def backward(draw):
        i = draw.randrange(12)
        gradients = []
        for tensor in (shared[i], plain[i]):
            leaf = tensor.remainder(5).float().requires_grad_()
            # Parts that autograd runs in its own thread.
            (leaf[:2048] * leaf[-2048:] + leaf[:1]).relu().sum().backward()
            gradients.append(leaf.grad)
        check("gradient", *gradients)

    def cross_over(draw):
        i = draw.randrange(12)
        check("other device", shared[i].to("cuda:1") + 1, plain[i] + 1)

    def work(seed):
        draw = random.Random(seed)
        stream = torch.cuda.Stream() if own_streams else torch.cuda.default_stream()
        try:
            with torch.cuda.stream(stream):
                for _ in range(rounds):
                    draw.choice((read, write_own, backward, cross_over))(draw)
        except BaseException as error:
            failures.append(repr(error))

    def disturb():
        draw = random.Random(99)
        try:
            while not done.wait(0.001):
                torch.cuda.reclaim_inactive()
                if toggled:
                    torch.cuda.set_enabled_lms(draw.random() < 0.5)
                torch.cuda.set_limit_lms(draw.choice((1, 80 * KIB, 160 * KIB, 0)))
                with torch.cuda.lms.resident(*shared[:2]):
                    torch.cuda.lms.stats()
                torch.cuda.lms.trim_host()
        except BaseException as error:
            failures.append(repr(error))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    disturber = threading.Thread(target=disturb)
    for thread in (*workers, disturber):
        thread.start()
    for thread in workers:
        thread.join()
    done.set()
    disturber.join()
    faulthandler.cancel_dump_traceback_later()
    for tensor, expected in zip(shared, plain, strict=True):
        check("shared", tensor, expected)
    page_ins = torch.cuda.lms.stats()["page_in_count"]
    shared.clear()
    del tensor
    torch.cuda.synchronize()
    left = torch.cuda.lms.stats()
    return {
        "failures": failures,
        "races": device.races(),
        "page_ins": page_ins,
        "left": {name: left[name + "_bytes"] for name in ("resident", "paged_out", "host_used")},
    }


def judge(result):
    assert result["failures"] == []
    assert result["races"] == []
    assert result["left"] == {"resident": 0, "paged_out": 0, "host_used": 0}
    assert result["page_ins"] > 0


def test_streams_of_their_own():
    judge(run_sim(shared_tensors, 4, 30, TIMEOUT - 20, True, devices=2, timeout=TIMEOUT))


@pytest.mark.parametrize("shuffled", [False, True])
def test_one_default_stream(shuffled):
    arguments = (4, 30, TIMEOUT - 20, False, False, shuffled)
    judge(run_sim(shared_tensors, *arguments, devices=2, timeout=TIMEOUT))


@pytest.mark.parametrize("own_streams", [True, False])
def test_turned_on_and_off_meanwhile(own_streams):
    judge(run_sim(shared_tensors, 4, 60, TIMEOUT - 20, own_streams, True, devices=2))


def known_to_python(device, seconds):
    import faulthandler
    import threading

    import torch

    faulthandler.dump_traceback_later(seconds, exit=True)
    torch.cuda.set_size_lms(1 << 12)
    torch.cuda.set_enabled_lms(True)
    done = threading.Event()

    def page_out():
        while not done.is_set():
            torch.cuda.reclaim_inactive()

    thread = threading.Thread(target=page_out)
    thread.start()
    old = not hasattr(torch.Tensor, "untyped_storage")  # before 2.0
    rows = torch.arange(4096, dtype=torch.int32)
    wrong = 0
    for i in range(4000):
        tensor = (rows + i).cuda() + 1
        # The Python object lives as long as the storage.
        tensor._storage() if old else tensor.untyped_storage()
        if i % 100 == 0:
            wrong += not torch.equal(tensor.cpu(), rows + i + 1)
        del tensor
    done.set()
    thread.join()
    faulthandler.cancel_dump_traceback_later()
    return wrong, device.races()


def test_storages_with_a_python_object_die_while_they_are_paged_out():
    # Whoever drops the last reference of C++ to such a storage takes the GIL.
    assert run_sim(known_to_python, 60, timeout=TIMEOUT) == [0, []]


def owned_by_python_alone(device, seconds):
    """One thread pages out all that it may while another keeps the GIL."""
    import ctypes
    import faulthandler
    import sys
    import threading
    import time

    import torch

    faulthandler.dump_traceback_later(seconds, exit=True)
    torch.cuda.set_size_lms(1 << 12)
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    tensors = [torch.arange(1 << 14, device="cuda") + i for i in range(5)]
    old = not hasattr(torch.Tensor, "untyped_storage")  # before 2.0
    storages = [x._storage() if old else x.untyped_storage() for x in tensors[1:4]]
    first, last = tensors[0], tensors[4]
    del tensors
    device.hold("cudaMemcpyAsync", seconds=0.2)
    thread = threading.Thread(target=torch.cuda.reclaim_inactive)
    thread.start()
    device.wait_for("cudaMemcpyAsync")
    sys.setswitchinterval(seconds)
    with_gil = ctypes.PyDLL(None)
    deadline = time.monotonic() + seconds / 2
    while device.count("cudaMemcpyAsync", with_gil=True) < 2 and time.monotonic() < deadline:
        with_gil.usleep(10_000)
    begun = device.count("cudaMemcpyAsync", with_gil=True)
    sys.setswitchinterval(0.005)
    thread.join()
    faulthandler.cancel_dump_traceback_later()
    same = [torch.equal(x.cpu(), torch.arange(1 << 14) + i) for i, x in ((0, first), (4, last))]
    return begun, same, len(storages)


def test_a_storage_that_python_alone_owns_needs_no_gil_to_be_looked_at():
    assert run_sim(owned_by_python_alone, 60, timeout=TIMEOUT) == [2, [True, True], 3]


# One thread waits for its GPU -----------------------------------------------------------------


class Unfinished:
    """A collective has used the storage, and so has an operator after it."""

    api = "cudaDeviceSynchronize"

    def __init__(self, device):
        self.x = managed(pattern(1))
        with scoped_library("c10d", "FRAGMENT") as library:
            library.define("lms_read(Tensor x) -> ()")
            library.impl("lms_read", lambda x: None, "CUDA")
            torch.ops.c10d.lms_read(self.x)
        managed(self.x)

    def wait(self):
        evict()


class HostBusy:
    """The host memory that there is belongs to copies that are not seen to be done."""

    api = "cudaEventSynchronize"

    def __init__(self, device):
        for index in range(2):
            torch.cuda.lms.reserve_host(8 * MIB, index)
        torch.cuda.set_host_limit_lms(16 * MIB)
        self.x = managed(pattern(6))
        evict()
        device.fault("cudaEventQuery", 1, NOT_READY, from_=True)
        self.x.add_(1)

    def wait(self):
        evict()


class SpareKept:
    """The native allocator's cache is emptied for what is not PyTorch's."""

    api = "cudaFree"

    def __init__(self, device):
        kept = [torch.empty(10 * MIB, dtype=torch.uint8, device="cuda") for _ in range(3)]
        del kept
        # What wait() asks for is there besides the cache, and leaves 1 MiB.
        self.others = ctypes.c_void_p()
        size = ctypes.c_size_t(torch.cuda.mem_get_info()[0] - 21 * MIB)
        assert ctypes.CDLL(None).cudaMalloc(ctypes.byref(self.others), size) == 0

    def wait(self):
        torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")

    def end(self):
        assert ctypes.CDLL(None).cudaFree(self.others) == 0


class Retry:
    """Memory that comes free while a request waits lies in a segment that does not fit it."""

    api = "cudaFree"

    def __init__(self, device):
        self.freed = torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.empty_cache()
        self.device = device
        device.hold("cudaDeviceSynchronize", device=0)
        self.thread = threading.Thread(target=self.free)

    def free(self):
        self.device.wait_for("cudaDeviceSynchronize")
        del self.freed
        self.device.release("cudaDeviceSynchronize")

    def wait(self):
        self.thread.start()
        torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")
        self.thread.join()


class PageIn:
    """What a storage comes back to has to be had from the device."""

    api = "cudaMalloc"

    def __init__(self, device):
        self.x = managed(pattern(4))
        evict()
        torch.cuda.empty_cache()

    def wait(self):
        self.x.add_(1)


class Release:
    """Work that no operator showed may use the storage."""

    api = "cudaDeviceSynchronize"

    def __init__(self, device):
        self.x = managed(pattern(1))
        self.x.data_ptr()

    def wait(self):
        torch.cuda.lms.release(self.x)


class Collecting(threading.Thread):
    """Runs a function, and adds what it throws to the errors."""

    def __init__(self, errors, function):
        super().__init__()
        self.errors, self.function = errors, function

    def run(self):
        try:
            self.function()
        except BaseException as error:
            self.errors.append(error)


@simulated
@since((2, 0), "class of allocators")
@pytest.mark.parametrize("case", [Unfinished, HostBusy, SpareKept, Retry, PageIn, Release])
def test_a_wait_for_one_gpu_keeps_nobody_from_another(device, case):
    y = managed(pattern(1).to("cuda:1"))
    evict()
    waits = case(device)
    torch.cuda.lms._set_stress(True)
    errors = []

    def page():
        for _ in range(3):
            with torch.cuda.device(1):
                y.add_(1)
                torch.empty(MIB, dtype=torch.uint8, device="cuda")
            assert torch.cuda.lms.stats(1)["paged_out_bytes"] > 0

    device.hold(case.api, device=0)
    threads = [Collecting(errors, part) for part in (waits.wait, page)]
    threads[0].start()
    waited = device.wait_for(case.api)
    threads[1].start()
    threads[1].join(20)
    blocked = threads[1].is_alive()
    still = device.waiting(case.api)
    device.release()
    for thread in threads:
        thread.join()
    torch.cuda.lms._set_stress(False)
    if hasattr(waits, "end"):
        waits.end()
    assert errors == []
    assert waited == still == 1
    assert not blocked, "the thread on the other GPU waited, too"
    assert torch.equal(y.cpu(), pattern(1, start=3, device="cpu"))


def first_page_out(device, api, compressed):
    import threading

    import torch

    torch.cuda.set_size_lms(1 << 12)
    torch.cuda.lms.set_compression("off")
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    y = torch.ones(1 << 18, device="cuda:1")
    y.sum()
    torch.cuda.reclaim_inactive()
    x = torch.ones(1 << 18, device="cuda:0")
    x.sum()
    if compressed:
        torch.cuda.reclaim_inactive()
        torch.cuda.lms.set_compression("on")
        x.mul_(1)

    def page():
        with torch.cuda.device(1):
            y.add_(1)
            torch.empty(1 << 18, device="cuda")

    device.hold(api, device=0)
    threads = [threading.Thread(target=part) for part in (torch.cuda.reclaim_inactive, page)]
    threads[0].start()
    device.wait_for(api)
    threads[1].start()
    threads[1].join(20)
    found = device.waiting(api), threads[1].is_alive()
    device.release()
    for thread in threads:
        thread.join()
    assert not torch.cuda.lms.is_resident(x)
    assert torch.equal(x.cpu(), torch.ones(1 << 18))
    return found


LOADING = ["cuModuleLoadData", "cudaMalloc", "cudaHostAlloc", "cudaStreamSynchronize"]


@simulated
@since((2, 0), "class of allocators")
@pytest.mark.parametrize("api", [*LOADING, "cudaHostRegister", "packing"])
def test_the_first_page_out_of_a_gpu_keeps_nobody_from_another(api):
    # The kernels of the release check, its memory, that of the host, and the codec's kernels.
    compressed = api == "packing"
    api = "cuModuleLoadData" if compressed else api
    assert run_sim(first_page_out, api, compressed, devices=2, timeout=TIMEOUT) == [1, False]


class Ask:
    """What asks the native allocator about GPU 0, whose mutex another thread has."""

    def stats(self, x):
        torch.cuda.lms.stats(0)

    def allocate(self, x):
        torch.empty(MIB, dtype=torch.uint8, device="cuda")

    def page_in(self, x):
        x.add_(0)

    def page_out(self, x):
        torch.cuda.reclaim_inactive()

    def record_stream(self, x):
        x.record_stream(torch.cuda.Stream())

    def free(self, x):
        x.set_()


@since((2, 0), "class of allocators")
@pytest.mark.parametrize("question", [name for name in vars(Ask) if not name.startswith("_")])
def test_who_waits_for_the_native_allocator_keeps_nobody_from_another_gpu(device, question):
    x, y = managed(pattern(1)), managed(pattern(1).to("cuda:1"))
    evict()
    if question != "page_in":
        x.add_(0)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.empty(MIB, dtype=torch.uint8, device="cuda")  # a segment to give back
    asks, moves = threading.Event(), threading.Event()
    errors = []

    def ask():
        with torch.cuda.device(0):
            asks.set()
            getattr(Ask(), question)(x)

    def page():
        for _ in range(3):
            y.add_(1)
            torch.cuda.lms.stats(1)
        moves.set()

    device.hold("cudaFree", device=0)
    threads = [Collecting(errors, part) for part in (torch.cuda.empty_cache, ask, page)]
    threads[0].start()
    waited = device.wait_for("cudaFree")
    threads[1].start()
    asks.wait()
    time.sleep(0.1)  # it gets as far as it can
    threads[2].start()
    moved = moves.wait(20)
    device.release()
    for thread in threads:
        thread.join()
    assert errors == []
    assert waited == 1
    assert moved, "the thread on the other GPU waited, too"
    assert torch.equal(y.cpu(), pattern(1, start=3, device="cpu"))


def wait_for_the_pinner(device):
    import threading
    import time

    import torch

    torch.cuda.set_limit_lms(16 << 20)
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    device.hold("cudaHostRegister")
    kept = [torch.ones(1 << 18, device="cuda") for _ in range(15)]  # host memory is pinned ahead
    device.wait_for("cudaHostRegister")
    threads = [threading.Thread(target=torch.cuda.reclaim_inactive) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    waiting = [thread.is_alive() for thread in threads]
    device.release()
    for thread in threads:
        thread.join(20)
    return waiting, [thread.is_alive() for thread in threads], len(kept)


@simulated
def test_all_that_wait_for_host_memory_go_on():
    found = run_sim(wait_for_the_pinner, timeout=TIMEOUT)
    assert found == [[True] * 3, [False] * 3, 15]


def forked(device, seconds):
    import os
    import signal
    import threading
    import time

    import torch

    torch.cuda.set_size_lms(1 << 12)
    torch.cuda.lms.set_compression("off")  # the copy engine is called
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    x, y, z = (torch.arange(1 << 18, dtype=torch.int32).cuda() for _ in range(3))
    for tensor in (x, z):
        tensor.add_(1)
    torch.cuda.reclaim_inactive()
    x.add_(1)
    y.add_(1)
    torch.cuda.lms.exclude(z)
    z.record_stream(torch.cuda.Stream())  # so that an event is recorded when its memory goes back
    api = "cudaMemcpyAsync"
    device.hold(api, seconds=0.5)  # under the mutex; this thread cannot release it in fork()
    thread = threading.Thread(target=torch.cuda.reclaim_inactive)
    thread.start()
    device.wait_for(api)
    child = os.fork()
    if child == 0:
        status = 3
        try:
            assert torch.cuda.lms.is_resident(z)
            before = device.counts()
            del x, y, z, tensor
            status = 0 if device.counts() == before else 4
        finally:
            os._exit(status)
    thread.join()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(0.01)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "the child hangs"
    assert x.sum().item() == sum(range(1 << 18)) + 2 * (1 << 18)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1


def test_a_child_drops_what_it_inherits():
    # Another thread has the mutex at that moment; the device's memory is the parent's.
    assert run_sim(forked, 20, timeout=TIMEOUT) == 0


def forked_while_pinning(device):
    import ctypes
    import os
    import signal
    import threading

    import torch

    torch.cuda.set_limit_lms(16 << 20)
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    api = "cudaHostRegister"
    device.hold(api)  # no thread has a mutex of LMS there
    kept = [torch.ones(1 << 18, device="cuda") for _ in range(15)]  # host memory is pinned ahead
    waiting = device.wait_for(api)
    child = os.fork()
    if child == 0:
        torch.cuda.lms.step()
        ctypes.CDLL(None).exit(7)  # runs static destructors
    killer = threading.Timer(30, os.kill, (child, signal.SIGKILL))
    killer.start()
    _, status = os.waitpid(child, 0)
    killer.cancel()
    device.release(api)
    assert len(kept) == 15
    return waiting, os.WEXITSTATUS(status) if os.WIFEXITED(status) else "the child hangs"


def test_a_child_ends_while_the_parent_pins():
    assert run_sim(forked_while_pinning, timeout=TIMEOUT) == [1, 7]


def wait_for_kernels(device):
    import threading
    import time

    import torch

    torch.cuda.set_size_lms(1 << 12)
    torch.cuda.lms.set_compression("off")
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    x = torch.ones(1 << 18, device="cuda")
    x.sum()
    device.hold("cuModuleLoadData")
    threads = [threading.Thread(target=torch.cuda.reclaim_inactive) for _ in range(2)]
    threads[0].start()
    device.wait_for("cuModuleLoadData")
    threads[1].start()
    time.sleep(0.2)  # it gets as far as it can
    waiting = [thread.is_alive() for thread in threads]
    device.release()
    for thread in threads:
        thread.join(20)
    return waiting, [thread.is_alive() for thread in threads], torch.cuda.lms.is_resident(x)


@simulated
def test_all_that_wait_for_kernels_go_on():
    found = run_sim(wait_for_kernels, timeout=TIMEOUT)
    assert found == [[True] * 2, [False] * 2, False]


@simulated
@since((2, 0), "class of allocators")
def test_a_page_in_that_fails_keeps_nobody_waiting(device):
    x, y = managed(pattern(4)), managed(pattern(4, start=3))
    evict()
    torch.cuda.empty_cache()
    errors, sums = [], []
    device.hold("cudaMalloc", device=0)
    device.fault("cudaMalloc", error=UNKNOWN)
    threads = [Collecting(errors, lambda: sums.append(x.sum().item())) for _ in range(2)]
    threads[0].start()
    waited = device.wait_for("cudaMalloc")
    threads[1].start()
    time.sleep(0.2)  # it waits for the page-in of the first
    device.release()
    for thread in threads:
        thread.join(20)
    blocked = threads[1].is_alive()
    y.add_(0)  # a page-in that succeeds wakes who still waits
    for thread in threads:
        thread.join(20)
    assert waited == 1
    assert not blocked, "nobody told the second thread that the first one had failed"
    assert len(errors) == 1
    assert sums == [x.sum().item()]
