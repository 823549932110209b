"""Where the out-of-memory suite runs; see docs/how-to/test.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from job import Job, Mode, Report
from runner import Runner


@pytest.fixture(scope="session")
def any_runner() -> Iterator[Runner]:
    """For jobs that leave LMS off: any torch will do."""
    runner = Runner.from_environment()
    reason = runner.missing()
    if reason:
        pytest.skip(reason)
    yield runner
    runner.close()


@pytest.fixture(scope="session")
def runner(any_runner: Runner) -> Runner:
    """For jobs that turn LMS on."""
    if not any_runner.has_lms():
        pytest.skip(f"the torch of {any_runner.python} has no LMS; set LMS_TEST_PYTHON")
    return any_runner


@pytest.fixture(scope="session")
def reference(any_runner: Runner) -> Callable[[str, Mode], Report]:
    """The report of a workload without a cap and without LMS. Each is run once."""
    reports: dict[Job, Report] = {}

    def run(model: str, mode: Mode) -> Report:
        job = any_runner.job(model, mode)
        if job not in reports:
            reports[job] = any_runner.run(job)
        assert reports[job].ending.value == "finished", reports[job].message
        return reports[job]

    return run
