"""An interpreter whose torch has LMS, and whose LMS libraries may be replaced by others."""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType

from lmsbuild._compat import tomllib
from lmsbuild.native import compile
from lmsbuild.native.toolchain import find_compiler
from lmsbuild.patchset.runtime import lay_out
from lmsbuild.registry import load_registry
from lmsbuild.tools.cache import default_cache
from lmsbuild.tools.download import Target
from lmsbuild.wheel.header_packages import fetch_headers

ROOT = Path(__file__).resolve().parent.parent
RUNTIME = ROOT / "patches" / "runtime"
SOURCES = "torch/csrc/cuda/lms"


class DisposableTorch:
    """An interpreter's torch. Its own libraries are restored at the end of a ``with`` block."""

    def __init__(self, python: str) -> None:
        # torch is not imported, because that needs CUDA's libraries.
        ask = (
            "import importlib.util as u, runpy;"
            "p = u.find_spec('torch').submodule_search_locations[0];"
            "print(p); print(runpy.run_path(p + '/version.py')['__version__'])"
        )
        told = subprocess.run([python, "-c", ask], check=True, stdout=subprocess.PIPE, text=True)
        folder, release = told.stdout.splitlines()
        torch = Path(folder)
        self.tag = load_registry().get(release.split("+")[0])
        self._compiler = find_compiler(platform.machine())
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        target = Target(architecture=platform.machine(), python=version)
        headers = fetch_headers(self.tag, target, default_cache(), lambda *_: None)
        self.folder = torch
        self.cuda = tuple(found.path for found in headers.values())
        self.library = torch / "lib" / compile.LIBRARY

    def __enter__(self) -> DisposableTorch:
        self._temporary = tempfile.TemporaryDirectory()
        self.work = Path(self._temporary.name)
        self.runtime = lay_out(RUNTIME.parent, self.tag.variant, self.work / "variant")
        self._true = self.work / "true"
        self._true.mkdir()
        for name in (compile.LIBRARY, compile.SEAM):
            if (self.library.parent / name).exists():
                shutil.copy(self.library.parent / name, self._true)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for library in self._true.iterdir():
            self.replace(library)
        self._temporary.cleanup()

    def precompile(self) -> None:
        """Compile torch's headers once. Every later install() takes half the time then."""
        header = self.work / "torch.h"
        include = self.folder / "include"
        names = {
            name
            for file in (self.runtime / SOURCES).rglob("*.[ch]*")
            for name in re.findall(r"^#include <((?:ATen|c10|torch)/.*)>", file.read_text(), re.M)
        }
        # Those of the runtime are not in torch, nor are some that only other releases have.
        used = sorted(name for name in names if (include / name).is_file())
        header.write_text("".join(f"#include <{name}>\n" for name in used))
        inputs = compile.Inputs(torch=self.folder, cuda=self.cuda, runtime=self.runtime)
        command = compile.command(self.tag, self._compiler, inputs)
        precompiled = Path(f"{header}.gch")
        subprocess.run([*command, "-x", "c++-header", header, "-o", precompiled], check=True)
        # GCC takes it instead of the header where the flags are the same, so not with a sanitizer.
        quick = (*self._compiler.command, "-include", str(header))
        self._compiler = dataclasses.replace(self._compiler, command=quick)
        # For ccache, if the compiler is one: what it has to know of a precompiled header, and that
        # it need not read all of it, several hundred MB, for each file.
        Path(f"{precompiled}.sum").write_text(str(self.work))
        os.environ |= {"CCACHE_SLOPPINESS": "pch_defines,time_macros", "CCACHE_PCH_EXTSUM": "1"}

    def install(self, runtime: Path, *, sanitize: str = "") -> Path:
        """Compile the runtime into the torch; returns libtorch_lms.so."""
        inputs = compile.Inputs(torch=self.folder, cuda=self.cuda, runtime=runtime)
        made = (self.tag, self._compiler, inputs, self.work / "objects")
        log = self.work / "log"
        self.replace(compile.build_library(*made, policy=None, log=log, sanitize=sanitize))
        if seam := compile.build_seam(*made, policy=None, log=log):
            self.replace(seam)
        return self.library

    def install_with(self, bug: dict[str, str], *, sanitize: str = "") -> Path:
        """Compile a copy of the runtime that has the bug into the torch; returns the copy."""
        runtime = self.work / "runtime"
        shutil.rmtree(runtime, ignore_errors=True)
        shutil.copytree(self.runtime, runtime)
        plant(bug, runtime / SOURCES)
        self.install(runtime, sanitize=sanitize)
        return runtime

    def replace(self, library: Path) -> None:
        target = self.library.parent / library.name
        target.unlink(missing_ok=True)
        shutil.copy(library, target)


def environment(runtime: Path) -> dict[str, str]:
    """Environment variables for the runtime's tests, which compile against its headers."""
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "LMS_RUNTIME": str(runtime)}


def load_bugs(name: str) -> list[dict[str, str]]:
    """The bugs in a file of this folder; see mutants.toml."""
    return tomllib.loads((Path(__file__).parent / name).read_text())["mutant"]


def plant(bug: dict[str, str], sources: Path) -> None:
    file = sources / bug["file"]
    text = file.read_text()
    if text.count(bug["find"]) != 1:
        sys.exit(f"{bug['name']}: the text to find must occur once in {file.name}")
    file.write_text(text.replace(bug["find"], bug["replace"]))
