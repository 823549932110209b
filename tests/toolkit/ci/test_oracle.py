"""ci/oracle.py: choosing tests, running what crashes, and comparing what came out."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from toolkit.helpers.ci_script import load

oracle = load("oracle")
Expected, Outcome, Result = oracle.Expected, oracle.Outcome, oracle.Result

FAKE = """\
import os, resource, time, unittest

# A core would take longer than a test may.
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

class TestIt(unittest.TestCase):
    def test_passes(self): pass
    def test_fails(self): self.assertEqual(1, 2, "not the same")
    @unittest.skip("not here")
    def test_skipped(self): pass
    @unittest.expectedFailure
    def test_fails_as_expected(self): self.fail()
    def test_crashes(self):
        print("last words", flush=True)
        os.write(2, b"terminate called after throwing an instance of 'c10::Error'\\n")
        os.abort()
    def test_leaves(self): os._exit(0)
    def test_hangs(self): time.sleep(600)
    def test_cannot_be_torn_down(self): self.addCleanup(self.fail, "torn")
    def test_sees_its_environment(self): self.assertEqual(os.environ["IT_IS"], "here")
"""
OUTCOMES = {
    "TestIt::test_passes": Outcome.PASSED,
    "TestIt::test_fails": Outcome.FAILED,
    "TestIt::test_skipped": Outcome.SKIPPED,
    "TestIt::test_fails_as_expected": Outcome.PASSED,
    "TestIt::test_crashes": Outcome.CRASHED,
    "TestIt::test_leaves": Outcome.CRASHED,
    "TestIt::test_hangs": Outcome.LATE,
    "TestIt::test_cannot_be_torn_down": Outcome.FAILED,
    "TestIt::test_sees_its_environment": Outcome.PASSED,
}


def make_file(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "test_fake.py"
    path.write_text(text)
    # The next one is neither run nor read.
    (tmp_path / "conftest.py").write_text("raise AssertionError")
    return oracle.TestFile(path, sys.executable, {**os.environ, "IT_IS": "here"})


def results(**outcomes: str) -> dict[str, Any]:
    return {name: Result(Outcome(outcome), f"{name}'s text") for name, outcome in outcomes.items()}


def test_every_test_is_found(tmp_path: Path) -> None:
    assert make_file(tmp_path, FAKE).names() == sorted(OUTCOMES)


def test_a_crash_and_a_hang_lose_no_other_test(tmp_path: Path) -> None:
    found = make_file(tmp_path, FAKE).run(list(OUTCOMES), limit_seconds=10)
    assert {name: result.outcome for name, result in found.items()} == OUTCOMES
    assert list(found) == list(OUTCOMES)
    assert "not the same" in found["TestIt::test_fails"].text
    assert "torn" in found["TestIt::test_cannot_be_torn_down"].text
    said, crash, _ = found["TestIt::test_crashes"].text.partition("Fatal Python error: Aborted")
    assert said.startswith("terminate called after throwing")
    assert crash
    assert 10 <= found["TestIt::test_hangs"].seconds < 60


def test_the_chosen_ones_run_in_the_order_asked_for(tmp_path: Path) -> None:
    names = ["TestIt::test_sees_its_environment", "TestIt::test_passes"]
    assert list(make_file(tmp_path, FAKE).run(names, limit_seconds=60)) == names


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    file = make_file(tmp_path, "import no_such_module\n")
    with pytest.raises(oracle.OracleError, match="no_such_module"):
        file.names()
    with pytest.raises(oracle.OracleError, match="TestIt::test_it"):
        file.run(["TestIt::test_it"], limit_seconds=60)


def test_a_sample_is_the_same_whatever_is_chosen_of_it() -> None:
    names = [f"Test::test_{number}" for number in range(10)]
    assert oracle.choose(names, 1, []) == names
    assert oracle.choose(names, 4, []) == [names[0], names[4], names[8]]
    assert oracle.choose(names, 4, ["_8", "_5"]) == [names[8]]
    # Of a finer sample the coarser one is a part.
    assert set(oracle.choose(names, 6, [])) <= set(oracle.choose(names, 3, []))


def test_the_same_outcomes_are_no_difference() -> None:
    off = results(a="pass", b="fail", c="crash", d="skip")
    assert oracle.differences(off, dict(off), Expected()) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("pass", "fail"),
        ("fail", "pass"),
        ("fail", "crash"),
        ("pass", "skip"),
        ("pass", "violation"),
    ],
)
def test_a_difference_is_named_with_what_the_test_said(before: str, after: str) -> None:
    (text,) = oracle.differences(results(a=before), results(a=after), Expected())
    assert text.startswith(f"a: {before} with LMS off, {after} under the oracle")
    assert "    a's text" in text


def test_a_difference_with_a_reason_is_none_and_a_reason_without_one_is() -> None:
    expected = Expected(oracle={"T::a*": "counts the allocator's bytes", "T::b": "an address"})
    off = results(**{"T::a1": "pass", "T::a2": "fail"})
    assert oracle.differences(off, off | results(**{"T::a1": "fail"}), expected) == []
    (text,) = oracle.differences(off, dict(off), expected)
    assert text.startswith("T::a*: ")
    assert "take it out" in text


def test_an_oracle_that_did_nothing_is_a_difference() -> None:
    off = {f"test_{number}": Result(Outcome.PASSED) for number in range(oracle.ENOUGH)}
    (text,) = oracle.differences(off, dict(off), Expected())
    assert "nothing was tested" in text
    moved = {**off, "test_7": Result(Outcome.PASSED, page_outs=1)}
    assert oracle.differences(off, moved, Expected()) == []


def test_what_was_recorded_is_compared_where_it_was_run() -> None:
    expected = Expected(every=2, failures={"a": "fail: Error: what", "c": "crash"})
    names = ["a", "b", "c", "d", "e"]
    assert oracle.surprises(results(a="fail", b="fail", c="crash"), expected, names) == []
    assert oracle.surprises(results(e="skip"), expected, names) == []
    assert len(oracle.surprises(results(a="pass", c="fail", e="timeout"), expected, names)) == 3


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    off = {
        "a": Result(Outcome.FAILED, 'trace\nE   ValueError: a "quoted" \\ line\nE  \n'),
        "b": Result(Outcome.LATE, "text"),
        "c": Result(Outcome.PASSED),
    }
    expected = oracle.record(off, Expected(oracle={"c": "why"}), 3)
    path = tmp_path / "it.toml"
    path.write_text(expected.to_toml("A title."), "utf-8")
    assert Expected.load(path) == expected
    assert expected.failures == {"a": 'fail: ValueError: a "quoted" \\ line', "b": "timeout"}
    assert (expected.every, expected.oracle) == (3, {"c": "why"})
    assert path.read_text("utf-8").startswith("# A title.\n")


def test_nothing_recorded_yet(tmp_path: Path) -> None:
    assert Expected.load(tmp_path / "missing.toml") == Expected()


def test_the_environment_of_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_LMS_ORACLE", "1")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    off, under = (oracle.environment(mode) for mode in oracle.Mode)
    assert "PYTORCH_LMS_ORACLE" not in off
    assert {**off, "PYTORCH_LMS_ORACLE": "1"} == under
    assert off["PYTHONPATH"] == str(oracle.SIMULATED)


def test_every_recorded_file_is_one_that_is_run() -> None:
    for path in oracle.EXPECTED.glob("*/*.toml"):
        assert path.stem in oracle.FILES
        Expected.load(path)
        assert path.parent.name == oracle.RELEASE
