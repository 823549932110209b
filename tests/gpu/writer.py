"""A C++ extension that writes past the dispatcher under memory pressure: right every time.

    python tests/gpu/writer.py [--steps N] [--seed S] [--limit MIB]

runs a random program for each way to use such an extension (tests/runtime/unseen.py has them),
compares every tensor with what it must be, bit for bit, and prints a line for each. It says which
seed failed; the same seed runs the same program. --simulated needs no GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
sys.path += [str(TESTS / "runtime"), str(TESTS / "simcuda")]
MIB = 1 << 20
DELAY = 200_000  # GPU cycles, a tenth of a millisecond


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    title: str
    modes: tuple[str, ...]
    at_home: bool = False


ROWS = {
    "wrap": Row(title="brought by wrap()", modes=("wrap",)),
    "operator": Row(title="brought by an operator", modes=("operator",), at_home=True),
    "streams": Row(title="brought by an operator, on any stream", modes=("operator",)),
    "bare": Row(title="not brought", modes=("bare",), at_home=True),
    "all": Row(title="all of these at random", modes=("wrap", "operator", "bare"), at_home=True),
}


def measure(row: Row, *, extension: Any, steps: int, seed: int, limit: int, delay: int) -> str:
    """What is wrong, or nothing; prints a line."""
    import torch
    import unseen

    torch.cuda.set_limit_lms(limit)
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    torch.cuda.reset_accumulated_memory_stats()
    programs = unseen.Programs(
        extension,
        seed=seed,
        limit=limit,
        largest=limit // 4,
        modes=row.modes,
        at_home=row.at_home,
        delay=delay,
    )
    began = time.perf_counter()
    wrong = ""
    try:
        unseen.run(programs, steps)
    except unseen.Wrong as error:
        wrong = str(error)
    stats = torch.cuda.lms.stats()
    programs.live.clear()
    torch.cuda.set_enabled_lms(False)
    if not wrong and not stats["page_out_count"]:
        wrong = "nothing was moved: the limit is too high to show anything"
    written = programs.counts["unseen_fill"] + programs.counts["unseen_copy"]
    summary = (
        f"{written} unseen writes, {programs.counts['refused']} refused, "
        f"{stats['page_out_count']} page-outs, {stats.get('release_caught', 0)} writes caught, "
        f"{time.perf_counter() - began:.0f} s"
    )
    outcome = f"FAILED, seed {seed}: {wrong}" if wrong else "ok"
    print(f"{row.title:<40}{summary}: {outcome}", flush=True)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=10_000, help="of each row (default: 10000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, metavar="MIB", help="default: 16; simulated 0.25")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--simulated", action="store_true", help="the simulated device")
    arguments = parser.parse_args()
    if arguments.simulated:
        import simcuda

        simcuda.start(devices=1, mib=256)  # before torch is imported
    import torch
    import unseen

    torch.cuda.init()
    torch.cuda.set_size_lms(1 << 12)
    limit = int((arguments.limit or (0.25 if arguments.simulated else 16)) * MIB)
    with tempfile.TemporaryDirectory() as folder:
        extension = unseen.Extension(Path(folder))
        failed = [
            name
            for name in arguments.rows
            if measure(
                ROWS[name],
                extension=extension,
                steps=arguments.steps,
                seed=arguments.seed,
                limit=limit,
                delay=0 if arguments.simulated else DELAY,
            )
        ]
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
