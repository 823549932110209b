"""-v, -q and --no-progress, before a command's name and after it; tables in a pipe."""

from __future__ import annotations

import io
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner, Result
from rich.console import Console
from rich.table import Table

from lmsbuild import console
from lmsbuild.cli.common import add_common_options
from lmsbuild.cli.main import CommandGroup, main


def commands(group: click.Group, *names: str) -> Iterator[tuple[str, ...]]:
    """The names of every command, and of those in groups."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*names, name)
        if isinstance(command, click.Group):
            yield from commands(command, *names, name)


@pytest.mark.parametrize("names", [(), *commands(main)], ids=" ".join)
def test_every_command_has_them(names: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*names, "--help"])
    assert result.exit_code == 0
    for option in ("-v, --verbose", "-q, --quiet", "--no-progress"):
        assert result.stdout.count(option) == 1


@pytest.fixture
def talking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that says something of every kind."""

    @click.command()
    def talk() -> None:
        console.detail("detail")
        console.say("line")
        console.warn("careful")
        console.out.print(f"result {console._settings.progress}")

    monkeypatch.setattr(CommandGroup, "get_command", lambda *_: add_common_options(talk))


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.usefixtures("talking")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["talk"], ["line", "warning: careful"]),
        (["-v", "talk"], ["detail", "line", "warning: careful"]),
        (["talk", "--verbose"], ["detail", "line", "warning: careful"]),
        (["-q", "talk"], ["warning: careful"]),
        (["talk", "--quiet"], ["warning: careful"]),
        (["talk", "-qq"], []),
        (["-q", "talk", "-q"], []),
        (["-v", "talk", "-q"], ["line", "warning: careful"]),
    ],
)
def test_as_much_is_said_as_is_asked_for(arguments: list[str], said: list[str]) -> None:
    result = run(*arguments)
    assert result.stderr.splitlines() == said
    assert result.stdout == "result True\n"


@pytest.mark.usefixtures("talking")
@pytest.mark.parametrize("arguments", [["--no-progress", "talk"], ["talk", "--no-progress"]])
def test_no_progress(arguments: list[str]) -> None:
    assert run(*arguments).stdout == "result False\n"


@pytest.mark.usefixtures("talking")
def test_the_next_call_begins_anew() -> None:
    run("talk", "-qq", "--no-progress")
    assert run("talk").stderr == "line\nwarning: careful\n"
    assert console.shows_progress() == console.err.is_terminal


def test_a_table_in_a_pipe_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setattr(console, "out", Console(file=text, soft_wrap=True))
    monkeypatch.delenv("COLUMNS", raising=False)
    table = Table("name", "why")
    table.add_row("x" * 90, "word " * 30)
    console.table(table)
    assert "x" * 90 in text.getvalue()
    assert ("word " * 30).strip() in text.getvalue()
    assert "…" not in text.getvalue()
