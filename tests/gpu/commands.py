"""Runs commands that the documentation shows on real GPUs, as they are printed.

    python tests/gpu/commands.py --out DIR [--pages PAGE ...] [--matching REGEX]

needs a torch with Large Model Support, torchvision, transformers and rich. Commands for two GPUs
need two, or they are left out. tests/commands runs all commands of all pages on a simulated device,
some of them with smaller sizes. Prints a table, and leaves commands.json, commands.md and the
commands' output in DIR. Exits 1 if a command ends otherwise than its page says.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import machine
import report

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "commands"))

import listings  # noqa: E402
import pages  # noqa: E402

TUTORIAL = "docs/tutorial.md"
EXAMPLES = "docs/examples/README.md"
PAGES = (TUTORIAL, "docs/how-to/unchanged-program.md", EXAMPLES)
PROGRAM = re.compile(r"^([A-Z_]+=\S+ )*(python|torchrun) ")
MEMORY = "CUDA out of memory"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    command: pages.Command
    code: int
    wanted: int
    seconds: float
    output: str

    @property
    def expected(self) -> bool:
        return self.code == self.wanted and (self.code == 0 or MEMORY in self.output)

    def cells(self) -> dict[str, str]:
        last = [line for line in self.output.splitlines() if line.strip()] or [""]
        outcome = "ends" if self.code == 0 else f"exit code {self.code}"
        return {
            "command": f"`{self.command.text}`",
            "page": f"{self.command.page}:{self.command.line}",
            "outcome": MEMORY if self.code and MEMORY in self.output else outcome,
            "s": f"{self.seconds:.1f}",
            "last line": last[-1].strip()[:100].replace("|", "/"),
            "as the page says": "yes" if self.expected else "NO",
        }


def commands(page: str, devices: int, matching: str) -> list[pages.Command]:
    """The page's programs that this machine can run."""
    found = [command for command in pages.commands_of(page) if PROGRAM.match(command.text)]
    found = [command for command in found if re.search(matching, command.text)]
    return [c for c in found if devices > 1 or not re.search(r"nproc-per-node[ =]2", c.text)]


def prepare(page: str, folder: Path) -> None:
    """What the page takes for granted."""
    (folder / "package").mkdir(parents=True)
    (folder / "package" / "__init__.py").write_text("")
    for name in ("train.py", "package/train.py"):
        (folder / name).write_text(listings.train())
    if page == EXAMPLES:
        for path in (ROOT / "docs" / "examples").glob("*.py"):
            (folder / path.name).write_bytes(path.read_bytes())


def run(command: pages.Command, folder: Path, number: int) -> Row:
    tutorial = command.page == TUTORIAL
    if tutorial:
        (folder / "fit.py").write_text(listings.fit()[number])
    # Without LMS, what is to show that the memory does not suffice fails. A search ends.
    short = "--no-lms" in command.text and "--limit" in command.text
    fails = number == 0 if tutorial else short and "--find-largest" not in command.text
    print(command.text, file=sys.stderr, flush=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    began = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", command.text],
        cwd=folder,
        env={**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    (folder / f"{number}.log").write_text(done.stdout)
    return Row(
        command=command,
        code=done.returncode,
        wanted=int(fails),
        seconds=time.monotonic() - began,
        output=done.stdout,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--pages", nargs="+", default=PAGES, choices=PAGES, metavar="PAGE")
    parser.add_argument("--matching", default="", metavar="REGEX", help="only these commands")
    arguments = parser.parse_args()
    import torch

    rows: list[Row] = []
    for page in arguments.pages:
        folder = arguments.out / Path(page).parent.name / Path(page).stem
        prepare(page, folder)
        for number, command in enumerate(
            commands(page, torch.cuda.device_count(), arguments.matching)
        ):
            rows.append(run(command, folder, number))
        report.write(
            arguments.out,
            "commands",
            "Commands of the documentation",
            machine.describe(),
            {"As they are printed": [row.cells() for row in rows]},
            {"rows": [dataclasses.asdict(row) for row in rows]},
        )
    return int(not all(row.expected for row in rows))


if __name__ == "__main__":
    sys.exit(main())
