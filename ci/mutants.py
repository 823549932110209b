"""Puts each bug of mutants.toml into the runtime, and checks that its test detects it.

    python ci/mutants.py PYTHON [NAME_PART ...]

PYTHON is an interpreter whose torch has LMS and may be modified: its LMS libraries are replaced by
those of each mutant, and restored at the end. A variant of the runtime has additional bugs in
mutants-VARIANT.toml, and bugs in files that it replaces are skipped. The exit code is 1 if a bug is
not detected.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from disposable import ROOT, SOURCES, DisposableTorch, environment, load_bugs

SECONDS = 300  # a deadlock counts as detected


def main(python: str, wanted: list[str]) -> int:
    missed = []
    with DisposableTorch(python) as torch:
        for mutant in bugs(torch):
            if wanted and not any(part in mutant["name"] for part in wanted):
                continue
            runtime = torch.install_with(mutant)
            seen = fails(python, mutant["test"], runtime)
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
    kept = [bug for bug in shared if not (own / bug["file"]).exists()]
    return kept + load_bugs(f"mutants-{variant}.toml")


def fails(python: str, test: str, runtime: Path) -> bool:
    path = ROOT / "tests" / "runtime" / test
    command = [python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(path)]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=SECONDS, env=environment(runtime)
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode not in (0, 5)  # 5: no test ran


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
