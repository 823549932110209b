"""Programs with fake tensors, in an interpreter of their own.

The interpreter of these tests has no torch. tests/runtime/test_fake.py tests recordings.
"""

from __future__ import annotations

import gzip
import json
import stat
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from lmsbuild.cli.main import main
from lmsbuild.errors import ProgramError, TraceError, WrongPythonError
from lmsbuild.resources import patches_dir
from lmsbuild.simulate.fake import FakeProgram
from lmsbuild.simulate.gpu import gpus
from lmsbuild.simulate.link import Link
from lmsbuild.simulate.planner import Machine, Planner, Simulation
from lmsbuild.simulate.report import Report
from lmsbuild.simulate.trace import parse_trace, read_trace
from tests.toolkit.simulate.traces import training

# Answers as fake_worker.py does, with a trace that was made by hand.
INTERPRETER = """#!{python}
import json, sys
print("a model says something", file=sys.stderr)
for line in sys.stdin:
    request = json.loads(line)
    if request["arguments"] == [0]:
        sys.exit(1)
    trace = json.load(open({trace!r}))
    trace["gpu"] = "%s, %s, %s" % (request["gpu"]["title"], request["smallest"], sys.argv[3])
    print(json.dumps(trace), flush=True)
"""


# As much of it as the worker asks before it imports the program.
TORCH = "class cuda:\n    is_available = staticmethod(lambda: True)\n"


def test_modules_beside_the_worker_are_not_the_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package torch_lms in lmsbuild/data is a template."""
    (tmp_path / "torch.py").write_text(
        f"{TORCH}import torch_lms\nraise ValueError(torch_lms.name)\n"
    )
    (tmp_path / "torch_lms.py").write_text("name = 'the installed one'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    program = FakeProgram(Path(sys.executable), "train:make", gpus()["h200"])
    with program, pytest.raises(ProgramError, match="the installed one"):
        program.record()


# The runtime's recorder, which is told what is used by a program that has no torch.
RECORDING = """
import contextlib, importlib.util

current = []

@contextlib.contextmanager
def recording(gpu, smallest, find_steps):
    spec = importlib.util.spec_from_file_location("recorder", {recorder!r})
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    current.append(module.Recorder(smallest))
    yield current[-1]
"""
SMALL_LAYERS = """
from lms_fake.recording import current

class Storage:
    _cdata = property(id)
    nbytes = lambda self: 300_000

def make():
    def iteration():
        kept = [Storage() for _ in range(100)]
        for storage in kept:
            current[-1].unit("layer")
            current[-1].use(storage, True)
            current[-1].spend(1e-3)
    return iteration
"""


def test_a_program_of_which_lms_moves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: Planner
) -> None:
    """It needs its peak at least, and is not taken to fit when LMS moves what is too small."""
    folder = tmp_path / "lms_fake"
    folder.mkdir()
    recorder = patches_dir() / "runtime/torch/cuda/lms_fake/recorder.py"
    (folder / "__init__.py").touch()
    (folder / "cost.py").write_text("from types import SimpleNamespace as Gpu\n")
    (folder / "device.py").write_text("from contextlib import nullcontext as gpu_in_sight\n")
    (folder / "recording.py").write_text(RECORDING.format(recorder=str(recorder)))
    (tmp_path / "torch.py").write_text("__version__ = '2.13.0'\n")
    (tmp_path / "small.py").write_text(SMALL_LAYERS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with FakeProgram(Path(sys.executable), "small:make", gpus()["h200"]) as program:
        trace = parse_trace(program.record())
    peak = 100 * 300_032  # in multiples of 512

    def simulate(limit: int) -> Simulation:
        machine = Machine(limit=limit, out_rate=1e9, in_rate=1e9, overhead=0)
        return compiled.simulate(trace, machine)

    found = simulate(peak)
    assert (found.fits, found.peak_bytes, found.operators) == (True, peak, 100)
    assert found.compute_seconds == pytest.approx(0.1)
    with pytest.raises(TraceError, match=r"what LMS does not move needs 30.0 MB"):
        simulate(peak - 1)
    report = Report(compiled, trace, 2 * peak, Link(title="", out_rate=1e9, in_rate=1e9))
    assert "LMS is not necessary" in report.text


def test_what_reads_standard_input_finds_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are lmsbuild's requests, and to wait for the next one would take forever."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "asks.py").write_text(
        "import os, select\n"
        "found, _, _ = select.select([0], [], [], 5)\n"
        "raise ValueError(os.read(0, 1) if found else 'it would wait')\n"
    )
    program = FakeProgram(Path(sys.executable), "asks:make", gpus()["h200"])
    with program, pytest.raises(ProgramError, match="ValueError: b''"):
        program.record()


def test_an_interpreter_that_ends_at_once(tmp_path: Path) -> None:
    program = FakeProgram(Path("/bin/false"), "train:make", gpus()["h200"])
    program._process.wait()
    with program, pytest.raises(ProgramError, match="ended without an answer"):
        program.record()


@pytest.fixture
def interpreter(tmp_path: Path) -> Path:
    trace = training().write(tmp_path / "made.json")
    path = tmp_path / "python"
    path.write_text(INTERPRETER.format(python=sys.executable, trace=str(trace)))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(main, ["trace", *arguments])
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_a_trace(name: str, interpreter: Path, tmp_path: Path) -> None:
    out, said = run(
        "train:make",
        "8",
        *("--python", str(interpreter), "--gpu", "a100", "--smallest", "64KiB"),
        *("--out", str(tmp_path / name)),
    )
    assert out == "", "where --out /dev/stdout writes the trace"
    assert said.endswith(f"wrote {tmp_path / name}\n")
    assert ((tmp_path / name).read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")
    assert read_trace(tmp_path / name).gpu == "NVIDIA A100 SXM, 80 GB, 65536, train:make"
    if name.endswith(".gz"):
        text = json.loads(gzip.decompress((tmp_path / name).read_bytes()))
        assert (text["format"], text["version"]) == ("lms-trace", 1)


def test_the_files_folder_is_looked_for_first(interpreter: Path, tmp_path: Path) -> None:
    interpreter.write_text("#!/bin/false\n")
    out = str(tmp_path / "missing" / "trace.json")
    _, said = run("train:make", "--python", str(interpreter), "--out", out, code=2)
    assert f"there is no folder {tmp_path / 'missing'}" in said


def test_an_interpreter_that_dies(interpreter: Path) -> None:
    with (
        FakeProgram(interpreter, "train:make", gpus()["h200"]) as program,
        pytest.raises(ProgramError, match=r"train:make\(0\).* ended without an answer") as caught,
    ):
        program.record([0])
    assert "a model says something" in caught.value.detail


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "ModuleNotFoundError: No module named 'trained'"),
        ("import argparse\nargparse.ArgumentParser().parse_args()", "AttributeError: .*'make'"),
        ("raise SystemExit('no data')", "SystemExit: no data"),
        ("x = 1", "AttributeError: .*no attribute 'make'"),
        ("print('hello')\ndef make(): pass", "ModuleNotFoundError: No module named 'torch'"),
    ],
)
def test_what_fails(
    source: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if source is not None:
        (tmp_path / "trained.py").write_text(source)
    if "torch" not in message:
        (tmp_path / "torch.py").write_text(TORCH)
    arguments = Path(sys.executable), "trained:make", gpus()["h200"]
    with (
        FakeProgram(*arguments) as program,
        pytest.raises(ProgramError, match=rf"trained:make\(\) failed with .*: {message}") as caught,
    ):
        program.record()
    assert "Traceback" in caught.value.detail


def test_what_cannot_be_run(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("")
    with pytest.raises(WrongPythonError, match="python cannot be run: Permission denied"):
        FakeProgram(tmp_path / "python", "train:make", gpus()["h200"])


@pytest.mark.parametrize("name", ["train", "train.py:make", "train:", ":make"])
def test_what_is_no_function(name: str) -> None:
    _, err = run(name, code=2)
    assert f"'{name}' is not MODULE:FUNCTION, such as train:make" in err


def test_no_half_written_file(
    interpreter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run("train:make", "0", "--python", str(interpreter), code=ProgramError.exit_code)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made.json", "python"]
