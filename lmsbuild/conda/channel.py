"""A conda channel: a folder with packages by platform, and an index that describes them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmsbuild.conda import coroutine, extra, package_file
from lmsbuild.conda.package_file import ENDING
from lmsbuild.conda.platforms import NOARCH, SUBDIRS
from lmsbuild.errors import (
    ChangedPackageError,
    ChannelError,
    PackagingError,
    StaleIndexError,
)
from lmsbuild.tools import lock
from lmsbuild.tools.atomic import copies
from lmsbuild.tools.cache import sha256_of
from lmsbuild.tools.hashes import Hashes, once

INDEX = "repodata.json"
ALL_SUBDIRS = (*SUBDIRS.values(), NOARCH)

_LOCK_FILE = ".lmsbuild.lock"
_NEW_INDEX = ".lmsbuild-index"  # where a new index is written before it replaces the old one
# What conda-index and rattler-index write besides: in a platform's folder, and in the channel's.
_FOREIGN = ("*repodata*", "run_exports.json*", "*.msgpack.zst", "shards")
_CHANNEL_DATA = "channeldata.json"


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package, as described by the index of its platform. ``size`` is in bytes."""

    subdir: str
    file: str
    name: str
    version: str
    build: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A reason why an index is stale: what is wrong with ``file`` of ``subdir``."""

    subdir: str
    file: str
    reason: str

    def __str__(self) -> str:
        return f"{self.subdir}/{self.file} {self.reason}"


class Channel:
    """A channel in a folder.

    Hashes are remembered, and are calculated again only for files that have changed (Hashes).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._hashes = Hashes()

    @property
    def exists(self) -> bool:
        """Whether the folder has the index of a platform."""
        return any((self.folder / subdir / INDEX).is_file() for subdir in ALL_SUBDIRS)

    def add(self, packages: Iterable[Path], say: Callable[[str], None]) -> list[Path]:
        """Copy packages into the channel and index it. Returns the new files.

        Packages that the channel already has are reported with ``say`` and skipped.

        Raises:
            ChannelError: a file, or one in the channel, is not a conda package, its name does not
                match its content, or its files are not those that it describes. Nothing is added.
            ChangedPackageError: the channel has another package of this name. Nothing is added.
            BusyError: another lmsbuild is using the channel.
            PackagerError, PackagingError: as index().
        """
        targets = once({path: self._place(path) for path in packages})
        self.folder.mkdir(parents=True, exist_ok=True)
        with lock.exclusive(self.folder / _LOCK_FILE, self.folder):
            new = {path: to for path, to in targets.items() if not self._has(path, to, say)}
            for source in new:
                package_file.check_files(source)
            for path in self._files():  # packages are large: before the first one is copied
                self._check_place(path)
            self._index(new)
        return list(new.values())

    def index(self) -> None:
        """Write a new index of the packages in the channel.

        Raises:
            ChannelError: there is no such folder, or a file in it is not a conda package.
            BusyError: another lmsbuild is using the channel.
            PackagerError: py-rattler is not installed.
            PackagingError: py-rattler failed.
        """
        self._require_folder()
        for path in self._files():
            self._check_place(path)
        with lock.exclusive(self.folder / _LOCK_FILE, self.folder):
            self._index({})

    def packages(self) -> list[Package]:
        """The packages in the index, sorted. Raises ChannelError if it is missing or malformed."""
        return sorted(
            (package for subdir in ALL_SUBDIRS for package in self.described(subdir).values()),
            key=lambda package: (package.name, package.version, package.subdir, package.build),
        )

    def described(self, subdir: str) -> dict[str, Package]:
        """The packages in the index of one platform, by file name. Raises ChannelError."""
        self._require_folder()
        path = self.folder / subdir / INDEX
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if document.get("info", {}).get("subdir", subdir) != subdir:
                raise ValueError(f"it is for {document['info']['subdir']}")
            rows: dict[str, Any] = {
                **document.get("packages", {}),
                **document.get("packages.conda", {}),
            }
            return {
                file: Package(
                    subdir=subdir,
                    file=file,
                    name=row["name"],
                    version=row["version"],
                    build=row["build"],
                    size=row["size"],
                    sha256=row["sha256"],
                )
                for file, row in rows.items()
            }
        except FileNotFoundError:
            raise ChannelError(
                f"{self.folder} has no {subdir}/{INDEX}, so it is not a channel yet; "
                f"run: lmsbuild channel index {self.folder}"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ChannelError(
                f"{path} cannot be read ({error}); run: lmsbuild channel index {self.folder}"
            ) from error

    def problems(self, subdirs: Iterable[str] = ALL_SUBDIRS) -> list[Problem]:
        """The differences between index and files; empty if there are none. Raises ChannelError."""
        found = []
        for subdir in subdirs:
            described = self.described(subdir)
            present = {path.name: path for path in self._files((subdir,))}
            for file in sorted(described.keys() | present.keys()):
                reason = self._mismatch(described.get(file), present.get(file))
                if reason:
                    found.append(Problem(subdir=subdir, file=file, reason=reason))
        return found

    def sha256(self, subdir: str, file: str) -> str:
        """Hexadecimal SHA-256 of a file in the channel. Raises OSError."""
        return self._hashes.sha256(self.folder / subdir / file)

    def check(self) -> None:
        """Raise StaleIndexError if the index does not match the files."""
        problems = self.problems()
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise StaleIndexError(
                f"the index is stale: {problems[0]}{more}; "
                f"run: lmsbuild channel index {self.folder}",
                detail="\n".join(map(str, problems)),
            )

    def _mismatch(self, package: Package | None, path: Path | None) -> str | None:
        if package is None:
            return "is not in the index"
        try:
            if path is None or path.stat().st_size != package.size:
                return "is missing" if path is None else "has changed since it was indexed"
            if self._hashes.sha256(path) != package.sha256:
                return "has changed since it was indexed"
        except FileNotFoundError:
            return "is missing"
        return None

    def _files(self, subdirs: Iterable[str] = ALL_SUBDIRS) -> Iterator[Path]:
        """The packages. Raises ChannelError for those in the older format: they are not indexed."""
        for subdir in subdirs:
            for older in sorted((self.folder / subdir).glob("[!.]*.tar.bz2")):
                raise ChannelError(
                    f"{subdir}/{older.name} is not a {ENDING} file; convert it with `cph "
                    "transmute`, or move it out of the channel"
                )
            yield from sorted((self.folder / subdir).glob(f"[!.]*{ENDING}"))

    def _place(self, package: Path) -> Path:
        """Where a package belongs. Raises ChannelError."""
        if not package.is_file():
            raise ChannelError(f"{package}: no such file")
        if not package.name.endswith(ENDING):
            raise ChannelError(
                f"{package.name} is not a {ENDING} file; "
                "convert it with `cph transmute`, or build it with `lmsbuild conda`"
            )
        index = package_file.read_index(package)
        subdir = index.get("subdir")
        if subdir not in ALL_SUBDIRS:
            raise ChannelError(
                f"{package.name} is for {subdir}, not for one of {', '.join(ALL_SUBDIRS)}"
            )
        name = f"{index.get('name')}-{index.get('version')}-{index.get('build')}{ENDING}"
        if package.name != name:
            raise ChannelError(f"{package.name} has the content of {name}; rename it")
        return self.folder / str(subdir) / name

    def _check_place(self, package: Path) -> None:
        if self._place(package) != package:
            raise ChannelError(
                f"{package.name} is in {package.parent.name}, but is for "
                f"{self._place(package).parent.name}; move it there"
            )

    def _has(self, source: Path, target: Path, say: Callable[[str], None]) -> bool:
        """Whether the channel has a package already. Raises ChangedPackageError."""
        if not target.exists():
            return False
        if source.samefile(target) or sha256_of(source) == sha256_of(target):
            say(f"{target.name}: already there")
            return True
        raise ChangedPackageError(
            f"the channel has another {target.name}, which may be installed somewhere; build the"
            " new one with a higher --build-number, or delete the old one"
        )

    def _require_folder(self) -> None:
        if not self.folder.is_dir():
            raise ChannelError(f"{self.folder}: no such folder; see `lmsbuild channel add`")

    def _index(self, new: Mapping[Path, Path]) -> None:
        """Copy new packages (targets by source), write the index of the channel into a new folder,
        and then replace the old files.

        A reader sees the old index or the new one. On failure, the old one stays, and the new
        packages do not. Once an index may name them, they do.
        """
        rattler = extra.require("rattler.index")
        work = self.folder / _NEW_INDEX
        shutil.rmtree(work, ignore_errors=True)
        try:
            with copies(new):
                for subdir in ALL_SUBDIRS:
                    (work / subdir).mkdir(parents=True)
                for path in self._files():
                    _link(path, work / path.parent.name / path.name)
                _run(rattler.index_fs, work)
            for subdir in ALL_SUBDIRS:
                self._adopt(work / subdir, self.folder / subdir)
            (self.folder / _CHANNEL_DATA).unlink(missing_ok=True)
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _adopt(self, made: Path, subdir: Path) -> None:
        subdir.mkdir(exist_ok=True)
        fresh = {path.name for path in made.iterdir() if not path.name.endswith(ENDING)}
        if INDEX not in fresh:
            raise PackagingError(f"py-rattler made no index of {subdir.name}; report it")
        # The plain index last: it is what `problems` compares.
        for name in sorted(fresh, key=lambda name: name == INDEX):
            os.replace(made / name, subdir / name)
        # What other indexers made would go on saying what was true before.
        for pattern in _FOREIGN:
            for path in subdir.glob(pattern):
                if path.name not in fresh:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _run(index_fs: Any, folder: Path) -> None:
    async def work() -> None:
        # No shards, which are of use in channels with thousands of packages.
        await index_fs(folder, write_zst=True, write_shards=False, force=True)

    try:
        coroutine.run(work())
    except OSError:
        raise
    except Exception as error:  # rattler's own classes, without a common base
        raise PackagingError(f"py-rattler cannot index the channel ({error})") from error


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        target.symlink_to(os.path.relpath(source, target.parent))
