"""torch.cuda.lms.record(): what it writes."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any

import pytest
import torch
from conftest import MIB, SMALL
from hardware import simulated
from releases import since, size_of
from simcuda.process import run_sim
from tensors import evict, floats, managed, pattern, stat
from torch import nn


def trace_of(path: Any) -> dict[str, Any]:
    return json.loads(path.read_text())


def kinds(trace: dict[str, Any], *wanted: str) -> list[list[Any]]:
    return [event for event in trace["events"] if event[0] in wanted]


def operators(trace: dict[str, Any]) -> list[str]:
    return [trace["names"][event[3]] for event in kinds(trace, "operator")]


def test_allocations_uses_and_frees(tmp_path):
    x = managed(pattern(2))
    with torch.cuda.lms.record(tmp_path / "trace.json"):
        y = torch.empty(floats(1), device="cuda")
        y.copy_(x[: floats(1)])
        x.add_(1)
        del y
    trace = trace_of(tmp_path / "trace.json")
    events = kinds(trace, "allocated", "known", "read", "written", "freed")
    (y_block,) = [event[1] for event in events if event[0] == "allocated"]
    (x_block,) = [event[1] for event in events if event[0] == "known"]
    assert [[event[0], *event[1:3]] for event in events] == [
        ["allocated", y_block, MIB],
        ["written", y_block, 0],
        ["known", x_block, 2 * MIB],
        ["read", x_block, 0],
        ["written", x_block, 0],
        ["freed", y_block, 0],
    ]
    assert operators(trace) == ["aten::copy_", "aten::add_"]
    # The automatic limit is a part of it.
    assert trace["limit_bytes"] == int(stat("limit_bytes") / 0.95)


def test_the_limit_that_was_set(tmp_path):
    x = managed(pattern(1))
    torch.cuda.set_limit_lms(24 * MIB)
    with torch.cuda.lms.record(tmp_path / "trace.json"):
        x.add_(1)
    assert trace_of(tmp_path / "trace.json")["limit_bytes"] == 24 * MIB


def test_what_an_operator_of_others_uses_is_its_own(tmp_path):
    lstm = nn.LSTM(64, 64).cuda()
    table, x = managed(pattern(1)), torch.zeros(3, 2, 64, device="cuda")
    with torch.no_grad(), torch.cuda.lms.record(tmp_path / "trace.json"):
        table.sum()
        lstm(x)
    trace = trace_of(tmp_path / "trace.json")
    used: dict[str, int] = {}
    name = ""
    for event in trace["events"]:
        if event[0] == "operator":
            name = trace["names"][event[3]]
        elif event[0] in ("read", "written"):
            used[name] = used.get(name, 0) + 1
    assert used["aten::lstm"] >= 2, used  # its weights: with cuDNN, its biases, too


def test_a_node_is_one_operator(tmp_path):
    x = pattern(1).requires_grad_()
    loss = (x * x).sum()
    with torch.cuda.lms.record(tmp_path / "trace.json"):
        loss.backward()
    names = operators(trace_of(tmp_path / "trace.json"))
    assert any("MulBackward0" in name for name in names)
    assert "aten::mul" not in names
    assert len(set(names)) == len(names), "each node is one operator"


@since((2, 1), "hooks of all optimizers")
def test_iterations(tmp_path):
    model = nn.Linear(512, 512).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.cuda.lms.record(tmp_path / "trace.json.gz"):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(64, 512, device="cuda")).sum().backward()
            optimizer.step()
    trace = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    # The others are times, of which there are more if the host is slow.
    kept = [event[0] for event in trace["events"] if event[0] not in ("mark", "resumed")]
    first, second, third = (i for i, kind in enumerate(kept) if kind == "step")
    assert kept[first:second] == kept[second:third]


def test_iterations_without_an_optimizer(tmp_path):
    x = managed(pattern(1))
    torch.cuda.lms.step()  # does nothing
    with torch.cuda.lms.record(tmp_path / "trace.json"):
        x.add_(1)
        torch.cuda.lms.step()
        x.add_(1)
        torch.cuda.lms.step()
    events = kinds(trace_of(tmp_path / "trace.json"), "step", "written")
    assert [event[0] for event in events] == ["written", "step"] * 2


@since((2, 1), "hooks of all optimizers")
@pytest.mark.parametrize("explicit", [False, True])
def test_the_iteration_of_two_optimizers(tmp_path, explicit):
    first, second = (managed(pattern(1, start=k)).requires_grad_() for k in range(2))
    optimizers = [torch.optim.SGD([x], lr=0.1) for x in (first, second)]
    with torch.cuda.lms.record(tmp_path / "trace.json"):
        for _ in range(3):
            (first.square() + second).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            if explicit:
                torch.cuda.lms.step()
    trace = trace_of(tmp_path / "trace.json")
    steps = [i for i, event in enumerate(trace["events"]) if event[0] == "step"]
    per = 3 if explicit else 2
    assert len(steps) == 3 * per
    assert [trace["events"][i][1] for i in steps[:per]] == [
        trace["events"][i][1] for i in steps[per : 2 * per]
    ]
    torch.cuda.lms.plot(tmp_path / "report.txt", link=1e9)
    assert "aten::pow" in operators(trace)
    # All that one iteration allocates: what only the last optimizer did would be far less.
    text = (tmp_path / "report.txt").read_text()
    assert re.search(r"parameters +2\.1 MB", text), text


@since((2, 1), "hooks of all optimizers")
def test_an_optimizer_without_a_hash():
    class Compared(torch.optim.SGD):
        def __eq__(self, other: object) -> bool:
            return self is other

    x = managed(pattern(1)).requires_grad_()
    optimizers = [Compared([x], lr=0.1) for _ in range(2)]
    x.sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    assert torch.equal(x.detach().cpu(), pattern(1, device="cpu") - 0.1 - 0.1)


@since((2, 1), "hooks of all optimizers")
def test_an_iteration_ends_with_its_last_operator(tmp_path):
    """Without a mark there, its time would be a part of the next iteration's."""
    x = managed(pattern(1)).requires_grad_()
    optimizer = torch.optim.SGD([x], lr=0.1)
    with torch.cuda.lms.record(tmp_path / "trace.json"):
        for _ in range(3):
            x.sum().backward()
            optimizer.step()
    names = [event[0] for event in trace_of(tmp_path / "trace.json")["events"]]
    assert [names[i - 1] for i, name in enumerate(names) if name == "step"] == ["mark"] * 3


def test_what_no_iteration_uses_is_there(tmp_path):
    x, unused = managed(pattern(1)), managed(pattern(2))
    with torch.cuda.lms.record(tmp_path / "trace.json"):
        x.add_(1)
        freed = managed(pattern(3))
        del freed
    first, *others = kinds(trace_of(tmp_path / "trace.json"), "known")
    assert first[2] == size_of(unused)
    assert [event[2] for event in others] == [MIB]


def test_a_limit_that_the_gpu_does_not_have(tmp_path):
    x = managed(pattern(1))
    torch.cuda.set_limit_lms(1 << 50)
    with torch.cuda.lms.record(tmp_path / "trace.json"):
        x.add_(1)
    trace = trace_of(tmp_path / "trace.json")
    assert trace["limit_bytes"] == trace["gpu_bytes"]


def test_times_only_grow(tmp_path):
    x = managed(pattern(1))
    with torch.cuda.lms.record(tmp_path / "trace.json"):
        for _ in range(100):
            x.add_(1)
    trace = trace_of(tmp_path / "trace.json")
    for kind in ("operator", "mark"):
        times = [event[2] for event in kinds(trace, kind)]
        assert len(times) > 1
        assert times == sorted(times)
    assert len(kinds(trace, "operator")) == 100


@simulated
def test_the_time_in_which_the_host_looks_for_memory_is_no_operators(device, tmp_path):
    x = managed(pattern(1))
    device.hold("cudaMalloc", seconds=0.2)
    with torch.cuda.lms.record(tmp_path / "trace.json"):
        x.add_(1)
        y = torch.zeros(floats(24), device="cuda")
        x.add_(1)
        z = torch.zeros(floats(24), device="cuda")
    device.release("cudaMalloc")
    trace = trace_of(tmp_path / "trace.json")
    for end in kinds(trace, "resumed"):
        begin = trace["events"][trace["events"].index(end) - 1]
        assert begin[0] == "stalled"
        assert end[2] - begin[2] > 100e6
    assert len(kinds(trace, "resumed")) == 2
    del y, z


def memory_that_is_copied_first(device, path):
    """Operators of 1 ms wait until memory for their results has been copied to the host.

    Returns the milliseconds in which the device worked in an iteration of 28 operators, and in
    which it waited.
    """
    import json

    import torch
    from simcuda.hill import hill

    torch.cuda.set_limit_lms(40 << 20)
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms.set_compression("off")
    hill(device)
    hill(device)
    with torch.cuda.lms.record(path):
        hill(device)
    with open(path) as file:
        events = json.load(file)["events"]
    passed = {"worked": 0, "waited": 0}
    last = 0
    for event in events:
        if event[0] in ("mark", "stalled", "resumed"):
            passed["waited" if event[0] == "resumed" else "worked"] += event[2] - last
            last = event[2]
    return [passed["worked"] / 1e6, passed["waited"] / 1e6]


@simulated
def test_the_time_in_which_memory_is_copied_to_the_host_is_no_operators(tmp_path):
    # Nothing is computed or copied, so that the host issues a copy as fast as on a GPU.
    options = {"timing": 1, "to_host": 400, "to_device": 400, "race": 0, "poison": 0, "bytes": 0}
    path = str(tmp_path / "trace.json")
    worked, waited = run_sim(memory_that_is_copied_first, path, mib=512, **options)
    assert 28 <= worked < 29
    assert waited > 40


def operators_of_parts(device, path):
    """Each operator but the last, and the milliseconds until the next mark.

    One has two parts of 1 ms, and the other takes 1 ms.
    """
    import json

    import torch
    from simcuda.hill import operate

    def both(a, b):
        first = a + 1
        operate(device)
        second = b + 1
        operate(device)
        return first, second

    library = torch.library.Library("lms_parts", "DEF")
    library.define("both(Tensor a, Tensor b) -> (Tensor, Tensor)")
    library.impl("both", both, "CUDA")
    a, b = (torch.ones(1 << 20, device="cuda") for _ in range(2))
    torch.cuda.set_enabled_lms(True)
    with torch.cuda.lms.record(path):
        for _ in range(4):
            torch.ops.lms_parts.both(a, b)
            a.add_(1)
            operate(device)
    with open(path) as file:
        trace = json.load(file)
    found, began, running = [], 0, None
    for event in trace["events"]:
        if event[0] == "operator":
            running = trace["names"][event[3]]
        elif event[0] == "mark":
            if running:
                found.append([running, (event[2] - began) / 1e6])
            began, running = event[2], None
    return found


@simulated
def test_all_parts_of_an_operator_are_its_time(tmp_path):
    options = {"timing": 1, "race": 0, "poison": 0, "bytes": 0}
    found = run_sim(operators_of_parts, str(tmp_path / "trace.json"), mib=512, **options)
    assert [name for name, _ in found] == (["lms_parts::both", "aten::add_"] * 4)[:-1]
    assert [round(time, 1) for _, time in found] == ([2.0, 1.0] * 4)[:-1]


def test_what_is_paged_out_is_used_all_the_same(tmp_path):
    x = managed(pattern(4))
    evict()
    before = stat("page_in_count")
    with torch.cuda.lms.record(tmp_path / "trace.json"):
        x.add_(1)
    assert stat("page_in_count") == before + 1
    assert len(kinds(trace_of(tmp_path / "trace.json"), "written")) == 1
    assert torch.equal(x.cpu(), pattern(4, start=1, device="cpu"))


def test_a_workspace_is_of_its_operator(tmp_path):
    """Memory that is not a storage: cuDNN's operators request it for as long as they run."""
    x = managed(pattern(1))
    with torch.cuda.lms.record(tmp_path / "trace.json"):
        x.add_(1)
        address = torch.cuda.caching_allocator_alloc(4 * MIB)
        torch.cuda.caching_allocator_delete(address)
        torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(MIB // 2))  # small
        x.add_(1)
    trace = trace_of(tmp_path / "trace.json")
    events = kinds(trace, "operator", "allocated", "freed", "written")
    assert [event[0] for event in events] == [
        *("operator", "written", "allocated", "freed"),
        *("operator", "written"),
    ]
    allocated, freed = events[2:4]
    assert allocated[1] == freed[1]
    assert allocated[2] == 4 * MIB


def test_small_storages_that_come_and_go_count(tmp_path):
    x = managed(pattern(2))

    def unmanaged(smallest):
        torch.cuda.set_size_lms(smallest)
        with torch.cuda.lms.record(tmp_path / "trace.json"):
            small = [torch.empty(floats(1) // 4, device="cuda") for _ in range(8)]
            x.add_(1)
            small.clear()
        return trace_of(tmp_path / "trace.json")["unmanaged_bytes"]

    assert unmanaged(SMALL) < MIB, "LMS manages them"
    assert 2 * MIB <= unmanaged(MIB) < 3 * MIB


def test_a_second_recording_begins_anew(tmp_path):
    x = managed(pattern(1))
    with torch.cuda.lms.record(tmp_path / "first.json"):
        x.add_(1)
    x.add_(1)
    with torch.cuda.lms.record(tmp_path / "second.json"):
        x.add_(1)
    first, second = (trace_of(tmp_path / name) for name in ("first.json", "second.json"))
    assert [event[:2] for event in kinds(second, "known", "written")] == [
        event[:2] for event in kinds(first, "known", "written")
    ]


def test_mistakes(tmp_path):
    def record(name):
        with torch.cuda.lms.record(tmp_path / name):
            pass

    with (
        torch.cuda.lms.record(tmp_path / "trace.json"),
        pytest.raises(RuntimeError, match="GPU 0 is being recorded already"),
    ):
        record("other.json")
    with pytest.raises(KeyError), torch.cuda.lms.record(tmp_path / "failed.json"):
        raise KeyError
    torch.cuda.set_enabled_lms(False)
    with pytest.raises(RuntimeError, match=r"needs a GPU and torch.cuda.set_enabled_lms\(True\)"):
        record("off.json")
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json"]
