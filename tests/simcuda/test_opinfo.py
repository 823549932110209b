"""PyTorch's operators on the simulated device: the expected ones fail, without LMS and with it.

With LMS, everything that no operator is using is paged out at each allocation. By default a part of
the database runs; LMS_OPINFO=all runs the whole.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import opinfo
import pytest
from simcuda.process import Session

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterator

_EXPECTED = Path(__file__).with_name("opinfo_expected.toml")
_EVERY = 1 if os.environ.get("LMS_OPINFO") == "all" else 8


def describe_torch(device: Any) -> tuple[str, bool]:
    import torch

    return torch.__version__, hasattr(torch.cuda, "set_enabled_lms")


@pytest.fixture
def session() -> Iterator[Session]:
    with Session(mib=opinfo.MEMORY_MIB) as child:
        yield child


def chosen_operators(session: Session) -> tuple[list[str], set[str]]:
    """The operators to run, and those of them that are expected to fail."""
    version, _ = session.run(describe_torch)
    expected = tomllib.loads(_EXPECTED.read_text())["failures"]
    short_version = ".".join(version.split(".")[:2])
    failing = {*expected["all"], *expected["version"].get(short_version, [])}
    everything = session.run(opinfo.operator_names)
    unknown = failing - set(everything)
    assert not unknown, f"{_EXPECTED.name} lists operators that torch {version} has not: {unknown}"
    names = [name for i, name in enumerate(everything) if i % _EVERY == 0 or name in failing]
    return names, failing


def check_outcomes(outcomes: dict[str, str], expected: set[str]) -> None:
    found = opinfo.failures(outcomes)
    surprising = {name: text for name, text in found.items() if name not in expected}
    assert not surprising
    assert set(found) == expected, "operators that were expected to fail pass"
    passed = sum(text == "pass" for text in outcomes.values())
    assert passed > 0.95 * len(outcomes) - len(expected), "most operators must have been compared"


def test_expected_operators_fail(session: Session) -> None:
    names, expected = chosen_operators(session)
    outcomes, _ = opinfo.run(session, names, False)
    check_outcomes(outcomes, expected)


def test_no_operator_meets_paged_out_memory(session: Session) -> None:
    version, has_lms = session.run(describe_torch)
    if not has_lms:
        pytest.skip(f"torch {version} in the tested environment has no Large Model Support")
    names, expected = chosen_operators(session)
    outcomes, page_outs = opinfo.run(session, names, True)
    check_outcomes(outcomes, expected)
    assert page_outs > len(names), "nothing was paged out, so nothing was tested"
