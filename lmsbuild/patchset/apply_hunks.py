"""Apply a parsed diff to a file's content, without searching for another place.

The Python files of a wheel are identical to those of the tag. So a hunk must fit exactly where its
header says. Patch programs search nearby lines, too. Here that could only hide a wrong wheel.
"""

from __future__ import annotations

from lmsbuild.patchset.diff import FilePatch, Hunk

_NO_NEWLINE = "\\"  # first character of "\ No newline at end of file"


class HunkError(ValueError):
    """A hunk does not fit. ``number`` counts the file's hunks from 1; 0 means the whole file."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number


def apply_file_patch(patch: FilePatch, content: bytes | None) -> bytes | None:
    """The content after the patch. None means that the file does not exist.

    Raises HunkError.
    """
    if patch.created != (content is None):
        raise HunkError(0, "the file exists already" if patch.created else "there is no such file")
    # Bytes that are not UTF-8 stay unchanged, as with git.
    lines = _split((content or b"").decode("utf-8", "surrogateescape"))
    growth = 0
    for number, hunk in enumerate(patch.hunks, start=1):
        before, after = _sides(hunk)
        # Without old lines, the header names the line after which the new ones go.
        start = hunk.old_start - (1 if before else 0) + growth
        found = lines[start : start + len(before)]
        if found != before or start > len(lines):
            line = start + _common(found, before) + 1
            raise HunkError(number, f"line {line} is not what the hook expects")
        lines[start : start + len(before)] = after
        growth += len(after) - len(before)
    if patch.deleted:
        return None
    return "".join(lines).encode("utf-8", "surrogateescape")


def _split(text: str) -> list[str]:
    """Lines with their newlines; only the last may lack it. (``splitlines`` knows too many.)"""
    *lines, rest = text.split("\n")
    return [f"{line}\n" for line in lines] + ([rest] if rest else [])


def _sides(hunk: Hunk) -> tuple[list[str], list[str]]:
    """The hunk's old and its new lines."""
    before: list[str] = []
    after: list[str] = []
    for line, following in zip(hunk.lines, (*hunk.lines[1:], ""), strict=True):
        mark, text = line[:1], line[1:]
        if not following.startswith(_NO_NEWLINE):
            text += "\n"
        if mark in (" ", "-"):
            before.append(text)
        if mark in (" ", "+"):
            after.append(text)
    return before, after


def _common(left: list[str], right: list[str]) -> int:
    """Number of lines that both start with."""
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return count
