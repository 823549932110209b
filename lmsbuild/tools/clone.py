"""Cloning a repository at one tag, with progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from git import RemoteProgress, Repo
from git.exc import GitCommandError, GitCommandNotFound
from git.exc import GitError as GitPythonError

from lmsbuild.errors import SourceError
from lmsbuild.tools.git import (
    CONFIGURATION,
    VERBATIM,
    gist,
    machine_failure,
    network_failure,
    words_of,
)

_STAGES = {
    RemoteProgress.COUNTING: "counting",
    RemoteProgress.COMPRESSING: "compressing",
    RemoteProgress.RECEIVING: "receiving",
    RemoteProgress.RESOLVING: "resolving",
    RemoteProgress.CHECKING_OUT: "checking out",
}

Report = Callable[[str, float, float, str], None]


class _Progress(RemoteProgress):
    """Passes git's progress on, and keeps what else git says."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self._report = report

    def update(
        self,
        op_code: int,
        cur_count: str | float,
        max_count: str | float | None = None,
        message: str = "",
    ) -> None:
        stage = _STAGES.get(op_code & RemoteProgress.OP_MASK)
        if stage is not None:
            self._report(stage, float(cur_count), float(max_count or 0), message)

    def words(self) -> str:
        return "\n".join([*self.error_lines, *self.other_lines])


def clone(
    url: str,
    into: Path,
    *,
    branch: str | None,
    partial: bool,
    report: Report,
) -> None:
    """Clones one commit of ``url``: tag or branch ``branch``, or what it has checked out.

    ``partial`` leaves old file contents on the server, where it can. ``report`` is told of
    progress: the stage, what is done, of how much (0 when unknown), and git's rate.

    Raises:
        SourceError: there is no such repository, or it has no such tag.
        NetworkError: the connection failed.
    """
    options = ["--depth=1", "--no-recurse-submodules"]
    if branch is not None:
        options.append(f"--branch={branch}")
    if partial:
        options.append("--filter=blob:none")

    progress = _Progress(report)
    try:
        Repo.clone_from(
            url,
            into,
            # An object that is more than the callable it is declared as.
            progress=cast("Any", progress),
            env={**_as_environment({**CONFIGURATION, **VERBATIM}), "GIT_TERMINAL_PROMPT": "0"},
            multi_options=options,
        ).close()
    except GitCommandNotFound:
        raise
    except GitCommandError as error:
        words = progress.words() or words_of(error)
        if "not found in upstream" in words:
            raise SourceError(f"{url} has no tag {branch}; name another --source") from error
        failure = machine_failure(words, into)
        absent = "does not appear to be a git repository" in words
        if failure is None and not absent:
            failure = network_failure(words, f"cloning {url}")
        raise failure or SourceError(f"cannot clone {url}: {gist(words)}", detail=words) from error
    except GitPythonError as error:
        raise SourceError(f"cannot clone {url}: {gist(str(error))}") from error


def _as_environment(settings: Mapping[str, str]) -> dict[str, str]:
    environment = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings.items()):
        environment[f"GIT_CONFIG_KEY_{number}"] = key
        environment[f"GIT_CONFIG_VALUE_{number}"] = value
    return environment
