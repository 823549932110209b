"""PyTorch's profiler with CUPTI, and its memory snapshots."""

import torch
from bits import assert_same_bits
from training import LIMIT, network, train


def test_profiler():
    def run():
        with torch.profiler.profile(profile_memory=True, record_shapes=True) as profile:
            results = train(network(), steps=2)
        return results, "aten::addmm" in {event.key for event in profile.key_averages()}

    assert_same_bits(run, limit=LIMIT)


def test_memory_snapshot():
    torch.cuda.memory._record_memory_history()
    try:
        assert_same_bits(lambda: train(network(), steps=2), limit=LIMIT)
        snapshot = torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    assert snapshot["segments"]
    assert {entry["action"] for entry in snapshot["device_traces"][0]} >= {
        "alloc",
        "free_completed",
    }
