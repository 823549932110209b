"""Small functions on git repositories; nothing here knows about PyTorch or LMS.

Every function shields its git from what a user's configuration or surroundings could change
in the outcome: signing, hooks, whitespace "repair", an inherited GIT_DIR.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from git import Commit, Git, Repo
from git.exc import (
    GitCommandError,
    GitCommandNotFound,
    InvalidGitRepositoryError,
    NoSuchPathError,
)
from git.exc import GitError as GitPythonError

from lmsbuild.errors import (
    DirtySourceError,
    GitError,
    LmsbuildError,
    NetworkError,
    NoSpaceError,
    NotWritableError,
    SourceError,
    ToolMissingError,
)
from lmsbuild.tools.git_variables import SURROUNDINGS

# Shields against configuration, of the user or of the repository.
CONFIGURATION = {
    "advice.detachedHead": "false",
    "am.messageId": "false",
    "am.threeWay": "false",
    "apply.ignoreWhitespace": "no",
    "apply.whitespace": "nowarn",
    "color.ui": "false",
    "commit.gpgSign": "false",
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.quotePath": "false",
    "gc.auto": "0",
    "i18n.commitEncoding": "UTF-8",
    "mailinfo.scissors": "false",
    "maintenance.auto": "false",
    "rerere.enabled": "false",
    "status.showStash": "false",
}

# Configuration for a work tree that is filled from scratch: what is in it must be what is in
# the commit, byte for byte, and everything must be in the commit.
VERBATIM = {
    "core.attributesFile": os.devnull,
    "core.autocrlf": "false",
    "core.eol": "lf",
    "core.excludesFile": os.devnull,
    "core.safecrlf": "false",
}

_NO_NETWORK = re.compile(
    r"Could not resolve|Connection (?:timed out|refused|reset)|unable to access|early EOF"
    r"|RPC failed|remote end hung up|Could not read from remote|Network is unreachable",
    re.IGNORECASE,
)
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded", re.IGNORECASE)
_NO_PERMISSION = re.compile(r"Permission denied|Read-only file system", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Who commits, and when (RFC 2822 or ISO 8601)."""

    name: str
    email: str
    date: str

    def environment(self) -> dict[str, str]:
        return {
            f"GIT_{role}_{field}": value
            for role in ("AUTHOR", "COMMITTER")
            for field, value in (("NAME", self.name), ("EMAIL", self.email), ("DATE", self.date))
        }


@contextmanager
def session() -> Iterator[None]:
    """Everything that is done with git happens in here.

    Git's own environment variables are hidden meanwhile. GitPython can add variables to git's
    environment but not take any away, so they are taken out of this process's: not for use by
    two threads.

    Raises:
        ToolMissingError: there is no git.
        GitError: git failed where nothing better is known about it.
    """
    if shutil.which("git") is None:
        raise git_missing()
    hidden = {name: os.environ.pop(name) for name in SURROUNDINGS if name in os.environ}
    try:
        yield
    except GitCommandNotFound as error:
        raise git_missing() from error
    except GitCommandError as error:
        raise failed(error, "git failed") from error
    finally:
        os.environ.update(hidden)


@contextmanager
def opened(path: Path) -> Iterator[Repo]:
    """The repository whose top is ``path``, with or without a work tree.

    Raises:
        SourceError: there is no repository, or git refuses to use it.
    """
    if os.path.expandvars(path.absolute()) != str(path.absolute()):
        # GitPython would put the variable's value there, and work somewhere else.
        raise SourceError(f"{path} names an environment variable; rename the directory")
    try:
        repo = Repo(path, search_parent_directories=False, expand_vars=False)
    except (InvalidGitRepositoryError, NoSuchPathError) as error:
        raise SourceError(f"{path} is not a git repository") from error
    try:
        yield repo
    finally:
        repo.close()


def run(
    repo: Repo,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    verbatim: bool = False,
) -> str:
    """Output of ``git ARGUMENTS`` in the repository, shielded from configuration.

    Raises:
        GitCommandError: git failed; its ``stderr`` says why.
        NoSpaceError, NotWritableError: the disk is full, or protected.
    """
    settings = {**CONFIGURATION, **(VERBATIM if verbatim else {})}
    options = [part for item in settings.items() for part in ("-c", "=".join(item))]
    try:
        output = repo.git.execute(
            ["git", *options, *arguments],
            env=dict(environment or {}),
            strip_newline_in_stdout=True,
        )
    except GitCommandNotFound:
        raise
    except GitCommandError as error:
        failure = machine_failure(words_of(error), Path(repo.working_dir))
        if failure is not None:
            raise failure from error
        raise
    assert isinstance(output, str)
    return output


def fetch_submodules(repo: Repo) -> None:
    """Fetches them all, also those inside of others.

    Raises NetworkError.
    """
    try:
        run(repo, "submodule", "update", "--init", "--recursive")
    except GitCommandError as error:
        failure = network_failure(words_of(error), "fetching the submodules")
        raise failure or error from error


def head(repo: Repo) -> Commit:
    """The commit that is checked out.

    Raises:
        SourceError: there is none yet.
    """
    try:
        return repo.head.commit
    except ValueError as error:
        raise SourceError(f"{repo.working_dir} has no commit yet") from error


def first_parents(repo: Repo, limit: int, start: str = "HEAD") -> list[Commit]:
    """A commit and its first parents, newest first, as far as the clone reaches."""
    listing = run(repo, "rev-list", "--first-parent", f"--max-count={limit}", start)
    return [repo.commit(name) for name in listing.split()]


def tag_commit(repo: Repo, name: str) -> str | None:
    """Id of the commit that the repository's own tag ``name`` points to, if it has that tag."""
    return reference(repo, f"refs/tags/{name}")


def tags_at_head(repo: Repo) -> list[str]:
    """Names of the tags that point to the commit that is checked out."""
    return run(repo, "tag", "--points-at", "HEAD").split()


def blob_at(repo: Repo, commit: str, path: str) -> str | None:
    """Id of what lies at ``path`` in a commit (a file or a folder), if anything does."""
    try:
        return run(repo, "rev-parse", "--verify", "--quiet", f"{commit}:{path}")
    except GitCommandError:
        return None


def files_at(repo: Repo, commit: str, *paths: str) -> list[str]:
    """Every file of a commit that is one of ``paths`` or lies below one."""
    if not paths:
        return []
    listing = run(repo, "ls-tree", "-r", "-z", "--name-only", "--full-tree", commit, "--", *paths)
    return [name for name in listing.split("\0") if name]


def content_at(repo: Repo, commit: str, path: str) -> bytes:
    """A file of a commit, byte for byte."""
    blob = repo.commit(commit).tree / path
    content = blob.data_stream.read()
    assert isinstance(content, bytes)
    return content


def diff_of(repo: Repo, commit: str, *, context: int, leave_out: Sequence[str] = ()) -> str:
    """What a commit changes, as git's diff with full ids; empty when it is nothing else.

    Every option that a user's configuration or attributes could set is said here: the same
    commit gives the same text everywhere.
    """
    text = run(
        repo,
        "-c",
        "diff.suppressBlankEmpty=false",
        "-c",
        f"core.attributesFile={os.devnull}",
        "diff-tree",
        "--no-commit-id",
        "--patch",
        "--full-index",
        f"--unified={context}",
        "--inter-hunk-context=0",
        "--diff-algorithm=myers",
        "--indent-heuristic",
        "--no-renames",
        "--no-ext-diff",
        "--no-textconv",
        "--no-relative",
        "--no-color",
        "--submodule=short",
        "--ignore-submodules=none",
        "--src-prefix=a/",
        "--dst-prefix=b/",
        f"-O{os.devnull}",
        f"{commit}^",
        commit,
        "--",
        ".",
        *(f":(exclude,top,literal){path}" for path in leave_out),
    )
    return f"{text}\n" if text else ""


def changed_paths(repo: Repo, before: str, after: str) -> dict[str, str]:
    """How files differ between two commits: git's letter (A, D, M, T) by path."""
    listing = run(
        repo, "diff-tree", "-r", "-z", "--name-status", "--no-renames", before, after
    ).split("\0")
    return dict(zip(listing[1::2], listing[0::2], strict=False))


def last_change(repo: Repo, since: str, path: str) -> str | None:
    """The newest commit after ``since`` that changes a file: short id and subject.

    None when there is none, or ``since`` is not below what is checked out.
    """
    try:
        run(repo, "merge-base", "--is-ancestor", since, "HEAD")
    except GitCommandError:
        return None
    # %x27 is a quotation mark.
    style = "--format=%h (%x27%s%x27)"
    log = ("log", "--max-count=1", "--no-show-signature", "--abbrev=12", style)
    return run(repo, *log, f"{since}..HEAD", "--", path) or None


def only_line_ends(repo: Repo) -> bool:
    """Whether what is not committed differs by carriage returns at the ends of lines alone."""
    options = ("--numstat", "--ignore-cr-at-eol", "--ignore-submodules=dirty")
    # A row for each file that differs in more; without the user's conversions, which hide it.
    listing = run(repo, "diff", *options, "HEAD", verbatim=True)
    rows = (line.split("\t")[:2] for line in listing.splitlines())
    # Such a row has zeros for a file whose mode differs, too.
    modes = run(repo, "diff", "--summary", "--ignore-submodules=dirty", "HEAD", verbatim=True)
    return not modes and all(row == ["0", "0"] for row in rows)


def sanitized_subject(repo: Repo, commit: str) -> str:
    """A commit's subject as git makes a file name of it."""
    return run(repo, "log", "--max-count=1", "--no-show-signature", "--format=%f", commit)


def set_reference(repo: Repo, name: str, commit: str | None) -> None:
    """Makes a reference point to ``commit``, or removes it."""
    if commit is not None:
        run(repo, "update-ref", name, commit)
        return
    with suppress(GitCommandError):
        run(repo, "update-ref", "-d", name)


def reference(repo: Repo, name: str) -> str | None:
    """The commit that a reference points to, if it is there."""
    try:
        return run(repo, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except GitCommandError:
        return None


def file_at_head(repo: Repo, path: str) -> str | None:
    """Text of a file in the commit that is checked out, if it holds that file."""
    try:
        return run(repo, "cat-file", "blob", f"HEAD:{path}")
    except GitCommandError:
        return None


def changed_files(repo: Repo) -> list[str]:
    """Tracked files with changes that are not committed, staged or not.

    Untracked files, and work inside a submodule, are nobody else's business.
    """
    # With the user's own settings for line ends: they made the work tree what it is.
    listing = run(
        repo,
        "status",
        "--porcelain=v2",
        "-z",
        "--no-renames",
        "--untracked-files=no",
        "--ignore-submodules=dirty",
        # A look only: not even the index is to be brought up to date.
        environment={"GIT_OPTIONAL_LOCKS": "0"},
    )
    # "1 XY sub mH mI mW hH hI path", and for conflicts "u" with two fields more.
    entries = (
        entry.split(" ", 8 if entry[0] == "1" else 10) for entry in listing.split("\0") if entry
    )
    # A submodule whose folder is not there: that nobody fetched it is no change.
    return [
        fields[-1] for fields in entries if not (fields[1] == ".D" and fields[2].startswith("S"))
    ]


def unfinished_operation(repo: Repo) -> str | None:
    """What the repository is in the middle of (a rebase, a merge), if anything."""
    operations = {
        "rebase-apply": "git am or rebase",
        "rebase-merge": "rebase",
        "MERGE_HEAD": "merge",
        "CHERRY_PICK_HEAD": "cherry-pick",
        "REVERT_HEAD": "revert",
        "BISECT_LOG": "bisect",
    }
    for name, operation in operations.items():
        if (Path(repo.git_dir) / name).exists():
            return operation
    return None


def reset(repo: Repo, commit: str) -> None:
    """Makes the branch, the index and the tracked files those of ``commit``."""
    run(repo, "reset", "--quiet", "--hard", commit)


def apply_mails(repo: Repo, mbox: bytes, committer: Identity) -> None:
    """`git am`: each mail becomes a commit; all of them, or none.

    Raises:
        GitCommandError: one does not apply; the repository is as it was before.
    """
    before = head(repo).hexsha
    with tempfile.TemporaryDirectory(prefix="lmsbuild-") as folder:
        path = Path(folder) / "mbox"
        path.write_bytes(mbox)
        # The mails name their authors.
        environment = {
            key: value for key, value in committer.environment().items() if "COMMITTER" in key
        }
        try:
            run(
                repo,
                "am",
                "--quiet",
                "--keep-cr",
                "--no-gpg-sign",
                "--no-scissors",
                str(path),
                environment=environment,
            )
        except BaseException:
            with suppress(GitPythonError, LmsbuildError):
                run(repo, "am", "--abort")
            reset(repo, before)
            raise


def commit_everything(repo: Repo, message: str, author: Identity) -> str:
    """Commits all files of the work tree, ignored ones too; returns the commit's id."""
    run(repo, "add", "--all", "--force", ".", verbatim=True)
    run(
        repo,
        "commit",
        "--quiet",
        "--allow-empty",
        "--no-verify",
        "--cleanup=verbatim",
        f"--message={message}",
        environment=author.environment(),
        verbatim=True,
    )
    return head(repo).hexsha


def create(path: Path) -> None:
    """Puts the existing directory ``path`` under git, with no commit yet."""
    # An empty template: the user's own may bring hooks and ignore rules.
    Git(path).execute(["git", "init", "--quiet", "--template=", "--initial-branch=main"])


def words_of(error: GitCommandError) -> str:
    """What git itself said."""
    return re.sub(r"^\s*stderr: '|'$", "", str(error.stderr or "")).strip()


def gist(words: str) -> str:
    """The one line of git's words that says what went wrong."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    for line in lines:
        if line.startswith(("fatal: ", "error: ")):
            return line.split(": ", 1)[1]
    return lines[-1] if lines else "git gave no reason"


def network_failure(words: str, what: str) -> NetworkError | None:
    """The failure of something, when git could not reach a repository."""
    if not _NO_NETWORK.search(words):
        return None
    return NetworkError(
        f"{what} failed: {gist(words)}; check the network and run it again", detail=words
    )


def machine_failure(words: str, where: Path) -> LmsbuildError | None:
    """The failure, when it is the machine's (disk, permissions) and not git's."""
    if _NO_SPACE.search(words):
        return NoSpaceError(f"no disk space left in {where}; free some and run it again")
    if "dubious ownership" in words:
        return SourceError(
            f"git refuses to use {where}, because it belongs to another user;"
            f" run: git config --global --add safe.directory {where}"
        )
    if _NO_PERMISSION.search(words) and "publickey" not in words:
        return NotWritableError(f"{where}: {gist(words)}; check its permissions", detail=words)
    if "index.lock" in words:
        return DirtySourceError(f"another git process works in {where}; wait for it", detail=words)
    return None


def git_missing() -> LmsbuildError:
    """The error for a machine without git."""
    return ToolMissingError("git is not installed; install it (on Debian: apt install git)")


def failed(error: GitCommandError, what: str) -> GitError:
    """An unexpected failure of git as an error for the user."""
    words = words_of(error)
    return GitError(f"{what}: {gist(words)}", detail=words)
