"""Runs PyTorch's own tests on a simulated GPU, with LMS off and under LMS's oracle.

    python ci/oracle.py                         # the sample of each file that was recorded
    python ci/oracle.py --sample 1 test_optim   # all tests of a file
    python ci/oracle.py -k Adam test_optim      # those whose names contain a word
    python ci/oracle.py --record                # write down what fails with LMS off

Under the oracle (docs/reference/environment.md) everything idle is paged out at each allocation.
The same tests must fail as with LMS off: many do, because the device is a simulated one. Those are
data, in tests/oracle/expected, as are the tests that cannot pass under the oracle, each with its
reason.

The files are those of a release that Debian packages; they are fetched and not kept here. Each
runs in a process of its own. What kills it, or takes too long, is one test's outcome, and the next
process goes on after it. Exit code 1: there are differences; 3: Debian's sources cannot be had.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import enum
import fnmatch
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch_tests import remove_wheels

from lmsbuild._compat import tomllib
from lmsbuild.registry import load_registry
from lmsbuild.resources import tests_dir
from lmsbuild.tools.cache import default_cache
from lmsbuild.tools.cache_content import in_use
from lmsbuild.wheel.suite import Device, run_suite

ROOT = Path(__file__).resolve().parent.parent
RELEASE, SUITE = "2.6.0", "trixie"
FILES = ("test_autograd", "test_nn", "test_torch", "test_optim", "test_cuda")
PACKAGES = ("pytest", "expecttest", "hypothesis", "numpy", "psutil", "scipy")
EXPECTED = ROOT / "tests" / "oracle" / "expected"
PLUGIN = ROOT / "tests" / "oracle"
SIMULATED = ROOT / "tests" / "simcuda" / "auto"
DEVICE = "devices=1 mib=2048 race=0"  # of several, most tests want NCCL's collectives

START_SECONDS = 300  # to import torch and find the tests
POLL_SECONDS = 0.1
ENOUGH = 100  # tests, some of which use the GPU
LINES = 15  # of what a process that died wrote


class OracleError(Exception):
    """The tests cannot be run. The message says why."""


class Mode(enum.Enum):
    OFF = "LMS off"
    ORACLE = "the oracle"


# All tensors are paged out and in again and again.
PATIENCE = {Mode.OFF: 1, Mode.ORACLE: 2}


class Outcome(str, enum.Enum):
    """The outcome of a test."""

    PASSED = "pass"
    SKIPPED = "skip"
    FAILED = "fail"
    VIOLATED = "violation"  # a storage was given up with a wrong host copy
    CRASHED = "crash"
    LATE = "timeout"

    @property
    def bad(self) -> bool:
        return self not in (Outcome.PASSED, Outcome.SKIPPED)


@dataclasses.dataclass(frozen=True)
class Result:
    outcome: Outcome
    text: str = ""
    seconds: float = 0.0
    page_outs: int = 0


Results = dict[str, Result]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expected:
    """What is known of a test file.

    Attributes:
        every: every so manieth of its tests was run.
        failures: tests that fail with LMS off, and how.
        oracle: patterns of tests that differ under the oracle, and why they may.
    """

    every: int = 1
    failures: Mapping[str, str] = dataclasses.field(default_factory=dict)
    oracle: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Expected:
        return cls(**tomllib.loads(path.read_text("utf-8"))) if path.is_file() else cls()

    def to_toml(self, title: str) -> str:
        def table(name: str, entries: Mapping[str, str]) -> list[str]:
            rows = [f"{quoted(key)} = {quoted(entries[key])}" for key in sorted(entries)]
            return ["", f"[{name}]", *rows]

        return "\n".join(
            [
                f"# {title}",
                "# Written by ci/oracle.py --record, but for the reasons in [oracle].",
                "",
                f"every = {self.every}",
                *table("failures", self.failures),
                *table("oracle", self.oracle),
                "",
            ]
        )


def quoted(text: str) -> str:
    """A basic string of TOML."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


# ---- running a file ------------------------------------------------------------


class TestFile:
    """A test file for pytest, with the interpreter and the environment that run it."""

    __test__ = False  # pytest takes it for one of its own

    def __init__(self, path: Path, python: str, environment: Mapping[str, str]) -> None:
        self.path = path
        self.python = python
        self.environment = {
            **environment,
            "PYTHONPATH": os.pathsep.join([str(PLUGIN), environment.get("PYTHONPATH", "")]),
        }

    def names(self) -> list[str]:
        """The names of all its tests. Raises OracleError."""
        with Process(self, None) as process:
            while process.running() and process.idle() < START_SECONDS:
                pass
            for event in process.events():
                if event["names"]:
                    return list(event["names"])
            raise OracleError(f"{self.path.name} cannot be collected:\n{process.output()}")

    def run(self, names: Sequence[str], limit_seconds: float) -> Results:
        """The result of each test. A test may take this many seconds. Raises OracleError."""
        results: Results = {}
        while left := [name for name in names if name not in results]:
            results |= self._run_some(left, limit_seconds)
        return {name: results[name] for name in names}

    def _run_some(self, names: Sequence[str], limit_seconds: float) -> Results:
        """The result of the first test at least. If the process dies, this is a result, too."""
        results: Results = {}
        with Process(self, names) as process:
            begun = None
            alive = True
            while alive or begun is not None:
                # In this order, because what it wrote before it died counts.
                alive = process.running()
                for event in process.events():
                    if "begun" in event:
                        begun = event["begun"]
                    elif "ended" in event:
                        name, outcome = event.pop("ended"), Outcome(event.pop("outcome"))
                        results[name] = Result(outcome, **event)
                        begun = None
                if begun is not None and not alive:
                    results[begun] = Result(Outcome.CRASHED, process.output(), process.idle())
                    begun = None
                elif process.idle() > (limit_seconds if begun else START_SECONDS):
                    if begun is None and not results:
                        break
                    if begun is not None:
                        results[begun] = Result(Outcome.LATE, process.output(), process.idle())
                    return results
            if not results:
                raise OracleError(f"{self.path.name} does not run:\n{process.output()}")
        return results


class Process:
    """pytest in a process of its own. It reports what it does through the plugin's events."""

    def __init__(self, file: TestFile, names: Sequence[str] | None) -> None:
        self._file = file
        self._names = names

    def __enter__(self) -> Process:
        self._stack = contextlib.ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        events = folder / "events"
        events.touch()
        self._log = folder / "log"
        environment = {**self._file.environment, "ORACLE_EVENTS": str(events)}
        environment.pop("ORACLE_TESTS", None)
        if self._names is not None:
            environment["ORACLE_TESTS"] = str(folder / "tests")
            Path(environment["ORACLE_TESTS"]).write_text("\n".join(self._names), "utf-8")
        self._events = self._stack.enter_context(events.open(encoding="utf-8"))
        # Only the file itself: no conftest and no configuration of its folder.
        pytest = ["-m", "pytest", "-q", "--tb=short", "-p", "oracle_plugin", "--noconftest"]
        where = ["-c", os.devnull, "--rootdir", ".", self._file.path.name]
        # Its handler would take log records that tests read, or that must not be formatted. What
        # C++ writes before it aborts must reach the log.
        without = ["-p", "no:cacheprovider", "-p", "no:logging", "--capture=sys"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [self._file.python, *pytest, *without, *where],
                cwd=self._file.path.parent,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._partial = ""
        self._last = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        # Together with the processes that the tests have started.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._stack.close()

    def running(self) -> bool:
        """Waits for a moment, and returns whether it still runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(POLL_SECONDS)
        return self._process.returncode is None

    def events(self) -> list[dict[str, Any]]:
        """What it has written since the last call."""
        *lines, self._partial = (self._partial + self._events.read()).split("\n")
        if lines:
            self._last = time.monotonic()
        return [json.loads(line) for line in lines]

    def idle(self) -> float:
        """Seconds since its last event."""
        return time.monotonic() - self._last

    def output(self) -> str:
        """The end of its output, or the beginning of a crash report and what C++ said before it."""
        text = self._log.read_text("utf-8", "replace")
        before, crash, rest = text.rpartition("Fatal Python error")
        if crash:
            reason = before.rpartition("terminate called")
            said = "".join(reason[1:]) if reason[1] else ""
            return "\n".join((said + crash + rest).splitlines()[:LINES])
        return "\n".join(text.splitlines()[-LINES:])


# ---- what came out --------------------------------------------------------------


def choose(names: Sequence[str], every: int, words: Sequence[str]) -> list[str]:
    """Every N-th test, counted from the first, if it contains one of the words."""
    return [name for name in names[::every] if not words or any(word in name for word in words)]


def kind(text: str) -> str:
    """One line for a failure: the last that names an error, without what differs between runs."""
    lines = [line.lstrip("E ").strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if line.split(":")[0].endswith(("Error", "Exception"))]
    return (named or lines or [""])[-1][:100]


def differences(off: Results, oracle: Results, expected: Expected) -> list[str]:
    """The differences that the oracle made without a known reason, as text."""
    found = []
    if len(oracle) >= ENOUGH and not any(result.page_outs for result in oracle.values()):
        found.append("the oracle paged nothing out: nothing was tested")
    differ = {name for name, result in oracle.items() if result.outcome != off[name].outcome}
    for pattern in expected.oracle:
        of_it = set(fnmatch.filter(oracle, pattern))
        if of_it and not of_it & differ:
            found.append(f"{pattern}: has no difference any more; take it out of [oracle]")
        differ -= of_it
    for name, result in oracle.items():
        if name in differ:
            found.append(
                f"{name}: {off[name].outcome.value} with LMS off, "
                f"{result.outcome.value} under the oracle\n{indent(result.text or off[name].text)}"
            )
    return found


def surprises(off: Results, expected: Expected, names: Sequence[str]) -> list[str]:
    """How the run with LMS off differs from what was recorded. ``names``: all of the file's."""
    recorded = set(names[:: expected.every])
    found = []
    for name, result in off.items():
        known = expected.failures.get(name, "pass").split(":")[0]
        now = result.outcome.value if result.outcome.bad else "pass"
        if name in recorded and known != now:
            found.append(f"{name}: {now} with LMS off, recorded as {known}\n{indent(result.text)}")
    return found


def record(off: Results, expected: Expected, every: int) -> Expected:
    """The results to be expected from now on."""
    failures = {
        name: f"{result.outcome.value}: {kind(result.text)}"
        if result.outcome is Outcome.FAILED
        else result.outcome.value
        for name, result in off.items()
        if result.outcome.bad
    }
    return dataclasses.replace(expected, every=every, failures=failures)


def indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def summary(results: Results) -> str:
    """The number of tests with each outcome."""
    outcomes = [result.outcome for result in results.values()]
    return ", ".join(
        f"{outcomes.count(outcome)} {outcome.value}" for outcome in Outcome if outcome in outcomes
    )


# ---- the whole -------------------------------------------------------------------


def environment(mode: Mode) -> dict[str, str]:
    """The environment of tests that run on the simulated device."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTORCH_"))}
    made = {
        **inherited,
        "OMP_NUM_THREADS": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONPATH": str(SIMULATED),
        "PYTORCH_PRINT_REPRO_ON_FAILURE": "0",
        "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cuda",
        "SIMCUDA_AUTO": DEVICE,
    }
    if mode is Mode.ORACLE:
        made["PYTORCH_LMS_ORACLE"] = "1"
    return made


def fetch_tests(into: Path) -> Path:
    """The folder of the release's tests, fetched once. Raises debian_source.Unavailable."""
    import debian_source

    cache = default_cache() / f"debian-{SUITE}"
    tarball = debian_source.fetch("pytorch", SUITE, cache, debian_source.find_mirror())
    if not tarball.name.startswith(f"pytorch_{RELEASE}+"):
        raise debian_source.Unavailable(f"{SUITE} has {tarball.name}, and not {RELEASE}")
    folder = into / tarball.name.split(".orig")[0]
    if not folder.is_dir():
        into.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=into) as name, tarfile.open(tarball) as archive:
            for member in archive:
                parts = Path(member.name).parts
                if len(parts) > 2 and parts[1] == "test" and member.isfile():
                    member.name = str(Path(*parts[1:]))
                    archive.extract(member, name, set_attrs=False)
            (Path(name) / "test").rename(folder)
    return folder


def check_file(path: Path, python: str, options: argparse.Namespace) -> list[str]:
    """Runs one file twice, and returns the differences as text. Raises OracleError."""
    data = EXPECTED / RELEASE / f"{path.stem}.toml"
    expected = Expected.load(data)
    every = options.sample or expected.every
    runs: dict[Mode, Results] = {}
    all_names = TestFile(path, python, environment(Mode.OFF)).names()
    names = choose(all_names, every, options.words)
    print(f"{path.name}: {len(names)} of {len(all_names)} tests", flush=True)
    if not names:
        return []
    for mode in Mode:
        begun = time.monotonic()
        file = TestFile(path, python, environment(mode))
        runs[mode] = file.run(names, options.limit * PATIENCE[mode])
        seconds = time.monotonic() - begun
        print(f"  {mode.value}: {summary(runs[mode])} in {seconds:.0f} s", flush=True)
    moved = [result.page_outs for result in runs[Mode.ORACLE].values() if result.page_outs]
    print(f"  {sum(moved)} page-outs in {len(moved)} tests", flush=True)
    off, oracle = runs[Mode.OFF], runs[Mode.ORACLE]
    if options.results:
        keep(options.results / f"{path.stem}.json", runs)
    if options.record:
        expected = record(off, expected, every)
        data.parent.mkdir(parents=True, exist_ok=True)
        title = f"PyTorch {RELEASE}'s {path.name} on the simulated device."
        data.write_text(expected.to_toml(title), "utf-8")
    return [*surprises(off, expected, all_names), *differences(off, oracle, expected)]


def keep(path: Path, runs: Mapping[Mode, Results]) -> None:
    """All results, as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(
        {
            mode.name.lower(): {
                name: dataclasses.asdict(result) for name, result in results.items()
            }
            for mode, results in runs.items()
        },
        indent=1,
    )
    path.write_text(text, "utf-8")


def check_files(python: str, tests: Path, options: argparse.Namespace) -> int:
    wrong = 0
    for name in options.files or FILES:
        try:
            found = check_file(tests / f"{name.removesuffix('.py')}.py", python, options)
        except OracleError as error:
            found = [str(error)]
        wrong += len(found)
        for text in found:
            print(f"  {text}", flush=True)
    print(f"{wrong} differences" if wrong else "no differences", flush=True)
    return wrong


def main(arguments: Iterable[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", metavar="FILE", help=f"of {', '.join(FILES)}")
    parser.add_argument("--sample", type=int, metavar="N", help="every N-th test of a file")
    parser.add_argument("-k", dest="words", action="append", default=[], metavar="WORD")
    parser.add_argument("--limit", type=float, default=180, metavar="SECONDS", help="for each test")
    parser.add_argument("--record", action="store_true", help="write what fails with LMS off")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="keep every test's result")
    parser.add_argument(
        "--python", help="an interpreter that has all packages, instead of a new environment"
    )
    options = parser.parse_args(list(arguments))
    if options.record and options.words:
        parser.error("only a whole sample can be recorded")
    if options.sample is not None and options.sample < 1:
        parser.error("N counts from 1")
    sys.path.insert(0, str(Path(__file__).parent))
    import debian_source

    try:
        tests = fetch_tests(ROOT / "build" / "oracle")
    except debian_source.Unavailable as error:
        print(f"oracle: {error}", file=sys.stderr)
        return 3
    wrong = 0
    if options.python:
        wrong = check_files(options.python, tests, options)
    else:

        def first(python: Path) -> None:
            nonlocal wrong
            wrong = check_files(str(python), tests, options)

        wheel = build_wheel()
        device = Device.SIMULATED
        with in_use(default_cache()) as cache:
            run_suite(wheel, device, tests_dir(), cache, print, (), PACKAGES, first)
    return bool(wrong)


def build_wheel() -> Path:
    """The release's wheel with LMS, for this Python."""
    tag = load_registry().get(RELEASE)
    folder = ROOT / "build" / "wheels" / tag.name
    remove_wheels(folder)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    command = [sys.executable, "-m", "lmsbuild", "wheel", tag.name, "--out", str(folder)]
    code = subprocess.run([*command, "--python", python]).returncode
    if code:
        sys.exit(code)  # it has said why
    (wheel,) = folder.glob("*.whl")
    return wheel


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
