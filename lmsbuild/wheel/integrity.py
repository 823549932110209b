"""Whether a wheel is complete: a readable archive whose members match RECORD."""

from __future__ import annotations

import hashlib
import os
import threading
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lmsbuild.errors import DamagedWheelError, UnsafeMemberError
from lmsbuild.tools import zipcopy
from lmsbuild.wheel import record

Advance = Callable[[int], None]

_CHUNK = 1 << 20  # bytes per read while hashing
_STRONG_HASHES = ("sha256", "sha384", "sha512")  # what the wheel format allows
_UNHASHED_SUFFIXES = ("/RECORD", "/RECORD.jws", "/RECORD.p7s")


def open_wheel(path: Path) -> zipfile.ZipFile:
    """Open a wheel whose member names are safe to unpack.

    Raises:
        DamagedWheelError: not a complete zip archive, or a name occurs twice.
        UnsafeMemberError: a member would be unpacked outside the wheel's folder.
    """
    try:
        wheel = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise DamagedWheelError(
            f"{path.name} is not a complete zip archive ({error}); download it again"
        ) from error
    try:
        _check_names(path.name, wheel.infolist())
    except BaseException:
        wheel.close()
        raise
    return wheel


def _check_names(wheel: str, members: Iterable[zipfile.ZipInfo]) -> None:
    for info in members:
        # zipfile cuts names at a NUL; orig_filename is the name in the archive.
        if reason := zipcopy.unsafe_name(info.orig_filename):
            raise UnsafeMemberError(
                f"{wheel}: the name of member {info.orig_filename!r} {reason}; do not use this file"
            )
        if zipcopy.is_symlink(info):
            raise UnsafeMemberError(
                f"{wheel}: member {info.filename!r} is a symbolic link; do not use this file"
            )
    twice = [name for name, count in Counter(m.filename for m in members).items() if count > 1]
    if twice:
        raise DamagedWheelError(f"{wheel}: {twice[0]} is in the archive twice; download it again")


def dist_info(wheel: zipfile.ZipFile) -> str:
    """Name of the wheel's one dist-info folder, without a slash. Raises DamagedWheelError."""
    found = sorted(
        {
            name.split("/", 1)[0]
            for name in wheel.namelist()
            if name.split("/", 1)[0].endswith(".dist-info")
        }
    )
    name = Path(wheel.filename or "").name
    if len(found) != 1:
        raise DamagedWheelError(f"{name} has {len(found)} dist-info folders, not 1; it is no wheel")
    for needed in ("METADATA", "WHEEL", "RECORD"):
        if f"{found[0]}/{needed}" not in wheel.NameToInfo:
            raise DamagedWheelError(f"{name} has no {found[0]}/{needed}; it is no wheel")
    return found[0]


def read(wheel: zipfile.ZipFile, member: str) -> bytes:
    """A member. Raises DamagedWheelError when it cannot be read."""
    try:
        return wheel.read(member)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, OSError, zlib.error) as error:
        raise _unreadable(wheel, member, error) from error


def read_text(wheel: zipfile.ZipFile, member: str) -> str:
    """A text member. Raises DamagedWheelError when it cannot be read or is not UTF-8."""
    try:
        return read(wheel, member).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _unreadable(wheel, member, error) from error


def _unreadable(wheel: zipfile.ZipFile, member: str, error: Exception) -> DamagedWheelError:
    name = Path(wheel.filename or "").name
    return DamagedWheelError(f"{name}: {member} cannot be read ({error}); download it again")


def read_record(wheel: zipfile.ZipFile) -> list[record.Row]:
    """The rows of RECORD. Raises DamagedWheelError."""
    member = f"{dist_info(wheel)}/RECORD"
    try:
        return record.parse(read_text(wheel, member))
    except record.RecordSyntaxError as error:
        raise DamagedWheelError(
            f"{Path(wheel.filename or '').name}: {member}: {error}; download it again"
        ) from error


def record_problems(path: Path, advance: Advance | None = None) -> list[str]:
    """The errors in a wheel's RECORD, one line per member; empty if there are none.

    Every member must be listed once, with its own hash, and the hash must be a strong one.
    ``advance`` gets the number of unpacked bytes that were hashed. Raises as open_wheel and
    read_record.
    """
    with open_wheel(path) as wheel:
        rows = read_record(wheel)
        members = {info.filename: info for info in wheel.infolist() if not info.is_dir()}
    problems = [
        f"{name} is listed {count} times"
        for name, count in Counter(row.path for row in rows).items()
        if count > 1
    ]
    by_path = {row.path: row for row in rows}
    problems += [f"{name} is not listed" for name in members if name not in by_path]
    problems += [f"{name} is listed but missing" for name in by_path if name not in members]
    to_hash: dict[str, record.Row] = {}
    for name in members.keys() & by_path.keys():
        row = by_path[name]
        if name.endswith(_UNHASHED_SUFFIXES):
            continue
        if row.algorithm not in _STRONG_HASHES:
            problems.append(f"{name} has no usable hash")
        elif row.size is not None and row.size != members[name].file_size:
            problems.append(f"{name} has {members[name].file_size} bytes, not {row.size}")
        else:
            to_hash[name] = row
    problems += _hash_problems(path, to_hash, members, advance)
    return sorted(problems)


def _hash_problems(
    path: Path,
    rows: Mapping[str, record.Row],
    members: Mapping[str, zipfile.ZipInfo],
    advance: Advance | None,
) -> list[str]:
    """Hash all members on all processors: zlib and hashlib work outside the interpreter lock."""
    local = threading.local()
    opened: list[zipfile.ZipFile] = []
    guard = threading.Lock()

    def check(name: str) -> str | None:
        if not hasattr(local, "wheel"):
            # One handle per thread: members of one ZipFile are read under a common lock.
            local.wheel = zipfile.ZipFile(path)
            with guard:
                opened.append(local.wheel)
        row = rows[name]
        digest = hashlib.new(row.algorithm)
        try:
            with local.wheel.open(name) as stream:
                while chunk := stream.read(_CHUNK):
                    digest.update(chunk)
                    if advance:
                        with guard:
                            advance(len(chunk))
        except (
            zipfile.BadZipFile,
            EOFError,
            OSError,
            NotImplementedError,
            ValueError,
            zlib.error,
        ) as error:
            return f"{name} cannot be unpacked ({error})"
        if record.encode_digest(row.algorithm, digest.digest()) != row.hash:
            return f"{name} does not match its hash"
        return None

    # Largest first, so that no thread hashes half a gigabyte alone at the end.
    order = sorted(rows, key=lambda name: -members[name].file_size)
    try:
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            return [problem for problem in pool.map(check, order) if problem]
    finally:
        for wheel in opened:
            wheel.close()


def is_binary(member: str) -> bool:
    """Whether a member is a shared library, by its name."""
    name = member.rsplit("/", 1)[-1]
    return name.endswith(".so") or ".so." in name
