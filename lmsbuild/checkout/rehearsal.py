"""Apply patches to a commit without changing its repository."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from git import Repo
from git.exc import GitCommandError

from lmsbuild.tools.git import run, words_of


class Rejection(Exception):
    """A patch that does not apply.

    Attributes:
        number: which of the patches, counted from 0.
        words: git's message.
    """

    def __init__(self, number: int, words: str) -> None:
        super().__init__(words)
        self.number = number
        self.words = words


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """The result that applying the patches would have.

    Attributes:
        tree: id of the resulting tree.
        drifted: for each patch, the files that are not what it was made against.
    """

    tree: str
    drifted: tuple[tuple[str, ...], ...]


def rehearse(
    repo: Repo,
    patches: Sequence[str],
    expected: Sequence[Mapping[str, str]],
    commit: str = "HEAD",
) -> Rehearsal:
    """Applies diffs one after the other to a commit, in a scratch index.

    The repository, its index and its work tree stay as they are. ``expected`` gives, for each
    patch, the blob ids (or their beginnings) of the files that it was made against.

    Raises:
        Rejection: one does not apply.
    """
    with tempfile.TemporaryDirectory(prefix="lmsbuild-") as folder:
        scratch = Path(folder)
        (scratch / "objects").mkdir()
        environment = {
            "GIT_INDEX_FILE": str(scratch / "index"),
            "GIT_OBJECT_DIRECTORY": str(scratch / "objects"),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": _quoted(Path(repo.common_dir) / "objects"),
        }
        run(repo, "read-tree", commit, environment=environment)
        drifted = []
        for number, patch in enumerate(patches):
            drifted.append(_drifted(repo, expected[number], environment))
            path = scratch / "patch"
            path.write_bytes(patch.encode("utf-8", "surrogateescape"))
            try:
                run(repo, "apply", "--cached", str(path), environment=environment)
            except GitCommandError as error:
                raise Rejection(number, words_of(error)) from error
        tree = run(repo, "write-tree", environment=environment)
    return Rehearsal(tree=tree, drifted=tuple(drifted))


def _drifted(
    repo: Repo, expected: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[str, ...]:
    if not expected:
        return ()
    listing = run(repo, "ls-files", "--stage", "-z", "--", *expected, environment=environment)
    have = {}
    for entry in listing.split("\0"):
        meta, _, path = entry.partition("\t")
        if path:
            have[path] = meta.split()[1]
    return tuple(
        path for path, blob in expected.items() if path in have and not have[path].startswith(blob)
    )


def _quoted(path: Path) -> str:
    # The variable is a list separated by colons; git unquotes an entry in double quotes.
    text = str(path.resolve())
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
