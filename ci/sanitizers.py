"""Runs the runtime's tests with a libtorch_lms.so that a sanitizer checks.

    python ci/sanitizers.py [--self-test] PYTHON [address|thread] [TEST ...]

PYTHON is an interpreter whose torch has LMS and may be modified: its libtorch_lms.so is replaced,
and restored at the end. "address" also checks for undefined behaviour. TESTs are arguments for
pytest; the default is tests/runtime. Only libtorch_lms.so is instrumented. The exit code is 1 if a
test fails, or if a report names this library. With --self-test, each bug of sanitizers.toml is put
in, and must be reported.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from disposable import ROOT, DisposableTorch, environment, load_bugs

from lmsbuild.native import compile
from lmsbuild.tools import elf

TESTS = str(ROOT / "tests" / "runtime")
SECONDS = 1800  # tests that take longer are in a deadlock
SHOWN = 5  # reports

SANITIZERS = {"address": "address,undefined", "thread": "thread"}
# The sanitizer's library has to be loaded first. It intercepts functions of the libraries that are
# loaded at that time.
PRELOADED = ("libasan.so", "libtsan.so", "libstdc++.so")
OPTIONS = {
    # Python and torch leak memory at exit, and finding it takes minutes.
    "ASAN_OPTIONS": "detect_leaks=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    # torch's libraries are not instrumented, so reports of their memcpy() calls mean nothing.
    # A child that a process with several threads has forked dies otherwise when it starts another.
    "TSAN_OPTIONS": "exitcode=0:history_size=7:ignore_noninstrumented_modules=1:die_after_fork=0",
}
FRAMES = 'stack_trace_format="    #%n %f %S %M"'  # %M is the library
START = re.compile(
    r"^(?=.*(?:ERROR: AddressSanitizer|WARNING: ThreadSanitizer|: runtime error: ))", re.MULTILINE
)


def preload(library: Path) -> str:
    """The libraries to load before Python: those of PRELOADED that this one is linked with."""
    found = []
    for name in elf.read(library).needed:
        if name.startswith(PRELOADED):
            command = ["g++", f"-print-file-name={name}"]
            path = subprocess.run(command, capture_output=True, text=True).stdout.strip()
            if not Path(path).is_absolute():
                sys.exit(f"{name} is missing; install the sanitizer libraries of g++")
            found.append(path)
    return " ".join(found)


def check(python: str, library: Path, tests: list[str], runtime: Path) -> tuple[int, list[str]]:
    """Run the tests. Returns pytest's exit code, and the reports that name the library."""
    with tempfile.TemporaryDirectory() as folder:
        variables = environment(runtime)
        variables["LD_PRELOAD"] = preload(library)
        for name, options in OPTIONS.items():
            variables[name] = f"{options}:{FRAMES}:log_path={folder}/{name}"
        # UBSan ignores log_path and writes to stderr, which pytest must not capture.
        quiet = ("-q", "-s", "-rf", "--disable-warnings", "-p", "no:cacheprovider")
        command = [python, "-m", "pytest", *quiet, *tests]
        done = subprocess.run(command, env=variables, timeout=SECONDS, capture_output=True)
        texts = [path.read_text(errors="replace") for path in Path(folder).iterdir()]
    text = "\n".join([*texts, done.stderr.decode(errors="replace")])
    if done.returncode:
        sys.stdout.write(done.stdout.decode(errors="replace")[-4000:])
    reports = [report for report in START.split(text) if compile.LIBRARY in report]
    return done.returncode, reports


def run(python: str, name: str, tests: list[str]) -> bool:
    """Whether the tests pass without a report of this sanitizer."""
    begun = time.monotonic()
    with DisposableTorch(python) as torch:
        library = torch.install(torch.runtime, sanitize=SANITIZERS[name])
        code, reports = check(python, library, tests or [TESTS], torch.runtime)
    for report in reports[:SHOWN]:
        print(report)
    seconds = time.monotonic() - begun
    print(f"{name}: {len(reports)} reports, pytest says {code}, {seconds:.0f} s", flush=True)
    return code == 0 and not reports


def self_test(python: str, name: str) -> bool:
    """Whether each bug that is put in is reported."""
    missed = False
    with DisposableTorch(python) as torch:
        for bug in load_bugs("sanitizers.toml"):
            if bug["sanitizer"] != name:
                continue
            runtime = torch.install_with(bug, sanitize=SANITIZERS[name])
            tests = [f"{TESTS}/{bug['test']}"]
            _, reports = check(python, torch.library, tests, runtime)
            seen = any(bug["report"] in report for report in reports)
            print(f"{'seen  ' if seen else 'MISSED'}  {name}: {bug['name']}", flush=True)
            missed |= not seen
    return not missed


def main(arguments: list[str]) -> int:
    plants = "--self-test" in arguments
    python, *rest = [argument for argument in arguments if argument != "--self-test"]
    names = [rest.pop(0)] if rest and rest[0] in SANITIZERS else list(SANITIZERS)
    if not shutil.which("g++"):
        sys.exit("g++ is missing; install it")
    good = [self_test(python, name) if plants else run(python, name, rest) for name in names]
    return int(not all(good))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
