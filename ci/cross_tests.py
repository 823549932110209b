#!/usr/bin/env python3
"""Builds the LMS wheel of another architecture, and runs tests on it under qemu.

    python ci/cross_tests.py                     # every architecture of sysroots.toml
    python ci/cross_tests.py aarch64 --larger    # more tests, which take minutes

If there is an official wheel for the architecture, the runtime's own tests run on it, with the
simulated device compiled for the architecture, and Debian's Python. Otherwise the base is a
stand-in (debian_wheel.py), and the program in tests/cross tests it from C++.

qemu keeps the memory ordering of this machine's processor. The tests therefore show that the
binaries work, but not that they work with a weaker memory ordering.

If the cross compiler, qemu or a Debian mirror is missing, the tests of that architecture are
skipped. If $LMS_CROSS is "required", they fail instead, unless the mirror is being updated.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import sysroot
from debian_source import Inconsistent, Unavailable, find_mirror
from debian_wheel import StandIn
from torch_tests import remove_wheels

from lmsbuild.architecture import architecture as architecture_of
from lmsbuild.errors import MissingCompilerError
from lmsbuild.native.toolchain import find_compiler
from lmsbuild.registry import load_registry
from lmsbuild.resources import patches_dir
from lmsbuild.tools.cache import default_cache, scratch
from lmsbuild.tools.cache_content import in_use
from lmsbuild.tools.download import Target, platforms
from lmsbuild.wheel.suite import plain_requirements

ROOT = Path(__file__).resolve().parent.parent
LMSBUILD = (sys.executable, "-m", "lmsbuild")
PACKAGES = ("pytest", "numpy")

# The tests that can depend on the architecture. An import of torch takes half a minute under qemu,
# and so does each test that starts a process.
PART = ("state", "paging", "lifetime", "streams", "exceptions")
LARGER_PART = (*PART, "threads", "operators")

SECONDS = 1800


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("architectures", nargs="*", help="default: those of sysroots.toml")
    parser.add_argument("--larger", action="store_true", help="run more tests")
    options = parser.parse_args(arguments)
    code = 0
    for architecture in options.architectures or sysroot.known():
        try:
            tools = Tools(architecture)
        except (Unavailable, MissingCompilerError) as error:
            # Nothing in this checkout, and nobody at this machine, can mend a mirror.
            mendable = not isinstance(error, Inconsistent)
            required = mendable and os.environ.get("LMS_CROSS") == "required"
            print(f"{'failed' if required else 'skipped'}: {architecture}: {error}", flush=True)
            code |= required
            continue
        tests = LARGER_PART if options.larger else PART
        with in_use(default_cache()):
            code |= official(tools, tests) if tools.described.python else standing_in(tools)
    return code


def official(tools: Tools, tests: Sequence[str]) -> int:
    """Test the default tag's official wheel, with Python."""
    clock = Clock(tools.architecture)
    python = ("--python", tools.described.python)
    wheel = tools.build_wheel(load_registry().default.name, *python)
    clock.say(f"wheel of {wheel.stat().st_size / 1e6:.0f} MB")
    with scratch(default_cache()) as name:
        interpreter = tools.install(wheel, Path(name))
        tools.simulate(Path(name) / "site" / "torch", Path(name) / "sim")
        clock.say("installation and simulated device")
        code = tools.test(interpreter, Path(name) / "sim", tests)
    clock.say("tests")
    return code


def standing_in(tools: Tools) -> int:
    """Test a stand-in for the official wheel, with a program in C++."""
    clock = Clock(tools.architecture)
    base = StandIn(tools.architecture)
    given = base.write(ROOT / "build" / "bases")
    clock.say(f"base of {given.stat().st_size / 1e6:.0f} MB")
    wheel = tools.build_wheel(base.tag.name, "--base", str(given))
    clock.say("wheel")
    with scratch(default_cache()) as name:
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(Path(name))
        torch, device = Path(name) / "torch", Path(name) / "device"
        tools.simulate(torch, Path(name) / "sim", device)
        program = tools.compile_program(torch, device, base)
        clock.say("simulated device and program")
        code = tools.run_program(program, [torch / "lib", device])
    clock.say("tests")
    return code


class Clock:
    """Prints how long each step took."""

    def __init__(self, architecture: str) -> None:
        self._architecture = architecture
        self._last = time.monotonic()

    def say(self, what: str) -> None:
        now = time.monotonic()
        print(f"{self._architecture}: {what}: {now - self._last:.0f} s", flush=True)
        self._last = now


class Tools:
    """The compiler, the emulator and the sysroot of an architecture.

    Raises Unavailable, MissingCompilerError.
    """

    def __init__(self, architecture: str) -> None:
        self.architecture = architecture
        self.triplet = architecture_of(architecture).triplet
        self.cxx = find_compiler(architecture).command[0]
        self.emulator = sysroot.emulator(architecture)
        self.described = sysroot.described(architecture)
        clock = Clock(architecture)
        self.root = sysroot.make(self.described, default_cache(), find_mirror())
        clock.say("sysroot")

    def build_wheel(self, tag: str, *options: str) -> Path:
        """Build and verify a wheel of the tag with the command line."""
        out = ROOT / "build" / "wheels" / self.architecture
        remove_wheels(out)
        command = [*LMSBUILD, "wheel", tag, "--arch", self.architecture, "--out", str(out)]
        subprocess.run([*command, *options], check=True)
        (wheel,) = out.glob("*.whl")
        subprocess.run([*LMSBUILD, "verify", str(wheel)], check=True)
        return wheel

    def install(self, wheel: Path, folder: Path) -> Path:
        """Install the wheel and its requirements. Returns the command that runs its Python."""
        target = Target(python=self.described.python, architecture=self.architecture)
        site = folder / "site"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-compile"]
        pip += ["--disable-pip-version-check", "--upgrade", "--target", str(site)]
        pip += ["--only-binary=:all:", "--implementation=cp", f"--abi={target.python_tag}"]
        pip += [f"--python-version={target.python}"]
        pip += [f"--platform={name}" for name in platforms(self.architecture)]
        subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
        subprocess.run([*pip, *plain_requirements(wheel), *PACKAGES], check=True)
        python = folder / "python"
        binary = self.root / "usr" / "bin" / f"python{self.described.python}"
        # sys.executable is the script, so that processes that tests start run under qemu, too.
        python.write_text(
            "#!/bin/sh\n"
            f'export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{site}"\n'
            f"export PYTHONHOME={shlex.quote(str(self.root / 'usr'))}\n"
            f'exec {shlex.join(self._emulated())} -0 "$0" {shlex.quote(str(binary))} "$@"\n'
        )
        python.chmod(0o755)
        return python

    def simulate(self, torch: Path, cache: Path, *out: Path) -> None:
        """Cross compile the simulated device."""
        environment = self._environment(cache)
        environment["PYTHONPATH"] = str(ROOT / "tests" / "simcuda")
        build = [sys.executable, "-m", "simcuda.build", str(torch), *map(str, out)]
        subprocess.run(build, check=True, env=environment)

    def test(self, python: Path, simulated: Path, names: Sequence[str]) -> int:
        """Runs these of the runtime's tests; returns pytest's exit code."""
        files = [str(ROOT / "tests" / "runtime" / f"test_{name}.py") for name in names]
        options = ["-q", "-ra", "-p", "no:cacheprovider", "--durations=5"]
        return subprocess.run(
            [str(python), "-m", "pytest", *options, *files],
            env=self._environment(simulated),
            timeout=SECONDS,
        ).returncode

    def compile_program(self, torch: Path, device: Path, base: StandIn) -> Path:
        """Compiles the tests in C++ against a torch and the simulated device."""
        program = device / "program"
        flags = [f"-std=c++{base.tag.cxx_standard}", "-O1", "-DNDEBUG", "-w", "-pthread"]
        flags += [f"-I{patches_dir() / 'runtime'}", "-isystem", str(torch / "include")]
        for include in base.cuda_headers:
            flags += ["-isystem", str(include)]
        names = ("libtorch_lms.so", "libc10.so", "libc10_cuda.so", "libtorch_cpu.so")
        libraries = [str(torch / "lib" / name) for name in names]
        libraries += [str(device / "libsimops.so"), *map(str, device.glob("libcudart.so.*"))]
        source = str(ROOT / "tests" / "cross" / "program.cpp")
        link = [*libraries, "-Wl,--allow-shlib-undefined"]
        subprocess.run([self.cxx, *flags, source, "-o", str(program), *link], check=True)
        return program

    def run_program(self, program: Path, folders: Sequence[Path]) -> int:
        """Runs the tests in C++; returns how many failed."""
        system = self.root / "usr" / "lib" / self.triplet
        # Debian's alternatives live in folders of their own.
        found = [*folders, system, *sorted(path.parent for path in system.glob("*/lib*.so.3"))]
        path = ":".join(dict.fromkeys(map(str, found)))
        command = [*self._emulated(), "-E", f"LD_LIBRARY_PATH={path}", str(program)]
        environment = self._environment(program.parent)  # the device compiles kernels
        environment |= {"SIMCUDA_DEVICES": "1", "SIMCUDA_MIB": "64"}
        return subprocess.run(command, env=environment, timeout=SECONDS).returncode

    def _emulated(self) -> list[str]:
        return [self.emulator, "-L", str(self.root)]

    def _environment(self, simulated: Path) -> dict[str, str]:
        return os.environ | {
            "CXX": self.cxx,
            "CC": f"{self.triplet}-gcc",
            "LMS_SIM_CACHE": str(simulated),
            "LMS_TEST_EMULATOR": shlex.join(self._emulated()),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
