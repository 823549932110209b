"""The release's own build makes the runtime: its real torch/CMakeLists.txt, patched and run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from lmsbuild import resources
from lmsbuild.errors import NetworkError
from lmsbuild.native.toolchain import find_compiler
from lmsbuild.patchset.cmake_hook import is_cmake_hook, is_unproven
from lmsbuild.patchset.runtime import lay_out
from lmsbuild.patchset.series import load_hooks
from lmsbuild.registry import Tag, load_registry
from lmsbuild.tools import elf
from lmsbuild.tools.cache import default_cache
from lmsbuild.tools.download import NotOnIndexError, Target
from lmsbuild.tools.fetch import fetch_wheel
from lmsbuild.wheel import integrity, runtime_library, unofficial_base
from lmsbuild.wheel.base import BaseWheel, identify
from lmsbuild.wheel.plan import LibraryPlan, plan_for
from toolkit.ci.test_debian_source import debian_source
from toolkit.helpers.ci_script import load
from toolkit.helpers.fake_upstream import git

in_tree = load("in_tree")

X86 = "x86_64"
# Each by its own hook, and, of 1.13, its own variant of the runtime.
RELEASES = {"2.6.0": "trixie", "1.13.1": "bookworm"}

SETUP = "tools/setup_helpers/"

# In the place of CMake.
RECORDER = """\
#!/bin/sh
case "$*" in
  *--version*) echo 'cmake version 3.25.1';;
  *) printf '%s\\n' "$@" >> "$CMAKE_LOG";;
esac
"""

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(in_tree.CMAKE is None, reason="there is no cmake (pip install cmake)"),
]


@pytest.fixture(scope="module", params=RELEASES)
def tag(request: pytest.FixtureRequest) -> Tag:
    return load_registry().get(request.param)


@pytest.fixture(scope="module")
def base(tag: Tag) -> BaseWheel:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    target = Target(python=python if python in tag.pythons else tag.pythons[-1], architecture=X86)
    try:
        return identify(fetch_wheel(f"torch=={tag.version}", target, default_cache()).path)
    except (NetworkError, NotOnIndexError) as error:
        pytest.skip(f"the official wheel cannot be had: {error}")


@pytest.fixture(scope="module")
def plan(tag: Tag, base: BaseWheel) -> LibraryPlan:
    target = Target(python=base.python, architecture=X86)
    return plan_for(
        unofficial_base.within(tag, base.platform_tag, X86),
        find_compiler(X86),
        target,
        patches=resources.patches_dir(),
        cache=default_cache(),
        report=lambda *_: None,
    )


@pytest.fixture(scope="module")
def against(
    tag: Tag, base: BaseWheel, plan: LibraryPlan, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[object]:
    """The official wheel's headers and libraries."""
    folder = tmp_path_factory.mktemp("torch")
    torch = runtime_library.unpack_torch(base, folder, lambda *_: None)
    yield in_tree.Against(
        torch=torch,
        cuda=tuple(found.path for found in plan.headers.values()),
        flags=in_tree.abi_flags(tag.cxx11_abi, tag.abi_version),
        standard=tag.cxx_standard,
    )
    shutil.rmtree(folder)  # 500 MB


@pytest.fixture(scope="module")
def source(tag: Tag, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release's CMake files with the runtime beside them, and with the hook."""
    suite = RELEASES[tag.version]
    try:
        tarball = debian_source.fetch(
            "pytorch", suite, default_cache() / f"debian-{suite}", debian_source.find_mirror()
        )
    except debian_source.Unavailable as error:
        pytest.skip(f"the real sources cannot be had: {error}")
    assert tarball.name.startswith(f"pytorch_{tag.version}+")
    folder = tmp_path_factory.mktemp(tag.version)
    with tarfile.open(tarball) as archive:
        for member in archive:
            name = "/".join(PurePosixPath(member.name).parts[1:])
            if name in in_tree.REAL or name.startswith((*in_tree.REAL_FOLDERS, SETUP)):
                archive.extract(member.replace(name=name, deep=False), folder, filter="data")
    merged = lay_out(resources.patches_dir(), tag.variant, folder)
    if merged != folder:
        shutil.copytree(merged, folder, dirs_exist_ok=True)
    (hook,) = (mail for mail in load_hooks(tag) if is_cmake_hook(mail))
    assert not is_unproven(hook)
    git(folder, "init", "--quiet")
    git(folder, "apply", str(resources.patches_dir() / tag.hooks / hook.name))
    return folder


def test_the_release_builds_the_library_that_a_graft_has(
    source: Path, against: object, plan: LibraryPlan, base: BaseWheel, tmp_path: Path
) -> None:
    build = in_tree.InTree(source, tmp_path)
    # Optimized, it would take three times as long, and have the same symbols.
    assert "(USE_LMS): ON" in build.configure(against, "-DCMAKE_CXX_FLAGS_RELEASE=-O0 -DNDEBUG")
    installed = build.install().parent
    with integrity.open_wheel(base.path) as wheel:
        rows = integrity.read_record(wheel)
    # As a graft has it: torch_tests.py builds the library of some of these releases, too.
    identity = runtime_library.release_identity(plan.tag, X86, rows)
    libraries = runtime_library.library_for(plan, base, identity, default_cache(), lambda *_: None)
    assert sorted(path.name for path in installed.glob("libtorch_lms*")) == sorted(libraries)
    for name, data in libraries.items():
        built = elf.read(installed / name)
        (tmp_path / name).write_bytes(data)
        expected = elf.read(tmp_path / name)
        assert sorted(built.exported) == sorted(expected.exported)
        assert sorted(built.needed) == sorted(expected.needed)
        assert built.soname == expected.soname == name
    assert elf.read(installed / "libtorch_lms.so").rpath == "$ORIGIN"


@pytest.mark.parametrize("option", ["-DUSE_LMS=OFF", "-DUSE_CUDA=OFF", "-DBUILD_SHARED_LIBS=OFF"])
def test_a_build_without_lms(source: Path, against: object, option: str, tmp_path: Path) -> None:
    build = in_tree.InTree(source, tmp_path)
    assert "(USE_LMS): OFF" in build.configure(against, option)
    installed = (build.build / "torch" / "cmake_install.cmake").read_text()
    assert "libtorch_python" in installed
    assert "libtorch_lms" not in installed


def test_the_releases_own_setup_passes_the_option_on(source: Path, tmp_path: Path) -> None:
    """`USE_LMS=0 python setup.py bdist_wheel`, as far as what it tells CMake."""
    recorder = tmp_path / "cmake"
    recorder.write_text(RECORDER)
    recorder.chmod(0o755)
    script = (
        "import os; from tools.setup_helpers.cmake import CMake;"
        "CMake().generate('0', None, True, False, os.environ.copy(), True)"
    )
    log = tmp_path / "log"
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "CMAKE_LOG": str(log),
        "USE_LMS": "0",
    }
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=source, env=environment, capture_output=True, text=True
    )
    if sys.version_info >= (3, 12) and "distutils" in done.stderr:
        pytest.skip("the setup of this release is for a Python that has distutils")
    assert done.returncode == 0, done.stderr
    assert "-DUSE_LMS=0" in log.read_text().splitlines()
