"""How far a long step is: what a command shows, and what the layers below it tell."""

from __future__ import annotations

from collections.abc import Callable

# report(stage, done, total): bytes, but for the stage "compile", which counts files. The total
# is None while unknown.
Report = Callable[[str, int, "int | None"], None]


def counter(stage: str, total: int, report: Report) -> Callable[[int], None]:
    """Turns increments into the running sum that ``report`` takes."""
    done = 0

    def advance(amount: int) -> None:
        nonlocal done
        done += amount
        report(stage, done, total)

    return advance


def prefixed(stage: str, report: Report) -> Report:
    """Tells ``report`` of the stage's parts: "download torch"."""
    return lambda what, done, total: report(f"{stage} {what}", done, total)
