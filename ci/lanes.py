"""Runs the parts of `make test`, as many at a time as there are processors.

    python ci/lanes.py                    # every part
    python ci/lanes.py --jobs 1           # one after the other
    python ci/lanes.py toolkit conda      # these parts

Each part writes to a log in build/test, which is printed when the part has finished. The default
tag's log is printed last, because it ends with the summary of the largest part. A part that fails
does not stop the others. The exit code is 1 if a part failed, and 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "test"
PYTHON = sys.executable
PYTEST = (PYTHON, "-m", "pytest", "-q")
INTERRUPTED = 130


@dataclass(frozen=True)
class Part:
    """A command whose output is one log.

    Attributes:
        name: also the log's name.
        command: it runs in the checkout's root.
    """

    name: str
    command: tuple[str, ...]


PARTS = (
    # The longest first, so that no processor is idle at the end. The add-on and the conda package
    # come last: they need what the default tag's tests have put into the cache by then.
    Part("default-tag", (PYTHON, "ci/torch_tests.py", "--default")),
    Part("toolkit", PYTEST),
    Part("newest-tag", (PYTHON, "ci/torch_tests.py", "--newest")),
    Part("oldest-tag", (PYTHON, "ci/torch_tests.py", "--oldest")),
    Part("cross", (PYTHON, "ci/cross_tests.py")),
    Part("docs", (*PYTEST, "tests/docs")),
    Part("addon", (PYTHON, "ci/addon_tests.py")),
    Part("conda", (*PYTEST, "tests/conda")),
)
LAST = "default-tag"


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a part ended.

    Attributes:
        code: the exit code, or the negative number of the signal that ended it.
        seconds: how long it took.
        processor_seconds: of it and all processes that it waited for.
    """

    part: Part
    code: int
    seconds: float
    processor_seconds: float

    def __str__(self) -> str:
        how = "passed" if self.code == 0 else f"failed (exit code {self.code})"
        minutes, processor_minutes = self.seconds / 60, self.processor_seconds / 60
        return f"{self.part.name}: {how}, {minutes:.1f} min, {processor_minutes:.1f} min of CPU"


class Lanes:
    """Runs parts at the same time, each with a log in ``logs``."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: list[subprocess.Popen[bytes]] = []
        self._stopped = False
        self._lock = threading.Lock()

    def run(self, parts: Sequence[Part], jobs: int, last: str = "") -> int:
        """Run the parts; returns 1 if one failed. The log of the part named ``last`` comes last."""
        self._logs.mkdir(parents=True, exist_ok=True)
        # OpenMP's threads wait in loops, and would take the time of the other parts.
        threads = max(1, (os.cpu_count() or 1) // jobs)
        environment = {"OMP_NUM_THREADS": str(threads), **os.environ}
        results = []
        with ThreadPoolExecutor(jobs) as pool:
            try:
                for done in as_completed(
                    [pool.submit(self._run, part, environment) for part in parts]
                ):
                    result = done.result()
                    results.append(result)
                    say(str(result))
                    if result.part.name != last:
                        self._print_log(result.part)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self._stop()
                raise
        for result in results:
            say(str(result))
        if last in [part.name for part in parts]:
            self._print_log(next(part for part in parts if part.name == last))
        return int(any(result.code for result in results))

    def _run(self, part: Part, environment: Mapping[str, str]) -> Result:
        log = self._log(part)
        begun = time.monotonic()
        with log.open("wb") as file:
            with self._lock:
                if self._stopped:
                    return Result(part=part, code=INTERRUPTED, seconds=0, processor_seconds=0)
                process = subprocess.Popen(
                    part.command,
                    cwd=ROOT,
                    env=environment,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
                self._running.append(process)
            say(f"{part.name}: {' '.join(part.command)} >{os.path.relpath(log)}")
            # Not wait(), which does not tell the time of the processor.
            _, status, usage = os.wait4(process.pid, 0)
        with self._lock:
            process.returncode = os.waitstatus_to_exitcode(status)
            self._running.remove(process)
        return Result(
            part=part,
            code=process.returncode,
            seconds=time.monotonic() - begun,
            processor_seconds=usage.ru_utime + usage.ru_stime,
        )

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.terminate()

    def _log(self, part: Part) -> Path:
        return self._logs / f"{part.name}.log"

    def _print_log(self, part: Part) -> None:
        sys.stdout.flush()
        sys.stdout.buffer.write(self._log(part).read_bytes())
        sys.stdout.flush()


def say(text: str) -> None:
    print(text, flush=True)


def interrupt(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends the parts as Ctrl-C does."""
    raise KeyboardInterrupt


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(p.name for p in PARTS))
    parser.add_argument(
        "--jobs",
        type=int,
        default=max(2, os.cpu_count() or 2),
        metavar="N",
        help="so many parts at a time; by default as there are processors, and at least 2",
    )
    options = parser.parse_args(arguments)
    unknown = set(options.parts) - {part.name for part in PARTS}
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    chosen = [part for part in PARTS if not options.parts or part.name in options.parts]
    signal.signal(signal.SIGTERM, interrupt)
    try:
        return Lanes(LOGS).run(chosen, options.jobs, LAST)
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
