"""PyTorch's own tools that watch memory and operators."""

import torch
from releases import since, size_of
from stress import assert_same_bits
from tensors import evict, floats, managed, pattern
from training import gradients, inputs, network


def step():
    model = network()
    loss = model(inputs()).square().sum()
    loss.backward()
    return loss, gradients(model)


def test_profiler():
    def run():
        # The profiler before torch.profiler, which all releases have.
        autograd = torch._C._autograd
        autograd._enable_profiler_legacy(
            torch.autograd.ProfilerConfig(
                torch.autograd.ProfilerState.CPU,
                True,  # shapes
                True,  # memory
                False,
                False,
                False,
                torch._C._profiler._ExperimentalConfig(),
            )
        )
        try:
            results = step()
        finally:
            events = autograd._disable_profiler_legacy()
        return results, "aten::addmm" in {event.name() for line in events for event in line}

    assert_same_bits(run)


def test_ranges():
    def run():
        with torch.autograd.profiler.record_function("forward"):
            return step()

    assert_same_bits(run)


@since((2, 1), "recorded history of memory")
def test_memory_snapshot():
    torch.cuda.memory._record_memory_history()
    try:
        assert_same_bits(step)
        x = managed(pattern(3))  # no other has this size
        evict()
        x.sum()
        snapshot = torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    assert any(block["state"] == "active_allocated" for block in blocks)
    trace = [e["action"] for e in snapshot["device_traces"][0] if e["size"] == size_of(x)]
    # Made, given back by the page-out, made again by the page-in.
    assert [a for a in trace if a != "free_requested"] == ["alloc", "free_completed", "alloc"]


def test_empty_cache_keeps_what_is_paged_out():
    x, y = managed(pattern(12)), managed(pattern(12, start=1))  # a segment each
    evict()
    y.sum()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < 2 * size_of(x)
    fresh = torch.zeros(floats(12), device="cuda")
    assert torch.equal(x.cpu(), pattern(12, device="cpu"))
    assert torch.equal(y.cpu(), pattern(12, start=1, device="cpu"))
    assert fresh.sum().item() == 0
