"""ci/lanes.py: parts of `make test`, several at a time."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from toolkit.helpers.ci_script import load

lanes = load("lanes")

# Says when it begins and ends in a file that all parts share.
COUNTED = """\
import sys, time
def tell(what):
    with open(sys.argv[1], "a") as file:
        file.write(what)
tell("+")
time.sleep(0.2)
tell("-")
"""

# One part waits until it is ended, and the next one waits for it.
INTERRUPTIBLE = """\
import signal, sys
from pathlib import Path

# A shell without job control starts what it does not wait for with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, sys.argv[1])
import lanes

WAITS = "import os, pathlib, time; pathlib.Path({!r}).write_text(str(os.getpid())); time.sleep(600)"
folder = lanes.LOGS = Path(sys.argv[2])
lanes.PARTS = (
    lanes.Part("waits", (sys.executable, "-c", WAITS.format(str(folder / "ready")))),
    lanes.Part("other", ("touch", str(folder / "other"))),
)
sys.exit(lanes.main(["--jobs", "1"]))
"""


def part(name: str, code: str, *arguments: str) -> object:
    return lanes.Part(name, (sys.executable, "-c", code, *arguments))


def test_each_log_is_printed_whole_and_the_chosen_one_last(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    code = "for number in range(3): print('{0}', number, flush=True)"
    parts = [part(name, code.format(name)) for name in ("last", "a", "b")]
    assert lanes.Lanes(tmp_path).run(parts, 2, "last") == 0
    out = capfdbinary.readouterr().out.decode()
    for name in ("a", "b", "last"):
        assert f"{name} 0\n{name} 1\n{name} 2\n" in out
        assert f"\n{name}: passed" in out
    assert out.endswith("last 0\nlast 1\nlast 2\n")


def test_a_part_that_fails_fails_the_whole_and_stops_no_other(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    parts = [
        part("bad", "raise SystemExit(3)"),
        part("killed", "import os; os.kill(os.getpid(), 9)"),
        part("good", "print('it ran')"),
    ]
    assert lanes.Lanes(tmp_path).run(parts, 1) == 1
    out = capfdbinary.readouterr().out.decode()
    assert "bad: failed (exit code 3)" in out
    assert "killed: failed (exit code -9)" in out
    assert "it ran\n" in out
    assert "good: passed" in out


@pytest.mark.parametrize("jobs", [1, 2])
def test_no_more_than_asked_for_run_at_once(tmp_path: Path, jobs: int) -> None:
    told = tmp_path / "told"
    parts = [part(str(number), COUNTED, str(told)) for number in range(5)]
    assert lanes.Lanes(tmp_path).run(parts, jobs) == 0
    text = told.read_text()
    assert sorted(text) == sorted("+-" * 5)
    running = [text[:end].count("+") - text[:end].count("-") for end in range(len(text))]
    assert max(running) <= jobs


def test_parts_share_the_processors(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes.os, "cpu_count", lambda: 8)
    code = "import os; print(os.environ['OMP_NUM_THREADS'], 'threads')"
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for jobs in (1, 3, 16):
        assert lanes.Lanes(tmp_path).run([part("shared", code)], jobs) == 0
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert lanes.Lanes(tmp_path).run([part("set", code)], 1) == 0
    out = capfdbinary.readouterr().out.decode().splitlines()
    assert [line for line in out if line.endswith(" threads")] == [
        f"{number} threads" for number in (8, 2, 1, 5)
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(tmp_path: Path, number: int) -> None:
    """No part is left running, and none is begun."""
    ready, other = tmp_path / "ready", tmp_path / "other"
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTIBLE)
    command = [sys.executable, str(script), str(Path(lanes.__file__).parent), str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    while not (ready.exists() and ready.read_text()) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(number)
    out, _ = process.communicate()
    assert process.returncode == lanes.INTERRUPTED
    assert out.endswith("interrupted\n")
    assert not Path("/proc", ready.read_text()).exists()
    assert not other.exists()


def test_a_part_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        lanes.main(["toolkits"])
    assert "no such part: toolkits" in capsys.readouterr().err


def test_the_last_part_is_one() -> None:
    assert lanes.LAST in [part.name for part in lanes.PARTS]
