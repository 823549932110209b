"""In which way iterations are fastest: with copies, with compression, or planned for it."""

from __future__ import annotations

import pytest
from cxx import HERE, compile_cxx, run_cxx


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    program = tmp_path_factory.mktemp("trial") / "trial"
    compile_cxx(HERE / "trial.cpp", program)
    return program


@pytest.mark.parametrize(
    ("seconds", "ways"),
    [
        (("1", "1.2", "0.8"), "ccckkkpppPP"),
        (("1", "0.7", "0.8"), "ccckkkpppKK"),
        (("1", "1.2", "1.1"), "ccckkkpppCC"),
        (("1", "0.995", "0.992"), "ccckkkpppCC"),
        (("1", "0.8", "none"), "ccckkkpKKKK"),
        (("1", "1.2", "none"), "ccckkkpCCCC"),
    ],
    ids=["plan", "pack", "copy", "no faster", "pack, no plan", "copy, no plan"],
)
def test_the_fastest_way_is_kept(program, seconds, ways):
    assert run_cxx(program, *seconds) == ways
