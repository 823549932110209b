"""Reports of traces, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lmsbuild.simulate.link import Link
from lmsbuild.simulate.planner import Planner
from lmsbuild.simulate.report import Report
from lmsbuild.simulate.trace import read_trace
from tests.toolkit.simulate.traces import Recording

SLOW = Link(title="a slow link", out_rate=2e9, in_rate=1e9)


def report(
    compiled: Planner, recording: Recording, folder: Path, gpu_memory: int, link: Link = SLOW
) -> Report:
    return Report(compiled, read_trace(recording.write(folder / "trace.json")), gpu_memory, link)


def inside(report: Report) -> Any:
    """The report as the runtime's package has it."""
    return report._report
