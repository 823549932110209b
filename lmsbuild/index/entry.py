"""What a package index says about one wheel."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from email.parser import BytesHeaderParser
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from lmsbuild.errors import LmsbuildError, WheelIndexError
from lmsbuild.tools.hashes import Hashes
from lmsbuild.wheel import integrity

ENDING = ".whl"
METADATA_ENDING = ".metadata"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A wheel in a package index. Hashes are hexadecimal SHA-256.

    Attributes:
        file: name of the wheel.
        project: its normalized project name.
        version: such as "9.1.0+lms1".
        sha256: of the wheel.
        size: of the wheel, in bytes.
        requires_python: such as ">=3.10"; empty if it asks for none.
        metadata_sha256: of its METADATA.
        upload_time: when it came into the index, in UTC ("2026-01-31T12:00:00Z").
    """

    file: str
    project: str
    version: str
    sha256: str
    size: int
    requires_python: str
    metadata_sha256: str
    upload_time: str


def name_of(path: Path) -> tuple[str, Version]:
    """The project and the version in a wheel's file name. Raises WheelIndexError."""
    try:
        name, version, _, _ = parse_wheel_filename(path.name)
    except (InvalidWheelFilename, InvalidVersion) as error:
        raise WheelIndexError(
            f"{path.name} is not named like a wheel ({error}); rename it, or move it elsewhere"
        ) from error
    return name, version


def read_metadata(path: Path) -> bytes:
    """METADATA of a wheel, of which the index needs that its name and version are those of the
    file's name, and that its Requires-Python can be read. Raises WheelIndexError.
    """
    name, version = name_of(path)
    try:
        with integrity.open_wheel(path) as wheel:
            metadata = integrity.read(wheel, f"{integrity.dist_info(wheel)}/METADATA")
    except (LmsbuildError, zipfile.BadZipFile, EOFError) as error:
        raise WheelIndexError(f"{path.name} is no wheel: {error}") from error
    header = BytesHeaderParser().parsebytes(metadata)
    found_name, found_version = str(header["Name"]), str(header["Version"])
    try:
        same = (canonicalize_name(found_name), Version(found_version)) == (name, version)
    except InvalidVersion:
        same = False
    if not same:
        raise WheelIndexError(
            f"{path.name} has the METADATA of {found_name} {found_version}; build it again, or"
            " give it the name that it was published under"
        )
    _requires_python(path, metadata)
    return metadata


def read_entry(
    path: Path, metadata: bytes, hashes: Hashes, advance: Callable[[int], None] | None = None
) -> Entry:
    """The entry of a wheel with this METADATA. Its upload time is the file's modification time.

    ``advance`` gets the number of bytes read. Raises WheelIndexError.
    """
    name, version = name_of(path)
    status = path.stat()
    time = datetime.fromtimestamp(int(status.st_mtime), timezone.utc)
    return Entry(
        file=path.name,
        project=name,
        version=str(version),
        sha256=hashes.sha256(path, advance),
        size=status.st_size,
        requires_python=_requires_python(path, metadata),
        metadata_sha256=hashlib.sha256(metadata).hexdigest(),
        upload_time=time.strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def _requires_python(path: Path, metadata: bytes) -> str:
    requires = str(BytesHeaderParser().parsebytes(metadata)["Requires-Python"] or "").strip()
    try:
        SpecifierSet(requires)
    except InvalidSpecifier as error:
        raise WheelIndexError(
            f"{path.name}: its Requires-Python cannot be read ({error}); build it again"
        ) from error
    return requires
