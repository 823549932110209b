"""The commands that the documentation shows for a recording, run on one."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from lmsbuild.cli.main import main
from lmsbuild.simulate.planner import Planner
from tests.toolkit.simulate.traces import RESNET50

DOCS = Path(__file__).parents[3] / "docs"
SHOWN = re.compile(r"^ *\$ lmsbuild (\w+ trace\.json\.gz.*)$", re.MULTILINE)
COMMANDS = sorted(
    {c for page in DOCS.rglob("*.md") for c in SHOWN.findall(page.read_text("utf-8"))}
)


def test_there_are_commands() -> None:
    assert {command.split()[0] for command in COMMANDS} == {"report", "simulate", "tune"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command(
    command: str, compiled: Planner, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, *arguments = shlex.split(command)
    monkeypatch.setattr(f"lmsbuild.cli.commands.{name}.default_cache", lambda: cache)
    monkeypatch.chdir(tmp_path)
    shutil.copy(RESNET50, "trace.json.gz")
    result = CliRunner().invoke(main, [name, *arguments])
    assert result.exit_code == 0, result.output
    assert result.stdout
    files = [file for option, file in itertools.pairwise(arguments) if option == "--out"]
    assert all(Path(file).stat().st_size for file in files)
