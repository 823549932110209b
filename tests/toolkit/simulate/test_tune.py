"""``lmsbuild tune``, and the searches behind it."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from lmsbuild.cli.main import main
from lmsbuild.errors import ProgramError
from lmsbuild.simulate import tune
from lmsbuild.simulate.link import Link
from lmsbuild.simulate.planner import Planner, Simulation
from lmsbuild.simulate.trace import Trace, parse_trace
from lmsbuild.simulate.tune import Attempt, Conditions, attempt, largest_value, smallest_memory
from tests.toolkit.simulate.traces import MB, Recording

SLOW = Link(title="", out_rate=1e9, in_rate=1e9)
MEMORY = 100 * MB


def batches(size: int) -> Recording:
    """Six layers of 1 MB, with half a MB of activations for each item of a batch."""
    recording = Recording()
    weights = [recording.block("known", MB) for _ in range(6)]
    for _ in range(3):
        saved: list[int] = []
        for weight in weights:
            recording.operator("forward", weight, *saved[-1:])
            saved.append(recording.block("allocated", size * MB // 2))
        for weight in reversed(weights):
            recording.operator("backward", saved[-1], writes=(weight,))
            recording.free(saved.pop())
        recording.step()
    return recording


def record(size: int) -> Trace:
    return parse_trace(batches(size).trace())


@pytest.mark.parametrize(
    "conditions",
    [
        Conditions(link=SLOW),
        Conditions(link=SLOW, host_memory=80 * MB),
        Conditions(link=SLOW, slowdown=1.5),
    ],
)
@pytest.mark.parametrize("values", [range(1, 400), range(3, 400, 7), range(2, 200, 64)])
def test_the_largest_value(values: range, conditions: Conditions, compiled: Planner) -> None:
    found = largest_value(compiled, record, MEMORY, conditions, values)

    def at(value: int) -> Attempt:
        return attempt(compiled, record(value), MEMORY, conditions)

    assert found.without_lms is not None
    assert values[0] <= found.without_lms <= found.with_lms < values[-1]
    assert at(found.with_lms).simulation is not None
    assert at(found.with_lms + values.step).simulation is None
    assert at(found.without_lms).fits_without_lms
    assert not at(found.without_lms + values.step).fits_without_lms
    assert len(found.tried) <= 20


FITS = Attempt(peak_bytes=0, simulation=cast("Simulation", SimpleNamespace(fits=False)), problem="")
TOO_SLOW = Attempt(peak_bytes=0, simulation=None, problem="too slow")


@pytest.mark.parametrize(
    ("islands", "largest"),
    [
        ((), 100),
        (range(104, 106), 105),  # 5 % above; the ones after it do not fit
        (range(102, 104), 103),  # 2 % above, and the last of its neighbours
        ((105, 109), 109),  # from one to the next
        ((*range(102, 106), *range(110, 201)), 200),
    ],
)
def test_larger_values_that_are_fast_again(
    islands: Iterable[int], largest: int, compiled: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan for less memory can be the better one."""
    fits = {*range(1, 101), *islands}

    def attempted(planner: Planner, value: Any, *_: object) -> Attempt:
        return FITS if value in fits else TOO_SLOW

    monkeypatch.setattr(tune, "attempt", attempted)
    found = largest_value(
        compiled, cast("Any", int), MEMORY, Conditions(link=SLOW, slowdown=1.5), range(1, 1000)
    )
    assert found.with_lms == largest
    assert found.tried[largest + 1] is TOO_SLOW
    assert len(found.tried) <= 40


def test_less_memory_that_is_fast_again(compiled: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    def attempted(planner: Planner, trace: Trace, amount: int, conditions: Conditions) -> Attempt:
        return FITS if amount > 100 * MB or 94 * MB < amount < 96 * MB else TOO_SLOW

    monkeypatch.setattr(tune, "attempt", attempted)
    least, _ = smallest_memory(compiled, record(40), Conditions(link=SLOW, slowdown=1.5))
    assert 94 * MB < least < 94.3 * MB


def test_nothing_fits_without_lms(compiled: Planner) -> None:
    found = largest_value(compiled, record, MEMORY, Conditions(link=SLOW), range(60, 200))
    assert found.without_lms is None
    assert found.with_lms > 60


def test_nothing_fits(compiled: Planner) -> None:
    with pytest.raises(ProgramError, match=r"not even 300 fits: operator .* alone needs"):
        largest_value(compiled, record, MEMORY, Conditions(link=SLOW), range(300, 400))
    tight = Conditions(link=SLOW, slowdown=1.01)
    with pytest.raises(ProgramError, match=r"not even 60 fits: it would take [\d.]+ times as long"):
        largest_value(compiled, record, MEMORY, tight, range(60, 400))


def test_what_does_not_fit_is_said_once(compiled: Planner) -> None:
    little = Conditions(link=SLOW, host_memory=MB)
    found = attempt(compiled, record(60), MEMORY, little)
    assert found.problem.startswith("what is swapped needs ")
    with pytest.raises(ProgramError, match=r"^not even 60 fits: what is swapped needs .* --low"):
        largest_value(compiled, record, MEMORY, little, range(60, 400))


def test_everything_fits(compiled: Planner) -> None:
    with pytest.raises(
        ProgramError, match=r"20, the largest value that was tried, fits; .* --high"
    ):
        largest_value(compiled, record, MEMORY, Conditions(link=SLOW), range(1, 21))


@pytest.mark.parametrize(
    ("conditions", "low", "high"),
    [
        (Conditions(link=SLOW), 43, 45),  # what the largest operator needs: two times 20 MB, and 2
        (Conditions(link=SLOW, slowdown=1.0), 128, 136),
        (Conditions(link=SLOW, host_memory=30 * MB), 70, 128),
    ],
)
def test_the_smallest_memory(
    conditions: Conditions, low: int, high: int, compiled: Planner
) -> None:
    trace = record(40)
    least, enough = smallest_memory(compiled, trace, conditions)
    assert low * MB <= least <= high * MB
    assert attempt(compiled, trace, least, conditions).simulation is not None
    assert attempt(compiled, trace, least - enough // 500, conditions).simulation is None
    assert attempt(compiled, trace, enough, conditions).fits_without_lms
    assert not attempt(compiled, trace, enough - 3, conditions).fits_without_lms


def test_progress(compiled: Planner) -> None:
    said: list[tuple[str, int, int]] = []
    largest_value(
        compiled,
        record,
        MEMORY,
        Conditions(link=SLOW),
        range(1, 500),
        lambda *far: said.append(far),
    )
    assert [done for _, done, _ in said] == list(range(len(said)))
    assert said[0][0] == "tune: 1"
    assert all(left > 0 for _, _, left in said)


# The command ----------------------------------------------------------------------------------

INTERPRETER = """#!{python}
import json, sys
for line in sys.stdin:
    (value,) = json.loads(line)["arguments"]
    if value > 100:
        print(json.dumps(dict(error="IndexError: too large", traceback="where")), flush=True)
    else:
        print(open("{folder}/%d.json" % value).read(), flush=True)
"""


@pytest.fixture
def interpreter(
    tmp_path: Path, cache: Path, compiled: Planner, monkeypatch: pytest.MonkeyPatch
) -> str:
    for size in range(1, 101):
        batches(size).write(tmp_path / f"{size}.json")
    path = tmp_path / "python"
    path.write_text(INTERPRETER.format(python=sys.executable, folder=tmp_path))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr("lmsbuild.cli.commands.tune.default_cache", lambda: cache)
    return str(path)


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(main, ["tune", *arguments, "--link", "1G"])
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def test_the_command(interpreter: str, compiled: Planner) -> None:
    program = ("train:make", "--python", interpreter, "--gpu-memory", "60M")
    out, err = run(*program)
    expected = largest_value(compiled, record, 60 * MB, Conditions(link=SLOW), range(1, 65537))
    rows = {" ".join(line.split()[:2]): line.split() for line in out.splitlines()}
    assert rows["without LMS"][2] == str(expected.without_lms)
    assert rows["with LMS"][2] == str(expected.with_lms)
    assert f"{expected.with_lms + 1} does not fit: operator" in out
    # Twelve operators of 1 ms.
    assert expected.without_lms is not None
    assert f" 12.0 ms {12e3 / expected.without_lms:.1f} µs " in " ".join(rows["without LMS"])
    assert err == ""
    out, _ = run(*program, "--json", "--low", "4", "--step", "4", "--gpu", "a100")
    told = json.loads(out)
    assert told["gpu"] == "NVIDIA A100 SXM, 80 GB"
    assert told["with_lms"]["value"] == expected.with_lms // 4 * 4
    assert told["with_lms"]["planned"]["bytes_out"] > 0
    assert told["without_lms"]["value"] < told["with_lms"]["value"]
    assert {tried["value"] % 4 for tried in told["tried"]} == {0}


def test_a_program_that_refuses_larger_values(interpreter: str) -> None:
    """Or that dies of them: the values in between are tried all the same."""
    out, _ = run("train:make", "--python", interpreter)
    assert "101 does not fit: train:make(101) failed with fake tensors: IndexError: too la" in out
    told = json.loads(run("train:make", "--python", interpreter, "--json")[0])
    assert told["with_lms"]["value"] == 100
    refused = next(tried for tried in told["tried"] if tried["value"] == 101)
    assert refused["peak_bytes"] is None
    assert refused["problem"].endswith("IndexError: too large")
    program = Path(interpreter)
    program.write_text(program.read_text().replace("print(json.dumps(dict(error", "sys.exit(1)  #"))
    told = json.loads(run("train:make", "--python", interpreter, "--json")[0])
    assert told["with_lms"]["value"] == 100


def test_the_smallest_gpu(interpreter: str, tmp_path: Path) -> None:
    out, _ = run("train:make", "--python", interpreter, "--value", "40")
    assert out.startswith("without LMS: 0.13 GB of GPU memory, 12.0 ms\nwith LMS: 0.04 GB of GPU")
    told = json.loads(run(str(tmp_path / "40.json"), "--json", "--slowdown", "2")[0])
    assert told["gpu"] == "A GPU"
    assert 43 * MB < told["smallest_gpu_memory"] < told["smallest_gpu_memory_without_lms"]
    assert told["planned"]["seconds"] <= 2 * told["compute_seconds"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("train",), 2, "'train' is not MODULE:FUNCTION, such as train:make"),
        (("no/trace.json.gz",), 2, "there is no file no/trace.json.gz"),
        (("trace.json",), 2, "there is no file trace.json"),
        (("train:make", "--low", "3", "--high", "2"), 2, "--low is 3, and --high 2"),
        (("train:make", "--slowdown", "0.5"), 2, "0.5 is not in the range x>=1"),
        (("train:make", "--gpu-memory", "2M"), 3, "not even 1 fits: operator"),
        (("train:make", "--low", "120"), 3, "train:make(120) failed with fake tensors: IndexErr"),
        (("train:make", "--high", "90"), 3, "90, the largest value that was tried, fits"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], code: int, message: str, interpreter: str) -> None:
    _, err = run(*arguments, "--python", interpreter, code=code)
    assert message in err


@pytest.mark.parametrize(
    ("what", "options", "message"),
    [
        ("trace", ["--gpu-memory", "16G"], "--gpu-memory has no effect with a TRACE"),
        ("trace", ["--low", "2"], "--low has no effect with a TRACE"),
        ("m:f", ["--value", "2", "--gpu-memory", "16G"], "--gpu-memory has no effect with --value"),
        ("m:f", ["--value", "2", "--high", "9"], "--high has no effect with --value"),
    ],
)
def test_options_of_another_question(
    what: str, options: list[str], message: str, tmp_path: Path
) -> None:
    if what == "trace":
        what = str(batches(4).write(tmp_path / "trace.json"))
    result = CliRunner().invoke(main, ["tune", what, *options])
    assert result.exit_code == 2
    assert message in result.stderr
