"""The trace file of a report: what Perfetto and chrome://tracing ask of one."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lmsbuild.simulate.planner import Planner
from tests.toolkit.simulate.reports import inside, report
from tests.toolkit.simulate.traces import MB, adam


@pytest.fixture(scope="module")
def found(compiled: Planner, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return report(compiled, adam(), tmp_path_factory.mktemp("trace"), 60 * MB)


def events(found: Any) -> list[dict[str, Any]]:
    return list(json.loads(found.render(Path("x.json")))["traceEvents"])


def names(found: Any) -> dict[int, str]:
    return {e["pid"]: e["args"]["name"] for e in events(found) if e["name"] == "process_name"}


def test_the_events_are_complete(found: Any) -> None:
    kinds, processes = set(), names(found)
    for event in events(found):
        kinds.add(event["ph"])
        assert event["pid"] in processes
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["tid"] in (1, 2, 3)
        if event["ph"] == "C":
            assert event["args"]["bytes"] >= 0
    assert kinds == {"M", "X", "C"}
    assert sorted(processes.values()) == [
        "LMS: everything on the GPU",
        "LMS: planned transfers (predicted)",
        "LMS: transfers on demand (predicted)",
    ]


def test_slices_of_a_thread_do_not_overlap(found: Any) -> None:
    """Perfetto would drop one of them."""
    threads = defaultdict(list)
    for event in events(found):
        if event["ph"] == "X":
            # As Perfetto reads it, in nanoseconds.
            begin, duration = (round(event[key] * 1e3) for key in ("ts", "dur"))
            threads[event["pid"], event["tid"]].append((begin, begin + duration))
    assert len(threads) == 7
    for slices in threads.values():
        for (_, end), (begin, _) in pairwise(sorted(slices)):
            assert begin >= end


def test_the_slices_add_up(found: Any) -> None:
    totals, processes = inside(found).totals, names(found)
    for title, seconds in (
        ("LMS: everything on the GPU", totals.compute_seconds),
        ("LMS: planned transfers (predicted)", totals.planned.seconds),
        ("LMS: transfers on demand (predicted)", totals.on_demand.seconds),
    ):
        mine = [e for e in events(found) if e["ph"] == "X" and processes[e["pid"]] == title]
        work = sum(event["dur"] for event in mine if event["tid"] == 1)
        assert work == pytest.approx(seconds * 1e6, rel=1e-4)
    (pid,) = (pid for pid, title in processes.items() if "planned" in title)
    out = {
        (event["args"]["tensor"], event["args"]["bytes"])
        for event in events(found)
        if event["pid"] == pid and event.get("tid") == 2 and event["ph"] == "X"
    }
    assert sum(count for _, count in out) == totals.planned.bytes_out


def test_compressed(found: Any) -> None:
    data = found.render(Path("x.json.gz"))
    assert gzip.decompress(data) == found.render(Path("x.json"))
    assert data == found.render(Path("x.json.gz"))
