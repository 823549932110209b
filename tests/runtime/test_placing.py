"""Whether plans say where blocks have their memory: if requests fail, and if that is faster."""

from __future__ import annotations

import pytest
from conftest import program_of
from cxx import run_cxx

program = program_of("placing")


@pytest.mark.parametrize(
    ("seconds", "fails", "places", "used"),
    [
        (("1", "0.8"), "0", "some", "nnnnnnnnn"),
        (("1", "0.8"), "1", "some", "nnnpppppp"),
        (("1", "1.2"), "1", "some", "nnnppppnn"),
        (("1", "0.8"), "1", "none", "nnnpnnnnn"),
    ],
    ids=["nothing fails", "faster", "slower", "no places"],
)
def test_places_are_kept_if_they_help(program, seconds, fails, places, used):
    assert run_cxx(program, *seconds, fails, places) == used
