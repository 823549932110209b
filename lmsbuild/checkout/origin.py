"""Where PyTorch's sources come from: a URL, a local repository, a checkout, or a tarball."""

from __future__ import annotations

import enum
import lzma
import re
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from git import Repo
from packaging.version import InvalidVersion, Version
from rich.progress import Progress

from lmsbuild import console
from lmsbuild.errors import SourceError, ToolMissingError, UnsafeMemberError, WrongSourceError
from lmsbuild.registry import Tag
from lmsbuild.tools import git
from lmsbuild.tools.clone import clone

VERSION_FILE = "version.txt"
_CHUNK = 1 << 20  # bytes
_DAMAGE = (zlib.error, lzma.LZMAError)  # what tarfile lets through
# Where the version was before 1.4.
SETUP_FILE = "setup.py"
_SETUP_VERSION = re.compile(r"^version = '([^']+)'$", re.MULTILINE)
# git's short form for SSH, host:path or user@host:path.
_SCP_LIKE = re.compile(r"^(?:[\w.-]+@)?[\w.-]+:[^\\]")
IMPORTER = git.Identity(
    name="lmsbuild contributors",
    email="lmsbuild@lmsbuild.invalid",
    # Fixed, so that one tarball becomes one commit, wherever and whenever it is unpacked.
    date="Thu, 1 Jan 2026 00:00:00 +0000",
)


class Kind(enum.Enum):
    URL = "a URL"
    BARE = "a bare repository"
    CHECKOUT = "a checkout"
    TARBALL = "a source tarball"


@dataclass(frozen=True, kw_only=True)
class Source:
    """What the user gave as the source.

    Attributes:
        text: as the user wrote it.
        kind: what it is.
    """

    text: str
    kind: Kind

    @property
    def path(self) -> Path:
        return Path(self.text)


def classify(text: str) -> Source:
    """Finds out what ``text`` is.

    Raises:
        SourceError: it is not a kind of source that lmsbuild knows.
    """
    path = Path(text)
    if path.is_dir():
        with git.opened(path) as repo:
            return Source(text=text, kind=Kind.BARE if repo.bare else Kind.CHECKOUT)
    if path.is_file():
        if not _is_tarball(path):
            raise SourceError(f"{path} is not a readable tarball; download it again")
        return Source(text=text, kind=Kind.TARBALL)
    if "://" in text or _SCP_LIKE.match(text):
        return Source(text=text, kind=Kind.URL)
    raise SourceError(f"{text}: no such directory or file, and not a URL")


def fetch(source: Source, tag: Tag, into: Path) -> None:
    """Makes ``into``, a new directory, a checkout of ``tag`` from ``source``.

    Raises:
        SourceError, NetworkError, UnsafeMemberError: the source is not available.
    """
    if source.kind is Kind.TARBALL:
        console.say(f"unpacking {source.text}")
        unpack(source.path, into)
        git.create(into)
        with git.opened(into) as repo:
            git.commit_everything(repo, f"PyTorch {tag.version} sources\n", IMPORTER)
    elif source.kind is Kind.URL:
        console.say(f"cloning {source.text} at {tag.name}")
        _clone(source.text, into, branch=tag.name, partial=True)
    else:
        console.say(f"cloning {source.text}")
        with git.opened(source.path) as repo:
            known = git.tag_commit(repo, tag.name)
        # A checkout that was made from a tarball has no tags. Take its checked-out commit.
        branch = tag.name if known else None
        _clone(source.path.resolve().as_uri(), into, branch=branch, partial=False)


def _clone(url: str, into: Path, *, branch: str | None, partial: bool) -> None:
    hidden = not console.shows_progress()
    with Progress(console=console.err, transient=True, disable=hidden) as progress:
        task = progress.add_task("connecting", total=None)

        def report(stage: str, done: float, total: float, rate: str) -> None:
            progress.update(
                task, description=f"{stage} {rate}".strip(), completed=done, total=total or None
            )

        clone(url, into, branch=branch, partial=partial, report=report)


def unpack(tarball: Path, into: Path) -> None:
    """Unpacks a source tarball into the new directory ``into``, without its top directory.

    Raises:
        SourceError: the tarball is damaged, or does not contain PyTorch's sources.
        UnsafeMemberError: a member leads out of the folder.
    """
    if not hasattr(tarfile, "data_filter"):
        raise ToolMissingError(
            "this Python cannot unpack a tarball safely;"
            " use 3.10.12, 3.11.4, 3.12 or later, or unpack and `git init` it yourself"
        )
    into.mkdir()
    try:
        with tarfile.open(tarball) as archive:
            for member in archive:
                inner = _inner(member, tarball)
                if inner is not None:
                    archive.extract(inner, into, filter="data")
            # tarfile stops before the checksum of what is compressed.
            while archive.fileobj is not None and archive.fileobj.read(_CHUNK):
                pass
    except tarfile.FilterError as error:
        raise UnsafeMemberError(f"{tarball}: {error}; do not use this file") from error
    except (tarfile.TarError, EOFError, ValueError, *_DAMAGE) as error:
        raise _damaged(tarball, error) from error
    except OSError as error:
        # Decompressors report damage as OSError without an errno; the disk's errors have one.
        if error.errno is None:
            raise _damaged(tarball, error) from error
        raise
    if _version(lambda name: _text(into / name)) is None:
        raise SourceError(f"{tarball} holds no {VERSION_FILE}: it is not PyTorch's sources")


def _is_tarball(path: Path) -> bool:
    try:
        return tarfile.is_tarfile(path)
    except (EOFError, *_DAMAGE):
        return False


def _damaged(tarball: Path, error: Exception) -> SourceError:
    return SourceError(f"{tarball} is truncated or damaged ({error}); download it again")


def _inner(member: tarfile.TarInfo, tarball: Path) -> tarfile.TarInfo | None:
    """The member without the top directory; None for what is not to be unpacked."""
    parts = PurePosixPath(member.name).parts
    if ".." in parts or PurePosixPath(member.name).is_absolute():
        raise UnsafeMemberError(f"{tarball}: member {member.name!r} leads out of the folder")
    # A .git in the tarball would add its own configuration and hooks.
    if len(parts) < 2 or ".git" in parts:
        return None
    changes: dict[str, str] = {"name": "/".join(parts[1:])}
    if member.islnk():
        # A hard link names another member, from the top; a symbolic link a place from here.
        changes["linkname"] = "/".join(PurePosixPath(member.linkname).parts[1:])
    return member.replace(**changes, deep=False)  # type: ignore[arg-type]


def version_at_head(repo: Repo) -> str | None:
    """The version in the checked-out files, if they are PyTorch's."""
    return _version(lambda name: git.file_at_head(repo, name))


def _version(text_of: Callable[[str], str | None]) -> str | None:
    text = text_of(VERSION_FILE)
    if text is not None:
        return text.strip()
    found = _SETUP_VERSION.search(text_of(SETUP_FILE) or "")
    return found[1] if found else None


def _text(path: Path) -> str | None:
    return path.read_text("utf-8", "replace") if path.is_file() else None


def tag_commit(repo: Repo, tag: Tag) -> str | None:
    """The commit of the release in a repository: the tag's, else the official wheel's, if there."""
    return git.reference(repo, f"refs/tags/{tag.name}") or git.reference(repo, tag.git_commit)


def check_version(repo: Repo, tag: Tag, where: Path) -> None:
    """Makes sure that what is checked out is ``tag``; messages call the place ``where``.

    Raises:
        WrongSourceError: it is not; the message names both.
    """
    if git.head(repo).hexsha == tag.git_commit:
        return
    other = [name for name in git.tags_at_head(repo) if _is_release(name) and name != tag.name]
    if other:
        raise WrongSourceError(_wrong(where, other[0], tag))
    version = version_at_head(repo)
    if version is None:
        raise WrongSourceError(f"{where} is not PyTorch: it has no {VERSION_FILE}")
    if not _matches(version, tag):
        raise WrongSourceError(_wrong(where, version, tag))


def _wrong(where: Path, found: str, tag: Tag) -> str:
    return f"{where} is PyTorch {found}, not {tag.name}; run: git checkout {tag.name}"


def _is_release(name: str) -> bool:
    return re.fullmatch(r"v\d+\.\d+\.\d+", name) is not None


def _matches(text: str, tag: Tag) -> bool:
    try:
        found = Version(text)
    except InvalidVersion:
        return False
    wanted = Version(tag.version)
    if found.release == wanted.release:
        return True
    # Upstream's release branches contain the branch's first version, as X.Y.0a0. The version of
    # a release, X.Y.1 say, is given to the build from outside.
    return found.is_prerelease and found.release == (wanted.major, wanted.minor, 0)
