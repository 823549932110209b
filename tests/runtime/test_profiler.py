"""torch.cuda.lms.integrations.profiler: page-outs and page-ins in the traces of torch.profiler."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import MIB
from releases import since, size_of
from tensors import evict, is_resident, managed, pattern, raw_address
from torch.cuda.lms.integrations.profiler import add_transfers, trace_handler

pytest.importorskip("torch.profiler", reason="PyTorch 1.1 to 1.5 has another profiler")

CPU = [torch.profiler.ProfilerActivity.CPU]  # on a GPU, too, so that times are the host's


def read(path: Path) -> Any:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def added(path: Path, device: int = 0) -> list[dict[str, Any]]:
    """What add_transfers() has added for a GPU."""
    return [
        event
        for event in read(path)["traceEvents"]
        if event.get("cat") == "lms" and event["pid"] == 900001001 + device
    ]


def moved(events: list[dict[str, Any]]) -> Counter[str]:
    """What a trace says that LMS has moved, by the names of the statistics."""
    found: Counter[str] = Counter()
    for event in events:
        if event["ph"] not in "Xi":
            continue
        kind = {1: "page_out", 2: "page_in"}[event["tid"]]
        found[kind + "_count"] += 1
        if event["args"].get("clean"):
            found["clean_count"] += 1
        else:
            found[kind + "_bytes"] += event["args"]["bytes"]
    return found


def statistics(device: int = 0) -> Counter[str]:
    stats = torch.cuda.lms.stats(device)
    names = ("page_out_count", "page_out_bytes", "page_in_count", "page_in_bytes", "clean_count")
    return Counter({name: stats[name] for name in names})


def page(mib: int = 3, device: str = "cuda") -> torch.Tensor:
    """Pages a tensor out, in, and out again with nothing to copy."""
    x = managed(pattern(mib, device=device))
    evict()
    with torch.profiler.record_function("reading"):
        x.sum()
    evict()
    return x


def trace(path: Path, run: Any, **options: Any) -> Any:
    with torch.profiler.profile(activities=CPU, **options) as profile:
        result = run()
    profile.export_chrome_trace(str(path))
    return result


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_bytes_and_counts(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    before = statistics()
    kept = trace(path, lambda: [page(3), page(5)])
    expected = statistics() - before
    plain = read(path)
    add_transfers(path)
    found = moved(added(path))
    assert found == expected
    assert found["page_out_bytes"] == found["page_in_bytes"] == sum(map(size_of, kept))
    assert found["clean_count"] > 0
    # The rest is as it was, and so is the file if it is read again.
    assert read(path)["traceEvents"][: len(plain["traceEvents"])] == plain["traceEvents"]
    first = read(path)
    add_transfers(str(path))
    assert read(path) == first
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_why_and_when(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    trace(path, page)
    add_transfers(path)
    (page_in,) = (event for event in added(path) if event.get("tid") == 2 and event["ph"] == "X")
    assert page_in["name"] == "page-in: aten::sum"
    assert page_in["args"] == {"bytes": 3 * MIB, "operator": "aten::sum", "range": "reading"}
    outer = next(e for e in read(path)["traceEvents"] if e["name"] == "reading")
    assert outer["ts"] <= page_in["ts"]
    assert page_in["ts"] + page_in["dur"] <= outer["ts"] + outer["dur"]
    names = {
        (event["name"], event["tid"]): event["args"].get("name")
        for event in added(path)
        if event["ph"] == "M"
    }
    assert names["process_name", 0] == "LMS (GPU 0)"
    assert (names["thread_name", 1], names["thread_name", 2]) == ("page-out", "page-in")


def test_backward(tmp_path: Path) -> None:
    """The engine's threads are profiled, too."""
    path = tmp_path / "trace.json"
    x = pattern(3).requires_grad_()
    loss = x.exp().square().sum()
    evict()
    before = statistics()
    trace(path, loss.backward)
    add_transfers(path)
    assert moved(added(path)) == statistics() - before
    nodes = {event["args"]["range"] for event in added(path) if event.get("ph") == "X"}
    assert nodes == {"PowBackward0"}  # the result of exp() is then there for the next node, too
    del loss, x


@since((2, 1), "values of inputs in its profiler")
def test_counters(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    kept = trace(path, page, record_shapes=True, profile_memory=True)
    add_transfers(path)
    counters: dict[str, list[int]] = {}
    for event in added(path):
        if event["ph"] == "C":
            counters.setdefault(event["name"], []).append(event["args"]["bytes"])
    size = size_of(kept)
    # At the start of the page-out, of the page-in, and of the page-out without a copy.
    assert counters["managed on the GPU"] == [size, 0, size]
    assert counters["paged out"] == [0, size, 0]
    assert max(counters["allocated"]) >= size
    assert counters["allocated"][-1] < size


@pytest.mark.parametrize("use_gzip", [False, True])
def test_schedule(tmp_path: Path, use_gzip: bool) -> None:
    folder = tmp_path / "traces"
    expected = []
    with torch.profiler.profile(
        activities=CPU,
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=trace_handler(str(folder), "worker", use_gzip),
    ) as profile:
        for step in range(8):
            before = statistics()
            page(1 + step)
            expected.append(statistics() - before)
            profile.step()
    files = sorted(folder.iterdir())
    assert all(file.name.startswith("worker.") for file in files)
    assert {file.suffix for file in files} == {".gz" if use_gzip else ".json"}
    assert [moved(added(file)) for file in files] == [
        expected[2] + expected[3],
        expected[6] + expected[7],
    ]


def test_every_gpu_has_its_tracks(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    before = [statistics(index) for index in range(2)]
    trace(path, lambda: (page(2, "cuda:0"), page(3, "cuda:1"), page(4, "cuda:1")))
    after = [statistics(index) for index in range(2)]
    add_transfers(path)
    for index in range(2):
        assert moved(added(path, index)) == after[index] - before[index]
    assert moved(added(path, 1))["page_in_count"] == 2


def test_without_transfers_a_trace_stays_as_it_is(tmp_path: Path) -> None:
    torch.cuda.set_enabled_lms(False)
    path = tmp_path / "trace.json"
    trace(path, lambda: managed(pattern(3)))
    before = path.read_bytes()
    add_transfers(path)
    assert path.read_bytes() == before


def on_gpu(operator: str, ts: float, stream: int, external_id: int) -> dict[str, Any]:
    kind = {20: "page-out", 24: "page-in"}[stream]
    return {
        "ph": "X",
        "cat": "gpu_user_annotation",
        "name": f"LMS {kind} on cuda:0: {operator} (4096 bytes)",
        "pid": 0,
        "tid": stream,
        "ts": ts,
        "dur": 3.5,
        "args": {"External id": external_id},
    }


def on_host(event: dict[str, Any], ts: float) -> dict[str, Any]:
    return {**event, "cat": "user_annotation", "pid": 77, "tid": 77, "ts": ts, "dur": 0.5}


def test_times_are_those_of_the_gpu(tmp_path: Path) -> None:
    """What the profiler writes with CUPTI, which the simulated device does not have."""
    path = tmp_path / "trace.json"
    out, back, unknown = (
        on_gpu("aten::mm", 100.0, 20, 7),
        on_gpu("AddBackward0", 200.0, 24, 8),
        on_gpu("aten::add", 300.0, 24, 0),
    )
    lost = on_host(on_gpu("aten::relu", 0.0, 24, 9), 12.0)
    events = [
        on_host(out, 10.0),
        on_host(back, 11.0),
        lost,
        out,
        back,
        unknown,
        *(
            {
                "ph": "M",
                "name": "thread_name",
                "pid": 0,
                "tid": stream,
                "ts": 0,
                "args": {"name": f"stream {stream} "},
            }
            for stream in (7, 20, 24)
        ),
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    add_transfers(path)
    found = [
        (event["ph"], event["tid"], event["name"], event["ts"], event.get("dur"))
        for event in added(path)
        if event["ph"] in "Xi"
    ]
    assert found == [
        ("X", 1, "page-out: aten::mm", 100.0, 3.5),
        ("X", 2, "page-in: AddBackward0", 200.0, 3.5),
        ("i", 2, "page-in: aten::relu", 12.0, None),
        ("X", 2, "page-in: aten::add", 300.0, 3.5),
    ]
    streams = [
        event["args"]["name"]
        for event in read(path)["traceEvents"]
        if event["name"] == "thread_name" and event["pid"] == 0
    ]
    assert streams == ["stream 7 ", "stream 20 (LMS page-out)", "stream 24 (LMS page-in)"]


@pytest.mark.parametrize("text", ["{", '{"events": []}', "[1]", '"text"'])
def test_what_is_no_trace_stays_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"trace\.json"):
        add_transfers(path)
    assert path.read_text() == text


def test_a_program_goes_on_after_a_trace_that_cannot_be_read(tmp_path: Path) -> None:
    class Broken:
        def export_chrome_trace(self, path: str, **_: object) -> None:  # newer releases pass more
            Path(path).write_text("{")

    with pytest.warns(UserWarning, match="no transfers are added"):
        trace_handler(str(tmp_path))(Broken())
    assert [file.read_text() for file in tmp_path.iterdir()] == ["{"]


def paged_out_model():
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)]).cuda()
    x = pattern(1)[: 8 * 64].view(8, 64).clone()
    expected = model(x).cpu()
    evict()
    assert not is_resident(model[0].weight)
    return model, x, expected


@since((2, 4), "profiles with stacks that can be looked at")
def test_a_profile_with_stacks_of_modules_that_are_paged_out():
    """The profiler reads the addresses of the modules' parameters, where no exception may go."""
    model, x, expected = paged_out_model()
    with torch.profiler.profile(with_stack=True):
        found = model(x)
    assert torch.equal(found.cpu(), expected)
    evict()
    assert not is_resident(model[0].weight)
    with pytest.raises(RuntimeError, match="paged this storage out"):
        raw_address(model[0].weight)


@since((2, 4), "profiles with stacks that can be looked at")
def test_a_profile_with_stacks_that_does_not_begin(monkeypatch):
    """A second one, say."""
    model, _, _ = paged_out_model()

    def fails(*_):
        raise RuntimeError("profiler: no")

    monkeypatch.setattr(torch.autograd.profiler, "_run_on_profiler_start", fails)
    with pytest.raises(RuntimeError, match="profiler: no"):
        torch.autograd.profiler.profile(with_stack=True)._start_trace()
    with pytest.raises(RuntimeError, match="paged this storage out"):
        raw_address(model[0].weight)


@since((2, 4), "profiles with shapes that can be looked at")
def test_the_shapes_of_what_is_paged_out():
    model, x, expected = paged_out_model()
    with torch.profiler.profile(record_shapes=True) as profile:
        found = model(x)
        torch.einsum("ij,kj->ik", x, model[1].weight)
    shapes = {event.name: event.input_shapes for event in profile.events()}
    assert shapes["aten::linear"][:2] == [[8, 64], [64, 64]]
    assert shapes["aten::einsum"] is not None
    assert [8, 64] in shapes["aten::bmm"] or [1, 8, 64] in shapes["aten::bmm"]
    assert torch.equal(found.cpu(), expected)
