"""What a shell completes, and files that are not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from lmsbuild import resources
from lmsbuild.architecture import architectures
from lmsbuild.cli.main import main
from lmsbuild.registry import load_registry


def completed(*arguments: str, incomplete: str = "") -> list[str]:
    shell = ShellComplete(main, {}, "lmsbuild", "_LMSBUILD_COMPLETE")
    return [item.value for item in shell.get_completions(list(arguments), incomplete)]


@pytest.mark.parametrize("command", [["apply"], ["export"], ["wheel"], ["conda"], ["dev", "port"]])
def test_tags(command: list[str]) -> None:
    assert completed(*command) == [tag.name for tag in load_registry()]
    assert completed(*command, incomplete="v2.6") == ["v2.6.0"]


def test_architectures() -> None:
    assert completed("wheel", "--arch") == sorted(architectures())
    assert completed("wheel", "--arch", incomplete="aa") == ["aarch64"]


def test_pythons() -> None:
    everyones = completed("wheel", "--python")
    assert {"3.6", "3.12"} < set(everyones)
    assert everyones.index("3.9") < everyones.index("3.10")
    assert completed("wheel", "v2.6.0", "--python", incomplete="3.12") == ["3.12"]


def test_commands() -> None:
    assert completed(incomplete="ca") == ["cache"]
    assert completed("dev", incomplete="re") == ["refresh"]


def test_a_broken_installation_completes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path)
    assert completed("apply") == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "gone.whl"],
        ["verify", __file__, "--base", "gone.whl"],
        ["test", "gone.whl"],
        ["wheel", "--base", "gone.whl"],
        ["conda", "--wheel", "gone.whl"],
        ["conda", "--base", "gone.whl"],
        ["overlay", "DIR", "--torch", "gone"],
        ["channel", "add", "DIR", "gone.conda"],
        ["channel", "list", "gone"],
        ["channel", "index", "gone"],
        ["channel", "serve", "gone"],
        ["dev", "port", "v2.6.0", "v9.9.0", "--base", "gone.whl"],
        ["dev", "port", "v2.6.0", "v9.9.0", "--from-base", "gone.whl"],
    ],
)
def test_a_missing_file_is_wrong_usage(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "does not exist" in result.stderr
    assert not (tmp_path / "DIR").exists()
