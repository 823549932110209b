"""Puts each bug of mutants.toml into the runtime, and checks that its test detects it.

    python ci/mutants.py PYTHON [NAME_PART ...]

PYTHON is an interpreter whose torch has LMS and may be modified: its LMS libraries are replaced by
those of each mutant, and restored at the end. A variant of the runtime has additional bugs in
mutants-VARIANT.toml, and bugs in files that it replaces are skipped. The tests first have to pass
without a bug. The exit code is 1 if they do not, or if a bug is not detected.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from disposable import ROOT, SOURCES, DisposableTorch, environment, load_bugs

SECONDS = 300  # a deadlock counts as detected
FEW = 3  # bugs: to compile torch's headers first takes longer than it saves


def main(python: str, wanted: list[str]) -> int:
    missed = []
    with DisposableTorch(python) as torch:
        mutants = [
            mutant
            for mutant in bugs(torch)
            if not wanted or any(part in mutant["name"] for part in wanted)
        ]
        if len(mutants) > FEW:
            torch.precompile()
        torch.install(torch.runtime)
        if broken := failing(python, {mutant["test"] for mutant in mutants}, torch.runtime):
            print(f"without a bug these tests fail: {' '.join(broken)}; make them pass first")
            return 1
        for mutant in mutants:
            runtime = torch.install_with(mutant)
            seen = fails(python, [mutant["test"]], runtime)
            print(f"{'seen  ' if seen else 'MISSED'}  {mutant['name']}", flush=True)
            if not seen:
                missed.append(mutant["name"])
    print(f"{len(missed)} bugs were not seen")
    return bool(missed)


def bugs(torch: DisposableTorch) -> list[dict[str, str]]:
    shared = load_bugs("mutants.toml")
    variant = torch.tag.variant
    if variant is None:
        return shared
    own = ROOT / "patches" / variant / SOURCES
    # A variant's releases have no compiled code, and not all have torch.profiler: these tests are
    # skipped there.
    kept = [
        bug
        for bug in shared
        if not (own / bug["file"]).exists()
        and not bug["test"].startswith(("test_launches.py", "test_profiler.py"))
    ]
    return kept + load_bugs(f"mutants-{variant}.toml")


def failing(python: str, tests: Iterable[str], runtime: Path) -> list[str]:
    """Those that fail. A test that always fails would "detect" every bug."""
    files = itertools.groupby(sorted(tests), key=lambda test: test.partition("::")[0])
    groups = [list(group) for _, group in files]
    return [test for group in groups if fails(python, group, runtime) for test in group]


def fails(python: str, tests: list[str], runtime: Path) -> bool:
    paths = [str(ROOT / "tests" / "runtime" / test) for test in tests]
    command = [python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *paths]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=SECONDS, env=environment(runtime)
        )
    except subprocess.TimeoutExpired:
        return True
    if done.returncode == 4:
        sys.exit(f"pytest finds no {' '.join(tests)}")  # which is not a bug that was detected
    return done.returncode not in (0, 5)  # 5: no test ran


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
