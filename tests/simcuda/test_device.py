"""Memory, faults and the other ways in which the simulated device acts like a real one."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from simcuda import process
from simcuda.process import ScenarioError, run_sim

if TYPE_CHECKING:
    from simcuda.process import Session

PYTHON = [process.test_python(), "-c", "import importlib.metadata as m; print(m.version('torch'))"]
RELEASE = subprocess.run(PYTHON, stdout=subprocess.PIPE, text=True).stdout.split(".")[:1]
OLD = pytest.mark.skipif(RELEASE == ["1"], reason="PyTorch 1.x tells nobody what it frees")


def fill_memory(device: Any) -> tuple[int, str]:
    import torch

    kept = []
    try:
        while True:
            kept.append(torch.empty(8 << 20, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError as error:
        return len(kept), str(error)


def test_memory_ends_at_the_capacity(sim: Session) -> None:
    count, message = sim.run(fill_memory)
    assert count <= 8
    assert "64.00 MiB" in message


def grow_capacity(device: Any) -> tuple[int, int]:
    import torch

    device.set_cap(128 << 20)
    tensor = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
    reserved = torch.cuda.memory_reserved()
    assert tensor.numel() <= reserved
    return device.used(0), reserved


def test_capacity_can_change(sim: Session) -> None:
    used, reserved = sim.run(grow_capacity)
    assert used == reserved


def poison(device: Any) -> list[bytes]:
    import torch

    tensor = torch.empty(1 << 20, device="cuda")
    pinned = torch.empty(1000, pin_memory=True)
    pointer = tensor.data_ptr()
    fresh = device.read(pointer, 4)
    torch.ones(1, device="cuda")  # the allocator is followed from the first operator on
    torch.cuda.synchronize()
    del tensor
    return [fresh.hex(), device.read(pointer, 4).hex(), pinned.view(torch.uint8)[:4].tolist()]


@OLD
def test_new_and_freed_memory_is_poisoned() -> None:
    assert run_sim(poison) == ["a5a5a5a5", "dddddddd", [0xA6] * 4]


def copy_without_bytes(device: Any) -> str:
    import torch

    ones = torch.ones(1 << 20, dtype=torch.uint8)
    tensor = ones.cuda()
    torch.cuda.synchronize()
    return device.read(tensor.data_ptr(), 4).hex()


def test_copies_move_no_bytes_if_so_asked() -> None:
    assert run_sim(copy_without_bytes, poison=0, bytes=0) == "00000000"
    assert run_sim(copy_without_bytes, poison=0) == "01010101"


def copy_from_freed(device: Any) -> int:
    import ctypes

    import torch

    tensor = torch.ones(1000, device="cuda")
    pointer = tensor.data_ptr()
    del tensor
    host = ctypes.create_string_buffer(4000)
    runtime = ctypes.CDLL(None)
    return runtime.cudaMemcpy(host, ctypes.c_void_p(pointer), ctypes.c_size_t(4000), 2)


@OLD
def test_copy_from_freed_memory_is_an_error(sim: Session) -> None:
    assert sim.run(copy_from_freed) == 700


def use_freed(device: Any, free: bool, cached: bool) -> str:
    import torch

    class Pointer:
        """Hands out the memory of a tensor, as a library that kept its pointer would."""

        def __init__(self, tensor: torch.Tensor) -> None:
            self.__cuda_array_interface__ = {
                "shape": tuple(tensor.shape),
                "typestr": "<f4",
                "data": (tensor.data_ptr(), False),
                "version": 2,
            }

    tensor = torch.ones(1000, device="cuda")
    alias = torch.as_tensor(Pointer(tensor), device="cuda")
    if free:
        del tensor
    if not cached:
        torch.cuda.empty_cache()
    try:
        (alias + 1).sum().item()
    except RuntimeError as error:
        return str(error)
    return ""


@OLD
def test_operator_on_freed_memory_is_an_error(sim: Session) -> None:
    assert sim.run(use_freed, False, True) == ""
    assert "illegal memory access" in sim.run(use_freed, True, True)
    assert "illegal memory access" in sim.run(use_freed, True, False)


def dereference(device: Any) -> None:
    import ctypes
    import resource

    import torch

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(torch.ones(10, device="cuda").data_ptr(), 4)


def test_host_code_cannot_follow_a_device_pointer() -> None:
    with pytest.raises(ScenarioError, match="exit status: -11"):
        run_sim(dereference)


def copy_to_freed_pinned(device: Any) -> int:
    import ctypes

    import torch

    runtime = ctypes.CDLL(None)
    pointer = ctypes.c_void_p()
    assert runtime.cudaHostAlloc(ctypes.byref(pointer), ctypes.c_size_t(4096), 0) == 0
    assert runtime.cudaFreeHost(pointer) == 0
    tensor = torch.ones(1024, device="cuda")
    source = ctypes.c_void_p(tensor.data_ptr())
    return runtime.cudaMemcpyAsync(pointer, source, ctypes.c_size_t(4096), 2, None)


def test_copy_to_freed_pinned_memory_is_an_error(sim: Session) -> None:
    assert sim.run(copy_to_freed_pinned) == 700


def faults(device: Any) -> dict[str, Any]:
    import torch

    def attempt(action: Any) -> str:
        try:
            action()
        except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return ""

    def allocate() -> None:
        torch.empty(4 << 20, dtype=torch.uint8, device="cuda")

    tensor = torch.ones(1000, device="cuda")
    out: dict[str, Any] = {}
    device.fault("cudaMalloc", error=2)
    out["allocator retries"] = attempt(allocate)
    torch.cuda.empty_cache()
    device.fault("cudaMalloc", error=2, from_=True)
    out["no memory"] = attempt(allocate)
    device.clear_faults()
    out["memory again"] = attempt(allocate)
    device.fault("cudaMemcpyAsync", nth=2, error=700)
    out["first copy"] = attempt(lambda: tensor.cpu())
    out["second copy"] = attempt(lambda: tensor.cpu())
    out["third copy"] = attempt(lambda: tensor.cpu())
    device.fault("cudaHostAlloc", error=2)
    out["pin"] = attempt(lambda: torch.empty(1 << 20, pin_memory=True))
    device.reset_counts()
    tensor.cpu()
    out["copies"] = device.count("cudaMemcpyAsync"), device.counts()["cudaMemcpyAsync"]
    return out


def test_planned_faults(sim: Session) -> None:
    out = sim.run(faults)
    assert out["allocator retries"] == ""
    assert out["no memory"].startswith("OutOfMemoryError")
    assert out["memory again"] == ""
    assert out["first copy"] == ""
    assert "illegal memory access" in out["second copy"]
    assert out["third copy"] == ""
    assert "out of memory" in out["pin"]
    assert out["copies"] == [1, 1]


def hold_calls(device: Any) -> list[Any]:
    import threading

    import torch

    def wait() -> None:
        torch.cuda.synchronize(0)

    device.hold("cudaDeviceSynchronize", device=0)
    thread = threading.Thread(target=wait)
    thread.start()
    device.wait_for("cudaDeviceSynchronize")
    torch.cuda.synchronize(1)
    total = torch.ones(1000, device="cuda:1").sum().item()
    held = device.waiting("cudaDeviceSynchronize"), thread.is_alive()
    device.release("cudaDeviceSynchronize")
    thread.join()
    device.hold("cudaDeviceSynchronize", seconds=0.01)
    wait()
    device.release()
    return [total, *held, device.waiting("cudaDeviceSynchronize")]


def test_calls_are_held() -> None:
    assert run_sim(hold_calls, devices=2) == [1000, 1, True, 0]


def pin_up_to_limit(device: Any) -> list[Any]:
    import torch

    before = device.live()["host_bytes"]
    device.set_host_limit(before + (2 << 20))
    kept = torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True)
    grown = device.live()["host_bytes"] - before
    try:
        torch.empty(2 << 20, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        return [kept.numel(), grown, str(error)]
    return [kept.numel(), grown, ""]


def test_pinned_memory_ends_at_the_limit(sim: Session) -> None:
    size, grown, message = sim.run(pin_up_to_limit)
    assert grown >= size
    assert "out of memory" in message


def live_objects(device: Any) -> list[dict[str, int]]:
    import ctypes

    runtime = ctypes.CDLL(None)
    counts = [device.live()]
    stream, event, memory = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    assert runtime.cudaStreamCreate(ctypes.byref(stream)) == 0
    assert runtime.cudaEventCreate(ctypes.byref(event)) == 0
    assert runtime.cudaHostAlloc(ctypes.byref(memory), ctypes.c_size_t(1000), 0) == 0
    counts.append(device.live())
    assert runtime.cudaStreamDestroy(stream) == 0
    assert runtime.cudaEventDestroy(event) == 0
    assert runtime.cudaFreeHost(memory) == 0
    counts.append(device.live())
    # A destroyed handle is an error, not a crash; a stream's is reported, because hardware crashes.
    assert runtime.cudaEventRecord(event, None) == 400
    assert device.races() == []
    assert runtime.cudaStreamSynchronize(stream) == 400
    assert "hardware would crash" in device.races()[0]
    device.clear_races()
    return counts


def test_what_is_alive_is_counted(sim: Session) -> None:
    before, during, after = sim.run(live_objects)
    assert after == before
    grown = {key: during[key] - before[key] for key in during}
    expected = {"streams": 1, "events": 1, "modules": 0, "host_ranges": 1, "host_bytes": 1000}
    assert grown == expected


def two_devices(device: Any) -> dict[str, Any]:
    import torch

    first = torch.arange(1000.0, device="cuda:0")
    second = first.to("cuda:1") * 2
    back = second.to("cuda:0")
    return {
        "count": torch.cuda.device_count(),
        "equal": torch.equal(back.cpu(), torch.arange(1000.0) * 2),
        "allocated": torch.cuda.memory_allocated(1),
        "used": device.used(1),
        "races": device.races(),
    }


def test_two_devices(sim: Session) -> None:
    out = sim.run(two_devices)
    assert out["count"] == 2
    assert out["equal"]
    assert out["used"] >= out["allocated"] > 0
    assert out["races"] == []


def test_no_device() -> None:
    program = "import torch; result = [torch.cuda.is_available(), torch.cuda.device_count()]"
    assert run_sim(program, devices=0) == [False, 0]


def slow_copy(device: Any) -> list[float]:
    import torch

    source = torch.ones(1 << 20, device="cuda")
    host = torch.zeros(1 << 20, pin_memory=True)
    host.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    return [host.sum().item(), (source * 2).sum().item()]


def test_asynchronous_streams_finish(async_sim: Session) -> None:
    assert async_sim.run(slow_copy) == [1 << 20, 2 << 20]


def query_event(device: Any) -> list[bool]:
    import torch

    torch.ones(10, device="cuda")
    event = torch.cuda.Event()
    event.record()
    answers = [event.query() for _ in range(4)]
    event.record()
    torch.cuda.synchronize()
    return [*answers, event.query()]


def test_events_can_be_late() -> None:
    answers = run_sim(query_event, query_notready=2)
    assert answers == [False, False, True, True, True], "the last one was waited for"


def capture(device: Any) -> dict[str, Any]:
    import torch

    out: dict[str, Any] = {}
    tensor = torch.ones(10, device="cuda")
    graph = torch.cuda.CUDAGraph()
    out["before"] = torch.cuda.is_current_stream_capturing()
    with torch.cuda.graph(graph):
        out["during"] = torch.cuda.is_current_stream_capturing()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            out["joined"] = torch.cuda.is_current_stream_capturing()
            tensor + 1
        torch.cuda.current_stream().wait_stream(side)
    out["after"] = torch.cuda.is_current_stream_capturing()
    out["races"] = device.races()
    try:
        graph.replay()
    except RuntimeError as error:
        out["replay"] = str(error).splitlines()[0]
    return out


def add_times(device: Any) -> list[float]:
    """Milliseconds by events, and then of the host."""
    import torch

    mib = 1 << 20
    on_device = torch.empty(8 * mib, dtype=torch.uint8, device="cuda")
    on_host = torch.empty(8 * mib, dtype=torch.uint8, pin_memory=True)
    other = torch.cuda.Stream()

    def mark() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def copies() -> tuple[torch.cuda.Event, torch.cuda.Event]:
        on_host.copy_(on_device, non_blocking=True)
        one = mark()
        with torch.cuda.stream(other):
            on_device.copy_(on_host, non_blocking=True)
            on_device.copy_(on_host, non_blocking=True)
            return one, mark()

    device.takes(0, 0, 0, 0)  # this thread issues operators, so the host's time is its own
    before = mark()
    one, two = copies()
    began = device.host_time()
    before.synchronize()
    issued = device.host_time()
    two.synchronize()
    waited = device.host_time()
    device.takes(0, 0, 0.25, 0)
    last = mark()
    last.synchronize()
    return [
        *(before.elapsed_time(event) for event in (one, two, last)),
        *((time - began) * 1e3 for time in (issued, waited, device.host_time())),
    ]


def test_times_are_added_up() -> None:
    """Copies of two directions overlap, those of one do not, and the host waits for events."""
    options = {"timing": 1, "to_host": 1000, "to_device": 2000, "race": 0}
    one, two, last, issued, waited, ended = run_sim(add_times, **options)
    copy = (8 << 20) / 1e6  # ms at 1000 MB/s
    assert one == pytest.approx(copy, abs=0.1)
    assert two == pytest.approx(copy, abs=0.1), "two copies at twice the rate"
    assert issued < 0.1
    assert waited == pytest.approx(copy, abs=0.1)
    assert last - two == pytest.approx(250, abs=0.1)
    assert ended - waited == pytest.approx(250, abs=0.1)


def test_capture_is_seen(sim: Session) -> None:
    out = sim.run(capture)
    assert "not supported by the simulated device" in out.pop("replay")
    assert out == {"before": False, "during": True, "joined": True, "after": False, "races": []}


def break_capture(device: Any, how: str) -> str:
    import torch

    event = torch.cuda.Event()
    event.record()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            if how == "synchronize":
                torch.cuda.synchronize()
            else:
                torch.cuda.current_stream().wait_event(event)
    except RuntimeError as error:
        return str(error).splitlines()[0] + str(error.__context__)
    return ""


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("synchronize", "not permitted when stream is capturing"),
        ("wait", "uncaptured work in another stream"),
    ],
)
def test_capture_forbids(how: str, message: str) -> None:
    assert message in run_sim(break_capture, how)


def expandable_segments(device: Any) -> dict[str, Any]:
    import torch

    kept = [torch.full((1 << 20,), float(i), device="cuda") for i in range(8)]
    sums = [int(t.sum().item()) >> 20 for t in kept]
    used = device.used(0)
    kept.clear()
    torch.cuda.empty_cache()
    return {"sums": sums, "mapped": device.count("cuMemMap"), "used": used, "after": device.used(0)}


@pytest.mark.skipif(RELEASE == ["1"], reason="PyTorch 1.x has no expandable segments")
def test_expandable_segments() -> None:
    environment = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    }
    out = run_sim(expandable_segments, environment=environment)
    assert out["sums"] == list(range(8))
    assert out["mapped"] > 0
    assert out["used"] >= 32 << 20
    assert out["after"] < out["used"]


def compile_kernel(device: Any, source: str) -> list[Any]:
    import ctypes
    from pathlib import Path

    import torch

    nvrtc = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libcaffe2_nvrtc.so"))
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    create = (ctypes.byref(program), source.encode(), b"test", 0, None, None)
    assert nvrtc.nvrtcCreateProgram(*create) == 0
    options = (ctypes.c_char_p * 1)(b"--gpu-architecture=sm_80")
    compiled = nvrtc.nvrtcCompileProgram(program, 1, options)
    assert nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)) == 0
    log = ctypes.create_string_buffer(size.value)
    assert nvrtc.nvrtcGetProgramLog(program, log) == 0
    if compiled != 0:
        return [compiled, log.value.decode()]
    assert nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0
    image = ctypes.create_string_buffer(size.value)
    assert nvrtc.nvrtcGetCUBIN(program, image) == 0
    assert nvrtc.nvrtcDestroyProgram(ctypes.byref(program)) == 0

    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    assert nvrtc.cuModuleLoadData(ctypes.byref(module), b"something else") == 200
    assert nvrtc.cuModuleLoadData(ctypes.byref(module), image) == 0
    assert nvrtc.cuModuleGetFunction(ctypes.byref(kernel), module, b"none") == 500
    assert nvrtc.cuModuleGetFunction(ctypes.byref(kernel), module, b"count") == 0
    memory = ctypes.c_void_p()
    runtime = ctypes.CDLL(None)
    assert runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(4)) == 0
    assert runtime.cudaMemset(memory, 0, ctypes.c_size_t(4)) == 0

    def launch(
        function: ctypes.c_void_p, pointer: ctypes.c_void_p, threads: int = 1, shared: int = 0
    ) -> int:
        step = ctypes.c_int(2)
        parameters = (ctypes.c_void_p * 2)(ctypes.addressof(pointer), ctypes.addressof(step))
        grid = (5, 1, 1, threads, 1, 1, shared)
        return int(nvrtc.cuLaunchKernel(function, *grid, None, parameters, None))

    beyond = ctypes.c_void_p((memory.value or 0) + (1 << 21))
    results = [launch(kernel, memory), launch(kernel, beyond), launch(ctypes.c_void_p(8), memory)]
    # Thread blocks have 48 KiB, unless a kernel is given more.
    for value in (0, 65536, 1 << 20):
        results.append(nvrtc.cuFuncSetAttribute(kernel, 8, value) if value else 0)
        results += [launch(kernel, memory, 768, 49152), launch(kernel, memory, 768, 65536)]
    results.append(launch(kernel, memory, 1025))
    assert runtime.cudaDeviceSynchronize() == 0
    count = int.from_bytes(device.read(memory.value, 4), "little")
    assert nvrtc.cuModuleUnload(module) == 0
    results.append(launch(kernel, memory))
    state = [device.live()["modules"], device.launches(), device.thread_blocks()]
    return [compiled, results, count, *state]


KERNEL = """
// A block of LMS_THREADS threads.
struct Bytes {
  const char* data;
  unsigned long long size;
};
extern "C" __global__ void count(int* number, int step) {
  atomicAdd(number, step);
}
"""


@OLD
def test_kernels_run_on_the_cpu() -> None:
    compiled, results, count, modules, launches, blocks = run_sim(compile_kernel, KERNEL)
    assert (compiled, count, modules) == (0, 60, 0)
    assert results == [0, 700, 719, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1, 719]
    assert launches == {"unknown kernel": 2}
    assert blocks == {"count": 5}


@OLD
def test_no_other_kernel_compiles() -> None:
    assert run_sim(compile_kernel, KERNEL.replace("LMS_THREADS", "32"))[0] == 6
    code, log = run_sim(compile_kernel, KERNEL.replace("int step", "int stop"))
    assert code == 6
    assert "the C++ compiler failed" in log
    assert "step" in log
