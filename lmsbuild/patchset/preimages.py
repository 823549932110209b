"""The files of a tag that its hooks change or rely on, by git's blob ids (preimages.toml).

A hook with few lines can apply to a different file than the one it was made for, and be wrong
there. Not every tag has this record. If the hooks only change Python files, their index lines are
enough.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from git import Repo

from lmsbuild._compat import tomllib
from lmsbuild.errors import SeriesError
from lmsbuild.registry import Tag
from lmsbuild.resources import patches_dir
from lmsbuild.tools import git

FILE = "preimages.toml"
SCHEMA = "preimages.schema.json"


@dataclass(frozen=True, kw_only=True)
class Preimage:
    """A file at the tag.

    Attributes:
        path: in PyTorch's tree.
        blob: git's id of its content, 40 hexadecimal digits.
        proof: how that is known: "commit", "wheel", "published" or "history" (see the schema).
    """

    path: str
    blob: str
    proof: str


def load_preimages(tag: Tag, patches: Path | None = None) -> tuple[Preimage, ...]:
    """The record of a tag; empty when it has none.

    Raises:
        SeriesError: the record is malformed.
    """
    patches = patches or patches_dir()
    path = patches / tag.hooks / FILE
    if not path.exists():
        return ()
    import jsonschema

    try:
        document = tomllib.loads(path.read_text("utf-8"))
        jsonschema.validate(document, json.loads((patches / SCHEMA).read_text("utf-8")))
    except (OSError, ValueError, jsonschema.ValidationError) as error:
        reason = getattr(error, "message", error)
        raise SeriesError(f"{path}: malformed ({reason}); see {SCHEMA}") from error
    return tuple(Preimage(**row) for row in document["file"])


def differing(repo: Repo, preimages: Iterable[Preimage]) -> tuple[str, ...]:
    """The paths whose file in the checked-out commit is different or missing."""
    expected = {preimage.path: preimage.blob for preimage in preimages}
    if not expected:
        return ()
    listing = git.run(repo, "ls-tree", "-z", "--full-tree", "HEAD", "--", *expected)
    have = {}
    for entry in listing.split("\0"):
        meta, _, path = entry.partition("\t")
        if path:
            have[path] = meta.split()[2]
    return tuple(path for path, blob in expected.items() if have.get(path) != blob)
