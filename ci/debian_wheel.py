#!/usr/bin/env python3
"""A stand-in for a CUDA wheel of an architecture that has no official one.

    ci/debian_wheel.py ppc64le OUT_DIRECTORY

Debian's PyTorch for it was built without CUDA. Its libraries, headers and Python files go into a
wheel together with libc10_cuda.so, compiled here from the same source: all that LMS links to is
real. What is not: libtorch_cuda.so is empty, so there are no CUDA kernels, and torch/version.py
names a CUDA.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import debian_source
import sysroot

from lmsbuild.architecture import architecture as architecture_of
from lmsbuild.native import link_stubs
from lmsbuild.native.toolchain import find_compiler
from lmsbuild.registry import Tag, load_registry
from lmsbuild.tools.cache import default_cache
from lmsbuild.tools.download import Target
from lmsbuild.wheel import record
from lmsbuild.wheel.header_packages import fetch_headers

CUDA = "12.4"  # the last one that NVIDIA made for ppc64le
LIBRARIES = ("libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so")
DATE = (2025, 1, 1, 0, 0, 0)
# CUDA's and C++'s macros that c10's own build sets.
DEFINES = ("NDEBUG", "USE_CUDA", "C10_CUDA_BUILD_MAIN_LIB", "C10_CUDA_NO_CMAKE_CONFIGURE_FILE")


class StandIn:
    """Assembles the wheel. Raises what sysroot.make and find_compiler raise."""

    def __init__(self, architecture: str) -> None:
        self.architecture = architecture
        self.described = sysroot.described(architecture)
        self.compiler = find_compiler(architecture)
        mirror = debian_source.find_mirror()
        self.root = sysroot.make(self.described, default_cache(), mirror)
        self.package = self.root / "usr" / "lib" / "python3" / "dist-packages" / "torch"
        suite = self.described.suite
        self.source = debian_source.fetch(
            self.described.source, suite, default_cache() / f"debian-{suite}", mirror
        )
        version = re.search(
            r"__version__ = '([\d.]+)", (self.package / "version.py").read_text("utf-8")
        )
        assert version, "torch/version.py names no version"
        self.tag: Tag = load_registry().get(version[1])
        (binary,) = self.package.glob("_C.cpython-*.so")
        self.python_tag = "cp" + binary.name.split("-")[1]
        python = f"{self.python_tag[2]}.{self.python_tag[3:]}"
        target = Target(python=python, architecture=architecture)
        found = fetch_headers(self.tag, target, default_cache(), lambda *_: None)
        self.cuda = [folder.path for folder in found.values()]
        self.cuda_headers = [path for root in self.cuda for path in root.glob("nvidia/*/include")]

    def write(self, out: Path) -> Path:
        """Returns the wheel's path. Makes the wheel if it is not there."""
        version = self.tag.version
        name = f"torch-{version}-{self.python_tag}-{self.python_tag}-linux_{self.architecture}.whl"
        path = out / name
        if path.is_file():
            return path
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            members = dict(self._members(Path(folder)))
            unfinished = out / f".{name}"
            with zipfile.ZipFile(unfinished, "w") as wheel:
                rows = []
                for member, data in members.items():
                    wheel.writestr(zipfile.ZipInfo(member, DATE), data)
                    rows.append(record.row_of(member, data))
                listed = f"torch-{version}.dist-info/RECORD"
                rows.append(record.Row(path=listed))
                wheel.writestr(zipfile.ZipInfo(listed, DATE), record.serialize(rows))
            unfinished.rename(path)
        return path

    def _members(self, work: Path) -> Iterator[tuple[str, bytes]]:
        version = self.tag.version
        for path in sorted(self.package.rglob("*.py")):
            yield f"torch/{path.relative_to(self.package)}", path.read_bytes()
        yield (
            "torch/version.py",
            f"__version__ = '{version}'\ncuda = '{CUDA}'\ngit_version = 'Unknown'\n".encode(),
        )
        headers = self.root / "usr" / "include"
        for top in ("ATen", "c10", "caffe2", "torch"):
            for path in sorted((headers / top).rglob("*.h")):
                yield f"torch/include/{path.relative_to(headers)}", path.read_bytes()
        # A file that a build with CUDA generates.
        generated = "torch/include/c10/cuda/impl/cuda_cmake_macros.h"
        yield generated, b"#pragma once\n#define C10_CUDA_BUILD_SHARED_LIBS\n"
        for name in LIBRARIES:
            yield f"torch/lib/{name}", (self.package / "lib" / name).resolve().read_bytes()
        yield "torch/lib/libc10_cuda.so", self._c10_cuda(work).read_bytes()
        yield "torch/lib/libtorch_cuda.so", self._empty(work).read_bytes()
        info = f"torch-{version}.dist-info"
        yield (
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n\nA stand-in.\n".encode(),
        )
        tag = f"{self.python_tag}-{self.python_tag}-linux_{self.architecture}"
        wheel = f"Wheel-Version: 1.0\nGenerator: standin\nRoot-Is-Purelib: false\nTag: {tag}\n"
        yield f"{info}/WHEEL", wheel.encode()

    def _c10_cuda(self, work: Path) -> Path:
        """libc10_cuda.so, from the source of the same release."""
        with tarfile.open(self.source) as packed:
            top = packed.getnames()[0].split("/")[0]
            wanted = [m for m in packed if m.name.startswith(f"{top}/c10/") and m.isfile()]
            packed.extractall(work, members=wanted, filter="data")
        source = work / top
        files = [*(source / "c10" / "cuda").glob("*.cpp")]
        files.append(source / "c10" / "cuda" / "impl" / "CUDAGuardImpl.cpp")
        include = [*self.cuda_headers, self.root / "usr" / "include"]
        flags = [f"-std=c++{self.tag.cxx_standard}", "-O1", "-fPIC", "-w", f"-I{source}"]
        flags += [f"-ffile-prefix-map={source}=."]
        flags += ["-fvisibility=hidden", "-fvisibility-inlines-hidden"]
        flags += [f"-D{name}" for name in DEFINES]
        flags += [part for folder in include for part in ("-isystem", str(folder))]

        def compile_one(file: Path) -> Path:
            out = work / f"{file.stem}.o"
            self._run(*flags, "-c", str(file), "-o", str(out))
            return out

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            objects = [str(path) for path in pool.map(compile_one, files)]
        cudart = next(path for root in self.cuda for path in root.glob("nvidia/*/lib/libcudart*"))
        stub = link_stubs.for_machine(
            self.compiler.command, self.architecture, cudart, work / "stubs"
        )
        library = self.root / "usr" / "lib" / architecture_of(self.architecture).triplet
        out = work / "libc10_cuda.so"
        link = [f"-Wl,-soname,{out.name}", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed"]
        self._run("-shared", "-o", str(out), *objects, str(library / "libc10.so"), str(stub), *link)
        return out

    def _empty(self, work: Path) -> Path:
        out = work / "libtorch_cuda.so"
        self._run("-shared", "-nostdlib", "-x", "c", "/dev/null", "-o", str(out))
        return out

    def _run(self, *arguments: str) -> None:
        command = [*self.compiler.command, *arguments]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            sys.exit(f"{' '.join(command)[-300:]}\n{result.stderr[-3000:]}")


if __name__ == "__main__":
    print(StandIn(sys.argv[1]).write(Path(sys.argv[2])))
