"""lmsbuild test: the out-of-memory suite on a wheel."""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild import console
from lmsbuild.cli.types import EXISTING_FILE
from lmsbuild.resources import tests_dir
from lmsbuild.tools.cache import default_cache
from lmsbuild.tools.cache_content import in_use
from lmsbuild.wheel.suite import Device, run_suite


@click.command("test", context_settings={"ignore_unknown_options": True})
@click.argument("wheel", type=EXISTING_FILE)
@click.argument("pytest_arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--device",
    type=click.Choice([device.value for device in Device]),
    default=Device.AUTO.value,
    show_default=True,
    help="auto: the GPU when there is one.",
)
def command(wheel: Path, pytest_arguments: tuple[str, ...], device: str) -> None:
    """Install WHEEL in a clean environment and train models there that do not fit.

    What follows WHEEL goes to pytest, such as -k gpt or -x. Write -- before options that lmsbuild
    has too, such as pytest's own -v, -q and -h: lmsbuild test WHEEL -- -v
    """
    runs = ("suite", *pytest_arguments)
    with in_use(default_cache()) as cache:
        run_suite(wheel, Device(device), tests_dir(), cache, console.say, [runs])
