"""Downloading a wheel with pip, so that the user's index, proxy and credentials count."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

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

_POLL_SECONDS = 0.2
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
        "--progress-bar=off",
        "--log",
        str(log),
        "--dest",
        str(folder / "wheels"),
        "--python-version",
        target.python,
        "--implementation",
        "cp",
        "--abi",
        target.python_tag,
        *(f"--platform={name}" for name in platforms(target.architecture)),
        # A local version fits, and an index that has both gives it first; a torch called so
        # has no CUDA.
        f"{requirement},!={requirement.partition('==')[2]}+cpu",
    ]
    # pip writes the file it is downloading below TMPDIR: watching it there gives the progress
    # with every version of pip, and keeps the bytes on the cache's file system.
    environment = os.environ | {"TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            output = _watch(process, requirement, temporary, progress)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        errors.seek(0)
        messages = errors.read().decode("utf-8", "replace")
    if process.returncode:
        raise _failure(requirement, target, output + messages, _read(log))
    return dict(_LINK_WITH_HASH.findall(_read(log)))


def _watch(
    process: subprocess.Popen[str], requirement: str, temporary: Path, progress: Progress | None
) -> str:
    """Follow the download until pip ends; returns what pip printed."""
    assert process.stdout is not None
    lines: list[str] = []
    reader = threading.Thread(target=_collect, args=(process.stdout, lines), daemon=True)
    reader.start()
    seen = 0
    while process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_SECONDS)
        # The largest size ever seen: pip removes its temporary file at the end.
        seen = max(seen, _largest_file(temporary))
        # Until pip announces a download, what lies there are small files of its own.
        if progress and (total := _announced_size(lines)):
            progress(requirement, min(seen, total), total)
    reader.join()
    if progress and (total := _announced_size(lines)):
        progress(requirement, total, total)
    return "".join(lines)


def _collect(stream: IO[str], lines: list[str]) -> None:
    lines.extend(stream)


def _largest_file(folder: Path) -> int:
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.lstat(os.path.join(parent, name)).st_size)
            except FileNotFoundError:
                continue  # pip removed it between the listing and the look
    return largest


_DOWNLOADING = re.compile(r"Downloading \S+\.whl \(([\d.]+) (bytes|[kMG]B)\)")
_UNITS = {"bytes": 1, "kB": 1000, "MB": 1000**2, "GB": 1000**3}


def _announced_size(lines: list[str]) -> int | None:
    """Size in bytes that pip announced, to the four digits that it prints."""
    for line in reversed(lines):
        if match := _DOWNLOADING.search(line):
            return int(float(match[1]) * _UNITS[match[2]])
    return None


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
_CONSTRAINT = re.compile(r"The user requested \(constraint\) (.+)")


def _failure(requirement: str, target: Target, text: str, log: str) -> LmsbuildError:
    """pip's failure as one of ours."""
    if "No module named pip" in text:
        return ToolMissingError(
            f"{sys.executable} has no pip; install it (python -m ensurepip) and try again"
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
