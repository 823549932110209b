"""Runs the tests of a folder, each file in a process of its own, several at the same time.

    python tests/gpu/files.py FOLDER --out DIR [--jobs N]

So they take a sixth of the time on a machine with 16 processors, and one that crashes takes no
others with it. Prints what failed, why what was skipped, and a line of totals; each file's output
is in DIR. Exits with 1 if anything failed.
"""

from __future__ import annotations

import argparse
import collections
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LIMIT = 600
"""Seconds that one file may take."""
PYTEST = ("-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider")
NO_TESTS = 5
TOTAL = re.compile(r"(\d+) (passed|failed|skipped|errors?)\b")


def run(file: Path, log: Path) -> int | None:
    """pytest's exit code; None if it was stopped. Its output is in the log."""
    with log.open("w") as output:
        try:
            return subprocess.run(
                [sys.executable, *PYTEST, str(file)],
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=LIMIT,
            ).returncode
        except subprocess.TimeoutExpired:
            return None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--jobs", type=int, default=8, help="files at a time (default: 8)")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    files = sorted(arguments.folder.glob("test_*.py"))
    logs = [arguments.out / f"{file.stem}.txt" for file in files]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        codes = list(pool.map(run, files, logs))
    totals: collections.Counter[str] = collections.Counter()
    failed = not files
    for file, log, code in zip(files, logs, codes, strict=True):
        lines = log.read_text(errors="replace").strip().split("\n")
        for line in lines:
            if line.startswith(("FAILED", "ERROR", "SKIPPED")):
                print(line)
        for count, outcome in TOTAL.findall(lines[-1]):
            totals[outcome.removesuffix("s")] += int(count)
        if code not in (0, 1, NO_TESTS):
            print(f"{file}: " + ("stopped" if code is None else f"ended with {code}"))
        failed = failed or code not in (0, NO_TESTS)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(totals.items())))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
