"""``lmsbuild dev matrix``: every tag built and tested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click

from lmsbuild import console
from lmsbuild.cli.maintained import maintained_patches, patches_option

# What every tag's patches are compared with; and what builds and tests its wheel.
_TESTS = (
    "tests/toolkit/checkout/test_round_trip.py",
    "tests/toolkit/port/test_wheel_facts.py",
)
_PROGRAM = "ci/torch_tests.py"


@click.command()
@patches_option
@click.option(
    "--report",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("build/matrix.md"),
    show_default=True,
    help="Where the table of results goes; below the checkout, unless the path is absolute.",
)
def command(patches: Path | None, report: Path) -> None:
    """Check, build and test every tag that has a wheel, as `make matrix` does.

    Takes hours, and needs what `make test` needs. --patches names the patches of a whole checkout.
    """
    root = maintained_patches(patches).resolve().parent
    if missing := [name for name in (*_TESTS, _PROGRAM) if not (root / name).is_file()]:
        raise click.UsageError(f"{root} is no checkout of lmsbuild: it has no {missing[0]}")
    (root / report).parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"LMS_EVERY_TAG": "1"}
    tests = [sys.executable, "-m", "pytest", "-q", *_TESTS]
    builds = [sys.executable, _PROGRAM, "--matrix", str(report)]
    for arguments, variables in ((tests, environment), (builds, None)):
        console.say(" ".join(arguments))
        done = subprocess.run(arguments, cwd=root, env=variables, check=False)
        if done.returncode:
            click.get_current_context().exit(1)
    console.out.print(str(root / report))
