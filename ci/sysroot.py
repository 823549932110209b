#!/usr/bin/env python3
"""Makes a sysroot from Debian's packages for another architecture, to run programs under qemu.

    ci/sysroot.py ppc64le CACHE_DIRECTORY

prints its path. sysroots.toml lists the packages. The machine's own packages are not changed. The
exit code is 3 if there is no apt or no Debian mirror.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from debian_source import Mirror, Unavailable, configure, find_mirror, run_apt

from lmsbuild._compat import tomllib
from lmsbuild.architecture import architecture as architecture_of

DATA = Path(__file__).parent / "sysroots.toml"


@dataclass(frozen=True, kw_only=True)
class Sysroot:
    """A row of sysroots.toml; see its schema."""

    architecture: str
    suite: str
    packages: tuple[str, ...]
    alone: tuple[str, ...] = ()
    python: str = ""
    source: str = ""

    @property
    def key(self) -> str:
        """Identifies the list of packages. Debian's point releases do not change it."""
        facts = [self.architecture, self.suite, *self.packages, "", *self.alone]
        return f"{self.architecture}-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]}"


def known() -> tuple[str, ...]:
    """The architectures in sysroots.toml."""
    return tuple(_rows())


def described(architecture: str) -> Sysroot:
    """The sysroot of an architecture. Raises Unavailable if there is none."""
    rows = _rows()
    if architecture not in rows:
        raise Unavailable(f"no sysroot for {architecture}; there are: {', '.join(rows)}")
    values = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in rows[architecture].items()
    }
    return Sysroot(architecture=architecture, **values)


def _rows() -> dict[str, dict[str, Any]]:
    return tomllib.loads(DATA.read_text("utf-8"))


def make(sysroot: Sysroot, cache: Path, mirror: Mirror) -> Path:
    """The folder of the sysroot, from the cache, or made from downloaded packages.

    Raises:
        Unavailable: apt cannot download the packages.
    """
    folder = cache / "sysroots" / sysroot.key
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="unfinished-") as name:
        state, root = Path(name) / "apt", Path(name) / "root"
        debian = architecture_of(sysroot.architecture).debian
        flags = configure(state, mirror, "deb", sysroot.suite, debian)
        archives = state / "archives"
        run_apt(["apt-get", "-q", *flags, "update"], state)
        install = ["install", "--yes", "--download-only", "--no-install-recommends"]
        run_apt(["apt-get", "-q", *flags, *install, *sysroot.packages], state)
        if sysroot.alone:
            run_apt(["apt-get", "-q", *flags, "download", *sysroot.alone], archives)
        root.mkdir()
        for package in sorted(archives.glob("*.deb")):
            subprocess.run(["dpkg-deb", "--extract", str(package), str(root)], check=True)
        # Debian's installation scripts make these links, and were not run.
        for merged in (root / "usr").glob("lib*"):
            if not (root / merged.name).exists():
                (root / merged.name).symlink_to(f"usr/{merged.name}")
        try:
            root.rename(folder)
        except OSError:
            # Another process made it at the same time.
            if not folder.is_dir():
                raise
    return folder


def emulator(architecture: str) -> str:
    """The emulator's path. Raises Unavailable if it is not installed."""
    name = architecture_of(architecture).qemu
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"no {name}: apt-get install qemu-user-static")
    return found


def main() -> int:
    architecture, cache = sys.argv[1:]
    try:
        print(make(described(architecture), Path(cache).absolute(), find_mirror()))
    except Unavailable as error:
        print(f"sysroot: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
