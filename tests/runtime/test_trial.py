"""In which way iterations are fastest: with copies, with compression, or planned for it."""

from __future__ import annotations

import pytest
from conftest import program_of
from cxx import run_cxx

program = program_of("trial")


@pytest.mark.parametrize(
    ("seconds", "ways"),
    [
        (("1", "1.2", "0.8"), "ccckkkpppPP"),
        (("1", "0.7", "0.8"), "ccckkkpppKK"),
        (("1", "1.2", "1.1"), "ccckkkpppCC"),
        (("1", "0.995", "0.992"), "ccckkkpppCC"),
        (("1", "1.2,0.5", "1.1,0.5"), "ccckkkpppCC"),
        (("1,0.5", "1.2", "0.8"), "ccckkkpppPP"),
        (("1", "0.8", "none"), "ccckkkpKKKK"),
        (("1", "1.2", "none"), "ccckkkpCCCC"),
    ],
    ids=[
        "plan",
        "pack",
        "copy",
        "no faster",
        "one was faster",
        "one copy was",
        "pack, no plan",
        "copy, no plan",
    ],
)
def test_the_fastest_way_is_kept(program, seconds, ways):
    assert run_cxx(program, *seconds) == ways
