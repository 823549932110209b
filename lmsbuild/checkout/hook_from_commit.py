"""A hook's patch file made from a commit: the same bytes for the same change and message."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Sequence

from git import Commit, Repo

from lmsbuild.checkout.commits import Stack, message_of, named
from lmsbuild.checkout.state import trailer
from lmsbuild.errors import RefreshError
from lmsbuild.patchset.diff import DiffError, Hunk, parse_diff
from lmsbuild.patchset.mail import UTF8, Mail, MailError, parse_mail
from lmsbuild.patchset.runtime import AUTHOR, DATE
from lmsbuild.patchset.series import PATCH_TRAILER
from lmsbuild.tools import git

_CONTEXT = 1  # lines around a change in a new hook
_ABBREVIATION = 7  # digits of a blob's id in a new hook
_NAME_LENGTH = 64 - len(".patch") - 1  # as `git format-patch` counts
_INDEX = re.compile(r"^index ([0-9a-f]{40})\.\.([0-9a-f]{40})", re.MULTILINE)


def hooks_of(
    repo: Repo, stack: Stack, former: Sequence[Mail], runtime: Collection[str]
) -> tuple[Mail, ...]:
    """The hooks that the commits of a stack describe, in order, named by their file names.

    If a commit was made from one of the ``former`` hooks, or has its subject, the hook keeps what a
    commit does not contain: the author's and the date header, the file's name and the number of
    context lines. Paths of the ``runtime`` are left out, and so are commits that change only those.

    Raises:
        RefreshError: a commit cannot be a hook; the message names it and says why.
    """
    left = list(former)
    mails: list[Mail] = []
    for commit in stack.hooks:
        subject, body = message_of(commit)
        model = _model(commit, subject, left)
        if model is not None:
            left.remove(model)
        diff = _diff(repo, commit, model, runtime)
        if diff:
            taken = [mail.name for mail in (*mails, *left)]
            name = _name(repo, commit, subject, model, len(mails) + 1, taken)
            mails.append(_mail(commit, subject, body, model, diff, name))
    if not mails:
        raise RefreshError("no commit above the runtime's changes upstream's files")
    return tuple(mails)


def _model(commit: Commit, subject: str, left: Sequence[Mail]) -> Mail | None:
    made_from = trailer(commit, PATCH_TRAILER)
    by_id = (mail for mail in left if mail.sha256 == made_from)
    by_subject = (mail for mail in left if mail.subject == subject)
    return next(by_id, None) or next(by_subject, None)


def _diff(repo: Repo, commit: Commit, model: Mail | None, runtime: Collection[str]) -> str:
    context, digits = _style(model)
    diff = git.diff_of(repo, commit.hexsha, context=context, leave_out=sorted(runtime))
    if not diff:
        if not git.diff_of(repo, commit.hexsha, context=context):
            raise RefreshError(f"{named(commit)} changes nothing; drop it: git rebase -i")
        return ""
    # Git's own abbreviations grow with the repository.
    return _INDEX.sub(lambda found: f"index {found[1][:digits]}..{found[2][:digits]}", diff)


def _style(model: Mail | None) -> tuple[int, int]:
    """Lines of context and digits of ids in the former hook."""
    if model is None:
        return _CONTEXT, _ABBREVIATION
    hunks = [hunk for file in model.files for hunk in file.hunks]
    context = max([_CONTEXT, *(count for hunk in hunks for count in _margins(hunk))])
    digits = max([0, *(len(file.old_blob) for file in model.files)]) or _ABBREVIATION
    return context, digits


def _margins(hunk: Hunk) -> tuple[int, int]:
    """Unchanged lines at the beginning and at the end."""
    lines = [line for line in hunk.lines if not line.startswith("\\")]
    changed = [at for at, line in enumerate(lines) if line[0] in "+-"]
    return (changed[0], len(lines) - 1 - changed[-1]) if changed else (0, 0)


def _name(
    repo: Repo,
    commit: Commit,
    subject: str,
    model: Mail | None,
    number: int,
    taken: Collection[str],
) -> str:
    # The series file has the order, so a name stays the same if a hook is added before it.
    if model is not None and model.subject == subject:
        return model.name
    slug = git.sanitized_subject(repo, commit.hexsha)
    while True:
        name = f"{number:04d}-{slug}"[:_NAME_LENGTH] + ".patch"
        if name not in taken:
            return name
        number += 1


def _mail(
    commit: Commit, subject: str, body: str, model: Mail | None, diff: str, name: str
) -> Mail:
    plain = f"{subject}{body}{diff}".isascii()
    try:
        mail = Mail(
            name=name,
            # A patch contains no time and no user name.
            author=model.author if model else AUTHOR,
            date=model.date if model else DATE,
            subject=subject,
            mime=() if plain else UTF8,
            body=body,
            diff=diff,
            files=parse_diff(diff),
        )
        read = parse_mail(name, mail.text())
    except (DiffError, MailError) as error:
        raise RefreshError(f"{named(commit)} cannot become a patch: it {error}") from error
    if dataclasses.replace(read, mime=mail.mime) != mail:
        raise RefreshError(
            f"the message of {named(commit)} would not survive `git am`:"
            ' leave out lines such as "---" and "diff --git"'
        )
    return mail
