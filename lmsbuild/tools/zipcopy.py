"""Raw zip surgery: a new zip file from an old one without recompressing what did not change.

``zipfile`` reads; writing is done here, because ``zipfile`` has no public way to copy a
compressed member as it is, and recompressing a CUDA wheel takes half a minute. Members that are
new are stored, not deflated: they are small beside the rest, and different zlib builds deflate
the same bytes differently, which would make the result depend on the machine.
"""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO

DateTime = tuple[int, int, int, int, int, int]
Advance = Callable[[int], None]

_COPY_CHUNK = 4 << 20  # bytes per read while copying
_ZIP64_LIMIT = 0xFFFF_FFFF  # from here on a 32-bit size or offset no longer fits
_COUNT_LIMIT = 0xFFFF

_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_CENTRAL_HEADER = struct.Struct("<4s6H3I5H2I")
_END_RECORD = struct.Struct("<4s4H2IH")
_LOCAL_MAGIC = b"PK\x03\x04"

_FLAG_DATA_DESCRIPTOR = 0x08
_FLAG_UTF8 = 0x800
_MADE_BY_UNIX = 3 << 8 | 20  # mode bits are only read from archives made on Unix
_VERSION_NEEDED = 20

REGULAR_FILE = stat.S_IFREG | 0o644
SHARED_LIBRARY = stat.S_IFREG | 0o755


class ArchiveError(Exception):
    """The archive cannot be read or written in this format."""


def unsafe_name(name: str) -> str | None:
    """Why a member of this name may not be unpacked, or None.

    Wheels are unpacked into site-packages: a name may not be absolute, climb out with "..", or
    use the separators and drives of another system.
    """
    if not name or "\0" in name:
        return "is empty or holds a NUL"
    if "\\" in name:
        return "has a backslash"
    if name.startswith("/") or (len(name) > 1 and name[1] == ":"):
        return "is an absolute path"
    if any(part in ("..", ".", "") for part in name.rstrip("/").split("/")):
        return "has an empty, '.' or '..' component"
    return None


def is_symlink(info: zipfile.ZipInfo) -> bool:
    """Whether the member's mode bits make it a symbolic link."""
    return stat.S_ISLNK(info.external_attr >> 16)


def dos_datetime(when: DateTime) -> tuple[int, int]:
    """(time, date) words as zip stores them, two-second resolution."""
    year, month, day, hour, minute, second = when
    return (hour << 11 | minute << 5 | second // 2, (year - 1980) << 9 | month << 5 | day)


class ArchiveWriter:
    """Writes a zip archive member by member; use as a context manager.

    Leaving the block without an exception writes the central directory. The stream must be
    seekable and is not closed.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._central: list[bytes] = []
        self._names: set[str] = set()

    def __enter__(self) -> ArchiveWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._finish()

    def copy(
        self, source: IO[bytes], info: zipfile.ZipInfo, name: str, advance: Advance | None = None
    ) -> None:
        """Copy a member of another archive, still compressed, under ``name``.

        ``source`` is the other archive's file, ``advance`` is told the bytes written. Raises
        ArchiveError when the source ends early.
        """
        source.seek(_data_offset(source, info))
        # Sizes and CRC stand in the header here, so no data descriptor follows the data.
        flags = info.flag_bits & ~_FLAG_DATA_DESCRIPTOR
        self._begin(
            name,
            flags=flags,
            method=info.compress_type,
            when=info.date_time,
            crc=info.CRC,
            packed=info.compress_size,
            size=info.file_size,
            attributes=info.external_attr,
        )
        left = info.compress_size
        while left:
            chunk = source.read(min(_COPY_CHUNK, left))
            if not chunk:
                raise ArchiveError(f"the archive ends inside {info.filename}")
            self._stream.write(chunk)
            left -= len(chunk)
            if advance:
                advance(len(chunk))

    def add(self, name: str, data: bytes, *, when: DateTime, mode: int = REGULAR_FILE) -> None:
        """Add a new member, stored. ``mode`` is a full st_mode, file type included."""
        self._begin(
            name,
            flags=0,
            method=zipfile.ZIP_STORED,
            when=when,
            crc=zlib.crc32(data),
            packed=len(data),
            size=len(data),
            attributes=mode << 16,
        )
        self._stream.write(data)

    def _begin(
        self,
        name: str,
        *,
        flags: int,
        method: int,
        when: DateTime,
        crc: int,
        packed: int,
        size: int,
        attributes: int,
    ) -> None:
        if name in self._names:
            raise ArchiveError(f"{name} is written twice")
        self._names.add(name)
        offset = self._stream.tell()
        if max(offset, packed, size) >= _ZIP64_LIMIT:
            raise ArchiveError(f"{name} does not fit into an archive of less than 4 GiB")
        encoded = name.encode("utf-8")
        flags = flags | _FLAG_UTF8 if not name.isascii() else flags
        clock, date = dos_datetime(when)
        # What both headers have in common; the last is the length of the extra field.
        common = (_VERSION_NEEDED, flags, method, clock, date, crc, packed, size, len(encoded), 0)
        self._stream.write(_LOCAL_HEADER.pack(_LOCAL_MAGIC, *common) + encoded)
        self._central.append(
            _CENTRAL_HEADER.pack(b"PK\x01\x02", _MADE_BY_UNIX, *common, 0, 0, 0, attributes, offset)
            + encoded
        )

    def _finish(self) -> None:
        start = self._stream.tell()
        directory = b"".join(self._central)
        if start + len(directory) >= _ZIP64_LIMIT or len(self._central) >= _COUNT_LIMIT:
            raise ArchiveError("the archive has more than 4 GiB or 65534 members")
        self._stream.write(directory)
        self._stream.write(
            _END_RECORD.pack(
                b"PK\x05\x06",
                0,
                0,
                len(self._central),
                len(self._central),
                len(directory),
                start,
                0,
            )
        )


def extract(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, folder: Path, name: str | None = None
) -> Path:
    """Unpack one member with its mode bits (which ``zipfile`` drops) under ``folder``.

    Raises ArchiveError for a name that would land outside, and for symbolic links.
    """
    name = info.filename if name is None else name
    reason = unsafe_name(name)
    if reason or is_symlink(info):
        raise ArchiveError(f"{name} {reason or 'is a symbolic link'}")
    target = folder / name
    if info.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(info) as packed, target.open("wb") as plain:
        while chunk := packed.read(_COPY_CHUNK):
            plain.write(chunk)
    mode = stat.S_IMODE(info.external_attr >> 16)
    if mode:
        target.chmod(mode | stat.S_IRUSR | stat.S_IWUSR)
    return target


def _data_offset(source: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Where the member's data begins: the local header's own name and extra lengths count."""
    source.seek(info.header_offset)
    header = source.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size or not header.startswith(_LOCAL_MAGIC):
        raise ArchiveError(f"the local header of {info.filename} is damaged")
    *_, name_length, extra_length = _LOCAL_HEADER.unpack(header)
    return info.header_offset + _LOCAL_HEADER.size + int(name_length) + int(extra_length)
