"""Reading the files that torch.cuda.lms.record() writes."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmsbuild.errors import FileAccessError, TraceError
from lmsbuild.simulate import lms_report

_EVENTS = lms_report.module("events")
_CODES = {kind: code for code, kind in enumerate(_EVENTS.KINDS)}


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A recording of one GPU.

    Attributes:
        torch: version of PyTorch.
        gpu: name of the GPU.
        gpu_bytes: its memory.
        limit_bytes: the limit of LMS while it was recorded.
        unmanaged_bytes: memory in use that LMS does not manage.
        page_out_bytes: what LMS copied to the host while it was recorded.
        page_in_bytes: what it copied back.
        estimated: tensors were fake, and times are estimates.
        names: names of operators.
        events: packed events, 16 bytes each, as the planner reads them.
    """

    torch: str
    gpu: str
    gpu_bytes: int
    limit_bytes: int
    unmanaged_bytes: int
    page_out_bytes: int
    page_in_bytes: int
    estimated: bool
    names: tuple[str, ...]
    events: bytes


def read_trace(path: Path) -> Trace:
    """Read a trace.

    Raises:
        FileAccessError: the file cannot be read.
        TraceError: it is not a trace, or of another version.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FileAccessError(f"{path} cannot be read: {error.strerror}") from error
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        text = json.loads(data)
    except (ValueError, RecursionError, OSError, EOFError, zlib.error) as error:
        raise TraceError(
            f"{path} is not a trace; torch.cuda.lms.record() writes them", detail=str(error)
        ) from error
    if not isinstance(text, dict) or text.get("format") != _EVENTS.FORMAT:
        raise TraceError(f"{path} is not a trace; torch.cuda.lms.record() writes them")
    if text.get("version") != _EVENTS.VERSION:
        raise TraceError(
            f"{path} has version {text.get('version')} of the format, and this lmsbuild reads "
            f"version {_EVENTS.VERSION}; use the lmsbuild that built that PyTorch"
        )
    try:
        return parse_trace(text)
    except (KeyError, TypeError, ValueError, OverflowError, struct.error) as error:
        raise TraceError(f"{path} is damaged; record it again", detail=repr(error)) from error


def parse_trace(text: dict[str, Any]) -> Trace:
    """A trace from what its file has as JSON. A damaged one raises KeyError and the like."""
    return Trace(
        torch=_words(text["torch"]),
        gpu=_words(text["gpu"]),
        gpu_bytes=_bytes(text["gpu_bytes"]),
        limit_bytes=_bytes(text["limit_bytes"]),
        unmanaged_bytes=_bytes(text["unmanaged_bytes"]),
        # Older recordings do not have them.
        page_out_bytes=_bytes(text.get("page_out_bytes", 0)),
        page_in_bytes=_bytes(text.get("page_in_bytes", 0)),
        estimated=bool(text.get("estimated", False)),
        names=tuple(map(_words, text["names"])),
        events=b"".join(map(_packed, text["events"])),
    )


def _bytes(number: Any) -> int:
    found = int(number)
    if abs(found) >= 1 << 63:
        raise ValueError(f"{number!r} is no number of bytes")  # for the planner
    return found


def _words(value: Any) -> str:
    """As a string that can be printed: JSON may have half of a surrogate pair."""
    return str(value).encode().decode()


def _packed(event: list[Any]) -> bytes:
    kind, block, value, *name = event
    return bytes(_EVENTS.EVENT.pack(value, block, name[0] if name else 0, _CODES[kind], 0))
