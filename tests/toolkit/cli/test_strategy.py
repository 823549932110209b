"""lmsbuild wheel --strategy: what auto takes, and what it says."""

from __future__ import annotations

import json
import platform

import pytest
from click.testing import CliRunner, Result

from lmsbuild.cli.main import main
from lmsbuild.cli.source_options import choose_strategy
from lmsbuild.errors import MissingBaseError, WrongPlatformError
from lmsbuild.registry import load_registry

MACHINE = platform.machine()
PYTHON = ("--python", "3.12")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["wheel", *arguments])


@pytest.mark.parametrize(
    ("tag", "architecture", "base", "strategy", "reason"),
    [
        ("v2.6.0", "x86_64", False, "graft", "onto the official wheel"),
        ("v2.6.0", "ppc64le", True, "graft", "onto the given base"),
        ("v2.6.0", "ppc64le", False, "source", "no official CUDA wheel for ppc64le; --base"),
        ("v1.4.0", "x86_64", False, "source", "v1.4.0 can only be built from source"),
        ("v1.4.0", "x86_64", True, "source", "v1.4.0 can only be built from source"),
    ],
)
def test_auto(
    tag: str,
    architecture: str,
    base: bool,
    strategy: str,
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = choose_strategy("auto", load_registry().get(tag), architecture, base=base)
    assert chosen == strategy
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"strategy: {strategy}, ")
    assert reason in line


def test_what_is_asked_for_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    tag = load_registry().get("v1.4.0")
    assert choose_strategy("graft", tag, "x86_64", base=False) == "graft"
    assert capsys.readouterr().err == ""


def test_tags_says_what_auto_takes() -> None:
    records = json.loads(CliRunner().invoke(main, ["tags", "--json"]).stdout)
    autos = {record["name"]: record["auto"] for record in records}
    assert (autos["v1.4.0"], autos["v2.6.0"]) == ("source", "graft")


def test_a_dry_run_of_a_graft() -> None:
    result = run("v2.6.0", "--dry-run", "--arch", MACHINE, *PYTHON)
    assert result.exit_code == 0, result.output
    title, *rows = result.stdout.splitlines()
    assert title == f"v2.6.0 for CPython 3.12 on {MACHINE}, by graft"
    assert "  base       torch==2.6.0" in rows
    assert "strategy: graft" in result.stderr


def test_a_dry_run_as_json() -> None:
    document = json.loads(run("v2.6.0", "--dry-run", "--json", *PYTHON).stdout)
    assert (document["tag"], document["strategy"]) == ("v2.6.0", "graft")
    assert (document["python"], document["base"]) == ("3.12", "torch==2.6.0")
    assert document["header_packages"] == list(load_registry().get("v2.6.0").header_packages)


def test_graft_alone_is_refused_where_it_cannot_be() -> None:
    only = ("--strategy", "graft", "--dry-run")
    assert run("v1.4.0", *only).exit_code == WrongPlatformError.exit_code
    assert run("v2.6.0", "--arch", "ppc64le", *only).exit_code == MissingBaseError.exit_code
