"""Reading trace files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from lmsbuild.errors import FileAccessError, TraceError
from lmsbuild.resources import patches_dir
from lmsbuild.simulate import lms_report
from lmsbuild.simulate.trace import read_trace
from tests.toolkit.simulate.traces import Recording, training


def test_the_kinds_are_those_of_the_runtime() -> None:
    runtime = patches_dir() / "runtime" / "torch"
    header = (runtime / "csrc/cuda/lms/record/trace.h").read_text("utf-8")
    body = re.search(r"enum class Kind : uint8_t \{(.*?)\};", header, re.DOTALL)
    assert body
    names = re.findall(r"^ *(\w+),$", body[1], re.MULTILINE)
    assert [name.lower() for name in names] == list(lms_report.module("events").KINDS)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace(name: str, tmp_path: Path) -> None:
    recording = training()
    trace = read_trace(recording.write(tmp_path / name))
    assert (trace.torch, trace.gpu, trace.limit_bytes) == ("2.11.0", "A GPU", 15 * 10**9)
    assert trace.names == ("", "forward", "backward", "update")
    assert len(trace.events) == 16 * len(recording.events)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not a trace"),
        (b"[1, 2]", "is not a trace"),
        (b'{"format": "another"}', "is not a trace"),
        (b"\x1f\x8bnothing", "is not a trace"),
        (b'{"format": "lms-trace", "version": 2}', "has version 2 of the format"),
        (b'{"format": "lms-trace", "version": 1}', "is damaged"),
    ],
)
def test_what_is_no_trace(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=message):
        read_trace(path)


@pytest.mark.parametrize("event", [["flown", 1, 2], ["read", -1, 0], ["read"], ["read", "x", 0]])
def test_a_damaged_event(event: list[Any], tmp_path: Path) -> None:
    path = Recording().write(tmp_path / "trace.json", events=[event])
    with pytest.raises(TraceError, match="is damaged; record it again"):
        read_trace(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"limit_bytes": float("inf")},
        {"gpu_bytes": float("nan")},
        {"unmanaged_bytes": 1 << 64},
        {"page_out_bytes": -float("inf")},
        {"gpu": "A \ud800"},
        {"names": ["", "\udfff"]},
    ],
)
def test_a_damaged_value(changes: dict[str, Any], tmp_path: Path) -> None:
    path = training().write(tmp_path / "trace.json", **changes)
    with pytest.raises(TraceError, match="is damaged; record it again"):
        read_trace(path)


def test_json_that_is_too_deep(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("[" * 200_000)
    with pytest.raises(TraceError, match="is not a trace"):
        read_trace(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileAccessError, match="cannot be read"):
        read_trace(tmp_path / "none.json")
