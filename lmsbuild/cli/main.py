"""The command line: finds the commands, and turns failures into one line and an exit code."""

from __future__ import annotations

import copy
import errno
import io
import signal
import sys
import traceback
from types import FrameType
from typing import Any, NoReturn

import click

from lmsbuild import console
from lmsbuild.cli import commands
from lmsbuild.cli.common import add_common_options
from lmsbuild.cli.lazy import LazyGroup
from lmsbuild.cli.version import version_option
from lmsbuild.errors import (
    FileAccessError,
    LmsbuildError,
    NoSpaceError,
    NotWritableError,
)

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
EXIT_INTERNAL = 70  # EX_SOFTWARE: a bug in lmsbuild itself


# Commands that were the group's own once, and where they are now.
_MOVED = {"port": "dev port", "refresh": "dev refresh"}


class CommandGroup(LazyGroup):
    """Turns what a command raises into one line and an exit code."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _MOVED:
            return self._moved(ctx, cmd_name)
        return super().get_command(ctx, cmd_name)

    def _moved(self, ctx: click.Context, name: str) -> click.Command | None:
        """A command under the name that it had, which says the new one. No help lists it."""
        group_name, new_name = _MOVED[name].split()
        group = super().get_command(ctx, group_name)
        assert isinstance(group, click.Group)
        found = group.get_command(ctx, new_name)
        assert found is not None
        moved = copy.copy(found)
        moved.hidden = True
        callback = found.callback
        assert callback is not None

        def call(*arguments: Any, **options: Any) -> Any:
            console.warn(
                f"`lmsbuild {name}` is deprecated and will be removed: it is"
                f" `lmsbuild {_MOVED[name]}` now"
            )
            return callback(*arguments, **options)

        moved.callback = call
        return moved

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            # Click's own business; so is a reader that went away (`lmsbuild tags | head -1`).
            raise
        except KeyboardInterrupt:
            console.err.print("lmsbuild: interrupted")
            ctx.exit(EXIT_INTERRUPTED)
        except Exception as error:
            failure = describe(error)
            if failure is None:
                _report_bug(error)
                ctx.exit(EXIT_INTERNAL)
            _report(failure)
            ctx.exit(failure.exit_code)


def describe(error: Exception) -> LmsbuildError | None:
    """The error as one of ours, or None when it can only be a bug."""
    if isinstance(error, LmsbuildError):
        return error
    if not isinstance(error, OSError):
        return None
    where = error.filename or "a file"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        # Of a copy, the second name is what is written.
        where = error.filename2 or where
        failure: LmsbuildError = NoSpaceError(
            f"no disk space left while writing {where}; free some, or name another directory"
        )
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        failure = NotWritableError(
            f"{where}: {error.strerror}; check its permissions, or name another directory"
        )
    else:
        failure = FileAccessError(f"{where}: {error.strerror or error}")
    failure.__cause__ = error
    return failure


def _report(failure: LmsbuildError) -> None:
    console.fail(failure.message)
    if console.is_verbose():
        if failure.detail:
            console.err.print(failure.detail.rstrip())
        console.err.print("".join(traceback.format_exception(failure)).rstrip())


def _report_bug(error: Exception) -> None:
    summary = " ".join(f"{type(error).__name__}: {error}".split())
    if console.is_verbose():
        console.err.print("".join(traceback.format_exception(error)).rstrip())
    hint = "please report it" if console.is_verbose() else "run again with --verbose and report it"
    console.fail(f"this is a bug in lmsbuild, {hint} ({summary})")


@click.group(
    cls=CommandGroup,
    package=commands,
    context_settings={"help_option_names": ["-h", "--help"]},
)
def main() -> None:
    """PyTorch with Large Model Support: patch sources, build wheels, check what was built."""
    # What the terminal's encoding lacks, a path perhaps, is no reason to fail when all is done.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # So that cleaning up is not left out when a batch system or `kill` ends lmsbuild.
    signal.signal(signal.SIGTERM, _terminate)


add_common_options(main)
version_option(main)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
