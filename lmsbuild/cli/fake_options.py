"""Options of commands that run a program with fake tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from lmsbuild.cli.types import GPU, BytesType

Command = Callable[..., Any]


def fake_options(command: Command) -> Command:
    """Add --gpu, --python and --smallest."""
    for option in reversed(
        (
            click.option(
                "--gpu",
                type=GPU,
                metavar="GPU",
                default="h200",
                show_default=True,
                help="GPU whose rates give operators their times: h200, h100, a100, v100 or"
                " rtx4090.",
            ),
            click.option(
                "--python",
                type=click.Path(exists=True, dir_okay=False, path_type=Path),
                metavar="FILE",
                default=sys.executable,
                show_default="the one that runs lmsbuild",
                help="Interpreter that has torch (2.6 or later, without a GPU as well) and what the"
                " function needs.",
            ),
            click.option(
                "--smallest",
                type=BytesType(least=0),
                metavar="BYTES",
                default="1MiB",
                show_default=True,
                help="Smallest tensor that LMS moves, as in torch.cuda.set_size_lms().",
            ),
        )
    ):
        command = option(command)
    return command
