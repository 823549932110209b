"""Statistics of training steps as CSV: time, memory, and what Large Model Support (LMS) moved.

    from lms_stats import StepLogger

    with StepLogger("steps.csv") as log:
        for images, labels in loader:
            with log.step():
                train(images, labels)
    log.write_summary("summary.csv", model="resnet50", batch_size=512)

It needs nothing but PyTorch. In a PyTorch without LMS the columns of LMS are 0.
"""

from __future__ import annotations

import contextlib
import csv
import os
import statistics
import time
from collections.abc import Iterator
from types import TracebackType

import torch

PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes")
# What happened during a step. All but the first are counted by LMS.
COUNTS = (
    "alloc_retries",
    "page_out_count",
    "page_out_bytes",
    "page_in_count",
    "page_in_bytes",
    "planned_iterations",
    "plan_departures",
)
# What is on the host at the end of a step.
LEVELS = ("paged_out_bytes", "host_bytes")
COLUMNS = ("step", "seconds", *PEAKS, *COUNTS, *LEVELS)


class StepLogger:
    """Measures training steps, and writes a row for each to a CSV file.

    A step begins and ends with ``torch.cuda.synchronize()``, so that its time is its own, and
    resets the peaks of PyTorch's memory statistics. Without these waits a step can take less.

    Args:
        path: the file, which is replaced. Without it, rows are only kept in ``rows``.
        device: the GPU to measure. Default: the current one.

    Attributes:
        rows (list of dict): the rows so far. Sizes are in bytes, and times in seconds.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, device: int | torch.device | None = None
    ) -> None:
        self.rows: list[dict[str, float]] = []
        self._device = device
        self._file = open(path, "w", newline="") if path is not None else None  # noqa: SIM115
        self._write(list(COLUMNS))

    def __enter__(self) -> StepLogger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file. ``rows`` and the summary stay."""
        if self._file is not None:
            self._file.close()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Measures its block. A block that raises an exception has no row."""
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        before = self._counters()
        began = time.perf_counter()
        yield
        torch.cuda.synchronize(self._device)
        seconds = time.perf_counter() - began
        after = self._counters()
        row: dict[str, float] = {
            "step": len(self.rows),
            "seconds": seconds,
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(self._device),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(self._device),
            **{name: after[name] - before[name] for name in COUNTS},
            **{name: after[name] for name in LEVELS},
        }
        self.rows.append(row)
        self._write([row[name] for name in COLUMNS])

    def summary(self, warmup: int = 2) -> dict[str, float]:
        """Returns medians, means and maxima of the steps after the first ones.

        Args:
            warmup: how many steps are left out; none if there are not more than that. The
                first ones differ: they allocate gradients and the optimizer's state, and LMS
                has no plan yet.

        Raises:
            ValueError: there was no step.
        """
        rows = self.rows[warmup:] or self.rows
        if not rows:
            raise ValueError("there are no statistics: no step was measured")

        def column(name: str) -> list[float]:
            return [row[name] for row in rows]

        return {
            "steps": len(rows),
            "seconds_median": statistics.median(column("seconds")),
            "seconds_mean": statistics.fmean(column("seconds")),
            **{f"{name}_max": max(column(name)) for name in (*PEAKS, *LEVELS)},
            **{f"{name}_mean": statistics.fmean(column(name)) for name in COUNTS},
        }

    def write_summary(
        self, path: str | os.PathLike[str], warmup: int = 2, **columns: object
    ) -> dict[str, object]:
        """Appends the summary to a CSV file, and returns it.

        Args:
            path: the file. It gets a header if it is new.
            warmup: as for ``summary()``.
            columns: what else the row has, such as the model's name.

        Raises:
            ValueError: there was no step, or the file has other columns.
        """
        row = {**columns, **self.summary(warmup)}
        with open(path, "a+", newline="") as file:
            file.seek(0)
            header = next(csv.reader(file), None)
            if header not in (None, list(row)):
                raise ValueError(f"{path} has other columns; move it away, or name another file")
            writer = csv.DictWriter(file, list(row))
            if header is None:
                writer.writeheader()
            writer.writerow(row)
        return row

    def _counters(self) -> dict[str, int]:
        lms = getattr(torch.cuda, "lms", None)
        found = dict(lms.stats(self._device)) if lms else {}
        found["alloc_retries"] = torch.cuda.memory_stats(self._device).get("num_alloc_retries", 0)
        return {name: found.get(name, 0) for name in (*COUNTS, *LEVELS)}

    def _write(self, cells: list[object]) -> None:
        if self._file is not None:
            csv.writer(self._file).writerow(cells)
            self._file.flush()  # a program that is stopped leaves its rows
