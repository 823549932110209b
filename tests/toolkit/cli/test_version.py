"""lmsbuild --version: the release, the runtime's interface, and the commit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import lmsbuild
from lmsbuild import resources
from lmsbuild.cli.main import main
from lmsbuild.wheel import provenance

ROOT = Path(lmsbuild.__file__).parent.parent


def line() -> str:
    result = CliRunner().invoke(main, ["--version"])
    assert result.exit_code == 0
    return result.stdout.rstrip("\n")


def test_in_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "toolkit_commit", lambda: "1a2b3c-dirty")
    source = (ROOT / "patches/runtime/torch/cuda/lms/__init__.py").read_text("utf-8")
    (abi,) = re.findall(r"^_ABI_VERSION = (\d+)$", source, re.MULTILINE)
    assert line() == f"lmsbuild {lmsbuild.__version__}, runtime ABI {abi}, commit 1a2b3c-dirty"


def test_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "toolkit_commit", lambda: "unknown")
    assert line().endswith(", unknown commit")


def test_without_patches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path / "lmsbuild")
    assert ", runtime ABI unknown, " in line()
