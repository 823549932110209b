"""What the release check costs, as a share of an iteration that swaps.

    python tests/gpu/check.py --out DIR [--pairs N]

needs a torch with LMS, torchvision and rich. Trains ResNet-50 at a limit of 12 GB as acceptance.py
does, without compression, in pairs of processes: one as LMS is, and one that neither hashes nor
compares what it pages out. They take turns, because the rate of the link is a machine's and an
hour's. Prints a table, and leaves check.json and check.md in DIR. Exits with 1 if a loss is another
than LMS off gives; time is for the reader to judge.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import acceptance
import machine
import report

WARM_UP = 8  # iterations: plans are made and tried in these


def milliseconds(result: dict[str, Any]) -> float:
    return statistics.median(result["milliseconds"][WARM_UP:])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--pairs", type=int, default=4, help="of processes (default: 4)")
    parser.add_argument("--batch", type=int, default=512)
    arguments = parser.parse_args()
    reference = acceptance.run_apart("memory", arguments, 20)
    pairs, rows = [], []
    for number in range(arguments.pairs):
        names = ("checked", "unchecked") if number % 2 else ("unchecked", "checked")
        pair = {name: acceptance.run_apart(name, arguments, 20) for name in names}
        pairs.append(pair)
        for result in (reference, *pair.values()):
            if "error" in result:
                print(result["error"], file=sys.stderr)
                return 1
        with_check, without = (milliseconds(pair[name]) for name in ("checked", "unchecked"))
        kernels = {"lms_restore": 0.0, **pair["checked"]["kernels"]}
        rows.append(
            {
                "pair": str(number + 1),
                "with, ms": f"{with_check:.1f}",
                "without, ms": f"{without:.1f}",
                "check": f"{(with_check - without) / without:+.2%}",
                "check kernels, ms": f"{kernels['lms_check'] + kernels['lms_restore']:.2f}",
                "hash kernels, ms": f"{kernels['lms_hash']:.2f}",
                "page-outs, GB": " and ".join(
                    f"{pair[name]['moved'][-1]['page_out_bytes'] / 1e9:.2f}" for name in pair
                ),
            }
        )
    same = all(
        acceptance.same_losses(result, reference) for pair in pairs for result in pair.values()
    )
    title = f"The release check, ResNet-50, batch {arguments.batch}, at 12 GB, without compression"
    heading = f"Pairs of processes, {'identical losses' if same else 'DIFFERENT LOSSES'}"
    tables = {heading: rows}
    report.write(arguments.out, "check", title, machine.describe(), tables, {"pairs": pairs})
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
