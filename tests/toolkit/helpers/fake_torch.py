"""A torch of a few kilobytes: real libraries, headers, wheels and patches, all made here."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import platform
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lmsbuild.registry import Tag, load_registry

MACHINE = platform.machine()
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
CP = "cp" + PYTHON.replace(".", "")
VERSION = "9.1.0"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
WHEEL_NAME = f"torch-{VERSION}-{CP}-{CP}-manylinux_2_28_{MACHINE}.whl"
CUDA_WHEEL_NAME = f"fake_cuda_headers-1.0-py3-none-manylinux_2_17_{MACHINE}.whl"
DIST_INFO = f"torch-{VERSION}.dist-info"
DATE = (2025, 3, 4, 5, 6, 8)

VERSION_PY = f"""\
from typing import Optional

__all__ = ['__version__', 'cuda']
__version__ = '{VERSION}+cu130'
cuda: Optional[str] = '13.0'
git_version = '{COMMIT}'
"""

CUDA_INIT = """\
def is_available():
    return False


from .memory import *  # noqa: F403
"""

HOOK = """\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: A <a@example.org>
Date: Thu, 1 Jan 2026 00:00:00 +0000
Subject: [PATCH] offer LMS

Why.
---
diff --git a/c10/core/thing.cpp b/c10/core/thing.cpp
index 1111111..2222222 100644
--- a/c10/core/thing.cpp
+++ b/c10/core/thing.cpp
@@ -1 +1 @@
-int a;
+int b;
diff --git a/torch/cuda/__init__.py b/torch/cuda/__init__.py
index 1111111..2222222 100644
--- a/torch/cuda/__init__.py
+++ b/torch/cuda/__init__.py
@@ -5 +5,2 @@ def is_available():
 from .memory import *  # noqa: F403
+from .lms import *  # noqa: F403
--
2.39.5

"""

API = (
    "set_enabled_lms",
    "get_enabled_lms",
    "set_limit_lms",
    "get_limit_lms",
    "set_size_lms",
    "get_size_lms",
    "reclaim_inactive",
)
LMS_PY = "".join(f"def {name}(*values):\n    return values\n\n\n" for name in API)

C_API = ("abi_version", *(name.removesuffix("_lms") for name in API))
RUNTIME_CPP = """\
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>
#include <memory>
#include <sstream>
#include <string>
#include "torch/csrc/cuda/lms/parts.h"

namespace {
std::string text(int value) {
  std::ostringstream out;
  out << value << __FILE__;
  auto shared = std::make_shared<std::string>(out.str());
  return *shared + std::to_string(std::stoi("12"));
}
}  // namespace

""" + "".join(
    f'extern "C" int lms_{name}() {{ return int(text({number}).size()) + c10::touch() + '
    f"part() + cudaFree(nullptr); }}\n"
    for number, name in enumerate(C_API)
)

TAGS = f"""\
[upstream]
url = "https://example.org/pytorch"

[[tag]]
name = "v{VERSION}"
git_commit = "{COMMIT}"
hooks = "v{VERSION}"
pythons = ["{PYTHON}"]
architectures = ["{MACHINE}"]
strategies = ["graft"]
cuda = "13.0"
header_packages = ["fake-cuda-headers==1.0"]
cxx_standard = 17
cxx11_abi = 1
manylinux = "manylinux_2_28"
verified = {{ hooks_wheel = false, hooks_source = false, simulated = false, gpu = "" }}
"""


@dataclass
class Wheel:
    """A wheel in the making: members, then ``write``. Change what a test needs changed."""

    members: dict[str, bytes]
    dist_info: str
    modes: dict[str, int] = field(default_factory=dict)
    rows: list[tuple[str, str, str]] | None = None

    def copy(self) -> Wheel:
        rows = None if self.rows is None else list(self.rows)
        return Wheel(dict(self.members), self.dist_info, dict(self.modes), rows)

    def true_rows(self) -> list[tuple[str, str, str]]:
        rows = [(name, digest(data), str(len(data))) for name, data in self.members.items()]
        return [*rows, (f"{self.dist_info}/RECORD", "", "")]

    def write(self, path: Path) -> Path:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(self.rows or self.true_rows())
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in (
                *self.members.items(),
                (f"{self.dist_info}/RECORD", text.getvalue().encode()),
            ):
                info = zipfile.ZipInfo(name, DATE)
                info.compress_type = zipfile.ZIP_DEFLATED
                info.external_attr = self.modes.get(name, 0o100644) << 16
                archive.writestr(info, data)
        return path


def digest(data: bytes) -> str:
    return "sha256=" + urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def members_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def shared_library(path: Path, source: str, *arguments: str) -> bytes:
    """Compile C++ to a shared library with the file's name as its soname."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # "-x none": what follows is told by its name again, for example a library to link to.
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-x", "none", *arguments]
    command += ["-o", str(path), f"-Wl,-soname,{path.name}"]
    subprocess.run(command, input=source, text=True, check=True)
    return path.read_bytes()


@dataclass(frozen=True)
class FakeTorch:
    """Everything that a build needs: the wheels as templates, patches, an index for pip."""

    wheel: Wheel
    base: Path
    links: Path
    patches: Path

    @property
    def tag(self) -> Tag:
        return load_registry(self.patches).get(VERSION)


def write_patches(folder: Path) -> Path:
    files = {
        "tags.toml": TAGS,
        f"v{VERSION}/series": "0001-offer-LMS.patch\n",
        f"v{VERSION}/0001-offer-LMS.patch": HOOK,
        "runtime/torch/cuda/lms/__init__.py": LMS_PY,
        "runtime/torch/csrc/cuda/lms/exports.map": "{ global: lms_*; local: *; };\n",
        "runtime/torch/csrc/cuda/lms/parts.h": "int part();\n",
        "runtime/torch/csrc/cuda/lms/part.cpp": "int part() { return 1; }\n",
        "runtime/torch/csrc/cuda/lms/lms.cpp": RUNTIME_CPP.replace(
            'extern "C"', 'extern "C" __attribute__((visibility("default")))'
        ),
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def _cudart(build: Path) -> Path:
    source = 'extern "C" int cudaFree(void*) { return 0; }'
    script = build / "cudart.map"
    script.write_text("libcudart.so.13 { global: cuda*; local: *; };\n")
    shared_library(build / "libcudart.so.13", source, f"-Wl,--version-script,{script}")
    return build / "libcudart.so.13"


def _torch_wheel(build: Path, cudart: Path) -> Wheel:
    error = (
        "#include <string>\nnamespace c10 { struct Error { Error(std::string); };\n"
        "Error::Error(std::string) {} int touch() { return 1; } }\n"
    )
    # An RPATH and no RUNPATH, as in the official wheels.
    rpath = (
        "-Wl,--disable-new-dtags,"
        "-rpath,$ORIGIN/../../nvidia/cu13/lib:$ORIGIN/../../outside/lib:$ORIGIN"
    )
    libraries = {
        "libc10.so": shared_library(build / "libc10.so", error),
        "libc10_cuda.so": shared_library(
            build / "libc10_cuda.so", "int c10_cuda;", rpath, "-Wl,--no-as-needed", str(cudart)
        ),
        "libtorch_cpu.so": shared_library(build / "libtorch_cpu.so", "int torch_cpu;"),
        "libtorch_cuda.so": shared_library(build / "libtorch_cuda.so", "int torch_cuda;"),
    }
    members: dict[str, bytes] = {
        "torch/__init__.py": b"from .version import __version__ as __version__\n",
        "torch/version.py": VERSION_PY.encode(),
        "torch/cuda/__init__.py": CUDA_INIT.encode(),
        "torch/cuda/memory.py": b"",
        "torch/nn/__init__.py": b"",
        "torch/include/c10/util/Exception.h": b"namespace c10 { int touch(); }\n",
        **{f"torch/lib/{name}": data for name, data in libraries.items()},
        f"{DIST_INFO}/METADATA": (
            f"Metadata-Version: 2.1\nName: torch\nVersion: {VERSION}\n"
            "Requires-Dist: filelock\n"
            'Requires-Dist: nvidia-cudnn-cu13==9.0; platform_system == "Linux"\n'
            'Requires-Dist: optree; extra == "optree"\n'
            f"\nVersion: {VERSION}\n"
        ).encode(),
        f"{DIST_INFO}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: fake\nRoot-Is-Purelib: false\n"
            f"Tag: {CP}-{CP}-manylinux_2_28_{MACHINE}\n"
        ).encode(),
        f"{DIST_INFO}/entry_points.txt": b"[console_scripts]\ntorchrun = torch:main\n",
    }
    return Wheel(members, DIST_INFO, modes={f"torch/lib/{name}": 0o100755 for name in libraries})


def _cuda_wheel(cudart: Path) -> Wheel:
    info = "fake_cuda_headers-1.0.dist-info"
    return Wheel(
        {
            "nvidia/cu13/include/cuda_runtime_api.h": b'extern "C" int cudaFree(void*);\n',
            "nvidia/cu13/lib/libcudart.so.13": cudart.read_bytes(),
            f"{info}/METADATA": b"Metadata-Version: 2.1\nName: fake-cuda-headers\nVersion: 1.0\n",
            f"{info}/WHEEL": (
                f"Wheel-Version: 1.0\nGenerator: fake\nRoot-Is-Purelib: true\n"
                f"Tag: py3-none-manylinux_2_17_{MACHINE}\n"
            ).encode(),
        },
        info,
        modes={"nvidia/cu13/lib/libcudart.so.13": 0o100755},
    )


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> FakeTorch:
    """Made once; tests do not change its files, but copies."""
    root = tmp_path_factory.mktemp("fake")
    (root / "build").mkdir()
    links, base = root / "links", root / "base"
    links.mkdir()
    base.mkdir()
    cudart = _cudart(root / "build")
    wheel = _torch_wheel(root / "build", cudart)
    wheel.write(links / WHEEL_NAME)
    _cuda_wheel(cudart).write(links / CUDA_WHEEL_NAME)
    return FakeTorch(
        wheel=wheel,
        base=wheel.write(base / WHEEL_NAME),
        links=links,
        patches=write_patches(root / "patches"),
    )


@pytest.fixture
def offline(fake: FakeTorch, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip finds the fake wheels, and nothing else."""
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(fake.links))


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for tests that do not look into it: the library is compiled once."""
    return tmp_path_factory.mktemp("cache")


def replace_members(
    source: Path,
    target: Path,
    changes: Mapping[str, bytes | None],
    *,
    rows: list[tuple[str, str, str]] | None = None,
) -> Path:
    """A wheel with other members (None removes) and its old RECORD, unless ``rows`` is given."""
    members = members_of(source)
    info = next(name.split("/")[0] for name in members if name.endswith(".dist-info/RECORD"))
    text = members.pop(f"{info}/RECORD").decode()
    old = [(row[0], row[1], row[2]) for row in csv.reader(io.StringIO(text))]
    for name, data in changes.items():
        if data is None:
            members.pop(name)
        else:
            members[name] = data
    return Wheel(members, info, rows=old if rows is None else rows).write(target)
