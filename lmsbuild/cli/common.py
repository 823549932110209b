"""Options that the group and every command have, before the command's name or after it."""

from __future__ import annotations

import click

from lmsbuild import console

_LEVEL = "lmsbuild.level"
_PROGRESS = "lmsbuild.progress"


def add_common_options(command: click.Command) -> click.Command:
    """Give a command -v, -q and --no-progress, unless it has them already."""
    if not any(parameter.name == "verbose" for parameter in command.params):
        command.params += [
            click.Option(
                ["-v", "--verbose"],
                count=True,
                expose_value=False,
                callback=_louder,
                help="Say more: which files and programs are used and, on failure, everything"
                " that is known.",
            ),
            click.Option(
                ["-q", "--quiet"],
                count=True,
                expose_value=False,
                callback=_quieter,
                help="Print only the result, warnings and errors; twice: no warnings.",
            ),
            click.Option(
                ["--no-progress"],
                is_flag=True,
                expose_value=False,
                callback=_without_progress,
                help="Draw no progress bars, as when the output is not a terminal.",
            ),
        ]
    return command


def _louder(context: click.Context, parameter: click.Parameter, count: int) -> None:
    context.meta[_LEVEL] = context.meta.get(_LEVEL, 0) + count
    _configure(context)


def _quieter(context: click.Context, parameter: click.Parameter, count: int) -> None:
    _louder(context, parameter, -count)


def _without_progress(context: click.Context, parameter: click.Parameter, given: bool) -> None:
    context.meta[_PROGRESS] = context.meta.get(_PROGRESS, True) and not given
    _configure(context)


def _configure(context: click.Context) -> None:
    # A context's meta is its parents', too: what stands before a command's name adds to what
    # stands after it.
    console.configure(level=context.meta.get(_LEVEL, 0), progress=context.meta.get(_PROGRESS, True))
    if context.parent is None:
        context.call_on_close(console.configure)
