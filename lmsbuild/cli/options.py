"""Options that several commands have."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from lmsbuild.cli.types import ARCHITECTURE, PYTHON

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def is_given(name: str) -> bool:
    """Whether the command line of the running command has this option."""
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--json: one JSON object on standard output, and nothing else there."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(function)


def architecture_option(made: str) -> Decorator:
    """--arch of what is made ("wheel"): this machine's, unless it says another."""
    return click.option(
        "--arch",
        "architecture",
        type=ARCHITECTURE,
        metavar="NAME",
        default=platform.machine,
        show_default="this machine's",
        help=f"Architecture of the {made}.",
    )


def python_option(made: str) -> Decorator:
    """--python of what is made; None unless it is given."""
    return click.option(
        "--python",
        "python",
        type=PYTHON,
        metavar="X.Y",
        help=f"CPython version of the {made}. [default: the base's, or the running one]",
    )
