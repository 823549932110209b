"""The race checker finds each ordering bug that is planted, and nothing in the right version."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from simcuda.process import Session


def train_with_swapping(device: Any, bug: str) -> dict[str, Any]:
    """Trains with saved tensors kept in host memory, copied there and back on a side stream."""
    import torch
    from torch import nn

    side = torch.cuda.Stream()

    def page_out(tensor: torch.Tensor) -> Any:
        if not tensor.is_cuda or tensor.numel() < 1000 or isinstance(tensor, nn.Parameter):
            return tensor
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        if bug == "page-out waits too early":
            side.wait_stream(torch.cuda.current_stream())
        source = tensor.detach().contiguous().clone()
        if bug not in ("page-out does not wait", "page-out waits too early"):
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            host.copy_(source, non_blocking=True)
        if bug != "page-out is not recorded":
            source.record_stream(side)
        return (host,)

    def page_in(saved: Any) -> torch.Tensor:
        if isinstance(saved, torch.Tensor):
            return saved
        (host,) = saved
        current = torch.cuda.current_stream()
        tensor = torch.empty(host.shape, dtype=host.dtype, device="cuda")
        if bug != "page-in does not wait":
            side.wait_stream(current)  # for the last use of the memory that `tensor` got
        with torch.cuda.stream(side):
            tensor.copy_(host, non_blocking=True)
        if bug != "use does not wait for page-in":
            current.wait_stream(side)
        tensor.record_stream(side)
        return tensor

    def train(kind: str) -> torch.Tensor:
        torch.manual_seed(0)
        layers = [make() for _ in range(4) for make in (lambda: nn.Linear(64, 64), nn.Tanh)]
        model = nn.Sequential(*layers).to(kind)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for step in range(3):
            torch.manual_seed(step)
            batch = torch.randn(512, 64).to(kind)
            with torch.autograd.graph.saved_tensors_hooks(page_out, page_in):
                loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return torch.cat([p.detach().cpu().flatten() for p in model.parameters()])

    swapped = train("cuda")
    torch.cuda.synchronize()
    return {"races": device.races(), "equal": torch.equal(swapped, train("cpu"))}


def test_right_swapping_has_no_race_and_the_cpus_results(sim: Session) -> None:
    assert sim.run(train_with_swapping, "") == {"races": [], "equal": True}


def test_right_swapping_in_real_asynchrony(async_sim: Session) -> None:
    assert async_sim.run(train_with_swapping, "") == {"races": [], "equal": True}


BUGS = {
    "page-out does not wait": "device to host .* is not ordered after",
    "page-out waits too early": "device to host .* is not ordered after",
    "page-out is not recorded": "is not ordered after a copy from device to host",
    "page-in does not wait": "host to device .* is not ordered after",
    "use does not wait for page-in": "is not ordered after a copy from host to device",
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_found(sim: Session, bug: str) -> None:
    outcome = sim.run(train_with_swapping, bug)
    assert any(re.search(BUGS[bug], race) for race in outcome["races"]), outcome["races"][:3]


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_found_in_real_asynchrony(async_sim: Session, bug: str) -> None:
    outcome = async_sim.run(train_with_swapping, bug)
    assert any(re.search(BUGS[bug], race) for race in outcome["races"]), outcome["races"][:3]


def reuse_host_buffer(device: Any, wait: bool) -> list[str]:
    import torch

    out, back = torch.cuda.Stream(), torch.cuda.Stream()
    first, second = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    target = torch.empty(1000, device="cuda")
    host = torch.empty(1000, pin_memory=True)
    torch.cuda.synchronize()
    with torch.cuda.stream(out):
        host.copy_(first, non_blocking=True)
    back.wait_stream(out)
    with torch.cuda.stream(back):
        target.copy_(host, non_blocking=True)
    if wait:
        out.wait_stream(back)
    with torch.cuda.stream(out):
        host.copy_(second, non_blocking=True)
    torch.cuda.synchronize()
    return device.races()


def test_host_buffer_reused_before_it_was_read(sim: Session) -> None:
    assert sim.run(reuse_host_buffer, True) == []
    (race,) = sim.run(reuse_host_buffer, False)
    assert "write after read" in race


def write_while_copying(device: Any, wait: bool) -> list[str]:
    import torch

    side = torch.cuda.Stream()
    tensor, host = torch.ones(1000, device="cuda"), torch.empty(1000, pin_memory=True)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        host.copy_(tensor, non_blocking=True)
    if wait:
        torch.cuda.current_stream().wait_stream(side)
    tensor.add_(1)
    return device.races()


def test_write_while_a_page_out_reads(sim: Session) -> None:
    assert sim.run(write_while_copying, True) == []
    (race,) = sim.run(write_while_copying, False)
    assert "write after read" in race
    assert "aten::add_" in race


def read_while_copying(device: Any) -> list[str]:
    import torch

    side = torch.cuda.Stream()
    tensor, host = torch.ones(1000, device="cuda"), torch.empty(1000, pin_memory=True)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        host.copy_(tensor, non_blocking=True)
    tensor + 1
    return device.races()


def test_readers_do_not_conflict(sim: Session) -> None:
    assert sim.run(read_while_copying) == []


def read_on_host(device: Any, how: str) -> list[str]:
    import torch

    tensor, host = torch.ones(1000, device="cuda"), torch.empty(1000, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    if how == "query":
        while not event.query():
            pass
    elif how == "event":
        event.synchronize()
    elif how == "stream":
        torch.cuda.current_stream().synchronize()
    elif how == "device":
        torch.cuda.synchronize()
    device.host_access(host.data_ptr(), 4000, what="the test")
    return device.races()


@pytest.mark.parametrize("how", ["query", "event", "stream", "device"])
def test_host_may_read_after_it_waited(sim: Session, how: str) -> None:
    assert sim.run(read_on_host, how) == []


def test_host_reads_a_buffer_that_is_being_written(sim: Session) -> None:
    (race,) = sim.run(read_on_host, "")
    assert "the test on the host" in race


def free_host_buffer_in_use(device: Any, wait: bool) -> list[str]:
    import ctypes

    import torch

    runtime = ctypes.CDLL(None)
    pointer = ctypes.c_void_p()
    assert runtime.cudaHostAlloc(ctypes.byref(pointer), ctypes.c_size_t(4096), 0) == 0
    tensor = torch.ones(1024, device="cuda")
    stream = torch.cuda.current_stream()
    code = runtime.cudaMemcpyAsync(
        pointer, ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(4096), 2, None
    )
    assert code == 0
    if wait:
        stream.synchronize()
    assert runtime.cudaFreeHost(pointer) == 0
    return device.races()


def test_host_buffer_freed_while_a_copy_writes_it(sim: Session) -> None:
    assert sim.run(free_host_buffer_in_use, True) == []
    (race,) = sim.run(free_host_buffer_in_use, False)
    assert "cudaFreeHost" in race


def use_default_stream_after(device: Any, blocking: bool) -> list[str]:
    import ctypes

    import torch

    runtime = ctypes.CDLL(None)
    handle = ctypes.c_void_p()
    flags = ctypes.c_uint(0 if blocking else 1)
    assert runtime.cudaStreamCreateWithFlags(ctypes.byref(handle), flags) == 0
    tensor = torch.ones(1000, device="cuda")
    torch.cuda.synchronize()
    other = torch.cuda.ExternalStream(handle.value)
    with torch.cuda.stream(other):
        tensor.add_(1)
    tensor.add_(1)  # the default stream waits for blocking streams,
    with torch.cuda.stream(other):
        tensor.add_(1)  # and they for it
    torch.cuda.synchronize()
    assert runtime.cudaStreamDestroy(handle) == 0
    return device.races()


def test_default_stream_waits_for_blocking_streams_only(sim: Session) -> None:
    assert sim.run(use_default_stream_after, True) == []
    assert len(sim.run(use_default_stream_after, False)) == 2


def test_default_stream_in_real_asynchrony(async_sim: Session) -> None:
    assert async_sim.run(use_default_stream_after, True) == []


def share_between_devices(device: Any, wait: bool) -> list[str]:
    import torch

    first = torch.ones(1000, device="cuda:0")
    second = torch.empty(1000, device="cuda:1")
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    with torch.cuda.device(1):
        other = torch.cuda.Stream()
    with torch.cuda.stream(other):  # a copy between devices runs on the source's stream too
        second.copy_(first, non_blocking=True)
    if wait:
        torch.cuda.current_stream(0).wait_stream(other)
        torch.cuda.current_stream(1).wait_stream(other)
    second.add_(1)
    return device.races()


def test_devices_are_ordered_by_events(sim: Session) -> None:
    assert sim.run(share_between_devices, True) == []
    assert sim.run(share_between_devices, False) != []
