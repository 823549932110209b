"""lmsbuild verify: whether a wheel keeps what LMS wheels promise."""

from __future__ import annotations

import zipfile
from pathlib import Path

import click
from rich.table import Table

from lmsbuild import console
from lmsbuild.cli.progress import StageDisplay
from lmsbuild.errors import VerifyError
from lmsbuild.wheel.verify import verify


@click.command("verify")
@click.argument("wheel", type=click.Path(path_type=Path))
@click.option(
    "--base",
    type=click.Path(path_type=Path),
    help="The official wheel, to compare with. [default: the hashes kept in WHEEL]",
)
def command(wheel: Path, base: Path | None) -> None:
    """Check WHEEL: RECORD true and complete, upstream's binaries untouched, symbols within its
    manylinux tag, one LMS library, the API present."""
    done, total = 0, _unpacked_size(wheel)
    with StageDisplay() as display:

        def advance(amount: int) -> None:
            nonlocal done
            done += amount
            display.report("check", done, total)

        checks = verify(wheel, base, advance)
    table = Table("check", "looked at", "result")
    for check in checks:
        table.add_row(check.name, check.detail, "FAILED" if check.problems else "ok")
    console.table(table)
    problems = [f"{check.name}: {problem}" for check in checks for problem in check.problems]
    for problem in problems:
        console.out.print(problem)
    if problems:
        raise VerifyError(
            f"{wheel.name} breaks {sum(bool(c.problems) for c in checks)} of "
            f"{len(checks)} promises; do not use it"
        )


def _unpacked_size(wheel: Path) -> int | None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return sum(info.file_size for info in archive.infolist())
    except (OSError, zipfile.BadZipFile):
        return None  # verify itself says what is wrong
