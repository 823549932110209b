"""Whether plans say where blocks have their memory: if requests fail, and if that is faster."""

from __future__ import annotations

import pytest
from conftest import program_of
from cxx import run_cxx

program = program_of("placing")


@pytest.mark.parametrize(
    ("seconds", "fails", "places", "ways", "used"),
    [
        (("1", "0.8"), "..........", "some", "cccccccccc", "nnnnnnnnnn"),
        (("1", "0.8"), "..xxxxxxxx", "some", "cccccccccc", "nnnnpppppp"),
        (("1", "0.8"), "...x..x..x", "some", "cccccccccc", "nnnnnnnnnn"),
        (("1", "0.8"), 12 * "." + 8 * "x", "some", 12 * "f" + 8 * "c", 16 * "n" + 4 * "p"),
        (("1", "1.2"), "..xxxxxxxx", "some", "cccccccccc", "nnnnpppnnn"),
        (("1", "0.8"), "..xxxxxxxx", "none", "cccccccccc", "nnnnpnnnnn"),
        (("1", "0.8"), "..xxxxxxxx", "some", "czzzcccccc", "nnnnpppppp"),
        (("1", "1.2"), "..xxxxxxxx", "some", "cccccczzcc", "nnnnpppppn"),
        (("1", "0.95"), "..xxxxxxxx", "some", "cfcccccccc", "nnnnpppppp"),
        (("1", "1.05"), "..xxxxxxxx", "some", "ccccfccccc", "nnnnpppnnn"),
        (("1", "0.8"), 16 * "x", "some", "cccccCzzzZzzzzzz", "nnpppppppp" + "nnnppp"),
        (("1", "0.8"), 16 * "x", "some", "cccccCyyyYyyyyyy", "nnpppppppp" + "nnnnnn"),
        (("1", "1.2"), 16 * "x", "some", "cccccCzzzZzzzzzz", "nnpppnnnnn" + "nnnnnn"),
        (("1", "0.8"), 16 * "x", "some", "cccccCCCCzzzzzzz", "nnpppppppp" + "pppppp"),
    ],
    ids=[
        "nothing fails",
        "faster",
        "requests seldom fail",
        "requests begin to fail",
        "slower",
        "no places",
        "faster than without in the same way",
        "slower than without in the same way",
        "slower than without by chance",
        "faster than without by chance",
        "faster in the way that is kept, too",
        "slower in the way that is kept",
        "another way is kept without them",
        "the way is kept in which they were tried",
    ],
)
def test_places_are_kept_if_they_help(program, seconds, fails, places, ways, used):
    assert run_cxx(program, *seconds, fails, places, ways) == used
