"""A tag's patches in order: the runtime, then the hooks that its series file lists."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmsbuild.errors import SeriesError
from lmsbuild.patchset.mail import Mail, MailError, parse_mail
from lmsbuild.patchset.runtime import runtime_mail
from lmsbuild.registry import Tag
from lmsbuild.resources import patches_dir

TAG_TRAILER = "Lms-Tag"
PATCH_TRAILER = "Lms-Patch"
_REMARK = "# Order of application, one file a line."


@dataclass(frozen=True, kw_only=True)
class Series:
    """All patches of one tag.

    Attributes:
        tag: the tag that they are for.
        mails: the runtime first, then each hook; each becomes one commit.
    """

    tag: Tag
    mails: tuple[Mail, ...]

    def without(self, mails: Collection[Mail]) -> Series:
        """The series without some of its hooks."""
        return Series(tag=self.tag, mails=tuple(mail for mail in self.mails if mail not in mails))

    @property
    def ids(self) -> tuple[str, ...]:
        """The values of the commits' Lms-Patch trailers, in order."""
        return tuple(mail.sha256 for mail in self.mails)

    def mbox(self) -> bytes:
        """All patches as one file for `git am`: the same bytes on every machine."""
        return "".join(
            mail.render(
                number=number,
                total=len(self.mails),
                trailers=((TAG_TRAILER, self.tag.name), (PATCH_TRAILER, mail.sha256)),
            )
            for number, mail in enumerate(self.mails, start=1)
        ).encode("utf-8", "surrogateescape")


def load_series(tag: Tag, patches: Path | None = None) -> Series:
    """Reads a tag's patches from ``patches`` (default: the project's own).

    Raises:
        SeriesError: a file is missing or malformed; the message names it.
    """
    patches = patches or patches_dir()
    return Series(tag=tag, mails=(runtime_mail(patches, tag.variant), *load_hooks(tag, patches)))


def load_hooks(tag: Tag, patches: Path | None = None) -> tuple[Mail, ...]:
    """Reads a tag's hooks only, in the order of its series file.

    Raises:
        SeriesError: a file is missing or malformed; the message names it.
    """
    directory = (patches or patches_dir()) / tag.hooks
    listing = directory / "series"
    names = _names(listing)
    strays = {path.name for path in directory.glob("*.patch")} - set(names)
    if strays:
        # A hook that is missing from the list would be left out without a message.
        raise SeriesError(f"{listing}: does not list {', '.join(sorted(strays))}")
    return tuple(_hook(directory / name) for name in names)


def series_text(names: Sequence[str], former: str) -> str:
    """A series file that lists ``names``; ``former`` itself when it lists them already.

    Remarks at the top of the former file stay.
    """
    if former and _listed(former) == list(names):
        return former
    remarks = list(itertools.takewhile(lambda line: line.startswith("#"), former.splitlines()))
    return "\n".join([*(remarks or [_REMARK]), *names, ""])


def _listed(text: str) -> list[str]:
    lines = (line.split("#", 1)[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def _names(listing: Path) -> list[str]:
    names = _listed(_read(listing))
    if not names:
        raise SeriesError(f"{listing}: lists no hook; write the names of the hooks into it")
    for name in names:
        if Path(name).name != name:
            raise SeriesError(f"{listing}: {name!r} is not the name of a file beside it")
        if names.count(name) > 1:
            raise SeriesError(f"{listing}: lists {name} twice")
    return names


def _hook(path: Path) -> Mail:
    try:
        return parse_mail(path.name, _read(path))
    except MailError as error:
        raise SeriesError(f"{path}: {error}; write it with `git format-patch`") from error


def _read(path: Path) -> str:
    try:
        # Some old upstream files are not UTF-8. Their bytes stay unchanged.
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError as error:
        raise SeriesError(f"{path}: no such file") from error
