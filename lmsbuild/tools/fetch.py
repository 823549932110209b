"""Official wheels and header packages: from the cache, or from the user's package index."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lmsbuild.errors import DamagedWheelError, HeadersError, InputError
from lmsbuild.tools import atomic, zipcopy
from lmsbuild.tools.cache import scratch, sha256_of
from lmsbuild.tools.download import NotOnIndexError, Progress, Target, download


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """A wheel in the cache.

    ``sha256`` is of the file as it arrived. ``index_sha256`` is what the index promised, None
    when pip does not tell (it has compared them itself all the same).
    """

    path: Path
    sha256: str
    index_sha256: str | None


def fetch_wheel(
    requirement: str, target: Target, cache: Path, progress: Progress | None = None
) -> Fetched:
    """The wheel of a pinned requirement ("name==version"), from the cache or the index.

    Nothing is left behind when the download fails or is interrupted.

    Raises:
        NotOnIndexError: the index has no such wheel for the target.
        NetworkError, NoSpaceError, DamagedWheelError, ToolMissingError.
    """
    cached = _cached(_note(requirement, target, cache))
    return cached or _download(requirement, target, cache, progress)


def fetch_newest(
    requirement: str, target: Target, cache: Path, progress: Progress | None = None
) -> Fetched:
    """The wheel of the newest version that a requirement ("name==12.8.*") allows.

    Always asks the index. Raises as fetch_wheel.
    """
    return _download(requirement, target, cache, progress)


@contextmanager
def forgotten_if_unfit(requirement: str, target: Target, cache: Path) -> Iterator[None]:
    """Checks a wheel that fetch_wheel() gave: if it is not the one that was meant, it is forgotten.

    Otherwise it would be refused again after the user has changed the index.

    Raises:
        InputError: as the block; the message says that the index gave the wheel.
    """
    try:
        yield
    except InputError as error:
        _note(requirement, target, cache).unlink(missing_ok=True)
        raise type(error)(
            f"{error}; it is what pip's index has for {requirement}, see `pip config list` and the"
            " PIP_ variables",
            detail=error.detail,
        ) from error


def _note(requirement: str, target: Target, cache: Path) -> Path:
    name = f"{requirement.replace('==', '-')}-{target.python_tag}-{target.architecture}.json"
    return cache / "wheels" / name


def _download(requirement: str, target: Target, cache: Path, progress: Progress | None) -> Fetched:
    with scratch(cache) as name:
        folder = Path(name)
        index_hashes = download(requirement, target, folder, progress)
        wheels = list((folder / "wheels").glob("*.whl"))
        if len(wheels) != 1:
            raise NotOnIndexError(f"pip delivered {len(wheels)} wheels for {requirement}, not 1")
        digest = sha256_of(wheels[0])
        index_sha256 = index_hashes.get(wheels[0].name)
        if index_sha256 not in (None, digest):
            raise DamagedWheelError(f"{wheels[0].name} does not match the index's hash; try again")
        pinned = requirement
        if requirement.endswith("*"):
            pinned = f"{requirement.split('==')[0]}=={wheels[0].name.split('-')[1]}"
        note = _note(pinned, target, cache)
        path = note.parent / wheels[0].name
        path.parent.mkdir(exist_ok=True)
        os.replace(wheels[0], path)
    # The note comes last: a wheel without one is fetched again.
    atomic.write_bytes(
        note,
        json.dumps({"file": path.name, "sha256": digest, "index_sha256": index_sha256}).encode(),
    )
    return Fetched(path=path, sha256=digest, index_sha256=index_sha256)


def fetch_package(
    requirement: str, target: Target, cache: Path, progress: Progress | None = None
) -> Fetched:
    """A wheel fetched and unpacked: ``path`` is the folder that its members lie in.

    Raises as fetch_wheel, and HeadersError when the wheel cannot be unpacked.
    """
    wheel = fetch_wheel(requirement, target, cache, progress)
    folder = cache / "packages" / f"{wheel.path.stem}-{wheel.sha256[:12]}"
    if not folder.is_dir():
        with scratch(cache) as name:
            plain = Path(name) / "package"
            try:
                with zipfile.ZipFile(wheel.path) as packed:
                    for info in packed.infolist():
                        zipcopy.extract(packed, info, plain)
            except (zipfile.BadZipFile, zipcopy.ArchiveError) as error:
                raise HeadersError(f"{wheel.path.name} cannot be unpacked: {error}") from error
            folder.parent.mkdir(exist_ok=True)
            try:
                plain.rename(folder)
            except OSError:
                # Another build unpacked the same wheel meanwhile; its copy is as good.
                if not folder.is_dir():
                    raise
    return Fetched(path=folder, sha256=wheel.sha256, index_sha256=wheel.index_sha256)


def _cached(note: Path) -> Fetched | None:
    """The wheel that a note describes, unless either is missing or the file has changed."""
    try:
        told = json.loads(note.read_text(encoding="utf-8"))
        found = Fetched(
            path=note.parent / told["file"],
            sha256=told["sha256"],
            index_sha256=told["index_sha256"],
        )
        return found if sha256_of(found.path) == found.sha256 else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
