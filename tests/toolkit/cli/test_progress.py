"""Progress bars of the stages."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from lmsbuild import console
from lmsbuild.cli.progress import StageDisplay


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    text = io.StringIO()
    monkeypatch.setattr(console, "err", Console(file=text, width=100))
    return text


def test_stages_follow_each_other_to_their_end(shown: io.StringIO) -> None:
    with StageDisplay() as display:
        display.report("download torch", 0, None)  # the size is not known yet
        display.report("download torch", 40_000_000, 50_000_000)
        display.report("compile", 1, 3)
    lines = shown.getvalue().splitlines()
    assert "download torch" in lines[0]
    assert "50.0/50.0 MB" in lines[0]  # announced sizes are rounded: what is done is whole
    assert "3/3" in lines[1]


def test_a_failed_stage_stays_where_it_was(shown: io.StringIO) -> None:
    def fail() -> None:
        with StageDisplay() as display:
            display.report("write", 10_000_000, 50_000_000)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert "10.0/50.0 MB" in shown.getvalue()
