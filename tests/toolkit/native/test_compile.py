"""Compiling the runtime."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from pathlib import Path

import pytest

from lmsbuild.architecture import architectures
from lmsbuild.errors import (
    CompileError,
    ForeignWheelError,
    HeadersError,
    MissingCompilerError,
    SeriesError,
    WrongPlatformError,
)
from lmsbuild.native import compile, manylinux, toolchain
from lmsbuild.native.compile import Inputs, build_library
from lmsbuild.native.toolchain import Compiler, find_compiler
from lmsbuild.tools import elf
from lmsbuild.tools.download import Target
from lmsbuild.tools.fetch import fetch_package
from lmsbuild.wheel import base as basewheel
from lmsbuild.wheel import runtime_library
from toolkit.helpers.fake_torch import C_API, MACHINE, PYTHON, FakeTorch
from toolkit.helpers.fake_torch import fake as fake
from toolkit.helpers.fake_torch import offline as offline


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    monkeypatch.delenv("CXX", raising=False)
    return find_compiler(MACHINE)


@pytest.fixture
def inputs(fake: FakeTorch, offline: None, tmp_path: Path) -> Inputs:
    cuda = fetch_package(
        fake.tag.header_packages[0], Target(python=PYTHON, architecture=MACHINE), tmp_path / "cache"
    )
    torch = runtime_library.unpack_torch(
        basewheel.identify(fake.base), tmp_path / "unpacked", lambda *_: None
    )
    runtime = Path(shutil.copytree(fake.patches / "runtime", tmp_path / "runtime"))
    return Inputs(torch=torch, cuda=(cuda.path,), runtime=runtime)


def build(
    fake: FakeTorch,
    compiler: Compiler,
    inputs: Inputs,
    folder: Path,
    policy: str | None = "manylinux_2_28",
) -> Path:
    return build_library(
        fake.tag,
        compiler,
        inputs,
        folder,
        log=folder.parent / "log",
        policy=manylinux.load_policy(policy, MACHINE) if policy else None,
    )


def test_the_library_is_what_a_wheel_needs(
    fake: FakeTorch, compiler: Compiler, inputs: Inputs, tmp_path: Path
) -> None:
    path = build(fake, compiler, inputs, tmp_path / "out")
    made = elf.read(path)
    assert made.soname == "libtorch_lms.so"
    assert made.exported == {f"lms_{name}" for name in C_API}
    assert {"libc10.so", "libcudart.so.13"} <= set(made.needed)
    # As libc10_cuda's: it finds CUDA's libraries where upstream's does.
    assert made.rpath.split(":") == [
        "$ORIGIN/../../nvidia/cu13/lib",
        "$ORIGIN/../../outside/lib",
        "$ORIGIN",
    ]
    assert manylinux.violations(made, manylinux.load_policy("manylinux_2_28", MACHINE)) == []


def test_headers_of_the_environment_are_not_used(
    fake: FakeTorch,
    compiler: Compiler,
    inputs: Inputs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "cuda_runtime_api.h").write_text("#error another CUDA\n")
    for name in ("CPATH", "CPLUS_INCLUDE_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    assert build(fake, compiler, inputs, tmp_path / "out").exists()


def test_the_bytes_do_not_depend_on_the_folder(
    fake: FakeTorch, compiler: Compiler, inputs: Inputs, tmp_path: Path
) -> None:
    first = build(fake, compiler, inputs, tmp_path / "out").read_bytes()
    moved = Inputs(
        torch=Path(shutil.copytree(inputs.torch, tmp_path / "elsewhere" / "deep" / "torch")),
        cuda=(Path(shutil.copytree(inputs.cuda[0], tmp_path / "cuda2")),),
        runtime=Path(shutil.copytree(inputs.runtime, tmp_path / "runtime2")),
    )
    second = build(fake, compiler, moved, tmp_path / "other" / "out").read_bytes()
    assert hashlib.sha256(first).hexdigest() == hashlib.sha256(second).hexdigest()
    assert str(tmp_path).encode() not in first


def test_a_compiler_error_is_one_line_and_a_log(
    fake: FakeTorch, compiler: Compiler, inputs: Inputs, tmp_path: Path
) -> None:
    (inputs.runtime / compile.RUNTIME_SOURCES / "part.cpp").write_text("int part( { }\n")
    with pytest.raises(CompileError, match=r"lms/\*\.cpp does not compile") as caught:
        build(fake, compiler, inputs, tmp_path / "out")
    assert "\n" not in caught.value.message
    assert str(tmp_path / "log") in caught.value.message
    assert "error" in (tmp_path / "log").read_text()
    assert "part.cpp:1" in caught.value.detail


def test_an_undefined_symbol_fails_at_link_time(
    fake: FakeTorch, compiler: Compiler, inputs: Inputs, tmp_path: Path
) -> None:
    (inputs.runtime / compile.RUNTIME_SOURCES / "part.cpp").write_text(
        "int nowhere(); int part() { return nowhere(); }\n"
    )
    with pytest.raises(CompileError, match="does not link within manylinux_2_28") as caught:
        build(fake, compiler, inputs, tmp_path / "out")
    assert "nowhere" in caught.value.detail


def test_an_export_of_another_name_is_refused(
    fake: FakeTorch, compiler: Compiler, inputs: Inputs, tmp_path: Path
) -> None:
    folder = inputs.runtime / compile.RUNTIME_SOURCES
    (folder / "part.cpp").write_text(
        '__attribute__((visibility("default"))) int part() { return 1; }\n'
    )
    (folder / "exports.map").write_text("{ global: *; };\n")
    with pytest.raises(CompileError, match=r"check exports\.map"):
        build(fake, compiler, inputs, tmp_path / "out")


def test_another_abi_than_the_registrys_is_a_foreign_wheel(
    fake: FakeTorch, compiler: Compiler, inputs: Inputs, tmp_path: Path
) -> None:
    assert compile.cxx11_abi(inputs.torch) == 1
    old = dataclasses.replace(fake.tag, cxx11_abi=0)
    with pytest.raises(ForeignWheelError, match="ABI 1"):
        build_library(old, compiler, inputs, tmp_path / "out", policy=None, log=tmp_path / "log")


def test_a_libc10_without_c10_is_a_foreign_wheel(inputs: Inputs) -> None:
    shutil.copy(inputs.torch / "lib/libtorch_cpu.so", inputs.torch / "lib/libc10.so")
    with pytest.raises(ForeignWheelError, match="c10::Error"):
        compile.cxx11_abi(inputs.torch)


@pytest.mark.parametrize("missing", ["include/cuda_runtime_api.h", "lib/libcudart.so.13"])
def test_incomplete_header_packages_are_named(
    fake: FakeTorch, compiler: Compiler, inputs: Inputs, tmp_path: Path, missing: str
) -> None:
    (inputs.cuda[0] / "nvidia/cu13" / missing).unlink()
    with pytest.raises(HeadersError, match="header packages do not contain"):
        build(fake, compiler, inputs, tmp_path / "out")


def test_a_runtime_without_sources_is_named(tmp_path: Path) -> None:
    with pytest.raises(SeriesError, match="no C\\+\\+ file"):
        compile.sources(tmp_path)


def test_a_missing_compiler_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingCompilerError, match=r"install g\+\+"):
        find_compiler(MACHINE)
    monkeypatch.setattr(toolchain.platform, "machine", lambda: "other")
    with pytest.raises(MissingCompilerError, match=r"powerpc64le-linux-gnu-g\+\+ is not on PATH"):
        find_compiler("ppc64le")
    with pytest.raises(MissingCompilerError, match=r"install g\+\+-aarch64-linux-gnu"):
        find_compiler("aarch64")


def test_a_compiler_for_another_architecture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++")
    other = next(name for name in architectures() if name != MACHINE)
    with pytest.raises(MissingCompilerError, match="compiles for"):
        find_compiler(other)
    with pytest.raises(WrongPlatformError, match="no architecture sparc64; known: x86_64"):
        find_compiler("sparc64")


def test_a_compiler_that_is_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", 'g++ "')
    with pytest.raises(MissingCompilerError, match="CXX is no command"):
        find_compiler(MACHINE)


def test_a_broken_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(MissingCompilerError, match="fails"):
        find_compiler(MACHINE)


def test_flags_follow_the_registry(fake: FakeTorch) -> None:
    flags = compile.flags(
        dataclasses.replace(fake.tag, cxx_standard=20, cxx11_abi=0, abi_version=11)
    )
    assert {"-std=c++20", "-D_GLIBCXX_USE_CXX11_ABI=0", "-fabi-version=11", "-DNDEBUG"} <= set(
        flags
    )
