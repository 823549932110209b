"""The compiler of the tests' C++ may be a command of several words, like "ccache g++"."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cxx import compile_cxx


def test_a_compiler_of_several_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "one.cpp"
    source.write_text("int one() { return 1; }\n")
    monkeypatch.setenv("CXX", f"env {os.environ.get('CXX', 'g++')}")
    compile_cxx(source, tmp_path / "one.o", "-c")
    assert (tmp_path / "one.o").is_file()
