"""A package index in a folder: the wheels that lie there, and the pages that describe them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from packaging.version import Version

from lmsbuild.errors import ChangedPackageError, StaleIndexError, WheelIndexError
from lmsbuild.index import pages
from lmsbuild.index.entry import ENDING, METADATA_ENDING, Entry, name_of, read_entry, read_metadata
from lmsbuild.tools import lock
from lmsbuild.tools.atomic import copies, remove_drafts, write_bytes
from lmsbuild.tools.hashes import Hashes, once
from lmsbuild.tools.report import Report, counter

SIMPLE = "simple"
HTML, JSON = "index.html", "index.json"

_LOCK_FILE = ".lmsbuild.lock"


class PackageIndex:
    """A package index in a folder.

    The wheels lie in the folder itself, each with its METADATA beside it (PEP 658). ``simple``
    has the pages. Hashes of wheels are remembered, and calculated again if a file has changed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._hashes = Hashes()

    @property
    def exists(self) -> bool:
        """Whether the folder has an index."""
        return (self.folder / SIMPLE / JSON).is_file()

    def add(self, wheels: Iterable[Path], say: Callable[[str], None], report: Report) -> list[Path]:
        """Copy wheels into the folder and index it. Returns the new files.

        Wheels that are there already are reported with ``say`` and skipped.

        Raises:
            WheelIndexError: a file, or one that lies in the folder, is no wheel, or its name does
                not match its content. Nothing is added.
            ChangedPackageError: the folder has another wheel of this name. Nothing is added.
            BusyError: another lmsbuild is working in the folder.
        """
        targets = once({path: self.folder / path.name for path in wheels})
        for path in targets:
            read_metadata(path)
        self.folder.mkdir(parents=True, exist_ok=True)
        with lock.exclusive(self.folder / _LOCK_FILE, self.folder):
            remove_drafts(self.folder)
            new = {path: to for path, to in targets.items() if not self._has(path, to, say)}
            for path in self._wheels():  # wheels are large: before the first one is copied
                read_metadata(path)
            self._index(new, report)
        return list(new.values())

    def index(self, report: Report) -> None:
        """Write the index of the wheels in the folder. Pages that say the same are not touched.

        Raises:
            WheelIndexError: there is no such folder, no wheel in it, or a wheel that is none.
            BusyError: another lmsbuild is working in the folder.
        """
        if not self.folder.is_dir():
            raise WheelIndexError(f"{self.folder}: no such folder; name wheels to copy there")
        if not self.exists and not self._wheels():
            raise WheelIndexError(
                f"{self.folder} has no wheels; put some there, or name them after the folder"
            )
        with lock.exclusive(self.folder / _LOCK_FILE, self.folder):
            self._index({}, report)

    def entries(self) -> list[Entry]:
        """What the index says, by project. Raises WheelIndexError if it cannot be read."""
        if not self.folder.is_dir():
            raise WheelIndexError(f"{self.folder}: no such folder")
        path = self.folder / SIMPLE / JSON
        try:
            found: list[Entry] = []
            for project in pages.read_root(path.read_text(encoding="utf-8")):
                path = self.folder / SIMPLE / project / JSON
                found += pages.read_project(path.read_text(encoding="utf-8"))
            return found
        except FileNotFoundError:
            raise WheelIndexError(f"{path} is missing; run: {self._repair}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WheelIndexError(
                f"{path} cannot be read ({error}); run: {self._repair}"
            ) from error

    def hashes(self) -> dict[str, str]:
        """The files that a client may ask for, by path in the folder, with the SHA-256 that each
        has to have: pages, wheels and their METADATA. Raises WheelIndexError if the index cannot
        be read."""
        entries = self.entries()
        return {
            **{entry.file: entry.sha256 for entry in entries},
            **{f"{entry.file}{METADATA_ENDING}": entry.metadata_sha256 for entry in entries},
            **{name: hashlib.sha256(data).hexdigest() for name, data in self._pages(entries)},
        }

    def problems(self) -> list[str]:
        """The differences between the index and the files; empty if there are none.

        Raises WheelIndexError if the index cannot be read.
        """
        expected = self.hashes()
        new = [path.name for path in self._wheels() if path.name not in expected]
        found = [f"{name} is not in the index" for name in new]
        for name, sha256 in expected.items():
            if problem := self.problem(name, sha256):
                found.append(problem)
        return found

    def problem(self, name: str, sha256: str) -> str:
        """Why a file is not the one with this hash; empty if it is."""
        try:
            same = self._hashes.sha256(self.folder / name) == sha256
        except FileNotFoundError:
            return f"{name} is missing"
        return "" if same else f"{name} has changed since it was indexed"

    def check(self) -> None:
        """Raise StaleIndexError if the index does not match the files."""
        problems = self.problems()
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise StaleIndexError(
                f"the index is stale: {problems[0]}{more}; run: {self._repair}",
                detail="\n".join(problems),
            )

    @property
    def _repair(self) -> str:
        return f"lmsbuild index {self.folder}"

    def _wheels(self) -> list[Path]:
        return sorted(self.folder.glob(f"[!.]*{ENDING}"))

    def _has(self, source: Path, target: Path, say: Callable[[str], None]) -> bool:
        if not target.exists():
            return False
        if source.samefile(target) or self._hashes.sha256(source) == self._hashes.sha256(target):
            say(f"{target.name}: already there")
            return True
        raise ChangedPackageError(
            f"the index has another {target.name}, which may be installed somewhere; give the new"
            " one another version, or delete the old one"
        )

    def _index(self, new: Mapping[Path, Path], report: Report) -> None:
        """Copy new wheels (targets by source) and index the folder. If a wheel cannot be indexed,
        the new ones do not stay. Once a page may name them, they do."""
        with copies(new):
            metadata, entries = self._read(report)
        # What a page names is there before the page, and goes after it.
        for name, data in metadata.items():
            self._write(f"{name}{METADATA_ENDING}", data)
        for name, data in self._pages(entries):
            self._write(name, data)
        self._remove_others(metadata.keys(), {entry.project for entry in entries})

    def _read(self, report: Report) -> tuple[dict[str, bytes], list[Entry]]:
        """METADATA of the wheels in the folder, by name, and their entries."""
        wheels = self._wheels()
        for path in wheels:
            name_of(path)  # before the first one is read
        advance = counter("hash", sum(path.stat().st_size for path in wheels), report)
        known = self._upload_times()
        metadata: dict[str, bytes] = {}
        entries = []
        for path in wheels:
            metadata[path.name] = read_metadata(path)
            entry = read_entry(path, metadata[path.name], self._hashes, advance)
            time = known.get((entry.file, entry.sha256), entry.upload_time)
            entries.append(replace(entry, upload_time=time))
        return metadata, entries

    def _upload_times(self) -> dict[tuple[str, str], str]:
        """When the wheels came into the index, by name and hash: a copy of the folder may have
        lost their modification times."""
        try:
            return {(e.file, e.sha256): e.upload_time for e in self.entries()}
        except WheelIndexError:
            return {}

    def _pages(self, entries: Iterable[Entry]) -> Iterator[tuple[str, bytes]]:
        """The pages by path, the list of projects last."""
        projects: dict[str, list[Entry]] = {}
        for entry in sorted(entries, key=lambda e: (e.project, Version(e.version), e.file)):
            projects.setdefault(entry.project, []).append(entry)
        for name, of_project in projects.items():
            yield f"{SIMPLE}/{name}/{HTML}", pages.project_html(name, of_project).encode()
            yield f"{SIMPLE}/{name}/{JSON}", pages.project_json(name, of_project).encode()
        yield f"{SIMPLE}/{HTML}", pages.root_html(projects).encode()
        yield f"{SIMPLE}/{JSON}", pages.root_json(projects).encode()

    def _differs(self, name: str, data: bytes) -> bool:
        try:
            return (self.folder / name).read_bytes() != data
        except FileNotFoundError:
            return True

    def _write(self, name: str, data: bytes) -> None:
        if self._differs(name, data):
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, data)

    def _remove_others(self, wheels: Iterable[str], projects: set[str]) -> None:
        """What was written for wheels that are gone, and nothing else."""
        for page in (self.folder / SIMPLE).glob(f"*/{JSON}"):
            if page.parent.name not in projects:
                for name in (HTML, JSON):
                    (page.parent / name).unlink(missing_ok=True)
                with suppress(OSError):  # something else lies there
                    page.parent.rmdir()
        named = {f"{wheel}{METADATA_ENDING}" for wheel in wheels}
        for path in self.folder.glob(f"[!.]*{ENDING}{METADATA_ENDING}"):
            if path.name not in named:
                path.unlink()
