"""Errors: one line, and the exit code of a family."""

from __future__ import annotations

import errno

import pytest

from lmsbuild import errors
from lmsbuild.cli.main import EXIT_INTERNAL, EXIT_INTERRUPTED, describe
from lmsbuild.errors import (
    FileAccessError,
    LmsbuildError,
    NoSpaceError,
    NotWritableError,
)


def kinds() -> list[type[LmsbuildError]]:
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, LmsbuildError)
    ]


def test_a_family_has_an_exit_code_of_its_own() -> None:
    families = LmsbuildError.__subclasses__()
    codes = [family.exit_code for family in families]
    assert len(set(codes)) == len(codes) < 10
    # 0: success, 2: click's usage errors, 126 and up: the shell's.
    assert not {0, 2, EXIT_INTERNAL, EXIT_INTERRUPTED} & set(codes)
    assert all(0 < code < 126 for code in codes)


@pytest.mark.parametrize("kind", kinds())
def test_each_kind_has_its_family_s_exit_code(kind: type[LmsbuildError]) -> None:
    families = [family for family in LmsbuildError.__subclasses__() if issubclass(kind, family)]
    assert kind is LmsbuildError or [kind.exit_code] == [family.exit_code for family in families]


@pytest.mark.parametrize("kind", kinds())
def test_each_kind_says_when_it_is_used(kind: type[LmsbuildError]) -> None:
    assert kind.__doc__


def test_a_message_is_one_line() -> None:
    error = LmsbuildError("several\nlines  of\n words", detail="more\nof it")
    assert str(error) == "several lines of words"
    assert error.detail == "more\nof it"


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, NoSpaceError),
        (errno.EDQUOT, NoSpaceError),
        (errno.EACCES, NotWritableError),
        (errno.EROFS, NotWritableError),
        (errno.EIO, FileAccessError),
    ],
)
def test_failures_of_the_file_system(number: int, kind: type[LmsbuildError]) -> None:
    failure = describe(OSError(number, "words", "some/file"))
    assert type(failure) is kind
    assert "some/file" in str(failure)


def test_a_bug_is_not_disguised() -> None:
    assert describe(KeyError("x")) is None
