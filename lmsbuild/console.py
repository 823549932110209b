"""What the user sees: results on standard output, everything else on standard error."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

# Paths and messages are printed as they are: never wrapped (a path broken over two lines
# cannot be copied), and square brackets in them are not markup, nor are colons emoji.
_console = functools.partial(Console, soft_wrap=True, markup=False, highlight=False, emoji=False)
out = _console()
err = _console(stderr=True)


@dataclass
class _Settings:
    """What the user wants to see, besides results and errors.

    Attributes:
        level: 1 and more: also what goes on while things go well; -1: warnings; below: nothing.
        progress: progress bars may be drawn.
    """

    level: int = 0
    progress: bool = True


_settings = _Settings()


def configure(*, level: int = 0, progress: bool = True) -> None:
    """Say as much as the user wants from now on; without arguments, as in the beginning."""
    _settings.level = level
    _settings.progress = progress


def is_verbose() -> bool:
    """Whether the user wants to know everything."""
    return _settings.level > 0


def is_quiet() -> bool:
    """Whether the user wants to know results and errors only."""
    return _settings.level < 0


def shows_progress() -> bool:
    """Whether bars may be drawn: on a terminal only, because a file keeps each redrawing."""
    return _settings.progress and not is_quiet() and err.is_terminal


def detail(message: str) -> None:
    """One line about what is being done, for those who asked for more."""
    if is_verbose():
        err.print(message)


def say(message: str) -> None:
    """One line about what is being done."""
    if not is_quiet():
        err.print(message)


def warn(message: str) -> None:
    """One line about something that the user should look at."""
    if _settings.level >= -1:
        err.print(f"warning: {message}", style="yellow")


def fail(message: str) -> None:
    """The one line of an error."""
    err.print(f"lmsbuild: error: {message}", style="red")


def table(content: Table) -> None:
    """A table as a result. Nothing of it is cut off; where no terminal is, no line is broken."""
    for column in content.columns:
        if not column.no_wrap:
            column.overflow = "fold"
    if out.is_terminal or "COLUMNS" in os.environ:
        out.print(content)
        return
    wide = _console(file=out.file, width=10_000)
    # As wide as the caption, too, which a table would break otherwise.
    wide.width = max(wide.measure(content).maximum, len(str(content.caption or "")))
    wide.print(content)


class _SizeColumn(DownloadColumn):
    """The bytes done, or nothing for work that is not counted."""

    def render(self, task: Task) -> Text:
        return Text() if _is_uncounted(task) else super().render(task)


class _SpeedColumn(TransferSpeedColumn):
    """The speed, or nothing for work that is not counted."""

    def render(self, task: Task) -> Text:
        return Text() if _is_uncounted(task) else super().render(task)


def _is_uncounted(task: Task) -> bool:
    return task.total is None and task.completed == 0


def transfer_progress() -> Progress:
    """A progress display for work counted in bytes (size, speed, time), or not counted at all."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        _SizeColumn(),
        _SpeedColumn(),
        TimeElapsedColumn(),
        console=err,
    )


def step_progress() -> Progress:
    """A progress display for work counted in steps."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}", markup=False),
        TimeElapsedColumn(),
        console=err,
    )
