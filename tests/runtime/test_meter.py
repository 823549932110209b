"""How fast a direction is, from transfers that use one stream or two."""

from __future__ import annotations

import pytest
from cxx import CUDA_OPTIONS, HERE, compile_cxx
from hardware import simulated
from simcuda.process import run_sim

MIB = 1 << 20


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    output = tmp_path_factory.mktemp("meter") / "meter.so"
    compile_cxx(HERE / "meter.cpp", output, "-shared", "-fPIC", *CUDA_OPTIONS)
    return str(output)


def transfers(device, library, ways):
    """GB/s of the meter, after some transfers of 16 MiB in each of these ways.

    To the host, four of them, each of which is queued while the one before is under way: "copy"
    uses a stream, "packed" has a kernel on a stream of its own first, "slow" has one that takes
    longer than the copy, and "late" one that waits for other work. Numbers are one transfer to the
    device: its bytes are copied to the staging memory, and a kernel of 1 ms unpacks them, which
    waits so many seconds for memory first.
    """
    import ctypes

    import torch

    meters = ctypes.CDLL(library)
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    for name, result, *parameters in (
        ("new", pointer),
        ("begins", None, pointer, pointer, pointer, size),
        ("waited", None, pointer, pointer),
        ("ends", None, pointer, pointer),
        ("rate", ctypes.c_double, pointer),
        ("delete", None, pointer),
    ):
        function = getattr(meters, f"meter_{name}")
        function.restype, function.argtypes = result, parameters
    block = torch.zeros(16 << 20, dtype=torch.uint8, device="cuda")
    host = torch.zeros(16 << 20, dtype=torch.uint8).pin_memory()
    copies, kernels = torch.cuda.Stream(), torch.cuda.Stream()
    device.takes(copies.cuda_stream, 0, 0.0, 0.0)  # this thread moves the host's time
    torch.cuda.synchronize()

    def kernel(seconds):
        device.takes(kernels.cuda_stream, 0, seconds, 0.0)
        with torch.cuda.stream(kernels):
            block.add_(0)

    def leave(meter, way):
        second = None if way == "copy" else kernels.cuda_stream
        if way == "late":
            device.takes(kernels.cuda_stream, 0, 20e-3, 0.0)
        meters.meter_begins(meter, copies.cuda_stream, second, block.numel())
        if way != "copy":
            kernel(8e-3 if way == "slow" else 2e-3)
            copies.wait_stream(kernels)
        with torch.cuda.stream(copies):
            host.copy_(block, non_blocking=True)
        meters.meter_ends(meter, copies.cuda_stream)

    def come_back(meter, wait):
        meters.meter_begins(meter, copies.cuda_stream, kernels.cuda_stream, block.numel())
        kernel(wait)
        meters.meter_waited(meter, kernels.cuda_stream)
        with torch.cuda.stream(copies):
            block.copy_(host, non_blocking=True)
        kernels.wait_stream(copies)
        kernel(1e-3)
        meters.meter_ends(meter, kernels.cuda_stream)

    found = []
    for way in ways:
        meter = meters.meter_new()
        if isinstance(way, str):
            for _ in range(4):
                leave(meter, way)
        else:
            come_back(meter, way)
        torch.cuda.synchronize()
        found.append(meters.meter_rate(meter) / 1e9)
        meters.meter_delete(meter)
    return found


@simulated
def test_what_overlaps_with_the_transfer_before_is_not_counted(library: str) -> None:
    ways = ["copy", "packed", "slow", "late"]
    copy, packed, slow, late = run_sim(
        transfers, library, ways, mib=128, timing=1, to_host=4000, to_device=4000
    )
    assert copy == pytest.approx(4, rel=0.01)
    assert packed == pytest.approx(4, rel=0.01)
    assert slow == pytest.approx(16 * MIB / 8e-3 / 1e9, rel=0.01)
    assert late == pytest.approx(16 * MIB / (2e-3 + 16 * MIB / 4e9) / 1e9, rel=0.01)


@simulated
def test_what_waits_for_memory_says_little_about_the_link(library: str) -> None:
    copied = 16 * MIB / 4e9  # seconds
    free, soon, late, much_later = run_sim(
        transfers,
        library,
        [0, 2e-3, copied, 20e-3],
        mib=128,
        timing=1,
        to_host=4000,
        to_device=4000,
    )
    assert free == pytest.approx(16 * MIB / (copied + 1e-3) / 1e9, rel=0.01)
    assert soon == pytest.approx(16 * MIB / (copied + 1e-3 - 2e-3) / 1e9, rel=0.01)
    assert (late, much_later) == (0, 0)


def many(device, library, count):
    """How many samples each of some transfers of 1 MiB reads, all of which have ended."""
    import ctypes

    import torch

    meters = ctypes.CDLL(library)
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    meters.meter_new.restype = pointer
    meter = pointer(meters.meter_new())
    stream = pointer(torch.cuda.current_stream().cuda_stream)
    found = []
    for _ in range(count):
        device.reset_counts()
        meters.meter_begins(meter, stream, None, size(1 << 20))
        meters.meter_ends(meter, stream)
        torch.cuda.synchronize()
        found.append(device.count("cudaEventElapsedTime"))
    meters.meter_delete(meter)
    return found


@simulated
def test_a_transfer_reads_one_sample_at_most(library: str) -> None:
    # It takes the host microseconds, for which the device may wait.
    assert run_sim(many, library, 40, mib=16) == [0] * 32 + [1] * 8
