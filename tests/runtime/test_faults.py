"""Every CUDA call that LMS makes fails, once or from then on.

The work that it disturbs then succeeds with the same bits, or raises. After that nothing is lost or
leaked, and the same work gives the same bits. PyTorch's own calls fail, too, where the work makes
any: an allocation is an example.

Of the slower jobs' calls a part fails. LMS_FAULTS=all makes each of them fail in turn, and
LMS_FAULTS=few only a part of all jobs' calls.
"""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from conftest import CAPACITY, DEVICE, MIB, SMALL
from cxx import RUNTIME
from faults import NOT_READY, OUT_OF_MEMORY, UNKNOWN, Job, Sweep
from hardware import simulated
from releases import RELEASE, untyped_storage
from simcuda.process import run_sim
from tensors import evict, is_resident, managed, pattern, stat, turn_on
from torch import nn

FAULTS = os.environ.get("LMS_FAULTS", "some")


class Training(Job):
    """A step of a small network: forward, backward, SGD with momentum."""

    limit = 200_000  # bytes, of about 600 000

    def __init__(self, width=64, foreach=True):
        torch.manual_seed(0)
        layers = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()]
        for inputs in (512, width, width):
            layers += [nn.Linear(inputs, width), nn.ReLU()]
        self.model = nn.Sequential(*layers).cuda()
        self.x = torch.randn(16, 1, 10, 10).cuda()
        self.bystander = managed(pattern(1 / 16))
        parameters = self.model.parameters()
        self.optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9, foreach=foreach)
        for _ in range(2):  # the first makes the momentum, and the second another gradient
            self.clear()
            self.run()

    def tensors(self):
        values = {name: tensor.detach() for name, tensor in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            values[f"momentum of {name}"] = self.optimizer.state[parameter]["momentum_buffer"]
        return {**values, "x": self.x, "bystander": self.bystander}

    def halfway(self, name, value):
        return [value * 0.9] if name.startswith("momentum") else []

    def clear(self):
        self.optimizer.zero_grad(set_to_none=True)

    def run(self):
        loss = self.model(self.x).square().mean()
        loss.backward()
        self.optimizer.step()
        return [loss.detach()]


def start_on_the_device():
    """Everything is paged in, and no host memory pinned."""
    torch.cuda.set_enabled_lms(False)
    turn_on()
    torch.cuda.lms.trim_host()


class FirstPageOuts(Training):
    """Everything starts on the device, and no host memory is pinned."""

    def prepare(self):
        start_on_the_device()
        torch.cuda.set_limit_lms(self.limit)


class Planned(Training):
    """A step that LMS has a plan for: it copies ahead, and prefetches."""

    quick = False

    def __init__(self):
        if RELEASE < (2, 1):
            pytest.skip("LMS does not see the steps of optimizers before 2.1")
        super().__init__()
        self.prepare()
        torch.cuda.set_limit_lms(self.limit)
        before = {name: tensor.clone() for name, tensor in self.tensors().items()}
        for _ in range(8):
            self.restore(before)
            self.run()
        assert stat("planned_iterations") > 0
        assert stat("prefetch_count") > 0
        self.clear()

    def prepare(self):
        torch.cuda.lms._keep_plans(True)
        torch.cuda.lms._wait_for_plans()


class SmallDevice(Training):
    """The device cannot hold the job, and LMS knows how much it has."""

    limit = 0
    quick = False

    def __init__(self):
        super().__init__(width=512, foreach=False)
        DEVICE.set_cap(6 * MIB)

    def prepare(self):
        super().prepare()
        torch.cuda.empty_cache()


class FullDevice(SmallDevice):
    """The device cannot hold the job, and LMS learns that from errors."""

    limit = CAPACITY


class CopiesInFlight(FirstPageOuts):
    """No copy is seen to be done, so that LMS must wait for host memory."""

    limit = 3 * MIB
    quick = False

    def __init__(self):
        super().__init__(width=512)

    def clear(self):
        super().clear()
        torch.cuda.set_host_limit_lms(0)

    def prepare(self):
        super().prepare()
        torch.cuda.set_host_limit_lms(8 * MIB)  # LMS's smallest slab
        DEVICE.fault("cudaEventQuery", 1, NOT_READY, from_=True)


class NoFreeEvents(Training):
    """LMS has no event left that it could use again."""

    def prepare(self):
        super().prepare()
        for _ in range(32):  # LMS keeps the events of the last 256 operators on each stream
            with torch.cuda.stream(torch.cuda.Stream()):
                scratch = pattern(1 / 64)
                DEVICE.reset_counts()
                for _ in range(256):
                    scratch.add_(1)
                    if DEVICE.count("cudaEventCreate"):
                        return
        raise AssertionError("there are always more events")


class Verified(Training):
    """Blocks are compared with their host copies before they are dropped."""

    def clear(self):
        super().clear()
        torch.cuda.lms._set_verify_clean(False)

    def prepare(self):
        super().prepare()
        torch.cuda.lms._set_verify_clean(True)


class Switching(Job):
    """LMS is turned off and on, while some of the memory is in use."""

    def __init__(self):
        self.x = {name: managed(pattern(1 / 4, start=i)) for i, name in enumerate("abc")}

    def tensors(self):
        return self.x

    def halfway(self, name, value):
        return [value + 1] if name == "a" else []

    def clear(self):
        turn_on()
        torch.cuda.set_size_lms(SMALL)

    def run(self):
        a, b, c = self.x.values()
        c.add_(1)
        torch.cuda.set_enabled_lms(False)
        a.add_(1)
        young = b + 1  # no stream is known for it
        torch.cuda.set_size_lms(MIB)
        turn_on()
        torch.cuda.set_size_lms(SMALL)
        a.mul_(2)
        young.mul_(2)
        evict()
        young.add_(c)
        return [young]


class Addresses(Job):
    """Storages are held on the device, hand out their address, and change size."""

    def __init__(self):
        self.x = {name: managed(pattern(1 / 4, start=i)) for i, name in enumerate("abc")}

    def tensors(self):
        return self.x

    def clear(self):
        torch.cuda.lms.release(*self.x.values())

    def run(self):
        a, b, c = self.x.values()
        with torch.cuda.lms.resident(a, b):
            evict()
            total = a + b
        assert c.data_ptr() != 0
        c.mul_(2)
        evict()
        torch.cuda.lms.release(c)
        evict()
        grown = a.clone()
        evict()
        untyped_storage(grown).resize_(MIB)
        return [total, grown]


class Streams(Job):
    """Two streams use the same storages, which die under copies."""

    def __init__(self):
        self.side = torch.cuda.Stream()
        self.x = {name: managed(pattern(1 / 4, start=i)) for i, name in enumerate("abc")}

    def tensors(self):
        return self.x

    def clear(self):
        # A run that failed has not made the streams wait for each other.
        torch.cuda.synchronize()

    def run(self):
        a, b, c = self.x.values()
        main = torch.cuda.current_stream()
        dying = a * 2
        self.side.wait_stream(main)
        with torch.cuda.stream(self.side):
            doubled = a * 2
            b.add_(1)
        evict()  # a is clean, with a reader on the other stream; b is written there
        fresh = torch.zeros_like(b)
        with torch.cuda.stream(self.side):
            c.mul_(2)
        with torch.cuda.stream(self.side):
            assert dying.data_ptr() != 0
        del dying  # while it comes back, and its own stream has not waited for that
        others = [torch.ones(b.shape, device="cuda") for _ in range(4)]
        main.wait_stream(self.side)
        return [doubled, fresh, *others]


class Fragments(Job):
    """Memory is in pieces that are too small, and then there is not enough of it."""

    limit = CAPACITY
    quick = False

    def __init__(self):
        self.x = {str(i): managed(pattern(1, start=i)) for i in range(12)}

    def tensors(self):
        return self.x

    def prepare(self):
        super().prepare()
        torch.cuda.empty_cache()
        DEVICE.set_cap(16 * MIB)

    def run(self):
        for tensor in self.x.values():
            tensor.mul_(2)
        large = torch.ones(12 * MIB, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.cuda.OutOfMemoryError, match="could not make room"):
            torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
        return [large]


class Scattered(Job):
    """Memory is in pieces that are too small, until a storage has moved."""

    def __init__(self):
        self.x = {str(i): managed(pattern(4, start=i)) for i in range(15) if i % 5 != 2}

    def tensors(self):
        return self.x

    def prepare(self):
        # Five lie side by side in each of three segments, and the one in the middle is missing.
        values = {name: tensor.cpu() for name, tensor in self.x.items()}
        for tensor in self.x.values():
            tensor.data = torch.empty(0, device="cuda")
        torch.cuda.empty_cache()
        places = [managed(pattern(4)) for _ in range(15)]
        for name, tensor in self.x.items():
            tensor.data = places[int(name)]
            tensor.copy_(values[name])

    def run(self):
        large = torch.ones(8 * MIB, dtype=torch.uint8, device="cuda")
        self.x["0"].mul_(2)
        return [large]


class Trimming(Job):
    """Host memory is given up, and needed again."""

    def __init__(self):
        self.x = {name: managed(pattern(9, start=i)) for i, name in enumerate("ab")}

    def tensors(self):
        return self.x

    def run(self):
        a, b = self.x.values()
        for tensor in (a, b):
            tensor.add_(1)
        torch.cuda.lms.trim_host()
        evict()
        return [a.sum(), b.sum()]


class Growing(Job):
    """More and more is kept, on a device that is full and with no host memory pinned."""

    limit = CAPACITY

    def __init__(self):
        self.x = {str(i): managed(pattern(1, start=i)) for i in range(4)}

    def tensors(self):
        return self.x

    def prepare(self):
        DEVICE.set_cap(CAPACITY)
        start_on_the_device()
        torch.cuda.set_limit_lms(self.limit)
        torch.cuda.empty_cache()
        DEVICE.set_cap(6 * MIB)

    def run(self):
        return [x * factor for factor in (2, 3) for x in self.x.values()]


CASES = [
    (Training, "cudaMemcpyAsync", UNKNOWN),
    (Training, "cudaEventRecord", UNKNOWN),
    (Training, "cudaEventQuery", UNKNOWN),
    (Training, "cudaStreamWaitEvent", UNKNOWN),
    (Training, "cuLaunchKernel", UNKNOWN),
    (Planned, "cudaMemcpyAsync", UNKNOWN),
    (Planned, "cudaEventRecord", UNKNOWN),
    (Planned, "cudaStreamWaitEvent", UNKNOWN),
    (Planned, "cuLaunchKernel", UNKNOWN),
    (Planned, "cudaThreadExchangeStreamCaptureMode", UNKNOWN),
    (Planned, "cudaEventDestroy", UNKNOWN),
    (NoFreeEvents, "cudaEventCreate", UNKNOWN),
    (FirstPageOuts, "cudaHostRegister", OUT_OF_MEMORY),
    (FirstPageOuts, "cudaMemcpyAsync", UNKNOWN),
    (FirstPageOuts, "cuLaunchKernel", UNKNOWN),
    (SmallDevice, "cudaMalloc", OUT_OF_MEMORY),
    (SmallDevice, "cudaMemGetInfo", UNKNOWN),
    (SmallDevice, "cudaMemcpyAsync", UNKNOWN),
    (FullDevice, "cudaMalloc", OUT_OF_MEMORY),
    (FullDevice, "cudaMalloc", UNKNOWN),
    (FullDevice, "cudaMemGetInfo", UNKNOWN),
    (FullDevice, "cudaMemcpyAsync", UNKNOWN),
    (FullDevice, "cuLaunchKernel", UNKNOWN),
    (FullDevice, "cudaEventRecord", UNKNOWN),
    (FullDevice, "cudaStreamWaitEvent", UNKNOWN),
    (CopiesInFlight, "cudaEventSynchronize", UNKNOWN),
    (Verified, "cudaMemcpy", UNKNOWN),
    (Verified, "cudaDeviceSynchronize", UNKNOWN),
    (Switching, "cudaMemcpyAsync", UNKNOWN),
    (Switching, "cudaEventRecord", UNKNOWN),
    (Switching, "cudaStreamWaitEvent", UNKNOWN),
    (Switching, "cudaDeviceSynchronize", UNKNOWN),
    (Switching, "cuLaunchKernel", UNKNOWN),
    (Addresses, "cudaMemcpyAsync", UNKNOWN),
    (Addresses, "cudaEventRecord", UNKNOWN),
    (Addresses, "cudaStreamWaitEvent", UNKNOWN),
    (Addresses, "cudaDeviceSynchronize", UNKNOWN),
    (Streams, "cudaMemcpyAsync", UNKNOWN),
    (Streams, "cudaEventRecord", UNKNOWN),
    (Streams, "cudaEventQuery", UNKNOWN),
    (Streams, "cudaStreamWaitEvent", UNKNOWN),
    (Streams, "cudaEventDestroy", UNKNOWN),
    (Streams, "cuLaunchKernel", UNKNOWN),
    (Fragments, "cudaMalloc", OUT_OF_MEMORY),
    (Fragments, "cudaFree", UNKNOWN),
    (Fragments, "cudaStreamIsCapturing", UNKNOWN),
    (Fragments, "cudaDeviceSynchronize", UNKNOWN),
    (Fragments, "cudaMemcpyAsync", UNKNOWN),
    (Scattered, "cudaMemcpyAsync", UNKNOWN),
    (Scattered, "cudaEventRecord", UNKNOWN),
    (Trimming, "cudaHostRegister", OUT_OF_MEMORY),
    (Trimming, "cudaHostUnregister", UNKNOWN),
]


@simulated
@pytest.mark.parametrize(
    ("job", "api", "error"),
    CASES,
    ids=[f"{job.__name__}-{api}-{error}" for job, api, error in CASES],
)
def test_each_call_fails(job, api, error, capfd):
    if api == "cudaMemcpyAsync":
        torch.cuda.lms.set_compression("off")  # kernels would copy
    sweep = Sweep(job())
    calls = sweep.calls(api)
    assert calls > 0
    stride = 1 if FAULTS == "all" or job.quick else calls // 8 + 1
    if FAULTS == "few":
        stride = calls // (8 if job.quick else 2) + 1
    for lasting in (False, True):
        sweep.fail_each(api, error, lasting, stride)
    assert "RecordFunction" not in capfd.readouterr().err, "an exception left a callback"


def errors_with_host_memory_of(sizes, sweep):
    return [
        sweep.try_with(
            f"{size} bytes of host memory",
            lambda n=size: DEVICE.set_host_limit(n),
            lambda: DEVICE.set_host_limit(0),
        )
        for size in sizes
    ]


def test_no_host_memory_and_a_device_with_room():
    # The limit is LMS's own: it goes beyond it.
    errors = errors_with_host_memory_of(range(SMALL, MIB, MIB // 8), Sweep(FirstPageOuts()))
    assert set(errors) == {""}


def test_both_memories_are_full():
    errors = errors_with_host_memory_of(range(SMALL, 12 * MIB, MIB), Sweep(Growing()))
    assert errors[0]
    assert not errors[-1]
    for error in filter(None, errors):
        assert "CUDA out of memory" in error
        assert "host memory cannot be pinned" in error


def test_devices_of_any_size():
    sweep = Sweep(SmallDevice())

    def shrink(size):
        DEVICE.set_cap(size)
        torch.cuda.set_limit_lms(0)  # it is computed again

    errors = [
        sweep.try_with(f"{size} bytes", lambda n=size: shrink(n), lambda: DEVICE.set_cap(6 * MIB))
        for size in range(2 * MIB, 12 * MIB, MIB)
    ]
    assert errors[0]
    assert not errors[-1]
    for error in filter(None, errors):
        assert "CUDA out of memory" in error


@simulated
@pytest.mark.usefixtures("uncompressed")
@pytest.mark.parametrize("api", ["cudaEventElapsedTime", "cudaEventDestroy"])
def test_transfers_that_cannot_be_timed(api):
    x = managed(pattern(1))
    DEVICE.reset_counts()
    DEVICE.fault(api, 1, UNKNOWN, from_=True)
    for _ in range(40):  # at most 32 wait for their times to be read
        x.add_(1)
        evict()
    assert DEVICE.count(api) > 0
    DEVICE.clear_faults()
    assert torch.equal(x.cpu(), pattern(1, device="cpu") + 40)
    assert DEVICE.races() == []


def make_no_stream(device, apis):
    import torch

    torch.cuda.init()
    errors, streams = [], []
    for nth in (1, 2, 3):
        for api in apis:
            device.fault(api, nth if api == apis[0] else 1, 999)
        try:
            torch.cuda.set_enabled_lms(True)
            torch.ones(1 << 18, device="cuda")
        except RuntimeError as error:
            errors.append(str(error))
        device.clear_faults()
        streams.append(device.live()["streams"])
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    x = torch.ones(1 << 18, device="cuda")
    x.add_(1)
    torch.cuda.reclaim_inactive()
    return errors, streams, torch.cuda.lms.is_resident(x), x.sum().item()


@pytest.mark.parametrize(
    ("apis", "failures", "left"),
    [
        (["cudaStreamCreate"], 3, [0, 0, 0]),
        (["cudaStreamCreate", "cudaStreamDestroy"], 3, [0, 1, 2]),
        (["cudaDeviceGetStreamPriorityRange"], 1, [0]),  # LMS calls it once
    ],
)
def test_streams_that_cannot_be_made(apis, failures, left):
    errors, streams, resident, total = run_sim(make_no_stream, apis)
    assert len(errors) == failures
    assert streams[:failures] == left
    assert not resident
    assert total == 1 << 19


def make_no_kernels(device, api, error):
    import torch

    torch.cuda.set_size_lms(1 << 12)
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    x = torch.arange(1 << 18, dtype=torch.int32).cuda()
    device.reset_counts()
    device.fault(api, 1, error, from_=True)
    for _ in range(2):
        x.add_(1)
        torch.cuda.reclaim_inactive()
    moved, calls = not torch.cuda.lms.is_resident(x), device.count(api)
    why = "LMS cannot detect writes that no operator reports" in torch.cuda.lms.explain()
    device.clear_faults()
    equal = torch.equal(x.cpu(), torch.arange(2, (1 << 18) + 2, dtype=torch.int32))
    return {"moved": moved, "called": calls > 0, "equal": equal, "races": device.races()}, why


def page_out_behind_a_page_in(device):
    """A page-out fails while the last page-in still reads the host memory that it is to write."""
    import torch

    torch.cuda.set_size_lms(1 << 12)
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    device.fault("nvrtcVersion", 1, 11, from_=True)  # without kernels, everything is copied
    x = torch.arange(1 << 18, dtype=torch.int32).cuda()
    x.sum()
    torch.cuda.reclaim_inactive()
    with torch.cuda.stream(torch.cuda.Stream()):
        x.sum()
    device.fault("cudaStreamWaitEvent", 1, 999)
    torch.cuda.reclaim_inactive()
    device.clear_faults()
    there = torch.cuda.lms.is_resident(x)
    with torch.cuda.stream(torch.cuda.Stream()):
        other = torch.ones(1 << 18, device="cuda")
        other.sum()
    x.sum()  # so that the other one leaves first, and takes the host memory
    device.fault("cudaMemcpyAsync", 2, 999)
    torch.cuda.reclaim_inactive()
    device.clear_faults()
    there = there and torch.cuda.lms.is_resident(x)
    moved = not torch.cuda.lms.is_resident(other)
    equal = torch.equal(x.cpu(), torch.arange(1 << 18, dtype=torch.int32))
    return {"there": there, "moved": moved, "equal": equal, "races": device.races()}


def test_a_page_out_that_fails_behind_a_page_in(tmp_path):
    environment = {"PYTORCH_KERNEL_CACHE_PATH": str(tmp_path)}
    found = run_sim(page_out_behind_a_page_in, environment=environment)
    assert found == {"there": True, "moved": True, "equal": True, "races": []}


def make_no_error_string(device):
    import torch

    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    x = torch.ones(1 << 18, device="cuda")
    device.fault("cuModuleLoadData", 1, 200, from_=True)
    device.fault("cuGetErrorString", 1, 1, from_=True)
    x.add_(1)
    torch.cuda.reclaim_inactive()
    return torch.cuda.lms.explain(), device.count("cuGetErrorString"), x.sum().item()


def test_a_release_that_cannot_wait(device):
    """Whoever has the address may still use it."""
    x = managed(pattern(1))
    x.data_ptr()
    device.fault("cudaDeviceSynchronize", 1, 999)
    with pytest.raises(RuntimeError):
        torch.cuda.lms.release(x)
    evict()
    assert is_resident(x)
    torch.cuda.lms.release(x)
    evict()
    assert not is_resident(x)


def test_a_recording_that_cannot_wait(device, tmp_path):
    x = managed(pattern(1))
    device.fault("cudaDeviceSynchronize", 2, 999)  # the first is that before the recording
    with pytest.raises(RuntimeError), torch.cuda.lms.record():
        x.add_(1)
    device.clear_faults()
    path = tmp_path / "trace.json"
    with torch.cuda.lms.record(path):
        x.mul_(2)
    trace = json.loads(path.read_text())
    assert [name for name in trace["names"] if name] == ["aten::mul_"]


def test_an_error_without_a_text(tmp_path):
    environment = {"PYTORCH_KERNEL_CACHE_PATH": str(tmp_path)}
    text, calls, total = run_sim(make_no_error_string, environment=environment)
    assert "cuModuleLoadData() failed: unknown error (200)" in text
    assert calls > 0
    assert total == 1 << 19


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("nvrtcVersion", 11),
        ("nvrtcCreateProgram", 1),
        ("nvrtcCompileProgram", 6),
        ("nvrtcGetCUBIN", 11),
        ("cuModuleLoadData", 200),
        ("cuModuleGetFunction", 500),
        ("cudaHostAlloc", OUT_OF_MEMORY),
    ],
)
def test_without_the_release_check(api, error, tmp_path):
    """What the check needs cannot be had: storages move all the same, and are copied each time."""
    # A folder of its own, because compiled kernels are kept.
    environment = {"PYTORCH_KERNEL_CACHE_PATH": str(tmp_path)}
    found, why = run_sim(make_no_kernels, api, error, environment=environment)
    assert found == {"moved": True, "called": True, "equal": True, "races": []}
    assert why


SHORT = {
    "cudaEventCreateWithFlags": "cudaEventCreate",
    "cudaStreamCreateWithPriority": "cudaStreamCreate",
}
"""The simulated device counts functions that do the same under the shortest name."""

CANNOT_FAIL = {
    "cudaGetLastError": "returns the error of another call, and forgets it",
    "cudaGetErrorString": "returns a text",
    "nvrtcGetErrorString": "returns a text",
}


def calls_of(folder):
    """The functions of CUDA, its driver, and NVRTC that the C++ code in the folder calls."""
    code = "\n".join(
        re.sub(r"//.*", "", file.read_text()) for file in folder.rglob("*") if file.is_file()
    )
    return {SHORT.get(name, name) for name in re.findall(r"\b((?:cuda|cu|nvrtc)[A-Z]\w+)\(", code)}


def test_every_call_of_the_runtime_is_made_to_fail():
    calls = {name for name in calls_of(RUNTIME / "torch" / "csrc") if not name.endswith("_t")}
    assert {"cudaMemcpyAsync", "cuLaunchKernel", "nvrtcGetProgramLog"} <= calls
    tests = "".join(
        (Path(__file__).parent / name).read_text()
        for name in ("test_faults.py", "test_kernels.py", "test_packer.py")
    )
    missing = {name for name in calls if f'"{name}"' not in tests}
    assert not missing
    assert not set(CANNOT_FAIL) - calls
