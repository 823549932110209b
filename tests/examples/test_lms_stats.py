"""lms_stats.py: what a row and a summary count."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from conftest import MIB
from lms_stats import COLUMNS, COUNTS, LEVELS, StepLogger


@pytest.fixture
def lms() -> None:
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def ones(mib: int) -> torch.Tensor:
    return torch.ones(mib * MIB // 4, device="cuda")


def test_a_row_is_what_its_step_moved(lms: None, tmp_path: Path) -> None:
    before = ones(4)
    torch.cuda.reclaim_inactive()  # counts for no step
    with StepLogger(tmp_path / "steps.csv") as log:
        with log.step():
            before.add_(1)
        with log.step():
            other = ones(8)
            torch.cuda.reclaim_inactive()
        # Rows are there while the program runs.
        assert len(read(tmp_path / "steps.csv")) == 2
        with log.step():
            pass
    brought, sent, idle = log.rows
    assert (brought["page_in_count"], brought["page_in_bytes"]) == (1, 4 * MIB)
    assert (brought["page_out_count"], brought["paged_out_bytes"]) == (0, 0)
    assert (sent["page_out_count"], sent["page_out_bytes"]) == (2, 12 * MIB)
    assert sent["page_in_bytes"] == 0
    assert sent["paged_out_bytes"] == idle["paged_out_bytes"] == 12 * MIB
    assert sent["host_bytes"] >= 12 * MIB
    assert [sent[f"peak_{kind}_bytes"] >= 12 * MIB for kind in ("allocated", "reserved")] == [1, 1]
    assert idle["peak_allocated_bytes"] == 0
    assert all(idle[name] == 0 for name in COUNTS)
    assert all(row["seconds"] > 0 for row in log.rows)
    rows = read(tmp_path / "steps.csv")
    assert list(rows[0]) == list(COLUMNS)
    assert [{k: float(v) for k, v in row.items()} for row in rows] == log.rows
    del other


def test_a_summary_leaves_the_first_steps_out(lms: None, tmp_path: Path) -> None:
    log = StepLogger()
    for size in (16, 2, 4):
        with log.step():
            x = ones(size)
            torch.cuda.reclaim_inactive()
        del x
    found = log.summary(warmup=1)
    assert found["steps"] == 2
    assert found["page_out_bytes_mean"] == 3 * MIB
    assert found["paged_out_bytes_max"] == 4 * MIB
    assert 4 * MIB <= found["peak_allocated_bytes_max"] < 16 * MIB
    assert found["seconds_mean"] == pytest.approx(sum(r["seconds"] for r in log.rows[1:]) / 2)
    # There is nothing left after so many.
    assert log.summary(warmup=3)["steps"] == 3


def test_summaries_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "summary.csv"
    log = StepLogger()
    with pytest.raises(ValueError, match="no step was measured"):
        log.write_summary(path)
    with log.step():
        pass
    written = [log.write_summary(path, model="a, b", batch_size=size) for size in (1, 2)]
    rows = read(path)
    assert [(row["model"], row["batch_size"]) for row in rows] == [("a, b", "1"), ("a, b", "2")]
    assert list(rows[0]) == list(written[0])
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"summary\.csv has other columns"):
        log.write_summary(path, image_size=3)
    assert path.read_bytes() == before


def test_a_step_that_fails_has_no_row(tmp_path: Path) -> None:
    log = StepLogger(tmp_path / "steps.csv")
    with pytest.raises(torch.cuda.OutOfMemoryError), log.step():
        ones(1 << 10)
    with log.step():
        pass
    assert [row["step"] for row in log.rows] == [0]
    log.close()
    assert len(read(tmp_path / "steps.csv")) == 1


def test_without_lms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cuda, "lms")
    log = StepLogger()
    with log.step():
        x = ones(4)
    (row,) = log.rows
    assert row["peak_allocated_bytes"] >= 4 * MIB
    assert all(row[name] == 0 for name in (*COUNTS[1:], *LEVELS))
    del x
