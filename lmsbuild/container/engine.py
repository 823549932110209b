"""The container engine of this machine, and the architectures that it runs."""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lmsbuild.errors import NoEngineError

ENGINES = ("docker", "podman")  # as cibuildwheel calls them
_BINFMT = Path("/proc/sys/fs/binfmt_misc")
_SECONDS = 60  # until an engine has to answer


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A container engine that answers.

    Attributes:
        name: its name in cibuildwheel's configuration.
    """

    name: str


def find_engine(architecture: str, binfmt: Path = _BINFMT) -> Engine:
    """The first engine that works, for containers of an architecture.

    Raises:
        NoEngineError: none works, or the kernel does not run programs of this architecture.
    """
    said = []
    for name in ENGINES:
        if shutil.which(name) is None:
            said.append(f"{name} is not installed")
            continue
        try:
            done = subprocess.run([name, "info"], capture_output=True, text=True, timeout=_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            said.append(f"{name} does not answer ({error})")
            continue
        if done.returncode == 0:
            _require_architecture(architecture, binfmt)
            return Engine(name=name)
        lines = (done.stderr or done.stdout).strip().splitlines()
        said.append(f"{name} says {lines[-1].strip() if lines else done.returncode}")
    raise NoEngineError(
        f"a build from source needs a container engine, and none works: {'; '.join(said)};"
        " install podman, or start docker"
    )


def is_emulated(architecture: str) -> bool:
    """Whether this machine has another architecture."""
    return platform.machine() != architecture


def _require_architecture(architecture: str, binfmt: Path) -> None:
    if is_emulated(architecture) and not (binfmt / f"qemu-{architecture}").exists():
        raise NoEngineError(
            f"this machine ({platform.machine()}) does not run {architecture} containers; build on"
            f" an {architecture} machine, or install qemu (Debian: apt install qemu-user-static)"
        )
