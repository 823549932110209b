"""Run the out-of-memory suite on a wheel, in a new environment."""

from __future__ import annotations

import ctypes
import enum
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from lmsbuild.errors import DamagedWheelError, SuiteError, WrongPythonError
from lmsbuild.tools.cache import scratch
from lmsbuild.wheel import base as basewheel
from lmsbuild.wheel import integrity, markers

# Packages that torch requires and that are of no use without a GPU.
_GPU_PACKAGES = ("nvidia", "cuda", "triton")

# What the user has set for programs of their own, and what would change the tests' results.
_INHERITED = (
    *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LMS_TEST_PYTHON", "PYTORCH_LMS"),
    *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTEST_ADDOPTS", "PYTEST_PLUGINS"),
)

Say = Callable[[str], None]


class Device(str, enum.Enum):
    """Where the suite runs."""

    AUTO = "auto"
    SIMULATED = "simulated"
    GPU = "gpu"


def run_suite(
    wheel: Path,
    device: Device,
    tests: Path,
    cache: Path,
    say: Say,
    runs: Sequence[Sequence[str]] = (("suite",),),
    packages: Sequence[str] = ("pytest",),
    first: Callable[[Path], None] | None = None,
) -> None:
    """Install a wheel in a new environment and run the suite there; pytest's output is shown.

    ``tests`` is the folder that holds suite/. Each of ``runs`` is a folder in it and arguments for
    pytest; ``packages`` are what they need beside torch. ``first`` is called with the environment's
    interpreter before the tests. The environment is removed afterwards.

    Raises:
        SuiteError: the wheel does not install, or a test failed.
        WrongPythonError: there is no interpreter for the wheel.
        ForeignWheelError, DamagedWheelError: it is no torch wheel.
    """
    base = basewheel.identify(wheel)
    interpreter = find_interpreter(base.python)
    gpu = uses_gpu(device)
    with scratch(cache) as name:
        folder = Path(name)
        say(f"making an environment with Python {base.python}")
        python = _make_environment(interpreter, folder / "environment")
        say(f"installing {wheel.name} for the {'GPU' if gpu else 'simulated device'}")
        _install(python, wheel, packages, full=gpu)
        if first:
            first(python)
        environment = {key: value for key, value in os.environ.items() if key not in _INHERITED}
        environment |= {"LMS_TEST_DEVICE": "gpu" if gpu else "sim", "PYTHONNOUSERSITE": "1"}
        work = folder / "work"
        work.mkdir()
        # In a folder of its own, so that none of the caller's modules is imported by accident.
        pytest = [str(python), "-m", "pytest"]
        codes = {
            name: subprocess.run(
                [*pytest, str(tests / name), "-p", "no:cacheprovider", *arguments],
                cwd=work,
                env=environment,
            ).returncode
            for name, *arguments in runs
        }
    failed = [f"{name} (pytest says {code})" for name, code in codes.items() if code]
    if failed:
        raise SuiteError(
            f"tests fail on {wheel.name}: {', '.join(failed)}; do not use it, and see pytest's"
            " output"
        )


def uses_gpu(device: Device) -> bool:
    """Whether the suite runs on a GPU: with "auto", when there is one."""
    return has_gpu() if device is Device.AUTO else device is Device.GPU


def has_gpu() -> bool:
    """Whether the CUDA driver is installed and finds a device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int()
        if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
            return False
        return count.value > 0
    except (OSError, AttributeError):
        return False


def find_interpreter(version: str) -> str:
    """An interpreter of this CPython version ("3.12"). Raises WrongPythonError."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    found = shutil.which(f"python{version}")
    # A version manager also puts a wrapper on PATH for versions that are not active.
    if found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
        return found
    raise WrongPythonError(
        f"the wheel is for CPython {version}, and there is no python{version} "
        "on PATH; install it, or build the wheel for another version"
    )


def plain_requirements(wheel: Path) -> list[str]:
    """What the wheel needs without extras and without the packages that only a GPU needs."""
    with integrity.open_wheel(wheel) as archive:
        text = integrity.read_text(archive, f"{integrity.dist_info(archive)}/METADATA")
    return _plain(HeaderParser().parsestr(text).get_all("Requires-Dist") or [], wheel.name)


def _plain(requirements: Iterable[str], wheel: str) -> list[str]:
    plain, environment = [], markers.environment_of(wheel)
    for line in requirements:
        try:
            requirement = Requirement(line)
        except InvalidRequirement as error:
            raise DamagedWheelError(f"{wheel}: METADATA requires {line!r}: {error}") from error
        if requirement.marker and not requirement.marker.evaluate(environment):
            continue
        if not requirement.name.lower().startswith(_GPU_PACKAGES):
            requirement.marker = None
            plain.append(str(requirement))
    return plain


def _make_environment(interpreter: str, folder: Path) -> Path:
    _run([interpreter, "-m", "venv", str(folder)], "no virtual environment can be made")
    return folder / "bin" / "python"


def _install(python: Path, wheel: Path, packages: Sequence[str], *, full: bool) -> None:
    # Byte code of all of torch takes a minute to make, and the suite imports little of it.
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-input", "--no-compile"]
    pip.append("--disable-pip-version-check")
    file = str(wheel.absolute())
    if full:
        _run([*pip, file, *packages], f"{wheel.name} does not install")
        return
    _run([*pip, "--no-deps", file], f"{wheel.name} does not install")
    requirements = [*plain_requirements(wheel), *packages]
    _run([*pip, *requirements], "torch's requirements do not install")


def _run(command: Sequence[str], failure: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key not in _INHERITED}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    if result.returncode:
        lines = [line for line in (result.stderr or result.stdout).splitlines() if line.strip()]
        reason = next((line for line in reversed(lines) if "ERROR" in line), (lines or [""])[-1])
        raise SuiteError(f"{failure}: {reason.strip()[:200]}", detail=result.stdout + result.stderr)
