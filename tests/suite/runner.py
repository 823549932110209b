"""Runs jobs, each in a process of its own, and keeps their reports.

`python runner.py` prints the peak, the largest operator and the cap of each workload: what a
model's sizes and `cap_share` are chosen by.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from job import MODELS, Ending, Job, Mode, Report

HERE = Path(__file__).resolve().parent
SIMCUDA = HERE.parent / "simcuda"
TIMEOUT = 300  # seconds; a job that hangs must not hang the suite
MIB = 1 << 20
ORACLE = "PYTORCH_LMS_ORACLE"


@dataclasses.dataclass(kw_only=True)
class Runner:
    """The interpreter to run jobs with, and the device to run them on.

    `python` need not be the interpreter that runs the tests: it needs a torch, and nothing else.
    """

    python: str
    simulated: bool
    oracle: bool = False  # for the jobs that have LMS on
    server: Server | None = None

    @classmethod
    def from_environment(cls) -> Runner:
        """LMS_TEST_PYTHON: the interpreter. LMS_TEST_DEVICE: `sim` or `gpu`. PYTORCH_LMS_ORACLE."""
        python = os.environ.get("LMS_TEST_PYTHON") or sys.executable
        device = os.environ.get("LMS_TEST_DEVICE") or ("gpu" if has_gpu(python) else "sim")
        if device not in ("sim", "gpu"):
            raise ValueError(f"LMS_TEST_DEVICE is {device!r}; set it to sim or gpu")
        oracle = os.environ.get(ORACLE, "0") not in ("", "0")
        return cls(python=python, simulated=device == "sim", oracle=oracle)

    def missing(self) -> str:
        """Why jobs cannot run at all, or nothing."""
        code = "import importlib.util as u; print(u.find_spec('torch') is not None)"
        if ask(self.python, code) != "True":
            return f"{self.python} has no torch; set LMS_TEST_PYTHON to one that has"
        return ""

    def has_lms(self) -> bool:
        code = (
            "import importlib.util as u, pathlib\n"
            "torch = pathlib.Path(u.find_spec('torch').origin).parent\n"
            "lms = torch / 'cuda' / 'lms' / '__init__.py'\n"
            "print(lms.exists() or u.find_spec('torch_lms') is not None)"
        )
        return ask(self.python, code) == "True"

    def job(self, model: str, mode: Mode, **settings: object) -> Job:
        oracle = self.oracle and bool(settings.get("lms"))
        return Job(model=model, mode=mode, simulated=self.simulated, oracle=oracle, **settings)

    def run(self, job: Job) -> Report:
        with tempfile.TemporaryDirectory() as folder:
            report, log = Path(folder, "report"), Path(folder, "log")
            request = {
                "job": job.to_json(),
                "report": str(report),
                "log": str(log),
                "timeout_seconds": TIMEOUT,
            }
            status = self._server().ask(json.dumps(request))
            if status == 0:
                return Report.from_json(report.read_text())
            how = f"exit status {status}" if status > 0 else signal.Signals(-status).name
            output = log.read_text(errors="replace")[-4000:]
        return Report(ending=Ending.CRASHED, message=f"{how}\n{output}")

    def _server(self) -> Server:
        if self.server is None:
            self.server = Server(self.python, simulated=self.simulated)
        return self.server

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None


class Server:
    """The worker process, which forks one for each job."""

    def __init__(self, python: str, *, simulated: bool) -> None:
        path = filter(None, (str(SIMCUDA), os.environ.get("PYTHONPATH")))
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in close())
        # Not for the jobs that have LMS off; the others are told.
        environment = {name: value for name, value in os.environ.items() if name != ORACLE}
        self.process = subprocess.Popen(
            [python, str(HERE / "worker.py"), "sim" if simulated else "gpu"],
            env={**environment, "PYTHONPATH": os.pathsep.join(path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )

    def ask(self, request: str) -> int:
        """The exit status of the job's process; negative: the signal that ended it."""
        try:
            print(request, file=self.process.stdin, flush=True)
            return int(self.process.stdout.readline())
        except (BrokenPipeError, ValueError):
            raise RuntimeError(f"the worker ended: {self.errors()}") from None

    def errors(self) -> str:
        """The end of what the worker wrote to its standard error."""
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-4000:]

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.log.close()


def ask(python: str, code: str) -> str:
    """What `code` prints, or nothing when it fails."""
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=120)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def has_gpu(python: str) -> bool:
    if not Path("/dev/nvidiactl").exists():
        return False  # no need to spend seconds on importing torch
    return ask(python, "import torch; print(torch.cuda.is_available())") == "True"


def cap_of(reference: Report) -> int:
    """Bytes to cap memory at, from the uncapped run."""
    return int(reference.peak_bytes * reference.cap_share)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    arguments = parser.parse_args()
    runner = Runner.from_environment()
    print(f"{'model':<16}{'mode':<7}{'peak':>8}{'cap':>8}{'largest operator':>18} MiB, seconds")
    for model in arguments.models:
        for mode in Mode:
            report = runner.run(runner.job(model, mode, measure_operators=True))
            if report.ending is not Ending.FINISHED:
                sys.exit(f"{model} {mode.value}: {report.ending.value}: {report.message}")
            print(
                f"{model:<16}{mode.value:<7}{report.peak_bytes / MIB:>8.1f}"
                f"{cap_of(report) / MIB:>8.1f}{report.largest_operator_bytes / MIB:>18.1f}"
                f" {report.largest_operator}, {report.seconds:.1f} s"
            )


if __name__ == "__main__":
    main()
