"""What the user sees: results on standard output, everything else on standard error."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

# Paths and messages are printed as they are: never wrapped (a path broken over two lines
# cannot be copied), and square brackets in them are not markup.
out = Console(soft_wrap=True, markup=False, highlight=False)
err = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)


def say(message: str) -> None:
    """One line about what is being done."""
    err.print(message)


def warn(message: str) -> None:
    """One line about something that the user should look at."""
    err.print(f"warning: {message}", style="yellow")


def fail(message: str) -> None:
    """The one line of an error."""
    err.print(f"lmsbuild: error: {message}", style="red")


def transfer_progress() -> Progress:
    """A progress display for work counted in bytes: size, rate, time."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
        console=err,
    )


def step_progress() -> Progress:
    """A progress display for work counted in steps, or not counted at all."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}", markup=False),
        TimeElapsedColumn(),
        console=err,
    )
