"""A plugin for pytest: runs the tests that it is given, and writes what becomes of each at once.

ORACLE_EVENTS names the file to write: a line of JSON when a test begins, and one when it has
ended, so that whoever reads it knows which test a process died of. ORACLE_TESTS names a file with
the tests to run, one a line, in that order; without it nothing runs, and one line names all tests.
A process that can use CUDA no more after a failure ends, and leaves the other tests to the next.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import Any

import pytest

_LINES = 15  # of a failure's text

_texts: list[tuple[str, str]] = []
_before = (0, 0)
_begun = 0.0


def _write(**event: Any) -> None:
    with open(os.environ["ORACLE_EVENTS"], "a", encoding="utf-8") as stream:
        stream.write(json.dumps(event) + "\n")


def _name(item_id: str) -> str:
    """Class::test, without the file."""
    return item_id.split("::", 1)[1]


def _count() -> tuple[int, int]:
    """The violations that the oracle has found so far, and the page-outs that it has made."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if not os.environ.get("PYTORCH_LMS_ORACLE") or cuda is None or not cuda.is_initialized():
        return 0, 0
    devices = range(cuda.device_count())
    violations = sum(map(cuda.lms._violations, devices)) + cuda.lms._oracle.forgotten
    return violations, sum(cuda.lms.stats(device)["page_out_count"] for device in devices)


def _usable() -> bool:
    """Whether tests can still run here: one that fails may leave a capture behind, or an error."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return True
    try:
        cuda.synchronize()
        cuda.empty_cache()
    except RuntimeError:
        return False
    return True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    chosen = os.environ.get("ORACLE_TESTS")
    if not chosen:
        _write(names=[_name(item.nodeid) for item in items])
        items.clear()
        return
    by_name = {_name(item.nodeid): item for item in items}
    with open(chosen, encoding="utf-8") as stream:
        items[:] = [by_name[name] for name in stream.read().splitlines()]


def pytest_runtest_logstart(nodeid: str) -> None:
    global _before, _begun
    _begun = time.monotonic()
    _texts.clear()
    _before = _count()
    _write(begun=_name(nodeid))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    outcome = "pass" if hasattr(report, "wasxfail") else report.outcome[:4]
    _texts.append((outcome, report.longreprtext))


def pytest_runtest_logfinish(nodeid: str) -> None:
    outcomes = [outcome for outcome, _ in _texts]
    outcome = next((word for word in ("fail", "skip") if word in outcomes), "pass")
    text = next((text for found, text in _texts if found == outcome), "")
    violations, page_outs = _count()
    found = violations - _before[0]
    moved = max(0, page_outs - _before[1])  # a test may reset the statistics
    if found:
        outcome, text = "violation", f"{found} storages differed from their host copies\n{text}"
    if outcome == "skip":
        text = ""
    with contextlib.suppress(OSError):  # a test may have closed it
        sys.stdout.flush()
    text = "\n".join(text.splitlines()[-_LINES:])
    seconds = round(time.monotonic() - _begun, 2)
    _write(ended=_name(nodeid), outcome=outcome, text=text, seconds=seconds, page_outs=moved)
    if outcome == "fail" and not _usable():
        os._exit(0)
