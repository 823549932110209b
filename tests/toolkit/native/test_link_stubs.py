"""Stubs that keep a library at an old system's symbols."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lmsbuild.errors import CompileError, RegistryError
from lmsbuild.native import link_stubs, manylinux
from lmsbuild.native.manylinux import ManylinuxPolicy
from lmsbuild.tools import elf
from lmsbuild.tools.elf import Symbol
from toolkit.helpers.fake_torch import MACHINE

POLICY = "manylinux_2_17" if MACHINE == "x86_64" else "manylinux_2_28"

# One of each feature whose header asks a new C or C++ library for a symbol.
DEMANDING = """
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>
#include <cmath>
std::string maybe(int n) {
  if (n < 0) {
    throw n;
  }
  return std::string(n, 'x');
}
extern "C" int lms_never(int n) noexcept {
  std::string text = maybe(n);
  return int(text.size() + maybe(n - 1).size());
}
extern "C" int lms_all(int n) {
  std::ostringstream out;
  out << n;
  std::vector<std::string> texts(n);
  texts.push_back(out.str());
  thread_local int calls = 0;
  calls += std::stoi(texts.back());
  auto shared = std::make_shared<int>(n);
  std::mutex mutex;
  std::condition_variable condition;
  std::unique_lock<std::mutex> lock(mutex);
  condition.wait_for(lock, std::chrono::milliseconds(1));
  return calls + *shared + int(std::exp(n) + std::pow(n, 2.5));
}
"""


def build(
    folder: Path, source: str, policy: ManylinuxPolicy | None
) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    (folder / "x.cpp").write_text(source)
    script = folder / "exports.map"
    script.write_text("{ global: lms_*; local: *; };")
    arguments = [
        "g++",
        "-O2",
        "-std=c++17",
        "-fPIC",
        "-shared",
        "-fno-sized-deallocation",
        "-D_GLIBCXX_USE_CXX11_ABI=0",
        "-Wl,-z,defs",
        f"-Wl,--version-script,{script}",
        "-o",
        str(folder / "x.so"),
        str(folder / "x.cpp"),
    ]
    if policy:
        arguments += [
            str(link_stubs.shim_dir() / "compat.cpp"),
            "-isystem",
            str(link_stubs.shim_dir()),
            *link_stubs.link_arguments(["g++"], MACHINE, policy, folder / "stubs"),
        ]
    return subprocess.run(arguments, capture_output=True, text=True)


def test_a_library_linked_to_stubs_meets_the_policy_and_runs(tmp_path: Path) -> None:
    policy = manylinux.load_policy(POLICY, MACHINE)
    result = build(tmp_path, DEMANDING, policy)
    assert result.returncode == 0, result.stderr
    library = elf.read(tmp_path / "x.so")
    assert manylinux.violations(library, policy) == []
    assert library.exported == {"lms_all", "lms_never"}
    # Stubs carry the real sonames: the real libraries are found at run time.
    call = f"import ctypes; print(ctypes.CDLL({str(tmp_path / 'x.so')!r}).lms_all(3))"
    assert subprocess.run(["python3", "-c", call], capture_output=True, text=True).stdout == "41\n"


def test_a_static_libstdcxx_may_define_the_same(tmp_path: Path) -> None:
    # Some compilers link it by default; its functions come with whole objects.
    source = tmp_path / "x.cpp"
    source.write_text(
        "#include <string>\n#include <vector>\n"
        'extern "C" unsigned long lms_x(unsigned n)\n'
        "{ std::vector<std::string> v(n); return std::string(v.at(0)).substr(n).size(); }\n"
    )
    result = subprocess.run(
        [
            "g++",
            "-O2",
            "-fPIC",
            "-shared",
            "-static-libstdc++",
            "-static-libgcc",
            str(source),
            str(link_stubs.shim_dir() / "compat.cpp"),
            "-o",
            str(tmp_path / "x.so"),
        ],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr


def test_what_is_too_new_fails_to_link_by_name(tmp_path: Path) -> None:
    # std::thread's start came with GCC 6 (GLIBCXX_3.4.22).
    source = '#include <thread>\nextern "C" void lms_x() { std::thread([]{}).join(); }'
    old = ManylinuxPolicy(
        name="old",
        limits={"GLIBC": (2, 17), "GLIBCXX": (3, 4, 19), "CXXABI": (1, 3, 7), "GCC": (4, 8, 0)},
    )
    result = build(tmp_path, source, old)
    assert result.returncode != 0
    assert "_M_start_thread" in result.stderr


def test_violations_name_library_and_version(tmp_path: Path) -> None:
    assert build(tmp_path, DEMANDING, None).returncode == 0
    found = manylinux.violations(
        elf.read(tmp_path / "x.so"), ManylinuxPolicy(name="ancient", limits={"GLIBC": (2, 0)})
    )
    assert any(line.startswith("libc.so.6: GLIBC_2.") for line in found)
    assert any(line.startswith("libstdc++.so.6: GLIBCXX_") for line in found)


def test_versions_of_other_libraries_are_no_concern() -> None:
    library = elf.Library(
        machine=MACHINE,
        soname="",
        needed=(),
        rpath="",
        symbols=(),
        needed_versions={"libcudart.so.13": frozenset({"libcudart.so.13"})},
    )
    assert manylinux.violations(library, manylinux.load_policy(POLICY, MACHINE)) == []


def test_the_newest_allowed_version_wins() -> None:
    symbols = [
        Symbol(name="f", version="GLIBC_2.2.5", default_version=False),
        Symbol(name="f", version="GLIBC_2.14", default_version=False),
        Symbol(name="f", version="GLIBC_2.34"),
        Symbol(name="new", version="GLIBC_2.34"),
        Symbol(name="private", version="GLIBC_PRIVATE"),
        Symbol(name="wanted", version="GLIBC_2.2.5", defined=False),
    ]
    kept = link_stubs.newest_allowed(symbols, {"GLIBC": (2, 17)})
    assert [(symbol.name, symbol.version) for symbol in kept] == [("f", "GLIBC_2.14")]


def test_an_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(RegistryError, match="manylinux_2_28"):
        manylinux.load_policy("manylinux_9_9", MACHINE)


def test_a_compiler_without_libraries_is_reported(tmp_path: Path) -> None:
    fake = tmp_path / "cxx"
    fake.write_text("#!/bin/sh\necho ${1#-print-file-name=}\n")
    fake.chmod(0o755)
    with pytest.raises(CompileError, match="finds no libstdc"):
        link_stubs.link_arguments(
            [str(fake)], MACHINE, manylinux.load_policy(POLICY, MACHINE), tmp_path / "stubs"
        )
