"""Reports of a trace's last iteration, made by the runtime's lms_report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lmsbuild.errors import PictureError, TraceError
from lmsbuild.simulate import lms_report
from lmsbuild.simulate.link import Link
from lmsbuild.simulate.planner import Planner
from lmsbuild.simulate.trace import Trace


class Report:
    """What an iteration needs, does and takes, on a GPU with less memory.

    Args:
        compiled: the planner.
        trace: what was recorded.
        gpu_memory: bytes that PyTorch may reserve.
        link: between GPU and host.
        counted: is given a list and yields its items, to show progress.
        host_memory: bytes that LMS may pin; None if there is enough.

    Raises:
        TraceError: the trace has no complete iteration, an operator needs more than the memory, or
            what is swapped more than the host memory.
    """

    def __init__(
        self,
        compiled: Planner,
        trace: Trace,
        gpu_memory: int,
        link: Link,
        counted: Callable[[list[int]], Iterable[int]] = iter,
        host_memory: int | None = None,
    ) -> None:
        report, planner = lms_report.module("report"), lms_report.module("planner")
        source = report.Source(**{name: getattr(trace, name) for name in report.Source._fields})
        try:
            self._report = report.Report(
                compiled.library,
                compiled.recording(trace),
                source,
                gpu_memory,
                link.out_rate,
                link.in_rate,
                _title(link),
                counted,
                host_memory,
                link.planned_speedup,
            )
        except planner.PlannerError as error:
            raise TraceError(str(error)) from error

    @property
    def text(self) -> str:
        """The summary."""
        return str(lms_report.module("text").text(self._report))

    @property
    def data(self) -> dict[str, Any]:
        """The summary's numbers: sizes in bytes, times in seconds."""
        return dict(lms_report.module("data").data(self._report))

    def render(self, path: Path) -> bytes:
        """The report in the form that the name of the file tells.

        Raises:
            ValueError: it tells none.
            PictureError: a picture needs matplotlib.
        """
        picture = lms_report.module("picture")
        try:
            return bytes(lms_report.module("form").form_of(path)(self._report))
        except picture.NoMatplotlibError as error:
            raise PictureError(str(error)) from error


def _title(link: Link) -> str:
    if link.compressed == 1:
        return link.title
    return f"{link.title}, planned transfers compressed to {100 * link.compressed:.0f} %"


def check_form(path: Path) -> None:
    """Raises ValueError for a file whose name does not tell the form of a report."""
    lms_report.module("form").form_of(path)
