"""The environment in which the markers of a wheel's requirements are evaluated."""

from __future__ import annotations

import platform
import re
import sys

_PYTHON = re.compile(r"cp3(\d+)")
_PLATFORM = re.compile(r".*linux\w*_(x86_64|aarch64|ppc64le)")


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
    cpython, linux = _PYTHON.fullmatch(python), _PLATFORM.fullmatch(tag)
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return environment(
        f"3.{cpython[1]}" if cpython else here, linux[1] if linux else platform.machine()
    )
