"""RECORD: the list of a wheel's members with their hashes and sizes."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of RECORD.

    ``hash`` is "<algorithm>=<urlsafe base64 without padding>", ``size`` is in bytes. Both are
    empty (``""`` and ``None``) for RECORD itself and for signature files.
    """

    path: str
    hash: str = ""
    size: int | None = None

    @property
    def algorithm(self) -> str:
        """Name of the hash algorithm, "" when the row has no hash."""
        return self.hash.partition("=")[0]

    @property
    def hexdigest(self) -> str:
        """The digest in hexadecimal, "" when the row has none that can be read."""
        encoded = self.hash.partition("=")[2]
        try:
            return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).hex()
        except ValueError:
            return ""


class RecordSyntaxError(ValueError):
    """RECORD is not CSV with three columns, or a size is no number."""


def encode_digest(algorithm: str, digest: bytes) -> str:
    """The form in which RECORD writes a digest."""
    return f"{algorithm}=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def row_of(path: str, data: bytes) -> Row:
    """The row of a member whose content is ``data``."""
    return Row(
        path=path, hash=encode_digest("sha256", hashlib.sha256(data).digest()), size=len(data)
    )


def parse(text: str) -> list[Row]:
    """Rows in the order of the file, with duplicates, which the caller has to handle.

    Raises RecordSyntaxError.
    """
    rows: list[Row] = []
    # RECORD is CSV: a quoted path may contain commas.
    for number, cells in enumerate(csv.reader(io.StringIO(text, newline="")), start=1):
        if not cells:
            continue
        if len(cells) != 3:
            raise RecordSyntaxError(f"line {number} has {len(cells)} columns, not 3")
        path, digest, size = cells
        if size and not size.isdecimal():
            raise RecordSyntaxError(f"line {number}: size {size!r} is not a number")
        rows.append(Row(path=path, hash=digest, size=int(size) if size else None))
    return rows


def serialize(rows: Iterable[Row]) -> str:
    """RECORD's text, with the line ends that wheel builders write."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    for row in rows:
        writer.writerow((row.path, row.hash, "" if row.size is None else row.size))
    return out.getvalue()
