#!/usr/bin/env python3
"""Downloads the upstream tarball of a Debian source package.

The mirror and its key are read from the machine's apt configuration, which is not changed. The
Debian release may be another one than the machine's. apt's lists and downloads are kept in a
folder of this script.

    ci/debian_source.py pytorch trixie CACHE_DIRECTORY

prints the path of the tarball. The exit code is 3 if there is no apt or no Debian mirror.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

APT = Path("/etc/apt")
LIMIT_SECONDS = 600


class Unavailable(Exception):
    """Debian's packages cannot be downloaded on this machine. The message says why."""


class Inconsistent(Unavailable):
    """The mirror's index does not match its files, as while the mirror is updated."""


@dataclass(frozen=True)
class Mirror:
    """A Debian mirror, and the keyring or key that its packages are signed with."""

    uri: str
    signed_by: str


def find_mirror(directory: Path = APT) -> Mirror:
    """The Debian mirror that the machine's own apt uses.

    Raises:
        Unavailable: there is none.
    """
    for path in sorted(directory.glob("sources.list.d/*.sources")):
        for stanza in _stanzas(path.read_text("utf-8")):
            suites = stanza.get("suites", "").split()
            uris = stanza.get("uris", "").split()
            if uris and _is_debian(uris[0], suites, stanza.get("components", "")):
                return Mirror(uris[0], stanza.get("signed-by", ""))
    for path in [directory / "sources.list", *sorted(directory.glob("sources.list.d/*.list"))]:
        if path.is_file():
            for line in path.read_text("utf-8").splitlines():
                mirror = _from_line(line)
                if mirror is not None:
                    return mirror
    raise Unavailable(f"no Debian mirror in {directory}")


def fetch(package: str, suite: str, directory: Path, mirror: Mirror) -> Path:
    """Downloads the newest tarball of ``package`` in ``suite`` into ``directory``, once.

    Raises:
        Unavailable: apt cannot get it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    present = sorted(directory.glob(f"{package}_*.orig.tar.*"))
    if present:
        return present[-1]
    state = directory / "apt"
    flags = configure(state, mirror, "deb-src", suite)
    run_apt(["apt-get", "-q", *flags, "update"], state)
    # --tar-only: the tarball without Debian's own patches. apt checks its sha256 against the
    # signed index.
    run_apt(["apt-get", "-q", *flags, "source", "--download-only", "--tar-only", package], state)
    fetched = sorted(state.glob(f"{package}_*.orig.tar.*"))
    if not fetched:
        raise Unavailable(f"apt has no tarball of {package} in {suite}")
    return fetched[-1].rename(directory / fetched[-1].name)


def configure(
    state: Path, mirror: Mirror, kind: str, suite: str, architecture: str | None = None
) -> list[str]:
    """apt's flags for a configuration of its own in the folder ``state``.

    ``kind`` is "deb" or "deb-src". ``architecture`` is Debian's name of another one than the
    machine's; no package counts as installed for it.
    """
    for name in ("lists/partial", "archives/partial", "state", "parts"):
        (state / name).mkdir(parents=True, exist_ok=True)
    (state / "parts" / "debian.sources").write_text(
        f"Types: {kind}\nURIs: {mirror.uri}\nSuites: {suite}\nComponents: main\n"
        + (f"Architectures: {architecture}\n" if architecture else "")
        + (f"Signed-By: {mirror.signed_by}\n" if mirror.signed_by else ""),
        encoding="utf-8",
    )
    options = {
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": str(state / "parts"),
        "Dir::State": str(state / "state"),
        "Dir::State::Lists": str(state / "lists"),
        "Dir::Cache": str(state),
        # The cache directory may be one that apt's own unprivileged user cannot enter.
        "APT::Sandbox::User": "root",
        "Acquire::Retries": "3",
    }
    if architecture:
        (state / "status").touch()
        options |= {
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "Dir::State::status": str(state / "status"),
            "Acquire::Languages": "none",
        }
    return [part for item in options.items() for part in ("-o", "=".join(item))]


def run_apt(command: list[str], where: Path) -> None:
    """Runs one of apt's commands in a folder.

    Raises:
        Inconsistent: the mirror is being updated.
        Unavailable: there is no apt, or the command fails or takes too long.
    """
    if shutil.which(command[0]) is None:
        raise Unavailable("no apt on this machine")
    try:
        done = subprocess.run(
            command,
            cwd=where,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"apt did not finish within {LIMIT_SECONDS} s") from error
    errors = [line for line in done.stderr.splitlines() if line.startswith(("E: ", "Err:"))]
    # The index has just been downloaded, so a package that it names and the mirror lacks is not
    # there yet. An index that is not there is another error.
    missing = re.search(r"^E: Failed to fetch \S+\.deb +404 ", done.stderr, re.MULTILINE)
    if "Mirror sync in progress" in done.stderr or missing:
        raise Inconsistent(f"apt failed: {errors[0] if errors else done.stderr.strip()}")
    if done.returncode != 0 or errors:
        raise Unavailable(f"apt failed: {errors[0] if errors else f'exit {done.returncode}'}")


def _stanzas(text: str) -> list[dict[str, str]]:
    """Paragraphs of a deb822 file, field names in lower case; lines of a value are kept."""
    stanzas: list[dict[str, str]] = [{}]
    field = ""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if not line.strip():
            stanzas.append({})
        elif line[0] in " \t" and field:
            stanzas[-1][field] += f"\n{line}"
        elif ":" in line:
            name, value = line.split(":", 1)
            field = name.strip().lower()
            stanzas[-1][field] = value.strip()
    return [
        stanza
        for stanza in stanzas
        if stanza and stanza.get("enabled", "yes").lower() not in ("no", "false")
    ]


def _from_line(line: str) -> Mirror | None:
    words = line.split("#", 1)[0].split()
    if not words or words[0] not in ("deb", "deb-src"):
        return None
    signed_by = ""
    del words[0]
    if words and words[0].startswith("["):
        while words:
            word = words.pop(0)
            name, _, value = word.strip("[]").partition("=")
            if name == "signed-by":
                signed_by = value
            if word.endswith("]"):
                break
    if len(words) < 3 or not _is_debian(words[0], [words[1]], " ".join(words[2:])):
        return None
    return Mirror(words[0], signed_by)


def _is_debian(uri: str, suites: list[str], components: str) -> bool:
    # A mirror of Debian's main archive, not of its security updates or of anyone else's
    # packages: those have other paths, or other component names.
    path = uri.rstrip("/").rsplit("/", 1)[-1]
    plain = [suite for suite in suites if "-" not in suite and "/" not in suite]
    return bool(plain) and path == "debian" and "main" in components.split()


def main() -> int:
    package, suite, directory = sys.argv[1:]
    try:
        print(fetch(package, suite, Path(directory).absolute(), find_mirror()))
    except Unavailable as error:
        print(f"debian_source: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
