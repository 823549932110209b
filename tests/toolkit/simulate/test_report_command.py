"""``lmsbuild report``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from lmsbuild.cli.main import main
from lmsbuild.errors import TraceError
from lmsbuild.simulate.planner import Planner
from tests.toolkit.simulate.traces import MB, adam

SMALL = ("--gpu-memory", "60M", "--link", "1G")


@pytest.fixture
def trace(compiled: Planner, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("lmsbuild.cli.commands.report.default_cache", lambda: cache)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    return str(adam().write(tmp_path / "in" / "adam.json.gz"))


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(main, ["report", *arguments])
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def test_a_page_by_default(trace: str, tmp_path: Path) -> None:
    out, _ = run(trace, *SMALL)
    assert out.startswith("With 60.0 MB of GPU memory")
    assert out.endswith("\nwrote adam.html\n")
    assert (tmp_path / "adam.html").read_text("utf-8").startswith("<!DOCTYPE html>")


def test_files(trace: str, tmp_path: Path) -> None:
    names = ["a.html", "b.png", "c.txt", "d.json", "e.json.gz"]
    out, _ = run(trace, *SMALL, *(word for name in names for word in ("--out", name)))
    assert [line for line in out.splitlines() if line.startswith("wrote")] == [
        f"wrote {name}" for name in names
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names, "in"]
    assert out.startswith((tmp_path / "c.txt").read_text("utf-8"))


def test_numbers_only(trace: str, tmp_path: Path) -> None:
    out, err = run(trace, *SMALL, "--json")
    told = json.loads(out)
    assert (told["gpu_memory"], told["link_out"], told["fits"]) == (60 * MB, 1e9, False)
    assert err == ""
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_the_trace_has_a_limit(trace: str) -> None:
    out, _ = run(trace)
    assert out.startswith("LMS is not necessary: ")


def test_compression(trace: str) -> None:
    """Of planned transfers only."""
    copied = json.loads(run(trace, *SMALL, "--json")[0])
    packed = json.loads(run(trace, *SMALL, "--json", "--compressed", "0.45")[0])
    assert (copied["compressed"], packed["compressed"]) == (1, 0.45)
    assert packed["link_out"] == copied["link_out"]
    assert packed["planned"]["seconds"] < copied["planned"]["seconds"]
    assert packed["on_demand"] == copied["on_demand"]
    for before, point in zip(copied["points"], packed["points"], strict=True):
        assert point["planned_seconds"] <= before["planned_seconds"]
        assert point["on_demand_seconds"] == before["on_demand_seconds"]
    assert packed["points"][0] != copied["points"][0]
    out, _ = run(trace, *SMALL, "--compressed", "0.45")
    assert "1 GB/s, planned transfers compressed to 45 % (1.0 GB/s out, 1.0 GB/s in)" in out


def test_the_trace_is_not_replaced(trace: str, tmp_path: Path) -> None:
    before = Path(trace).read_bytes()
    _, err = run(trace, "--out", "in/../in/adam.json.gz", code=2)
    assert "would replace the trace" in err
    assert Path(trace).read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--out", "x.pdf"), 2, "x.pdf: the name has to end with .html (a page), "),
        (("--out", "no/x.html"), 2, "there is no folder no"),
        (("--link", "usb"), 2, "'usb' is neither a link"),
        (("--link-out", "0"), 2, "'0' has to be at least 1"),
        (("--gpu-memory", "0"), 2, "'0' has to be at least 1"),
        (("--gpu-memory", "20M"), TraceError.exit_code, "alone needs 33000000 bytes"),
    ],
)
def test_mistakes(
    arguments: tuple[str, ...], code: int, message: str, trace: str, tmp_path: Path
) -> None:
    _, err = run(trace, *arguments, code=code)
    assert message in err
    assert [path.name for path in tmp_path.iterdir()] == ["in"], "nothing is written"


def test_no_picture_without_matplotlib(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    _, err = run(trace, *SMALL, "--out", "a.html", "--out", "b.png", code=5)
    (line,) = err.splitlines()
    assert line.startswith("lmsbuild: error: a PNG needs matplotlib: pip install matplotlib")
    assert [path.name for path in tmp_path.iterdir()] == ["in"], "nothing is written"


def test_host_memory(trace: str, tmp_path: Path) -> None:
    out, _ = run(trace, *SMALL, "--json", "--host-memory", "1G")
    told = json.loads(out)
    assert told["host_memory"] == 1000 * MB
    assert 0 < told["host_least_bytes"] < told["host_most_bytes"] < 200 * MB
    _, err = run(trace, *SMALL, "--host-memory", "1M", code=TraceError.exit_code)
    assert "does not fit: what is swapped needs" in err
    assert [path.name for path in tmp_path.iterdir()] == ["in"], "nothing is written"
