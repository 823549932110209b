"""Patch mails, as `git format-patch` writes them and `git am` reads them."""

from __future__ import annotations

import email.utils
import hashlib
import re
from dataclasses import dataclass

from lmsbuild.patchset.diff import DiffError, FilePatch, parse_diff

# What git writes for a commit without an id. `git mailsplit` needs the line, but not the id.
_FROM_LINE = f"From {'0' * 40} Mon Sep 17 00:00:00 2001"
_NUMBERING = re.compile(r"^\[PATCH[^\]]*\]\s*")
_KEPT_HEADERS = ("From", "Date", "Subject")
_MIME_HEADERS = ("MIME-Version", "Content-Type", "Content-Transfer-Encoding")
# For what is not ASCII.
UTF8 = (
    ("MIME-Version", "1.0"),
    ("Content-Type", "text/plain; charset=UTF-8"),
    ("Content-Transfer-Encoding", "8bit"),
)
_PLAIN_ENCODINGS = ("", "7bit", "8bit")


class MailError(ValueError):
    """The text is not a patch mail."""


@dataclass(frozen=True, kw_only=True)
class Mail:
    """One patch: who, when, why, and the diff.

    Attributes:
        name: what messages call it, usually its file name.
        author: the From header.
        date: the Date header.
        subject: the Subject header without "[PATCH n/m]".
        mime: MIME headers, as name and value.
        body: the message below the subject, without a newline at its end.
        diff: the diff, with a newline at its end.
        files: the same diff, parsed.
    """

    name: str
    author: str
    date: str
    subject: str
    mime: tuple[tuple[str, str], ...]
    body: str
    diff: str
    files: tuple[FilePatch, ...]

    @property
    def sha256(self) -> str:
        """Identifies the mail by everything that ends up in the commit, in hexadecimal."""
        parts = (self.author, self.date, self.subject, self.body, self.diff)
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()

    def text(self) -> str:
        """The mail as a patch file, which contains only what ends up in the commit."""
        return "\n".join([*self._opening("PATCH"), self.diff])

    def render(self, *, number: int, total: int, trailers: tuple[tuple[str, str], ...]) -> str:
        """The mail as number ``number`` of ``total``, with ``trailers`` under its message."""
        opening = self._opening(f"PATCH {number}/{total}")
        closing = [f"{name}: {value}" for name, value in trailers]
        return "\n".join([*opening, *closing, "---", self.diff, ""])

    def _opening(self, mark: str) -> list[str]:
        """Lines up to the end of the message, with ``mark`` before the subject."""
        return [
            _FROM_LINE,
            f"From: {self.author}",
            f"Date: {self.date}",
            f"Subject: [{mark}] {self.subject}",
            *(f"{name}: {value}" for name, value in self.mime),
            "",
            *([self.body, ""] if self.body else []),
        ]


def parse_mail(name: str, text: str) -> Mail:
    """Reads one patch mail.

    The text between the message's "---" and the diff (diffstat, notes) and the signature after
    the diff do not become part of a commit, and are dropped.

    Raises:
        MailError: a header or the diff is missing or malformed.
    """
    if "\r" in text:
        # A mail with carriage returns comes out of `git am` in one of two ways, depending on
        # the reader's configuration.
        raise MailError("holds carriage returns")
    head, separator, rest = text.partition("\n\n")
    if not separator:
        raise MailError("is not a mail")
    headers = _headers(head)
    for header in _KEPT_HEADERS:
        if not headers.get(header):
            raise MailError(f"has no {header} header")
    if email.utils.parsedate_tz(headers["Date"]) is None:
        raise MailError(f"has a malformed Date header ({headers['Date']!r})")
    encoding = headers.get("Content-Transfer-Encoding", "").lower()
    if encoding not in _PLAIN_ENCODINGS:
        raise MailError(f"is encoded ({encoding}); write it with 8bit encoding")
    body, diff = _split(rest)
    try:
        files = parse_diff(diff)
    except DiffError as error:
        raise MailError(str(error)) from error
    return Mail(
        name=name,
        author=headers["From"],
        date=headers["Date"],
        subject=_NUMBERING.sub("", headers["Subject"]),
        mime=tuple((key, headers[key]) for key in _MIME_HEADERS if key in headers),
        body=body.strip("\n"),
        diff=diff,
        files=files,
    )


def _headers(head: str) -> dict[str, str]:
    headers: dict[str, str] = {}
    last = ""
    for line in head.split("\n"):
        if line[:1] in (" ", "\t") and last:
            headers[last] += f" {line.strip()}"
        elif ": " in line:
            last, value = line.split(": ", 1)
            headers[last] = value.strip()
    return headers


def _split(rest: str) -> tuple[str, str]:
    lines = rest.split("\n")
    try:
        start = next(i for i, line in enumerate(lines) if line.startswith("diff --git "))
    except StopIteration:
        raise MailError("holds no diff") from None
    message = lines[:start]
    if "---" in message:
        message = message[: message.index("---")]
    diff = lines[start:]
    # "-- " opens the signature. In a diff it could only be a removed line "- ", so look from
    # the end, where a signature is.
    for i in range(len(diff) - 1, max(len(diff) - 5, -1), -1):
        if diff[i] == "-- ":
            diff = diff[:i]
            break
    return "\n".join(message), "\n".join(diff).rstrip("\n") + "\n"
