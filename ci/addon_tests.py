"""Tests the wheel torch-lms beside an official torch, on a simulated GPU.

    python ci/addon_tests.py          # the default tag: what the add-on does differently
    python ci/addon_tests.py TAG ...  # these tags, with all tests of the runtime

First, each function that the hooks change is compared with the patched file's.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from torch_tests import PYTHON, QUIET, ROOT, RUNTIME, packages, remove_wheels, triton

from lmsbuild.errors import LmsbuildError, SuiteError
from lmsbuild.registry import Tag, load_registry
from lmsbuild.resources import patches_dir, tests_dir
from lmsbuild.tools.cache import default_cache
from lmsbuild.tools.cache_content import in_use
from lmsbuild.tools.download import Target
from lmsbuild.tools.fetch import fetch_wheel
from lmsbuild.wheel import integrity
from lmsbuild.wheel.base import PROJECT, identify
from lmsbuild.wheel.patch_python import patch_python
from lmsbuild.wheel.suite import Device, run_suite
from lmsbuild.wheel.version import VERSION_MEMBER

# Those that import modules late, replace functions by name, use what the hooks change, or depend on
# when LMS is imported.
PART = (
    "test_addresses.py",
    "test_compiled.py::test_a_compiled_backward_pass_brings_what_its_kernels_use",
    "test_environment.py::test_each_setting",
    "test_explain.py",
    "test_hint.py",
    "test_interchange.py",
    "test_main.py::test_a_module",
    "test_settings.py",
)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tags", nargs="*", metavar="TAG")
    names = parser.parse_args(arguments).tags
    registry = load_registry()
    runtime = tests_dir() / "runtime"
    part = (f"runtime/{PART[0]}", *(str(runtime / name) for name in PART[1:]), *QUIET)
    failed = []
    with in_use(default_cache()):
        for tag in [registry.get(name) for name in names] or [registry.default]:
            try:
                test(tag, RUNTIME if names else part)
            except LmsbuildError as error:
                print(f"{tag.name}: {error}", flush=True)
                failed.append(tag.name)
    if failed:
        print(f"failed: {', '.join(failed)}", flush=True)
    return bool(failed)


def test(tag: Tag, run: Sequence[str]) -> None:
    """Build the add-on of a tag, and run tests with it. Raises LmsbuildError."""
    addon = build(tag)
    target = Target(python=PYTHON, architecture=platform.machine())
    wheel = fetch_wheel(f"{PROJECT}=={tag.version}", target, default_cache()).path
    with TemporaryDirectory() as name:
        write_patched(tag, wheel, Path(name))

        def first(python: Path) -> None:
            pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-input"]
            subprocess.run([*pip, "--disable-pip-version-check", str(addon)], check=True)
            compare = [str(python), str(ROOT / "ci" / "same_code.py"), name]
            if subprocess.run(compare, cwd=name).returncode:
                raise SuiteError("torch-lms does something else than the hooks; see above")
            # Without the package, the comparison has to see that it is missing.
            off = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
            if subprocess.run(compare, cwd=name, env=off, capture_output=True).returncode != 1:
                raise SuiteError("ci/same_code.py finds no difference without torch-lms")

        run_suite(
            wheel,
            Device.SIMULATED,
            tests_dir(),
            default_cache(),
            print,
            [run],
            (*packages(tag), *triton(wheel)),
            first,
        )


def build(tag: Tag) -> Path:
    folder = ROOT / "build" / "addon" / tag.name
    remove_wheels(folder)
    command = [sys.executable, "-m", "lmsbuild", "addon", "--tag", tag.name, "--out", str(folder)]
    if subprocess.run(command).returncode:
        raise SuiteError("torch-lms cannot be built")
    (wheel,) = folder.glob("*.whl")
    return wheel


def write_patched(tag: Tag, wheel: Path, folder: Path) -> None:
    """Write the Python files of PyTorch's that the hooks change, as the hooks make them."""
    assert identify(wheel).version.public == tag.version
    with integrity.open_wheel(wheel) as archive:
        members = archive.NameToInfo
        patched = patch_python(
            tag, patches_dir(), lambda name: archive.read(name) if name in members else None
        )
        for name, content in patched.files.items():
            if name in members and name != VERSION_MEMBER and content is not None:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
