"""The commands that README.md and the pages of the documentation show in blocks of code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).parents[2]

# What a command begins with. A block has commands and comments alone, or none.
PROGRAMS = (
    *(".", "cd", "conda", "git", "lmsbuild", "make", "pip", "python", "python3"),
    *("torchrun", "uv"),
)
PROGRAM = re.compile(r"(\S+)( \S|$)")  # a table has more spaces
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*=\S+ ")
COMMENT = re.compile(r"(^|\s+)#\s.*$")
FENCE = re.compile(r" *```(\w*)")


class MixedBlockError(AssertionError):
    """A block of code that has commands, and lines that are none."""


@dataclass(frozen=True, order=True)
class Command:
    """A line that a user is to type, without its comment.

    Attributes:
        page: the page's path in the project.
        line: its number in the page.
    """

    page: str
    line: int
    text: str


def pages() -> list[str]:
    """The pages of the site, and those that they include, but for what tells of the past."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    found += [ROOT / "ci/README.md", ROOT / "patches/README.md", ROOT / "tests/simcuda/README.md"]
    names = sorted(path.relative_to(ROOT).as_posix() for path in found)
    return [name for name in names if not name.startswith("docs/results/")]


def commands_of(page: str) -> list[Command]:
    """The commands of a page, in their order. Raises MixedBlockError."""
    return find(page, (ROOT / page).read_text(encoding="utf-8"))


def find(page: str, text: str) -> list[Command]:
    """The commands in the text of a page. Raises MixedBlockError."""
    lines = list(enumerate(text.splitlines(), 1))
    found: list[Command] = []
    while lines:
        number, line = lines[0]
        if fence := FENCE.match(line):
            inside = list(takewhile(lambda each: each[1].strip() != "```", lines[1:]))
            if fence[1] == "console":
                shown = [(n, each.strip()) for n, each in inside]
                found += [Command(page, n, bare(c[2:])) for n, c in shown if c.startswith("$ ")]
            lines = lines[len(inside) + 2 :]
        elif line.startswith("    "):
            block = list(takewhile(lambda each: each[1].startswith("    "), lines))
            before = text.splitlines()[number - 2] if number > 1 else ""
            found += block_of(page, block) if not before.strip() else []
            lines = lines[len(block) :]
        else:
            lines = lines[1:]
    return found


def block_of(page: str, block: list[tuple[int, str]]) -> list[Command]:
    """The commands of an indented block, which comes after an empty line."""
    written = [(number, bare(line)) for number, line in block]
    found = [Command(page, number, line) for number, line in written if is_command(line)]
    others = [line for _, line in written if line and not is_command(line)]
    if found and others:
        raise MixedBlockError(
            f"{page}:{block[0][0]}: {others[0]!r} is no command, but {found[0].text!r} is; a "
            "program that is new here belongs into PROGRAMS"
        )
    return found


def bare(line: str) -> str:
    """A line without its comment."""
    return COMMENT.sub("", line).strip()


def is_command(line: str) -> bool:
    while variable := VARIABLE.match(line):
        line = line[variable.end() :]
    program = PROGRAM.match(line)
    return program is not None and program[1] in PROGRAMS
