""".conda files: a zip of two compressed tars, info-* with the metadata and pkg-* with the files."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from lmsbuild.conda import extra
from lmsbuild.errors import ChannelError
from lmsbuild.tools.atomic import draft
from lmsbuild.tools.zipcopy import ArchiveWriter

ENDING = ".conda"
LINK = "info/link.json"
LICENSES = "info/licenses"
RUN_EXPORTS = "info/run_exports.json"
_INDEX = "info/index.json"
_PATHS = "info/paths.json"
_LEVEL = 19  # of the metadata's compression, some kilobytes
_CHUNK = 1 << 20  # bytes per read while hashing
_UNREADABLE = (zipfile.BadZipFile, tarfile.TarError, KeyError, TypeError, ValueError, EOFError)
_MODE = stat.S_IFREG | 0o644
_ORDER = {"meta": 0, "pkg-": 1, "info": 2}  # the format's own: readers fetch the end first
_ABOUT = ("home", "license", "summary")


def read_index(package: Path) -> dict[str, Any]:
    """info/index.json of a .conda file.

    Raises:
        ChannelError: it is not a readable .conda file.
        PackagerError: zstandard is not installed.
    """
    try:
        with zipfile.ZipFile(package) as archive:
            data = _metadata(archive, _INDEX)
        if data is None:
            raise ChannelError(f"{package.name} has no {_INDEX}; it is not a conda package")
        index = json.loads(data)
    except (zipfile.BadZipFile, tarfile.TarError, KeyError, ValueError, EOFError) as error:
        raise ChannelError(
            f"{package.name} is not a readable {ENDING} file ({error}); build or fetch it again"
        ) from error
    if not isinstance(index, dict):
        raise ChannelError(f"{package.name}: {_INDEX} is not a JSON object; build it again")
    return index


def check_files(package: Path) -> None:
    """Compare the files of a .conda file with info/paths.json, by size and SHA-256.

    Raises:
        ChannelError: a file is missing, unknown or another one, or the package cannot be read.
        PackagerError: zstandard is not installed.
    """
    zstandard = extra.require("zstandard")
    try:
        with zipfile.ZipFile(package) as archive:
            listed = _metadata(archive, _PATHS)
            rows = json.loads(listed)["paths"] if listed else []
            expected = {row["_path"]: row for row in rows}
            (packed,) = (i for i in archive.infolist() if i.filename.startswith("pkg-"))
            with _tar(archive, packed) as files:
                for member in files:
                    if member.isdir():
                        expected.pop(member.name.rstrip("/"), None)  # listed if it is empty
                        continue
                    row = expected.pop(member.name, None)
                    stream = files.extractfile(member) if member.isreg() else None
                    if row is None or (stream and not _is_as_listed(member, stream, row)):
                        raise ChannelError(
                            f"{package.name}: {member.name} is not the file that {_PATHS} "
                            "describes; build or fetch the package again"
                        )
    except (*_UNREADABLE, zstandard.ZstdError) as error:
        raise ChannelError(
            f"{package.name} is not a readable {ENDING} file ({error}); build or fetch it again"
        ) from error
    if expected:
        raise ChannelError(
            f"{package.name} lacks {min(expected)}, which {_PATHS} lists; build or fetch the "
            "package again"
        )


def _is_as_listed(member: tarfile.TarInfo, stream: IO[bytes], row: Mapping[str, Any]) -> bool:
    digest = hashlib.sha256()
    while chunk := stream.read(_CHUNK):
        digest.update(chunk)
    found = (member.size, digest.hexdigest())
    return found == (row.get("size_in_bytes", found[0]), row.get("sha256", found[1]))


def edit_index(
    package: Path,
    edit: Callable[[dict[str, Any]], None],
    more: Mapping[str, bytes] | None = None,
) -> None:
    """Edit info/index.json in place. The same input gives the same bytes.

    ``more`` are files to add to info, by path. Raises as read_index; OSError.
    """
    with (
        draft(package) as unfinished,
        zipfile.ZipFile(package) as source,
        package.open("rb") as raw,
        unfinished.open("xb") as stream,
        ArchiveWriter(stream) as target,
    ):
        info = _info(source)
        with _tar(source, info) as tar:
            packed = _compress(_edited(tar, edit, more or {}))
        for member in source.infolist():
            if member.filename == info.filename:
                target.add(member.filename, packed, when=member.date_time, mode=_MODE)
            else:
                target.copy(raw, member, member.filename)


def normalize(package: Path, timestamp: int, level: int) -> None:
    """Rewrite a package of conda-build in place, so that the same files give the same bytes.

    Owners, dates and modes (0755 or 0644) are set to fixed values, the timestamp to ``timestamp``
    (seconds since 1970), and the description of the machine is removed. ``level`` is the level of
    zstd for the files. Raises as read_index, and OSError.
    """
    try:
        with (
            draft(package) as unfinished,
            zipfile.ZipFile(package) as source,
            zipfile.ZipFile(unfinished, "x", zipfile.ZIP_STORED) as target,
        ):
            for member in sorted(source.infolist(), key=lambda info: _ORDER[info.filename[:4]]):
                made = zipfile.ZipInfo(member.filename)
                made.external_attr = _MODE << 16
                made.create_system = 3  # Unix, whatever this is
                with source.open(member) as old, target.open(made, "w") as new:
                    if member.filename.startswith("info-"):
                        _repack(old, new, _LEVEL, lambda n, d: _plain(n, d, timestamp))
                    elif member.filename.startswith("pkg-"):
                        _repack(old, new, level, lambda n, d: d)
                    else:
                        new.write(old.read())
    except (zipfile.BadZipFile, tarfile.TarError, KeyError, ValueError) as error:
        raise ChannelError(f"{package.name} is not a readable {ENDING} file ({error})") from error


def _plain(name: str, data: bytes, timestamp: int) -> bytes | None:
    """A metadata file without the time and the machine; None if it contains nothing else."""
    if name in ("info/git", "info/hash_input.json"):
        return None
    if name not in (_INDEX, "info/about.json"):
        return data
    document = json.loads(data)
    if name == _INDEX:
        document["timestamp"] = timestamp * 1000
    else:
        document = {key: document[key] for key in _ABOUT if key in document}
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()


def _repack(
    old: IO[bytes], new: IO[bytes], level: int, edit: Callable[[str, bytes], bytes | None]
) -> None:
    zstandard = extra.require("zstandard")
    with (
        zstandard.ZstdDecompressor().stream_reader(old) as plain,
        zstandard.ZstdCompressor(level=level).stream_writer(new, closefd=False) as packed,
        tarfile.open(fileobj=plain, mode="r|") as source,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.GNU_FORMAT) as target,
    ):
        for member in source:
            stream = source.extractfile(member) if member.isreg() else None
            data = stream.read() if stream else b""
            edited = edit(member.name, data) if stream else data
            if edited is None:
                continue
            made = tarfile.TarInfo(member.name)
            made.type, made.linkname, made.size = member.type, member.linkname, len(edited)
            made.mode = 0o755 if member.mode & stat.S_IXUSR else 0o644
            target.addfile(made, io.BytesIO(edited) if stream else None)


def _info(archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    """The member with the metadata."""
    members = [info for info in archive.infolist() if info.filename.startswith("info-")]
    if len(members) != 1:
        raise zipfile.BadZipFile(f"it has {len(members)} info members, not 1")
    return members[0]


@contextmanager
def _tar(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[tarfile.TarFile]:
    """The tar in a member, to read from the beginning to the end, however large it is.

    Raises BadZipFile if it is not compressed with zstd.
    """
    zstandard = extra.require("zstandard")
    try:
        with (
            archive.open(member) as raw,
            zstandard.ZstdDecompressor().stream_reader(raw) as plain,
            tarfile.open(fileobj=plain, mode="r|") as tar,
        ):
            yield tar
    except zstandard.ZstdError as error:
        raise zipfile.BadZipFile(str(error)) from error


def _metadata(archive: zipfile.ZipFile, name: str) -> bytes | None:
    """A file of the metadata, None if there is none."""
    with _tar(archive, _info(archive)) as tar:
        for member in tar:
            if member.name == name:
                stream = tar.extractfile(member)
                return stream.read() if stream else None
    return None


def _compress(data: bytes) -> bytes:
    return bytes(extra.require("zstandard").ZstdCompressor(level=_LEVEL, threads=0).compress(data))


def _edited(
    source: tarfile.TarFile, edit: Callable[[dict[str, Any]], None], more: Mapping[str, bytes]
) -> bytes:
    result = io.BytesIO()
    like = None
    with tarfile.open(fileobj=result, mode="w", format=tarfile.GNU_FORMAT) as target:
        for member in source:
            stream = source.extractfile(member)
            data = stream.read() if stream else b""
            if member.name == _INDEX:
                index = json.loads(data)
                edit(index)
                data = (json.dumps(index, indent=2, sort_keys=True) + "\n").encode()
                member.size = len(data)
                like = member
            target.addfile(member, io.BytesIO(data) if stream else None)
        for name in sorted(more):
            added = copy.copy(like) if like else tarfile.TarInfo()
            added.name, added.size = name, len(more[name])
            target.addfile(added, io.BytesIO(more[name]))
    return result.getvalue()
