"""What is read from shared libraries."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmsbuild.tools import elf
from lmsbuild.tools.elf import NotElfError
from toolkit.helpers.fake_torch import MACHINE, shared_library

SOURCE = """
#include <cstdio>
extern "C" int lms_one() { return puts("x"); }
extern "C" __attribute__((weak)) int lms_weak() { return 1; }
int lms_table[7] = {1};
thread_local int lms_local = 3;
static int hidden() { return 2; }
int (*lms_pointer)() = hidden;
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> elf.Library:
    path = tmp_path_factory.mktemp("elf") / "libone.so.3"
    shared_library(path, SOURCE, "-Wl,-rpath,$ORIGIN/../x:$ORIGIN")
    return elf.read(path)


def test_identity(library: elf.Library) -> None:
    assert library.machine == MACHINE
    assert library.soname == "libone.so.3"
    assert library.rpath == "$ORIGIN/../x:$ORIGIN"
    assert "libc.so.6" in library.needed


def test_symbols(library: elf.Library) -> None:
    by_name = {symbol.name: symbol for symbol in library.symbols}
    assert by_name["lms_one"].kind == "function"
    assert by_name["lms_weak"].weak
    assert (by_name["lms_table"].kind, by_name["lms_table"].size) == ("object", 28)
    assert by_name["lms_local"].kind == "tls"
    assert {"lms_one", "lms_weak", "lms_table"} <= library.exported
    assert "hidden" not in library.exported
    assert "puts" in library.undefined


def test_needed_versions(library: elf.Library) -> None:
    assert any(version.startswith("GLIBC_") for version in library.needed_versions["libc.so.6"])
    puts = next(symbol for symbol in library.symbols if symbol.name == "puts")
    assert puts.version in library.needed_versions["libc.so.6"]


def test_defined_versions(tmp_path: Path) -> None:
    script = tmp_path / "map"
    script.write_text("V_1.0 { global: one; two; local: *; }; V_2.0 { } V_1.0;")
    path = tmp_path / "libv.so"
    shared_library(
        path,
        'extern "C" { int one() { return 1; } int a() { return 2; } int b() { return 3; } }\n'
        'asm(".symver a, two@V_1.0"); asm(".symver b, two@@V_2.0");',
        f"-Wl,--version-script,{script}",
    )
    found = {(s.name, s.version, s.default_version) for s in elf.read(path).symbols if s.defined}
    assert {("one", "V_1.0", True), ("two", "V_2.0", True), ("two", "V_1.0", False)} <= found


@pytest.mark.parametrize("content", [b"", b"not ELF at all", b"\x7fELF\x02\x01\x01" + b"\0" * 200])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(content)
    with pytest.raises(NotElfError):
        elf.read(path)


def test_a_truncated_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "libone.so"
    content = shared_library(path, SOURCE)
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(NotElfError):
        elf.read(path)


@pytest.mark.parametrize(
    ("version", "allowed"),
    [
        ("GLIBC_2.17", True),
        ("GLIBC_2.2.5", True),
        ("GLIBC_2.17.1", False),
        ("GLIBC_2.28", False),
        ("GLIBC_PRIVATE", False),
        ("GLIBCXX_3.4.19", False),  # of a family that the policy does not name
    ],
)
def test_versions_within_a_policy(version: str, allowed: bool) -> None:
    assert elf.within(version, {"GLIBC": (2, 17)}) is allowed
