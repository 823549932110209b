"""PyTorch's profiler with CUPTI, and its memory snapshots."""

import json

import torch
from bits import assert_same_bits, lms
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


def test_transfers_in_a_trace(tmp_path):
    """The tracks have the statistics' counts and bytes, and the times of CUPTI's copies."""
    from torch.cuda.lms.integrations.profiler import add_transfers

    path = tmp_path / "trace.json"
    torch.cuda.lms.set_planning(False)  # no copies ahead of page-outs
    torch.cuda.lms.set_compression("off")  # copies, not kernels
    try:
        with lms(LIMIT):
            model = network()
            train(model, steps=1)
            before = torch.cuda.lms.stats()
            with torch.profiler.profile() as profile:
                train(model, steps=1)
                torch.cuda.synchronize()
            after = torch.cuda.lms.stats()
            profile.export_chrome_trace(str(path))
    finally:
        torch.cuda.lms.set_planning(True)
        torch.cuda.lms.set_compression("auto")
    add_transfers(path)
    events = json.loads(path.read_text())["traceEvents"]
    streams = {
        event["tid"]: event["args"]["name"].split("LMS ")[1].rstrip(")")
        for event in events
        if event.get("name") == "thread_name" and "(LMS " in event["args"].get("name", "")
    }
    assert set(streams.values()) == {"page-in", "page-out"}  # two of each: transfers take turns
    tracks = {1: "page-out", 2: "page-in"}
    added = [event for event in events if event.get("cat") == "lms" and event["ph"] in "Xi"]
    for kind, name in (("page-out", "page_out"), ("page-in", "page_in")):
        own = [event for event in added if tracks[event["tid"]] == kind]
        copied = [event for event in own if not event["args"].get("clean")]
        assert all(event["ph"] == "X" for event in copied), "a transfer has no time on the GPU"
        copies = [
            event
            for event in events
            if event.get("cat") == "gpu_memcpy" and streams.get(event["tid"]) == kind
        ]
        assert len(own) == after[name + "_count"] - before[name + "_count"] > 0
        size = sum(event["args"]["bytes"] for event in copied)
        assert size == after[name + "_bytes"] - before[name + "_bytes"]
        assert size == sum(event["args"]["bytes"] for event in copies)
        spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in copied)
        for copy in copies:
            # Rounded to nanoseconds.
            assert any(
                begin - 0.01 <= copy["ts"] and copy["ts"] + copy["dur"] <= end + 0.01
                for begin, end in spans
            )
