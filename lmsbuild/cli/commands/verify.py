"""lmsbuild verify: whether a wheel keeps what LMS wheels promise."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from pathlib import Path

import click
from rich.table import Table

from lmsbuild import console
from lmsbuild.addon.verify import is_addon, verify_addon
from lmsbuild.cli.options import json_option
from lmsbuild.cli.progress import StageDisplay
from lmsbuild.cli.types import EXISTING_FILE
from lmsbuild.errors import VerifyError
from lmsbuild.wheel.verify import Check, verify


@click.command("verify")
@click.argument("wheel", type=EXISTING_FILE)
@click.option(
    "--base",
    type=EXISTING_FILE,
    help="The official wheel, to compare with. [default: the hashes kept in WHEEL]",
)
@json_option
def command(wheel: Path, base: Path | None, as_json: bool) -> None:
    """Check WHEEL: RECORD true and complete, upstream's binaries untouched, symbols within its
    manylinux tag, one LMS library, the API present. Of torch-lms: a library for each release, and
    nothing of upstream's."""
    done, total = 0, _unpacked_size(wheel)
    with StageDisplay() as display:

        def advance(amount: int) -> None:
            nonlocal done
            done += amount
            display.report("check", done, total)

        if is_addon(wheel):
            if base is not None:
                raise click.UsageError("torch-lms is made from no single wheel: leave --base out")
            checks = verify_addon(wheel, advance)
        else:
            checks = verify(wheel, base, advance)
    problems = [f"{check.name}: {problem}" for check in checks for problem in check.problems]
    if as_json:
        told = [dataclasses.asdict(check) for check in checks]
        document = {"wheel": str(wheel), "kept": not problems, "checks": told}
        click.echo(json.dumps(document, indent=2))
    else:
        _print(checks)
        for problem in problems:
            console.out.print(problem)
    if problems:
        raise VerifyError(
            f"{wheel.name} breaks {sum(bool(c.problems) for c in checks)} of "
            f"{len(checks)} promises; do not use it"
        )


def _print(checks: list[Check]) -> None:
    table = Table("check", "looked at", "result")
    for check in checks:
        table.add_row(check.name, check.detail, "FAILED" if check.problems else "ok")
    console.table(table)


def _unpacked_size(wheel: Path) -> int | None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return sum(info.file_size for info in archive.infolist())
    except (OSError, zipfile.BadZipFile):
        return None  # verify itself says what is wrong
