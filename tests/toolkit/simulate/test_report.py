"""What a report finds in a trace: roles, curves, absences, and what would help."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from lmsbuild.errors import TraceError
from lmsbuild.simulate import lms_report
from lmsbuild.simulate.link import Link
from lmsbuild.simulate.planner import Planner
from lmsbuild.simulate.report import Report
from lmsbuild.simulate.trace import read_trace
from tests.toolkit.simulate.reports import inside, report
from tests.toolkit.simulate.traces import MB, NODE, RESNET50, Recording, adam, training

LAYERS = 8
# The least and the most that an iteration of adam() needs are 33 and 154 MB.
TIGHT = 60 * MB
COURSES = ("planned", "on_demand")


def test_phases() -> None:
    phases_of = lms_report.module("phase").phases_of
    names = ["aten::mm", NODE + "MmBackward0", "aten::add", NODE + "AddBackward0", "aten::add_"]
    assert phases_of(names) == ["forward", "backward", "forward", "backward", "optimizer"]
    # Before 2.0 nothing reports autograd's nodes.
    names = ["aten::mm", "aten::threshold_backward", "aten::mm", "aten::add_"]
    assert phases_of(names) == ["forward", "backward", "optimizer", "optimizer"]
    assert phases_of(["aten::mm", "aten::add_"]) == ["forward", "forward"]


def test_roles(compiled: Planner, tmp_path: Path) -> None:
    memory = inside(report(compiled, adam(LAYERS), tmp_path, TIGHT)).memory
    assert {role: found.most for role, found in memory.items()} == {
        "parameters": LAYERS * 2 * MB,
        "optimizer state": LAYERS * 4 * MB,
        # Those of the iteration before are freed when the forward pass ends.
        "gradients": LAYERS * 2 * MB,
        "activations": LAYERS * 10 * MB,
        "inputs and constants": MB,
        # That of a layer is allocated while the last operator of the layer before it runs.
        "temporary": 2 * 3 * MB,
        "not used": 5 * MB,
        "not managed": MB,
    }


def test_memory_at_the_peak_is_the_peak(compiled: Planner, tmp_path: Path) -> None:
    for recording in (adam(), training()):
        found = inside(report(compiled, recording, tmp_path, TIGHT))
        assert sum(memory.at_peak for memory in found.memory.values()) == found.totals.peak_bytes


def test_gradients_that_live_on(compiled: Planner, tmp_path: Path) -> None:
    """As zero_grad(set_to_none=False) leaves them: written, and never freed."""
    recording = Recording()
    weight, gradient = (recording.block("known", size * MB) for size in (2, 3))
    for _ in range(3):
        recording.operator("aten::zero_", writes=(gradient,))
        recording.operator("aten::linear", weight)
        recording.operator(NODE + "AccumulateGrad", writes=(gradient,))
        recording.operator("aten::add_", gradient, writes=(weight,))
        recording.step()
    memory = inside(report(compiled, recording, tmp_path, TIGHT)).memory
    assert (memory["parameters"].most, memory["gradients"].most) == (2 * MB, 3 * MB)


def test_parameters_of_inference(compiled: Planner, tmp_path: Path) -> None:
    recording = Recording()
    weight, cache = (recording.block("known", size * MB) for size in (2, 3))
    for _ in range(3):
        recording.operator("aten::linear", weight, writes=(cache,))
        recording.step()
    memory = inside(report(compiled, recording, tmp_path, TIGHT)).memory
    assert (memory["parameters"].most, memory["inputs and constants"].most) == (2 * MB, 3 * MB)


# Curves ---------------------------------------------------------------------------------------


def cases(compiled: Planner, folder: Path) -> list[Any]:
    links = (Link(title="", out_rate=2e9, in_rate=1e9), Link(title="", out_rate=1e8, in_rate=2e8))
    found = [
        report(compiled, recording, folder, memory, link)
        for recording in (adam(), training(), adam(2))
        for memory in (40 * MB, TIGHT, 100 * MB)
        for link in links
    ]
    trace = read_trace(RESNET50)
    slow = Link(title="", out_rate=5e8, in_rate=4e8)
    found += [Report(compiled, trace, memory * MB, slow) for memory in (120, 200, 300)]
    return [inside(one) for one in found]


def value(curve: list[tuple[float, int]], at: float) -> int:
    return max((point for point in curve if point[0] <= at), default=(0.0, 0))[1]


def test_what_is_not_on_the_gpu_is_absent_and_on_the_host(
    compiled: Planner, tmp_path: Path
) -> None:
    absent_somewhere = 0
    for found in cases(compiled, tmp_path):
        blocks, operators = found.timeline.blocks, found.timeline.operators
        for course in found.courses.values():
            for start, operator in zip(course.starts, operators, strict=True):
                now = start.seconds
                absent = sum(
                    blocks[a.block].bytes for a in course.absences if a.begin <= now < a.end
                )
                # Memory is promised to a tensor before its copy to the GPU begins.
                assert operator.living_bytes <= start.used_bytes + absent
                assert absent <= operator.living_bytes - operator.needed_bytes
                # A block that is freed, and one that arrives, may leave in the same moment.
                if all(abs(now - at) > 1e-9 for a in course.absences for at in (a.begin, a.end)):
                    assert value(course.host, now) >= absent
                absent_somewhere += absent
            assert course.host_peak_bytes <= found.totals.peak_bytes
    assert absent_somewhere > 0


def test_transfers_that_go_on_past_the_end_are_cut(compiled: Planner, tmp_path: Path) -> None:
    cut = 0
    for found in cases(compiled, tmp_path):
        for name in COURSES:
            course, end = found.courses[name], getattr(found.totals, name).seconds
            movements = [m for m in getattr(found.timeline, name).movements if m.kind != "drop"]
            assert all(0 <= t.begin <= t.end <= end + 1e-9 for t in course.transfers)
            whole = sum(m.end - m.begin for m in movements)
            assert sum(t.end - t.begin for t in course.transfers) == pytest.approx(whole)
            cut += len(course.transfers) - len(movements)
            for kind in ("out", "in"):
                ends = sorted((t.begin, t.end) for t in course.transfers if t.kind == kind)
                for (_, before), (after, _) in itertools.pairwise(ends):
                    assert after >= before - 1e-9, "the link makes one transfer at a time"
    assert cut > 0


def test_absences_do_not_overlap(compiled: Planner, tmp_path: Path) -> None:
    for found in cases(compiled, tmp_path):
        blocks = found.timeline.blocks
        for course in found.courses.values():
            absences = sorted(course.absences, key=lambda absence: absence.begin)
            for i, one in enumerate(absences):
                for other in absences[i + 1 :]:
                    if other.begin >= one.end:
                        break
                    assert (
                        other.offset >= one.offset + blocks[one.block].bytes
                        or one.offset >= other.offset + blocks[other.block].bytes
                    )


# Words ----------------------------------------------------------------------------------------


def test_the_text(compiled: Planner, tmp_path: Path) -> None:
    text = report(compiled, adam(), tmp_path, TIGHT).text
    assert text.startswith("With 60.0 MB of GPU memory instead of the ")
    for line in (
        "operators in an iteration ",
        "largest operator (aten::linear)",
        "Swapped in an iteration, over a slow link (2.0 GB/s out, 1.0 GB/s in)",
        "optimizer state to the host",
        "Where it waits, with planned transfers",
        "A link twice as fast: ",
    ):
        assert line in text
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_what_fits(compiled: Planner, tmp_path: Path) -> None:
    found = report(compiled, adam(), tmp_path, 1000 * MB)
    assert found.text.startswith("LMS is not necessary")
    assert "Swapped" not in found.text
    assert found.data["fits"]
    assert found.data["advice"] == ["Nothing: LMS is not necessary."]


def test_the_numbers(compiled: Planner, tmp_path: Path) -> None:
    data = report(compiled, adam(), tmp_path, TIGHT).data
    assert sum(data["swapped"].values()) == data["planned"]["bytes_out"] > 0
    assert data["bound_seconds"] <= data["planned"]["seconds"] <= data["on_demand"]["seconds"]
    assert data["largest_operator"]["name"] == "aten::linear"
    memories = [point["gpu_memory"] for point in data["points"]]
    assert memories == sorted(memories)
    assert memories[0] == data["smallest_gpu_memory"]
    assert TIGHT in memories
    assert data["points"][-1]["planned_seconds"] == pytest.approx(data["compute_seconds"])


def test_the_smallest_memory_is_the_smallest(compiled: Planner, tmp_path: Path) -> None:
    smallest = report(compiled, adam(), tmp_path, TIGHT).data["smallest_gpu_memory"]
    report(compiled, adam(), tmp_path, smallest)
    with pytest.raises(TraceError, match="alone needs"):
        report(compiled, adam(), tmp_path, smallest - 3)


def test_advice_is_simulated(compiled: Planner, tmp_path: Path) -> None:
    slow = Link(title="", out_rate=5e8, in_rate=5e8)
    found = inside(report(compiled, adam(), tmp_path, TIGHT, slow))
    fast = Link(title="", out_rate=1e9, in_rate=1e9)
    faster = report(compiled, adam(), tmp_path, TIGHT, fast).data["planned"]["seconds"]
    assert (
        f"A link twice as fast: {faster * 1e3:.1f} ms ("
        in report(compiled, adam(), tmp_path, TIGHT, slow).text
    )
    assert found.faster_link.planned.seconds == faster


def test_advice_where_transfers_cost_little(compiled: Planner, tmp_path: Path) -> None:
    fast = Link(title="", out_rate=1e12, in_rate=1e12)
    data = report(compiled, adam(), tmp_path, TIGHT, fast).data
    assert data["planned"]["seconds"] <= 1.05 * data["compute_seconds"]
    assert data["advice"] == ["Little can: the transfers cost less than 5 %."]


def test_advice_for_an_optimizer_that_uses_everything(compiled: Planner, tmp_path: Path) -> None:
    recording = Recording()
    weights = [recording.block("known", 10 * MB) for _ in range(4)]
    for _ in range(3):
        for weight in weights:
            recording.operator("aten::linear", weight)
        recording.operator(NODE + "LinearBackward0", weights[0])
        recording.operator("aten::_foreach_add_", writes=tuple(weights))
        recording.step()
    advice = report(compiled, recording, tmp_path, 50 * MB).data["advice"]
    assert any(line.startswith("An optimizer with foreach=False") for line in advice)


def test_the_measured_time(compiled: Planner, tmp_path: Path) -> None:
    recording = training(LAYERS)
    found = report(compiled, recording, tmp_path, 1000 * MB)
    assert found.data["measured_seconds"] == pytest.approx(3 * LAYERS * 1e-3)
    assert found.data["measured_stall_seconds"] == 0
    assert "measured time of the iteration  24.0 ms" in found.text
    # The GPU waits for 5 ms in the last iteration, which has the last marks.
    marks = [i for i, event in enumerate(recording.events) if event[0] == "mark"]
    place, wait = marks[-LAYERS], 5 * 10**6
    at = recording.events[place][2]
    for i in marks[-LAYERS + 1 :]:
        recording.events[i][2] += wait
    recording.events[place + 1 : place + 1] = [["stalled", 0, at], ["resumed", 0, at + wait]]
    found = report(compiled, recording, tmp_path, 1000 * MB)
    assert found.data["measured_seconds"] == pytest.approx(3 * LAYERS * 1e-3 + 5e-3)
    assert found.data["measured_stall_seconds"] == pytest.approx(5e-3)
    assert "of it, waiting for transfers    5.0 ms" in found.text
    assert found.data["compute_seconds"] == pytest.approx(3 * LAYERS * 1e-3)


def test_a_recording_in_which_lms_copied(compiled: Planner, tmp_path: Path) -> None:
    recording = adam()
    path = recording.write(tmp_path / "trace.json", page_out_bytes=3 * MB, page_in_bytes=4 * MB)
    found = Report(compiled, read_trace(path), TIGHT, Link(title="", out_rate=1e9, in_rate=1e9))
    assert "copied by LMS while it was recorded  7.0 MB" in found.text
    assert "A recording where everything fits predicts better." in found.text


def test_a_real_model(compiled: Planner) -> None:
    """ResNet-50: 25,557,032 parameters, a momentum and a gradient for each."""
    data = Report(
        compiled, read_trace(RESNET50), 200 * MB, Link(title="", out_rate=5e8, in_rate=5e8)
    ).data
    # Tensors of less than 64 KiB are not managed.
    for role in ("parameters", "optimizer state", "gradients"):
        assert 0.99 * 4 * 25_557_032 < data["roles"][role]["most"] < 4 * 25_557_032 + 512 * 161
    assert data["roles"]["activations"]["most"] > 80 * MB
    # Gradients of the iteration before, which the first operator's zero_grad() frees, are not.
    assert data["roles"]["temporary"]["most"] < 20 * MB
    assert data["planned"]["peak_bytes"] <= 0.95 * 200 * MB


def test_the_documentation_has_all_roles() -> None:
    page = (Path(__file__).parents[3] / "docs/simulation.md").read_text("utf-8")
    rows = [f"| {role} | {what} |\n" for role, what in lms_report.module("role").MEANINGS.items()]
    assert "".join(rows) in page


def test_estimates_are_not_called_measured(compiled: Planner, tmp_path: Path) -> None:
    slow = Link(title="", out_rate=1e9, in_rate=1e9)
    texts = [
        Report(
            compiled,
            read_trace(training().write(tmp_path / "trace.json", estimated=estimated)),
            80 * MB,
            slow,
        ).text
        for estimated in (False, True)
    ]
    assert ["measured time of the iteration" in text for text in texts] == [True, False]
    assert ["time of its operators, estimated" in text for text in texts] == [False, True]
