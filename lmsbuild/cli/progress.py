"""Progress bars of a build's stages, one after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TypeVar

from rich.progress import Progress, TaskID

from lmsbuild import console

_COUNTED_STAGES = ("compile",)  # whose numbers are files, not bytes
# Between two updates of a bar. rich calculates the speed from the last thousand updates, and these
# could all be small files.
_UPDATE_SECONDS = 0.1

_Item = TypeVar("_Item")


class StageDisplay:
    """Shows one bar per stage; use as a context manager and call ``report``.

    Where no bars are to be drawn, such as in a pipe, a stage is one line, when it is done.
    """

    def __init__(self) -> None:
        self._stage = ""
        self._began = self._updated = 0.0
        self._last: tuple[int, int | None] = (0, None)  # done, total
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> StageDisplay:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop(complete=kind is None)

    def report(self, stage: str, done: int, total: int | None) -> None:
        """How far a stage is: bytes, or files while compiling. A new name is a new bar."""
        if stage != self._stage:
            self._stop(complete=True)
            self._stage, self._began = stage, time.monotonic()
            if console.shows_progress():
                counted = _is_counted(stage)
                self._progress = console.step_progress() if counted else console.transfer_progress()
                self._progress.start()
                self._task = self._progress.add_task(stage, total=total)
            self._last, self._updated = (0, None), 0.0
        announced = total != self._last[1]
        self._last = (done, total)
        now = time.monotonic()
        late = now - self._updated >= _UPDATE_SECONDS
        if self._progress is not None and (late or announced or done == total):
            assert self._task is not None
            self._progress.update(self._task, completed=done, total=total)
            self._updated = now

    def _stop(self, *, complete: bool) -> None:
        """End the current bar; a stage that was passed counts as done, to the last byte."""
        if self._progress is not None:
            if complete:
                for task in self._progress.tasks:
                    if task.total is not None:
                        self._progress.update(task.id, completed=task.total)
            self._progress.stop()
        elif self._stage and complete:
            console.say(self._line())
        self._progress = None
        self._stage = ""

    def _line(self) -> str:
        done, total = self._last
        seconds = f"{time.monotonic() - self._began:.0f} s"
        amount = done if total is None else total
        if total is None and not done:
            return f"{self._stage}: {seconds}"
        size = f"{amount} files" if _is_counted(self._stage) else f"{amount / 1e6:.1f} MB"
        return f"{self._stage}: {size}, {seconds}"


def _is_counted(stage: str) -> bool:
    """Whether the last word of a stage's name is one of _COUNTED_STAGES."""
    return stage.split()[-1] in _COUNTED_STAGES


def counted(title: str, items: Sequence[_Item]) -> Iterator[_Item]:
    """The items, with a bar that counts those that are done. One item needs no bar."""
    if len(items) < 2 or not console.shows_progress():
        yield from items
        return
    with console.step_progress() as progress:
        task = progress.add_task(title, total=len(items))
        for item in items:
            yield item
            progress.advance(task)
