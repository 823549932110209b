"""Builds the LMS wheel of each tag and runs the tests that need a torch on it, on a simulated GPU.

    python ci/torch_tests.py [TAG ...]

The default tag gets every test. The others get the runtime's tests and one model of the
out-of-memory suite, which is where their differences are; a tag that is named gets every test.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from lmsbuild.cache import default_cache
from lmsbuild.errors import LmsbuildError
from lmsbuild.registry import load_registry
from lmsbuild.resources import tests_dir
from lmsbuild.wheeltest import Device, run_suite

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("pytest", "numpy", "expecttest", "hypothesis")
QUIET = ("-q", "-ra")
EVERYTHING = (("simcuda", *QUIET), ("runtime", *QUIET), ("suite", *QUIET, "--durations=5"))
PART = (("runtime", *QUIET), ("suite", *QUIET, "-k", "resnet"))


def main(names: list[str]) -> int:
    registry = load_registry()
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    tags = [registry.get(name) for name in names] or list(registry)
    # The default tag last: its summary, the longest, is the one that is left on the screen.
    tags.sort(key=lambda tag: tag == registry.default)
    failed = []
    for tag in tags:
        if python not in tag.pythons:
            print(f"skipped: {tag.name} has no wheel for Python {python}", flush=True)
            continue
        begun = time.monotonic()
        wheels = ROOT / "build" / "wheels" / tag.name
        build = [sys.executable, "-m", "lmsbuild", "wheel", tag.name, "--out", str(wheels)]
        subprocess.run([*build, "--python", python], check=True)
        (wheel,) = wheels.glob("*.whl")
        whole = bool(names) or tag == registry.default
        try:
            run_suite(
                wheel,
                Device.SIMULATED,
                tests_dir(),
                default_cache(),
                print,
                EVERYTHING if whole else PART,
                PACKAGES,
            )
        except LmsbuildError as error:
            print(error, flush=True)
            failed.append(tag.name)
        print(f"{tag.name}: {time.monotonic() - begun:.0f} s", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
