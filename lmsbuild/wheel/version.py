"""The version of a torch, and LMS's mark in it, in torch/version.py and in METADATA."""

from __future__ import annotations

import re

from packaging.version import InvalidVersion, Version

from lmsbuild.errors import DamagedWheelError, ForeignWheelError

VERSION_MEMBER = "torch/version.py"
LOCAL_VERSION = "lms1"  # increased when the same torch gets another LMS


def lms_version(version: Version) -> str:
    """The version with LMS's mark: 9.1.0 gives 9.1.0+lms1, 9.1.0+cu130 9.1.0+cu130.lms1."""
    separator = "." if version.local else "+"
    return f"{version}{separator}{LOCAL_VERSION}"


_VERSION_LINE = re.compile(rb"^(__version__\s*=\s*)(['\"])([^'\"]+)\2", re.MULTILINE)


def mark_version(content: bytes) -> bytes:
    """torch/version.py with LMS's mark in ``__version__``. Raises ForeignWheelError."""
    found = _VERSION_LINE.findall(content)
    if len(found) != 1:
        raise ForeignWheelError(
            f"{VERSION_MEMBER} does not assign __version__ once; give the official wheel"
        )
    marked = lms_version(Version(found[0][2].decode())).encode()
    return _VERSION_LINE.sub(rb"\g<1>\g<2>" + marked + rb"\g<2>", content)


# Only the header, which ends at the first empty line. The description may contain the same text.
_HEADER_END = re.compile(rb"\r?\n\r?\n")
_METADATA_LINE = re.compile(rb"^Version:[ \t]*([^\r\n]*?)[ \t]*(\r?)$", re.MULTILINE)


def mark_metadata(metadata: bytes, name: str) -> bytes:
    """METADATA of the base ``name`` with LMS's mark in its version. Raises DamagedWheelError."""
    end = _HEADER_END.search(metadata)
    header, rest = (metadata[: end.start()], metadata[end.start() :]) if end else (metadata, b"")
    found = _METADATA_LINE.findall(header)
    if len(found) != 1:
        raise DamagedWheelError(
            f"{name}: METADATA names its version {len(found)} times; download it again"
        )
    try:
        marked = lms_version(Version(found[0][0].decode())).encode()
    except (InvalidVersion, UnicodeDecodeError) as error:
        raise DamagedWheelError(f"{name}: METADATA has no valid version") from error
    return _METADATA_LINE.sub(b"Version: " + marked + rb"\2", header) + rest


def assigned(text: str, variable: str) -> str | None:
    """The value that a module's source assigns to a variable, if it is a plain string."""
    match = re.search(rf"^{variable}\s*(?::[^=]+)?=\s*['\"]([^'\"]*)['\"]", text, re.MULTILINE)
    return match[1] if match else None
