"""torch.cuda.lms.record_fake(): what it writes, compared with recordings of the same programs."""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ON_HARDWARE, SMALL
from hardware import REASON
from programs import CONVOLUTIONS, PROGRAMS
from releases import since
from test_record import kinds, operators, trace_of

pytestmark = [
    since((2, 6), "fake tensors that were tried"),
    pytest.mark.filterwarnings("ignore:LMS. the program reads the value"),
    pytest.mark.filterwarnings("ignore:.*GradScaler"),
]

GPU = {
    "title": "A GPU",
    "capability": (8, 0),
    "memory": 80 * 10**9,
    "bandwidth": 1e12,
    "flops": {"float32": 1e13, "tensorfloat32": 1e14, "bfloat16": 2e14},
    "compute_part": 0.5,
    "bandwidth_part": 0.5,
    "seconds": 1e-6,
}
Program = Callable[[], Callable[[], Any]]


def recorded(path: Path, program: Program) -> dict[str, Any]:
    iteration = program()
    iteration()
    iteration()
    with torch.cuda.lms.record(path):
        iteration()
        iteration()
    return trace_of(path)


def faked(path: Path, program: Program) -> dict[str, Any]:
    with torch.cuda.lms.record_fake(path, GPU):
        iteration = program()
        for _ in range(3):
            iteration()
    return trace_of(path)


def last_iteration(trace: dict[str, Any]) -> tuple[list[str], int]:
    """The storages of the last iteration and their uses, by their sizes, and the most bytes.

    Without what no operator uses: cuBLAS's workspaces, which fake tensors do not have.
    """
    ends = [i for i, event in enumerate(trace["events"]) if event[0] == "step"]
    needed = {block for kind, block, *_ in trace["events"] if kind in ("read", "written")}
    sizes: dict[int, int] = {}
    live = most = 0
    found: list[str] = []
    used: set[int] = set()
    for i, (kind, block, value, *name) in enumerate(trace["events"][: ends[-1]]):
        if kind in ("known", "allocated"):
            sizes[block] = value
            live += value if block in needed else 0
        elif kind == "freed":
            live -= sizes[block] if block in needed else 0
        if i <= ends[-2]:
            most = live
            continue
        most = max(most, live)
        if kind == "operator":
            found.append(trace["names"][name[0]])
            used = set()
        elif kind in ("read", "written") and block not in used:
            used.add(block)
            found.append(f"uses {sizes[block]}")
        elif kind in ("allocated", "freed"):
            found.append(f"{kind} {sizes[block]}")
    return found, most


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_a_recording(name, tmp_path):
    real, real_peak = last_iteration(recorded(tmp_path / "real.json", PROGRAMS[name]))
    fake, fake_peak = last_iteration(faked(tmp_path / "fake.json", PROGRAMS[name]))
    assert real_peak > 20 * SMALL
    assert fake_peak <= 1.03 * real_peak
    if ON_HARDWARE and name in CONVOLUTIONS:
        pytest.skip(f"a convolution without a workspace of cuDNN's: {REASON}")
    assert fake_peak >= 0.97 * real_peak
    if name == "plain":
        assert fake == real
    # The rest is what the kernels of single operators allocate, and autograd's sums, which it makes
    # in place only if nothing looks on.
    storages = [[e for e in events if e.startswith("allocated")] for events in (real, fake)]
    assert difflib.SequenceMatcher(None, *storages, autojunk=False).ratio() > 0.75


def test_times_are_a_roofline(tmp_path):
    def program():
        x = torch.empty(1024, 1024, device="cuda")

        def iteration():
            x @ x
            x + x
            torch.cuda.lms.step()

        return iteration

    trace = faked(tmp_path / "trace.json", program)
    marks = [event[2] for event in kinds(trace, "mark")]
    assert operators(trace) == ["aten::mm", "aten::add"]
    assert trace["estimated"]
    # Of the step before, of the two operators, and of the end.
    multiplied, added = marks[-2] - marks[-3], marks[-1] - marks[-2]
    assert multiplied == pytest.approx(2 * 1024**3 / 5e12 * 1e9, abs=2)
    assert added == pytest.approx(3 * 4 * 1024**2 / 5e11 * 1e9, abs=2)


def test_views_use_nothing(tmp_path):
    def program():
        x = torch.empty(64, 64, device="cuda")

        def iteration():
            y = x.t().contiguous().view(-1)[5:]
            y.add_(1)
            torch.cuda.lms.step()

        return iteration

    assert operators(faked(tmp_path / "trace.json", program)) == ["aten::clone", "aten::add_"]


def test_small_storages_that_come_and_go_count(tmp_path):
    """As the activations of a recurrent layer, of which there are many."""

    def program():
        x = torch.empty(SMALL, device="cuda")

        def iteration():
            small = [torch.empty(SMALL // 8, device="cuda") for _ in range(100)]
            x.add_(1)
            small.clear()
            torch.cuda.lms.step()

        return iteration

    trace = faked(tmp_path / "trace.json", program)
    assert trace["unmanaged_bytes"] == 100 * (SMALL // 2)


def test_large_models_need_no_memory(tmp_path):
    def program():
        x = torch.empty(1 << 40, device="cuda", dtype=torch.uint8)

        def iteration():
            x.add_(1)
            torch.cuda.lms.step()

        return iteration

    assert kinds(faked(tmp_path / "trace.json", program), "known")[0][2] == 1 << 40


@pytest.mark.parametrize("width", [64, 1024])  # small tensors of the CPU are real
def test_tied_parameters_stay_tied(width, tmp_path):
    with torch.cuda.lms.record_fake(tmp_path / "trace.json", GPU):
        first, second = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
        second.weight = first.weight
        model = torch.nn.Sequential(first, second)
        model.cuda()
        kept = first.weight
        model.bfloat16()
        assert kept is second.weight is first.weight
        assert (kept.device.type, kept.dtype) == ("cuda", torch.bfloat16)
        for _ in range(3):
            model(torch.empty(1, width, device="cuda", dtype=torch.bfloat16))
            torch.cuda.lms.step()
    size = 2 * width * width
    weights = [e for e in kinds(trace_of(tmp_path / "trace.json"), "known") if e[2] == size]
    assert len(weights) == 1


def test_what_fills_tensors(tmp_path):
    def program():
        def iteration():
            x = torch.randn(SMALL, device="cuda")
            made = [
                torch.zeros_like(x),
                torch.ones_like(x),
                torch.full_like(x, 2),
                x.new_zeros(SMALL),
            ]
            torch.cat([*made, torch.zeros(SMALL, device="cuda"), torch.empty_like(x)])
            del made, x
            torch.cuda.lms.step()

        return iteration

    real, _ = last_iteration(recorded(tmp_path / "real.json", program))
    fake, _ = last_iteration(faked(tmp_path / "fake.json", program))
    assert fake == real


def test_a_value_is_zero(tmp_path):
    with torch.cuda.lms.record_fake(tmp_path / "trace.json", GPU):
        x = torch.ones(3, device="cuda")
        with pytest.warns(UserWarning, match="reads the value of a fake tensor"):
            assert x.sum().item() == 0.0
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # says it once
            assert not x.any()
        assert torch.linspace(0, 1, 5)[4].item() == 1, "small tensors of the CPU have values"
        for _ in range(2):
            large = torch.empty(SMALL, device="cuda")
            large.add_(1)
            torch.cuda.lms.step()


def test_mistakes(tmp_path):
    def record(body):
        with torch.cuda.lms.record_fake(tmp_path / "trace.json", GPU):
            body()

    with pytest.raises(RuntimeError, match="needs two complete iterations"):
        record(torch.cuda.lms.step)
    with pytest.raises(RuntimeError, match=r"is as large as set_size_lms\(\)"):
        record(lambda: torch.ones(3, device="cuda").add_(1))
    with pytest.raises(RuntimeError, match="aten::nonzero needs the values of its tensors"):
        record(lambda: torch.ones(3, device="cuda").nonzero())
    assert list(tmp_path.iterdir()) == []
    x = torch.ones(3, device="cuda")
    assert type(x) is torch.Tensor
    assert x.sum().item() == 3, "the program goes on with real tensors"


def without_a_gpu(path: Path, program: str) -> None:
    """Records what a program, which ends with an iteration(), does where PyTorch has no GPU."""
    simulated = Path(__file__).parents[1] / "simcuda" / "auto"
    # After it whatever this process has found its torch with.
    paths = [str(simulated), os.environ.get("PYTHONPATH", "")]
    code = (
        "import sys, torch\n"
        f"sys.path[:0] = [{str(Path(__file__).parent)!r}]\n"
        "from programs import PROGRAMS\n"
        "assert not torch.cuda.is_available()\n"
        f"torch.cuda.set_size_lms({SMALL})\n"
        f"with torch.cuda.lms.record_fake(sys.argv[1], {GPU!r}):\n"
        "    assert torch.cuda.is_available() and torch.cuda.get_device_name() == 'A GPU'\n"
        "    torch.cuda.synchronize()\n"
        f"{textwrap.indent(textwrap.dedent(program), '    ')}\n"
        "    for _ in range(3):\n"
        "        iteration()\n"
        "assert not torch.cuda.is_available()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "SIMCUDA_AUTO": "devices=0",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


ATTENTION = """
from torch.nn.functional import scaled_dot_product_attention

torch.backends.cuda.enable_flash_sdp(True)  # the simulated device has turned it off
options = {"device": "cuda", "dtype": torch.bfloat16, "requires_grad": True}
query = torch.randn(2, 8, 64, 64, **options)
key, value = (torch.randn(2, 2, 96, 64, **options) for _ in range(2))

def iteration():
    scaled_dot_product_attention(*3 * [torch.randn(1, 2, 8, 16)])
    scaled_dot_product_attention(query, key, value, enable_gqa=True).sum().backward()
    torch.cuda.lms.step()
"""


def test_heads_that_share_a_key_without_a_gpu(tmp_path):
    """FlashAttention takes them as they are. And attention on the CPU is no GPU's."""
    without_a_gpu(tmp_path / "trace.json", ATTENTION)
    sizes = {e[2] for e in kinds(trace_of(tmp_path / "trace.json"), "known", "allocated")}
    key = 2 * 2 * 96 * 64 * 2
    assert key in sizes
    assert 4 * key not in sizes


def test_heads_that_share_a_key_are_counted():
    from torch.cuda.lms_fake import cost

    query, key = torch.empty(2, 8, 64, 64), torch.empty(2, 2, 96, 64)
    attention = torch.ops.aten._scaled_dot_product_flash_attention.default
    found = cost._flops(attention, (query, key, key), {}, (query,))
    assert found == 2 * (2 * 2 * 8 * 64 * 96 * 64)


FUSED = """
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)

def iteration():
    model(torch.zeros(4, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def with_a_gpu(path: Path, program: str) -> None:
    scope: dict[str, Any] = {"torch": torch}
    with torch.cuda.lms.record_fake(path, GPU):
        exec(program, scope)
        for _ in range(3):
            scope["iteration"]()


WHERE = pytest.mark.parametrize("record", [with_a_gpu, without_a_gpu])


@WHERE
def test_a_fused_optimizer(record, tmp_path):
    """Not all of them have an implementation for fake tensors."""
    record(tmp_path / "trace.json", FUSED)
    assert "aten::_fused_sgd_" in operators(trace_of(tmp_path / "trace.json"))


TWO_OPTIMIZERS = """
model = torch.nn.ModuleList([torch.nn.Linear(1024, 1024) for _ in range(2)]).cuda()
optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]

def iteration():
    x = torch.ones(1024, 1024, device="cuda")
    for part in model:
        x = part(x)
    x.sum().backward()
    for optimizer in optimizers:
        optimizer.step()
"""


@WHERE
def test_the_iteration_of_two_optimizers(record, tmp_path):
    record(tmp_path / "trace.json", TWO_OPTIMIZERS)
    trace = trace_of(tmp_path / "trace.json")
    steps = [i for i, event in enumerate(trace["events"]) if event[0] == "step"]
    assert len(steps) == 3, "that of the other one is between"
    between = trace["events"][steps[0] : steps[-1]]
    # Between two steps of the last one alone, there would be none.
    names = [trace["names"][event[3]] for event in between if event[0] == "operator"]
    assert "aten::addmm" in names


STEP = """
weight = torch.ones(1024, 1024, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)

def iteration():
    for power in (2, 3):
        weight.pow(power).sum().backward()
        optimizer.step()
    torch.cuda.lms.step()
"""


@WHERE
def test_the_iteration_that_the_program_ends(record, tmp_path):
    """Nothing is between its end and the optimizer's last step."""
    record(tmp_path / "trace.json", STEP)
    names = operators(trace_of(tmp_path / "trace.json"))
    assert names.count("aten::pow") == 2, "of two optimizer steps"


MOVED = """
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def iteration():
    x = torch.ones(1024, 1024, device="cuda")
    model(x.to(model.weight)).sum().backward()
    optimizer.step()
"""


@WHERE
def test_to_what_a_tensor_is_already(record, tmp_path):
    record(tmp_path / "trace.json", MOVED)
    names = operators(trace_of(tmp_path / "trace.json"))
    assert "aten::addmm" in names
    assert "aten::_to_copy" not in names


@since((2, 9), "backends' fp32_precision")
def test_tensorfloat32_set_in_the_new_way(tmp_path):
    matmul = torch.backends.cuda.matmul
    times = []
    for precision in ("ieee", "tf32"):
        before, matmul.fp32_precision = matmul.fp32_precision, precision
        try:
            with torch.cuda.lms.record_fake(tmp_path / "trace.json", GPU):
                x = torch.empty(4096, 4096, device="cuda")
                for _ in range(3):
                    x @ x
                    torch.cuda.lms.step()
        finally:
            matmul.fp32_precision = before
        marks = [event[2] for event in kinds(trace_of(tmp_path / "trace.json"), "mark")]
        times.append(marks[-1] - marks[0])
    assert times[0] == pytest.approx(10 * times[1], rel=0.01)


def test_one_gpu_is_recorded(tmp_path):
    path = tmp_path / "trace.json"
    with (
        pytest.raises(RuntimeError, match="are recorded of one GPU"),
        torch.cuda.lms.record_fake(path, GPU),
    ):
        torch.empty(SMALL, device="cuda:1").add_(1)


@pytest.mark.parametrize("name", ["residual", "attention", "mixed"])
def test_without_a_gpu(name, tmp_path):
    """The same where PyTorch has no GPU, as on a laptop."""
    without_a_gpu(tmp_path / "none.json", f"iteration = PROGRAMS[{name!r}]()")
    _, peak = last_iteration(faked(tmp_path / "fake.json", PROGRAMS[name]))
    _, without = last_iteration(json.loads((tmp_path / "none.json").read_text()))
    assert abs(without - peak) <= 0.03 * peak
