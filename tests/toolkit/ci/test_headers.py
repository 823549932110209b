"""ci/headers.py: the runtime against a wheel's headers, with the hooks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lmsbuild.errors import HookError
from toolkit.helpers.ci_script import load
from toolkit.helpers.fake_upstream import commit, git, make_tag, write_patches

headers = load("headers")

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")

STORAGE = "c10/core/Storage.h"
PLAIN = "#pragma once\nstruct Storage {\n  int size = 0;\n};\n"
HOOKED = PLAIN.replace("};", "  int lms = 0;\n};")
RUNTIME = {
    "lms.cmake": 'set_source_files_properties(X COMPILE_FLAGS "-std=c++17 -DLMS")\n',
    "a/lms.cpp": f"#include <{STORAGE}>\n#ifdef LMS\nint lms = Storage().lms;\n#endif\n",
    "a/size.cpp": f"#include <{STORAGE}>\nint size = Storage().size;\n",
}


@pytest.fixture
def patches(tmp_path: Path) -> Path:
    source, patches, tag = tmp_path / "source", tmp_path / "patches", make_tag()
    for name in (STORAGE, "setup.py"):  # no wheel has the other one
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(PLAIN)
    git(source, "init", "--quiet", "--initial-branch=main")
    commit(source, "base")
    for name in (STORAGE, "setup.py"):
        (source / name).write_text(HOOKED)
    commit(source, "lms: change it\n\nBecause a test wants it.")
    write_patches(patches, tag, source, RUNTIME)
    return patches


@pytest.fixture
def against(tmp_path: Path) -> object:
    header = tmp_path / "include" / STORAGE
    header.parent.mkdir(parents=True)
    header.write_text(PLAIN)
    return headers.syntax.Against(include=tmp_path / "include")


def test_all_files_compile(
    patches: Path, against: object, capsys: pytest.CaptureFixture[str]
) -> None:
    found = headers.errors(make_tag(), against, patches)
    assert found == {f"torch/csrc/cuda/lms/a/{name}.cpp": () for name in ("lms", "size")}
    assert headers.report(make_tag(), found)
    assert capsys.readouterr().out.endswith(": 2 of 2 files compile\n")


def test_a_file_that_does_not_compile(
    patches: Path, against: object, capsys: pytest.CaptureFixture[str]
) -> None:
    file = patches / "runtime/torch/csrc/cuda/lms/a/lms.cpp"
    file.write_text(file.read_text().replace("Storage().lms", "Storage().other"))
    found = headers.errors(make_tag(), against, patches)
    assert not headers.report(make_tag(), found)
    out, err = capsys.readouterr()
    assert out.endswith(": 1 of 2 files compile\n")
    assert "a/lms.cpp" in err
    assert "other" in err


def test_a_header_that_is_not_the_tags(patches: Path, against: object, tmp_path: Path) -> None:
    (tmp_path / "include" / STORAGE).write_text("struct Storage;\n")
    with pytest.raises(HookError, match="not what the hook expects"):
        headers.errors(make_tag(), against, patches)
