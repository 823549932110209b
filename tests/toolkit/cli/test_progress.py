"""Progress bars of the stages."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from rich.progress import Progress

from lmsbuild import console
from lmsbuild.cli.progress import StageDisplay, counted


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What is written to a terminal."""
    text = io.StringIO()
    monkeypatch.setattr(
        console, "err", Console(file=text, width=100, force_terminal=True, highlight=False)
    )
    return text


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    text = io.StringIO()
    monkeypatch.setattr(console, "err", Console(file=text, width=100))
    return text


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages take no time, also where other programs take the processors."""
    monkeypatch.setattr("lmsbuild.cli.progress.time.monotonic", lambda: 1000.0)


def build() -> None:
    with StageDisplay() as display:
        display.report("download torch", 0, None)  # the size is not known yet
        display.report("download torch", 40_000_000, 50_000_000)
        display.report("compile", 1, 3)


def fail() -> None:
    with StageDisplay() as display:
        display.report("write", 10_000_000, 50_000_000)
        raise KeyError


def test_a_stage_that_is_not_counted(shown: io.StringIO) -> None:
    with StageDisplay() as display:
        display.report("package", 0, None)
    text = shown.getvalue()
    assert "package" in text
    assert "0:00:00" in text
    assert "bytes" not in text
    assert "?" not in re.sub(r"\x1b\[\?25[lh]", "", text)  # but for hiding the cursor


def test_a_stage_that_is_not_counted_in_a_pipe(piped: io.StringIO) -> None:
    with StageDisplay() as display:
        display.report("package", 0, None)
    assert re.fullmatch(r"package: \d+ s\n", piped.getvalue())


def test_the_speed_is_that_of_the_whole_stage(
    shown: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of the last files alone, which may be small."""
    clock = 1000.0
    monkeypatch.setattr("lmsbuild.cli.progress.time.monotonic", lambda: clock)
    made = console.transfer_progress

    def with_our_clock() -> Progress:
        progress = made()
        progress.get_time = lambda: clock
        return progress

    monkeypatch.setattr(console, "transfer_progress", with_our_clock)
    size, files = 500_000_000, 5000
    with StageDisplay() as display:
        for part in range(2):
            clock += 1
            display.report("check", part * size, 2 * size + files)
        for done in range(files):
            clock += 0.001
            display.report("check", 2 * size + done + 1, 2 * size + files)
    speed = re.findall(r"([\d.]+) MB/s", shown.getvalue())[-1]
    assert 50 < float(speed) < 1000


def test_stages_follow_each_other_to_their_end(shown: io.StringIO) -> None:
    build()
    text = shown.getvalue()
    assert "50.0/50.0 MB" in text  # announced sizes are rounded: what is done is whole
    assert "3/3" in text
    assert text.rindex("download torch") < text.index("compile")


def test_a_failed_stage_stays_where_it_was(shown: io.StringIO) -> None:
    with pytest.raises(KeyError):
        fail()
    assert "10.0/50.0 MB" in shown.getvalue()
    assert "50.0/50.0 MB" not in shown.getvalue()


@pytest.mark.usefixtures("still")
def test_in_a_pipe_a_stage_is_one_line(piped: io.StringIO) -> None:
    build()
    assert piped.getvalue() == "download torch: 50.0 MB, 0 s\ncompile: 3 files, 0 s\n"


def test_in_a_pipe_a_failed_stage_is_no_line(piped: io.StringIO) -> None:
    with pytest.raises(KeyError):
        fail()
    assert piped.getvalue() == ""


@pytest.mark.usefixtures("still")
def test_without_progress_a_terminal_gets_lines(
    shown: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "_settings", console._Settings(progress=False))
    build()
    assert shown.getvalue() == "download torch: 50.0 MB, 0 s\ncompile: 3 files, 0 s\n"


def test_quiet_stages_are_not_shown(shown: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_settings", console._Settings(level=-1))
    build()
    assert shown.getvalue() == ""


def test_a_bar_counts_what_is_done(shown: io.StringIO) -> None:
    assert list(counted("simulate", [1, 2, 3])) == [1, 2, 3]
    assert "simulate" in shown.getvalue()
    assert "3/3" in shown.getvalue()


def test_no_bar_for_one_item(shown: io.StringIO) -> None:
    assert list(counted("simulate", [1])) == [1]
    assert shown.getvalue() == ""


def test_no_bar_in_a_pipe(piped: io.StringIO) -> None:
    assert list(counted("simulate", [1, 2, 3])) == [1, 2, 3]
    assert piped.getvalue() == ""
