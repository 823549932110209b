"""ci/syntax.py: what it says of hooks that compile, of hooks that do not, and of what it cannot."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lmsbuild.registry import Tag
from toolkit.helpers.ci_script import load
from toolkit.helpers.fake_upstream import commit, git, make_tag, snapshot, write_patches

syntax = load("syntax")
Kind = syntax.Kind

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")

STORAGE = "c10/core/Storage.h"
WRITER = "aten/src/ATen/function_wrapper.py"
UPSTREAM = {
    "version.txt": "9.8.7a0\n",
    "CMakeLists.txt": "set(CMAKE_CXX_STANDARD 14)\n",
    STORAGE: "#pragma once\nstruct Storage {\n  int size() const;\n  int size_ = 0;\n};\n",
    "c10/core/Storage.cpp": "#include <c10/core/Storage.h>\nint Storage::size() const {\n"
    "  return size_;\n}\n",
    # Only by way of another.
    "c10/core/All.h": "#include <c10/core/Storage.h>\n",
    "c10/core/beside.cpp": '#include "All.h"\nint beside(Storage s) { return s.size_; }\n',
    "c10/core/apart.cpp": "int apart = 1;\n",
    "torch/csrc/far.cpp": "#include <c10/core/Storage.h>\nint far(Storage s) {\n"
    "  return s.size_;\n}\n",
    "test/cpp/not_built.cpp": "#include <c10/core/Storage.h>\n#include <gtest.h>\n",
    "torch/csrc/odd.cpp": "#include <generated.h>\nint odd() {\n  return 1;\n}\n",
    "torch/csrc/kernel.cu": "int kernel() {\n  return 1;\n}\n",
    "torch/CMakeLists.txt": "# nothing\n",
    "torch/cuda/memory.py": "def stats():\n    return 1\n",
    WRITER: "BODY = 'return 1;'\n",
    "aten/src/ATen/gen.py": "import sys\nfrom function_wrapper import BODY\n"
    "folder = sys.argv[sys.argv.index('--install_dir') + 1]\n"
    "for name in ('CPUType', 'Same'):\n"
    "    with open(f'{folder}/{name}.cpp', 'w') as file:\n"
    "        body = BODY if name == 'CPUType' else 'return 1;'\n"
    "        file.write('#include <c10/core/Storage.h>\\nint f() { ' + body + ' }\\n')\n",
}
HOOKS = {
    STORAGE: ("  int size_ = 0;", "  int size_ = 0;\n  int lms = 0;"),
    "c10/core/Storage.cpp": ("  return size_;", "  return size_ + lms;"),
    "torch/csrc/odd.cpp": ("  return 1;", "  return 2;"),
    "torch/csrc/kernel.cu": ("  return 1;", "  return 2;"),
    "torch/CMakeLists.txt": ("# nothing", "# something"),
    "torch/cuda/memory.py": ("    return 1", "    return 2"),
    WRITER: ("return 1;", "return Storage().lms;"),
}
RUNTIME = {
    # Not the tree's C++.
    "lms.cmake": 'set_source_files_properties(X COMPILE_FLAGS "-std=c++17 -DLMS")\n',
    "lms.cpp": "#include <c10/core/Storage.h>\n#ifdef LMS\n"
    "namespace a::b { int c = Storage().lms; }\n#endif\n",
}

Make = Callable[..., tuple[Path, Path]]
Result = tuple[int, dict[str, object]]


@pytest.fixture
def tag() -> Tag:
    return make_tag()


@pytest.fixture
def make(tmp_path: Path, tag: Tag) -> Make:
    """A tree and its patches; ``bugs`` are other hooks than HOOKS for some files."""

    def make_them(bugs: dict[str, tuple[str, str]] | None = None) -> tuple[Path, Path]:
        source, author, patches = (tmp_path / name for name in ("source", "author", "patches"))
        for name, text in UPSTREAM.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_text(text)
        git(source, "init", "--quiet", "--initial-branch=main")
        commit(source, "base")
        git(tmp_path, "clone", "--quiet", str(source), str(author))
        for name, (old, new) in {**HOOKS, **(bugs or {})}.items():
            text = (author / name).read_text()
            assert old in text
            (author / name).write_text(text.replace(old, new))
        commit(author, "lms: change it\n\nBecause a test wants it.")
        write_patches(patches, tag, author, RUNTIME)
        return source, patches

    return make_them


@pytest.fixture
def run(tag: Tag, make: Make, tmp_path: Path) -> Callable[..., Result]:
    def run_it(bugs: dict[str, tuple[str, str]] | None = None, *, complete: bool = True) -> Result:
        source, patches = make(bugs)
        include = tmp_path / "include"
        include.mkdir()
        if complete:
            (include / "generated.h").touch()
        work = tmp_path / "work"
        work.mkdir()
        before = snapshot(source)
        against = syntax.Against(include=include)
        rows = list(syntax.check(tag, str(source), against, work, patches=patches).rows())
        assert snapshot(source) == before
        return syntax.report(tag, rows), {row.path: row for row in rows}

    return run_it


def test_every_file_that_the_hooks_concern(
    run: Callable[..., Result], capsys: pytest.CaptureFixture[str]
) -> None:
    code, rows = run()
    assert code == 0
    assert {path: row.kind for path, row in rows.items()} == {
        **dict.fromkeys(HOOKS, Kind.CHANGED),
        "(generated) ATen/CPUType.cpp": Kind.GENERATED,
        "c10/core/beside.cpp": Kind.USER,
        "torch/csrc/far.cpp": Kind.USER,
        "torch/csrc/cuda/lms/lms.cpp": Kind.ADDED,
    }
    elsewhere = {path for path, row in rows.items() if not row.compiles}
    assert elsewhere == {"torch/csrc/kernel.cu", "torch/CMakeLists.txt"}
    said = capsys.readouterr()
    lines = [line.split(maxsplit=3) for line in said.out.splitlines()]
    assert ["torch/csrc/kernel.cu", "-", "-", "not checked: needs nvcc"] in lines
    assert ["torch/csrc/odd.cpp", "ok", "ok"] in lines
    assert "changed by the hooks: 5 of 7; include a changed header: 2 of 2" in said.out
    assert "syntax: " not in said.err


@pytest.mark.parametrize(
    ("hook", "planted", "broken"),
    [
        ("c10/core/Storage.cpp", "  return size_ + lsm;", {"c10/core/Storage.cpp"}),
        # What the header's users see.
        (STORAGE, "  int sise_ = 0, lms = 0;", {"c10/core/Storage.cpp", "c10/core/beside.cpp"}),
        (STORAGE, "  int size_ = 0; int lms = true ? x : 0;", {STORAGE}),
        # What the runtime relies on.
        (STORAGE, "  int size_ = 0;", {"torch/csrc/cuda/lms/lms.cpp", "c10/core/Storage.cpp"}),
        (WRITER, "return Storage().lsm;", {"(generated) ATen/CPUType.cpp"}),
        (WRITER, "' + 1 + '", {"aten/src/ATen/gen.py"}),
        ("torch/cuda/memory.py", "    return (", {"torch/cuda/memory.py"}),
    ],
)
def test_a_planted_error_is_seen(
    hook: str,
    planted: str,
    broken: set[str],
    run: Callable[..., Result],
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, rows = run({hook: (HOOKS[hook][0], planted)})
    assert code == 1
    assert broken <= {path for path, row in rows.items() if row.broken}
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "syntax: " in line]
    assert " does not compile patched: " in line


def test_the_line_has_the_compilers_words_and_no_path_of_this_machine(
    run: Callable[..., Result], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = "c10/core/Storage.cpp"
    run({path: ("  return size_;", "  return size_ + lsm;")})
    said = capsys.readouterr()
    line = said.err.splitlines()[-1]
    assert line.startswith(f"syntax: {path} does not compile patched: {path}:3:18: error: 'lsm' ")
    assert str(tmp_path) not in said.out + line


def test_what_upstreams_own_build_would_lack_here_is_not_checked(
    run: Callable[..., Result], capsys: pytest.CaptureFixture[str]
) -> None:
    # Although the hook is wrong, too: nothing is known of it.
    code, rows = run({"torch/csrc/odd.cpp": ("  return 1;", "  retrun 1;")}, complete=False)
    assert code == 3
    assert not any(row.broken for row in rows.values())
    said = capsys.readouterr()
    (line,) = [line for line in said.out.splitlines() if line.startswith("torch/csrc/odd.cpp")]
    assert line.split(maxsplit=3)[1:3] == ["fails", "-"]
    assert "not checked: torch/csrc/odd.cpp:1:10: fatal error: generated.h: No such" in line
    assert "torch/csrc/odd.cpp could not be checked" in said.err


def test_the_release_is_the_checkouts(make: Make, tmp_path: Path) -> None:
    source, _ = make()
    registry = syntax.load_registry()
    (source / "version.txt").write_text(f"{registry.default.version}a0\n")
    commit(source, "a release")
    assert syntax.release_of(str(source)) == registry.default
    (source / "version.txt").write_text("9.8.7a0\n")
    commit(source, "another")
    with pytest.raises(syntax.Unable, match="name its TAG"):
        syntax.release_of(str(source))
