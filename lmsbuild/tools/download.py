"""Downloading a wheel with pip, so that the user's index, proxy and credentials count."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from lmsbuild.errors import (
    DamagedWheelError,
    InputError,
    LmsbuildError,
    NetworkError,
    NoSpaceError,
    ToolMissingError,
)

# progress(what, bytes so far, bytes in all or None while unknown)
Progress = Callable[[str, int, "int | None"], None]

_NEWEST_GLIBC_MINOR = 50  # manylinux_2_N tags asked for: from here down to 2_17


class NotOnIndexError(InputError):
    """The package index has no such wheel, or pip may not take it."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a wheel shall run on: CPython version ("3.12") and architecture ("x86_64")."""

    python: str
    architecture: str

    @property
    def python_tag(self) -> str:
        """Such as "cp312"."""
        return "cp" + self.python.replace(".", "")

    @property
    def abi_tag(self) -> str:
        """Such as "cp312"; before Python 3.8 such as "cp37m"."""
        major, minor = map(int, self.python.split(".")[:2])
        return self.python_tag + ("m" if (major, minor) < (3, 8) else "")


def platforms(architecture: str) -> list[str]:
    """Linux platform tags that the official wheels use, newest system first."""
    modern = [f"manylinux_2_{minor}_{architecture}" for minor in range(_NEWEST_GLIBC_MINOR, 16, -1)]
    # pip takes manylinux2014 to include the older names.
    return [*modern, f"manylinux2014_{architecture}", f"linux_{architecture}"]


def download(
    requirement: str, target: Target, folder: Path, progress: Progress | None
) -> dict[str, str]:
    """Run pip download; the wheel of "name==version" lands in ``folder``/wheels.

    ``folder`` is the caller's to remove. Returns the index's SHA-256 by file name, as far as
    pip tells.

    Raises:
        NotOnIndexError: the index has no such wheel for the target.
        NetworkError, NoSpaceError, DamagedWheelError, ToolMissingError.
    """
    temporary, log = folder / "tmp", folder / "pip.log"
    temporary.mkdir()
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--disable-pip-version-check",
        "--no-input",
        "--progress-bar=raw",
        "--log",
        str(log),
        "--dest",
        str(folder / "wheels"),
        "--python-version",
        target.python,
        "--implementation",
        "cp",
        "--abi",
        target.abi_tag,
        *(f"--platform={name}" for name in platforms(target.architecture)),
        _without_cpu(requirement),
    ]
    # pip writes what it downloads below TMPDIR first: /tmp may be too small for it.
    environment = os.environ | {"TMPDIR": str(temporary)}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        try:
            output = _follow(process.stdout, requirement, progress)
            process.wait()  # its output ends a little earlier
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
            process.stdout.close()
        errors.seek(0)
        messages = errors.read().decode("utf-8", "replace")
    if process.returncode:
        raise _failure(requirement, target, output + messages, _read(log))
    return {unquote(name): digest for name, digest in _LINK_WITH_HASH.findall(_read(log))}


def _without_cpu(requirement: str) -> str:
    """The requirement, without a build for the CPU alone: a local version fits a pinned one, and
    an index that has both gives it first.
    """
    version = requirement.partition("==")[2]
    # A newer pip refuses a local version after a wildcard.
    return requirement if version.endswith("*") else f"{requirement},!={version}+cpu"


_PROGRESS = re.compile(r"Progress (\d+) of (\d+)\n")


def _follow(stream: Iterable[str], requirement: str, progress: Progress | None) -> str:
    """Tell the progress until pip ends; returns what else pip printed."""
    lines: list[str] = []
    for line in stream:
        found = _PROGRESS.fullmatch(line)
        if not found:
            lines.append(line)
        elif progress:
            # pip says 0 for a size that the index does not tell.
            progress(requirement, int(found[1]), int(found[2]) or None)
    return "".join(lines)


# `pip download` writes no report. `pip install --dry-run --report` throws the wheel away again, so
# that an index without metadata files would have to send it twice.
_LINK_WITH_HASH = re.compile(r"Found link \S*/([^/\s#]+\.whl)#sha256=([0-9a-f]{64})")


def _read(log: Path) -> str:
    try:
        return log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # pip did not get as far as writing one


_NETWORK_SIGNS = (
    "Connection",
    "Retrying",
    "Timeout",
    "timed out",
    "HTTPError",
    "ProxyError",
    "SSLError",
    "Name or service",
    "IncompleteRead",
    "IncompleteDownload",
)
# In the log only: pip goes on with an index that it cannot reach as with an empty one.
_UNREACHABLE = re.compile(r"Could not fetch URL \S+ (connection error|There was a problem)")
_TOO_OLD = "--progress-bar: invalid choice"
_CONSTRAINT = re.compile(r"The user requested \(constraint\) (.+)")


def _failure(requirement: str, target: Target, text: str, log: str) -> LmsbuildError:
    """pip's failure as one of ours."""
    if "No module named pip" in text:
        return ToolMissingError(
            f"{sys.executable} has no pip; install it (python -m ensurepip, or uv pip install pip) "
            "and try again"
        )
    if _TOO_OLD in text:
        return ToolMissingError(
            f"the pip of {sys.executable} is older than 24.1; run: "
            f"{sys.executable} -m pip install --upgrade pip"
        )
    if "No space left on device" in text:
        return NoSpaceError(
            f"no disk space left while downloading {requirement}; "
            "free some, or name another cache with XDG_CACHE_HOME"
        )
    if "DO NOT MATCH THE HASHES" in text:
        # pip notices an interrupted transfer by the hash only.
        return DamagedWheelError(
            f"the download of {requirement} came incomplete or changed: its hash is not the "
            "index's; check the network and try again",
            detail=text,
        )
    if any(sign in text for sign in _NETWORK_SIGNS) or _UNREACHABLE.search(log):
        return NetworkError(
            f"the download of {requirement} failed: {_last_error(text)}; "
            "check the network and try again",
            detail=text,
        )
    if constraint := _CONSTRAINT.search(text):
        return NotOnIndexError(
            f"pip does not download {requirement}, because a constraint of yours allows only "
            f"{constraint[1]}: change it (PIP_CONSTRAINT, or constraint in `pip config list`), or "
            "give the wheel with --base",
            detail=text,
        )
    if "No matching distribution" in text:
        return NotOnIndexError(
            f"pip's index has no {requirement} for CPython {target.python} on "
            f"{target.architecture}; check `pip config list`, or give the wheel with --base",
            detail=text,
        )
    return NetworkError(f"pip could not download {requirement}: {_last_error(text)}", detail=text)


def _last_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line or "Error" in line]
    return (errors or lines or ["no message"])[-1].removeprefix("ERROR: ")[:200]
