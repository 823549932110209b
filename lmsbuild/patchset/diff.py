"""Unified diffs as git writes them: files and hunks, read and written."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

_FILE = re.compile(r"^diff --git a/(?P<old>.+) b/(?P<new>.+)$")
_INDEX = re.compile(r"^index (?P<old>[0-9a-f]+)\.\.(?P<new>[0-9a-f]+)")
_HUNK = re.compile(
    r"^@@ -(?P<old>\d+)(?:,(?P<old_count>\d+))?"
    r" \+(?P<new>\d+)(?:,(?P<new_count>\d+))? @@ ?(?P<at>.*)$"
)
_NO_NEWLINE = "\\ No newline at end of file"


class DiffError(ValueError):
    """The text is not a diff that can be applied."""


@dataclass(frozen=True, kw_only=True)
class Hunk:
    """One contiguous change of a file.

    Attributes:
        old_start, old_count: its lines before the change; the first line is 1.
        new_start, new_count: its lines after the change.
        section: what git prints after the second @@: the enclosing class or function.
        lines: every line with its leading " ", "-", "+" or backslash, without its newline.
    """

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    section: str
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class FilePatch:
    """What a diff does to one file.

    Attributes:
        path: the file's path in the tree, after the change.
        old_path: its path before the change; None when the diff creates it.
        deleted: the diff removes it.
        old_blob: git's id of the content that the diff was made against, possibly abbreviated;
            empty when the diff does not say, or creates the file.
        hunks: the changed places, in the file's order.
    """

    path: str
    old_path: str | None
    deleted: bool
    old_blob: str
    hunks: tuple[Hunk, ...]

    @property
    def created(self) -> bool:
        return self.old_path is None


def parse_diff(text: str) -> tuple[FilePatch, ...]:
    """The files of a git diff.

    Raises:
        DiffError: the text holds no diff, a binary one, or a hunk that is cut short.
    """
    lines = text.split("\n")
    files: list[FilePatch] = []
    at = 0
    while at < len(lines):
        if _FILE.match(lines[at]):
            patch, at = _read_file(lines, at)
            files.append(patch)
        else:
            at += 1
    if not files:
        raise DiffError("holds no diff")
    return tuple(files)


def blob_id(content: bytes) -> str:
    """The id under which git stores ``content``."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def creation_diff(path: str, content: bytes) -> str:
    """The diff that creates a text file.

    Raises:
        DiffError: the content is not text that a mail can carry unchanged.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DiffError("not UTF-8 text") from error
    if "\0" in text or "\r" in text:
        raise DiffError("not text with Unix line ends")
    header = [
        f"diff --git a/{path} b/{path}",
        "new file mode 100644",
        f"index {'0' * 40}..{blob_id(content)}",
    ]
    if not text:
        return "\n".join(header) + "\n"
    lines = text.removesuffix("\n").split("\n")
    count = f",{len(lines)}" if len(lines) > 1 else ""
    body = ["--- /dev/null", f"+++ b/{path}", f"@@ -0,0 +1{count} @@"]
    body += [f"+{line}" for line in lines]
    if not text.endswith("\n"):
        body.append(_NO_NEWLINE)
    return "\n".join(header + body) + "\n"


def _read_file(lines: list[str], at: int) -> tuple[FilePatch, int]:
    names = _FILE.match(lines[at])
    assert names is not None
    old_path: str | None = names["old"]
    deleted = False
    old_blob = ""
    hunks: list[Hunk] = []
    at += 1
    while at < len(lines) and not lines[at].startswith("diff --git "):
        line = lines[at]
        if line.startswith("new file mode"):
            old_path = None
        elif line.startswith("deleted file mode"):
            deleted = True
        elif index := _INDEX.match(line):
            old_blob = index["old"] if index["old"].strip("0") else ""
        elif line.startswith(("GIT binary patch", "Binary files ")):
            raise DiffError(f"{names['new']}: a binary change")
        elif line.startswith("@@ "):
            hunk, at = _read_hunk(lines, at, names["new"])
            hunks.append(hunk)
            continue
        at += 1
    patch = FilePatch(
        path=names["new"],
        old_path=old_path,
        deleted=deleted,
        old_blob=old_blob,
        hunks=tuple(hunks),
    )
    return patch, at


def _read_hunk(lines: list[str], at: int, path: str) -> tuple[Hunk, int]:
    header = _HUNK.match(lines[at])
    if header is None:
        raise DiffError(f"{path}: malformed hunk header {lines[at]!r}")
    counts = [int(header[name] or "1") for name in ("old_count", "new_count")]
    old_left, new_left = counts
    body: list[str] = []
    at += 1
    while old_left > 0 or new_left > 0:
        # Mail programs cut the single space off an empty context line; git accepts that too.
        line = (lines[at] or " ") if at < len(lines) else "?"
        if line[0] not in " -+\\":
            raise DiffError(f"{path}: the hunk at line {header['old']} is cut short")
        old_left -= line[0] in " -"
        new_left -= line[0] in " +"
        body.append(line)
        at += 1
    if old_left < 0 or new_left < 0:
        raise DiffError(f"{path}: the hunk at line {header['old']} is longer than it says")
    if at < len(lines) and lines[at] == _NO_NEWLINE:
        body.append(lines[at])
        at += 1
    hunk = Hunk(
        old_start=int(header["old"]),
        old_count=counts[0],
        new_start=int(header["new"]),
        new_count=counts[1],
        section=header["at"],
        lines=tuple(body),
    )
    return hunk, at
