#!/usr/bin/env python3
"""Builds the LMS wheel of another architecture, and runs the runtime's tests on it below qemu.

    python ci/cross_tests.py aarch64
    python ci/cross_tests.py aarch64 --larger    # more tests, which take minutes

The wheel's own libraries run, all of them, with the simulated device compiled for them, and a
Python from Debian. qemu lets threads of the guest see memory in the order of this machine's
processor: it shows that the binaries work, not that weaker ordering is borne.

Without the cross compiler, qemu or a Debian mirror it says what is missing and runs nothing, unless
$LMS_CROSS is "required".
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import sysroot
from debian_source import Unavailable, find_mirror

from lmsbuild.architecture import architecture as architecture_of
from lmsbuild.cache import default_cache, scratch
from lmsbuild.download import Target, platforms
from lmsbuild.errors import MissingCompilerError
from lmsbuild.registry import load_registry
from lmsbuild.toolchain import find_compiler
from lmsbuild.wheeltest import plain_requirements

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("pytest", "numpy")

# Where an architecture can make a difference: allocator, guard, what a swap moves, its order. Each
# import of torch takes qemu half a minute, and so do the tests that start a process.
PART = ("state", "paging", "lifetime", "streams", "exceptions")
LARGER_PART = (*PART, "threads", "operators", "races", "serialization")

SECONDS = 1800


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("architecture")
    parser.add_argument("--larger", action="store_true", help="run more tests")
    options = parser.parse_args(arguments)
    architecture = options.architecture
    try:
        tools = Tools(architecture)
    except (Unavailable, MissingCompilerError) as error:
        if os.environ.get("LMS_CROSS") == "required":
            print(f"cross tests of {architecture}: {error}", file=sys.stderr)
            return 3
        print(f"skipped: the tests of {architecture}: {error}", flush=True)
        return 0
    begun = time.monotonic()
    wheel = tools.build_wheel()
    built = time.monotonic()
    with scratch(default_cache()) as folder:
        python = tools.install(wheel, Path(folder))
        simulated = tools.simulate(Path(folder))
        installed = time.monotonic()
        code = tools.test(python, simulated, LARGER_PART if options.larger else PART)
    print(
        f"{architecture}: wheel in {built - begun:.0f} s, set up in {installed - built:.0f} s, "
        f"tests in {time.monotonic() - installed:.0f} s",
        flush=True,
    )
    return code


class Tools:
    """What compiles for the architecture, and what its programs run with.

    Raises Unavailable, MissingCompilerError.
    """

    def __init__(self, architecture: str) -> None:
        self.architecture = architecture
        self.cxx = find_compiler(architecture).command[0]
        self.emulator = sysroot.emulator(architecture)
        self.described = sysroot.described(architecture)
        self.root = sysroot.make(self.described, default_cache(), find_mirror())

    def build_wheel(self) -> Path:
        """The default tag's wheel, built and verified by the command line."""
        out = ROOT / "build" / "wheels" / self.architecture
        lmsbuild = [sys.executable, "-m", "lmsbuild"]
        tag = load_registry().default.name
        options = ["--arch", self.architecture, "--python", self.described.python]
        subprocess.run([*lmsbuild, "wheel", tag, *options, "--out", str(out)], check=True)
        (wheel,) = out.glob(f"*_{self.architecture}.whl")
        subprocess.run([*lmsbuild, "verify", str(wheel)], check=True)
        return wheel

    def install(self, wheel: Path, folder: Path) -> Path:
        """Installs the wheel and what it needs; returns the command that runs its Python."""
        target = Target(python=self.described.python, architecture=self.architecture)
        self.site = folder / "site"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-compile"]
        pip += ["--disable-pip-version-check", "--upgrade", "--target", str(self.site)]
        pip += ["--only-binary=:all:", "--implementation=cp", f"--abi={target.python_tag}"]
        pip += [f"--python-version={target.python}"]
        pip += [f"--platform={name}" for name in platforms(self.architecture)]
        subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
        subprocess.run([*pip, *plain_requirements(wheel), *PACKAGES], check=True)
        python = folder / "python"
        binary = self.root / "usr" / "bin" / f"python{self.described.python}"
        # Its own name is the script's, so that the children of tests are run in the same way.
        python.write_text(
            "#!/bin/sh\n"
            f'export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{self.site}"\n'
            f"export PYTHONHOME={shlex.quote(str(self.root / 'usr'))}\n"
            f'exec {self._run_with()} -0 "$0" {shlex.quote(str(binary))} "$@"\n'
        )
        python.chmod(0o755)
        return python

    def simulate(self, folder: Path) -> Path:
        """Compiles the simulated device, here and not below the emulator; returns its cache."""
        cache = folder / "sim"
        environment = self._environment(cache)
        environment["PYTHONPATH"] = str(ROOT / "tests" / "simcuda")
        build = [sys.executable, "-m", "simcuda.build", str(self.site / "torch")]
        subprocess.run(build, check=True, env=environment)
        return cache

    def test(self, python: Path, simulated: Path, names: Sequence[str]) -> int:
        """Runs these of the runtime's tests; returns pytest's exit code."""
        files = [str(ROOT / "tests" / "runtime" / f"test_{name}.py") for name in names]
        options = ["-q", "-ra", "-p", "no:cacheprovider", "--durations=5"]
        return subprocess.run(
            [str(python), "-m", "pytest", *options, *files],
            env=self._environment(simulated),
            timeout=SECONDS,
        ).returncode

    def _run_with(self) -> str:
        return shlex.join([self.emulator, "-L", str(self.root)])

    def _environment(self, simulated: Path) -> dict[str, str]:
        triplet = architecture_of(self.architecture).triplet
        return os.environ | {
            "CXX": self.cxx,
            "CC": f"{triplet}-gcc",
            "LMS_SIM_CACHE": str(simulated),
            "LMS_TEST_EMULATOR": self._run_with(),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
