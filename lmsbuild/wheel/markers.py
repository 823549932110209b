"""The environment in which the markers of a wheel's requirements are evaluated."""

from __future__ import annotations

import platform
import re
import sys

from lmsbuild.architecture import architectures

_PYTHON = re.compile(r"cp3(\d+)")


def environment(python: str, architecture: str) -> dict[str, str]:
    """Of a CPython, such as "3.12", on Linux, without extras."""
    return {
        "extra": "",
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": architecture,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }


def environment_of(name: str) -> dict[str, str]:
    """Of a wheel with this file name. What its tags leave open is as here."""
    *_, python, _, tag = f"--{name.removesuffix('.whl')}".split("-")
    cpython = _PYTHON.fullmatch(python)
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    named = [machine for machine in architectures() if tag.endswith(f"_{machine}")]
    return environment(f"3.{cpython[1]}" if cpython else here, *named or [platform.machine()])
