"""The C++ compiler that builds the runtime."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from lmsbuild.architecture import architecture
from lmsbuild.errors import MissingCompilerError


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """A C++ compiler: its command, the first line of --version, and the target architecture."""

    command: tuple[str, ...]
    version: str
    machine: str


def find_compiler(machine: str) -> Compiler:
    """The compiler for an architecture ("x86_64"), from CXX or PATH.

    Raises:
        WrongPlatformError: lmsbuild does not know the architecture.
        MissingCompilerError: there is no compiler, or CXX compiles for another architecture.
    """
    asked = os.environ.get("CXX")
    try:
        command = tuple(shlex.split(asked)) if asked else (_default_name(machine),)
    except ValueError as error:
        raise MissingCompilerError(f"CXX is no command ({error}): {asked}") from error
    if not command or shutil.which(command[0]) is None:
        raise MissingCompilerError(
            f"no C++ compiler: {command[0] if command else 'CXX'} is not on PATH; "
            f"install {_package(machine)}, or name another compiler in CXX"
        )
    version = _ask(command, "--version").splitlines()[0]
    target = _ask(command, "-dumpmachine").partition("-")[0]
    if target != architecture(machine).triplet.partition("-")[0]:
        raise MissingCompilerError(
            f"{command[0]} compiles for {target}, not for {machine}; name another compiler in CXX"
        )
    return Compiler(command=command, version=version, machine=machine)


def _default_name(machine: str) -> str:
    if machine == platform.machine():
        return "g++"
    return f"{architecture(machine).triplet}-g++"


def _package(machine: str) -> str:
    if machine == platform.machine():
        return "g++"
    # The name of the package in Debian.
    return architecture(machine).compiler_package


# They add to the folders in which GCC looks for headers and libraries, before those that are given
# with -isystem. What the runtime is compiled against is pinned.
_SEARCHED = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH")


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs a compiler and keeps its output; only the command says where it looks for files."""
    environment = {name: text for name, text in os.environ.items() if name not in _SEARCHED}
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", env=environment
    )


def _ask(command: tuple[str, ...], question: str) -> str:
    try:
        result = subprocess.run([*command, question], capture_output=True, text=True, check=True)
        return result.stdout.strip() or "unknown"
    except (OSError, subprocess.CalledProcessError) as error:
        raise MissingCompilerError(
            f"{command[0]} {question} fails; name another C++ compiler in CXX"
        ) from error
