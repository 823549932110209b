"""The planner behind `lmsbuild simulate`, and how it reads the events of a trace."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from lmsbuild.cli.main import main
from lmsbuild.errors import BusyError, TraceError
from lmsbuild.native.toolchain import Compiler
from lmsbuild.resources import patches_dir
from lmsbuild.simulate import lms_report
from lmsbuild.simulate import planner as planner_module
from lmsbuild.simulate.planner import Machine, Planner, Simulation, _key, planner
from lmsbuild.simulate.trace import read_trace
from lmsbuild.tools.cache_content import clean
from tests.toolkit.simulate.traces import MB, Recording, training

LAYERS = 8
# Weights, activations, what is unmanaged. Gradients of the iteration before are gone at the peak,
# and the first of its own is allocated in the first backward operator.
PEAK = (2 * LAYERS + 10 * LAYERS + 1 + 2) * MB
COMPILER = Compiler(command=("g++",), version="g++ 12", machine="x86_64")


def simulate(
    compiled: Planner, recording: Recording, folder: Path, limit: int = 1000 * MB
) -> Simulation:
    trace = read_trace(recording.write(folder / "trace.json"))
    return compiled.simulate(trace, Machine(limit=limit, out_rate=1e9, in_rate=1e9, overhead=0))


def test_each_machine_has_a_library_of_its_own(tmp_path: Path) -> None:
    def key(machine: str, *command: str) -> str:
        return _key({}, dataclasses.replace(COMPILER, command=command, machine=machine))

    assert len({key("x86_64", "g++"), key("aarch64", "g++"), key("x86_64", "g++", "-m32")}) == 3


def test_the_cache_is_not_cleaned_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiles(command: list[str]) -> subprocess.CompletedProcess[str]:
        with pytest.raises(BusyError):
            clean(tmp_path)
        Path(command[-1]).write_bytes(b"a library")
        return subprocess.CompletedProcess(command, 0)

    def loads(library: Path) -> None:
        with pytest.raises(BusyError):
            clean(tmp_path)
        assert library.read_bytes() == b"a library"

    monkeypatch.setattr(planner_module, "run", compiles)
    monkeypatch.setattr(planner_module, "find_compiler", lambda _: COMPILER)
    monkeypatch.setattr(planner_module, "Planner", loads)
    planner(patches_dir(), tmp_path)
    assert clean(tmp_path)


def test_everything_fits(compiled: Planner, tmp_path: Path) -> None:
    found = simulate(compiled, training(LAYERS), tmp_path)
    assert found.fits
    assert found.operators == 3 * LAYERS
    assert found.peak_bytes == PEAK
    assert found.compute_seconds == pytest.approx(3 * LAYERS * 1e-3)
    assert found.planned.bytes_out == found.planned.bytes_in == 0
    assert found.planned.seconds == pytest.approx(found.compute_seconds)


def test_less_memory(compiled: Planner, tmp_path: Path) -> None:
    limit = PEAK - 25 * MB
    found = simulate(compiled, training(LAYERS), tmp_path, limit)
    assert not found.fits
    assert 25 * MB <= found.planned.bytes_out <= 36 * MB, "no more than blocks of 10 MB make of it"
    assert found.planned.peak_bytes <= limit
    assert found.on_demand.peak_bytes <= limit
    assert found.bound_seconds <= found.planned.seconds + 1e-9
    assert found.planned.seconds <= found.on_demand.seconds + 1e-9


def test_an_operator_that_needs_more(compiled: Planner, tmp_path: Path) -> None:
    message = r"operator 1 \(forward\) alone needs 23000000 bytes, and the limit is 22000000"
    with pytest.raises(TraceError, match=message):
        simulate(compiled, training(LAYERS), tmp_path, 22 * MB)


def test_more_that_lms_does_not_move(compiled: Planner, tmp_path: Path) -> None:
    """No operator is at fault."""
    trace = read_trace(training(LAYERS).write(tmp_path / "trace.json", unmanaged_bytes=30 * MB))
    machine = Machine(limit=20 * MB, out_rate=1e9, in_rate=1e9, overhead=0)
    message = r"^what LMS does not move needs 30.0 MB, and the limit is 20.0 MB; .* --smallest"
    with pytest.raises(TraceError, match=message):
        compiled.simulate(trace, machine)


def test_an_optimizer_that_uses_everything_at_once(compiled: Planner, tmp_path: Path) -> None:
    recording = training(LAYERS)
    recording.names = [name.replace("forward", "aten::_foreach_add_") for name in recording.names]
    with pytest.raises(TraceError, match="pass foreach=False to the optimizer"):
        simulate(compiled, recording, tmp_path, 22 * MB)


def test_blocks_that_nobody_uses_take_memory(compiled: Planner, tmp_path: Path) -> None:
    recording = Recording()
    recording.block("known", 100 * MB)
    for _ in range(2):
        recording.operator("op", recording.block("allocated", MB))
        recording.free(recording.blocks)
        recording.step()
    # One is freed in the next iteration, and another allocated.
    assert simulate(compiled, recording, tmp_path).peak_bytes == 102 * MB


def test_times_are_shared_by_the_operators_between_marks(compiled: Planner, tmp_path: Path) -> None:
    recording = training(LAYERS)
    recording.events = [
        event
        for number, event in enumerate(recording.events)
        if event[0] != "mark" or number % 3 == 0 or recording.events[number + 1][0] == "step"
    ]
    found = simulate(compiled, recording, tmp_path)
    assert found.compute_seconds == pytest.approx(3 * LAYERS * 1e-3)


@pytest.mark.parametrize("iterations", [0, 1])
def test_no_complete_iteration(iterations: int, compiled: Planner, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="record at least two steps"):
        simulate(compiled, training(LAYERS, iterations), tmp_path)


# The command ----------------------------------------------------------------------------------


def run(
    monkeypatch: pytest.MonkeyPatch, cache: Path, *arguments: str, code: int = 0
) -> tuple[str, str]:
    monkeypatch.setattr("lmsbuild.cli.commands.simulate.default_cache", lambda: cache)
    result = CliRunner().invoke(main, ["simulate", *arguments])
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def test_the_command(
    compiled: Planner, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(training(LAYERS).write(tmp_path / "trace.json.gz"))
    out, _ = run(monkeypatch, cache, path)
    assert "an iteration has 24 operators, takes 24.0 ms and needs 0.10 GB" in out
    assert "LMS is not necessary: that fits in 15.00 GB" in out
    out, _ = run(monkeypatch, cache, path, "--gpu-memory", "80M", "--link", "1G")
    assert [line.split("  ")[0].strip() for line in out.splitlines() if " ms" in line][1:] == [
        "transfers on demand",
        "planned transfers",
        "lower bound",
    ]
    out, _ = run(
        monkeypatch, cache, path, "--gpu-memory", "80M", "--link", "1G", "--link-in", "2G", "--json"
    )
    told = json.loads(out)
    assert (told["gpu_memory"], told["link_out"], told["link_in"]) == (80 * MB, 10**9, 2 * 10**9)
    assert told["planned"]["peak_bytes"] <= 0.95 * 80 * MB


def test_compression(
    compiled: Planner, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(training(LAYERS).write(tmp_path / "trace.json.gz"))
    tight = (path, "--gpu-memory", "40M", "--link", "1G", "--json")
    copied = json.loads(run(monkeypatch, cache, *tight)[0])
    packed = json.loads(run(monkeypatch, cache, *tight, "--compressed", "0.45")[0])
    assert (copied["compressed"], packed["compressed"]) == (1, 0.45)
    assert packed["link_out"] == copied["link_out"] == 10**9
    assert packed["planned"]["seconds"] < copied["planned"]["seconds"]
    assert packed["on_demand"] == copied["on_demand"], "LMS compresses nothing on demand"
    assert packed["bound_seconds"] < copied["bound_seconds"]
    for share in ("0", "1.5", "half"):
        assert "'--compressed'" in run(monkeypatch, cache, *tight, "--compressed", share, code=2)[1]


def test_several_limits(
    compiled: Planner, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(training(LAYERS).write(tmp_path / "trace.json"))
    limits = [word for size in ("1G", "80M", "10M") for word in ("--gpu-memory", size)]
    out, _ = run(monkeypatch, cache, path, *limits, "--link", "pcie3")
    lines = out.splitlines()
    assert lines[0].startswith("recorded: ")
    rows = {line.split("GB")[0].strip(): line for line in lines if re.match(r" *\d", line)}
    assert list(rows) == ["1.00", "0.08", "0.01"]
    assert "LMS is not necessary" in rows["1.00"]
    assert rows["0.08"].count(" ms") == 3
    assert "alone needs" in rows["0.01"]
    out, _ = run(monkeypatch, cache, path, *limits, "--link", "nvlink-c2c", "--json")
    fits, tight, none = json.loads(out)["simulations"]
    assert (fits["fits"], tight["fits"]) == (True, False)
    assert (tight["link_out"], tight["link_in"]) == (297e9, 375e9)
    assert "alone needs" in none["problem"]


def test_mistakes(
    compiled: Planner, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(training(LAYERS).write(tmp_path / "trace.json"))
    _, err = run(monkeypatch, cache, path, "--gpu-memory", "lots", code=2)
    assert "'lots' is not a number of bytes such as 16G or 512MiB" in err
    _, err = run(monkeypatch, cache, path, "--link", "pcie9", code=2)
    assert "'pcie9' is neither a link (pcie3, " in err
    tiny = ("--gpu-memory", "10M", "--gpu-memory", "11M")
    _, err = run(monkeypatch, cache, path, *tiny, code=TraceError.exit_code)
    assert len(err.splitlines()) == 1
    assert "alone needs" in err
    _, err = run(monkeypatch, cache, path, "--gpu-memory", "10M", code=TraceError.exit_code)
    assert "alone needs" in err


# Host memory -------------------------------------------------------------------------------------

MIB = 1 << 20


def test_host_memory(compiled: Planner, tmp_path: Path) -> None:
    trace = read_trace(training(LAYERS).write(tmp_path / "trace.json"))
    given = Machine(limit=PEAK - 25 * MB, out_rate=1e9, in_rate=1e9, overhead=0)
    found = compiled.simulate(trace, given)
    # At least what is too much, and at most everything that is swapped.
    most = max(found.planned.bytes_out, found.on_demand.bytes_out)
    assert 25 * MB <= found.host_least_bytes <= most + 2 * MIB
    assert found.host_least_bytes % (2 * MIB) == 0, "huge pages"
    assert found.host_most_bytes == found.host_least_bytes + 2 * 8 * MIB, "two slabs ahead"
    assert compiled.simulate(trace, given, found.host_least_bytes) == found
    message = r"does not fit: what is swapped needs [\d.]+ MB of host memory, and [\d.]+ MB are th"
    with pytest.raises(TraceError, match=message):
        compiled.simulate(trace, given, found.host_least_bytes - 1)


def test_no_host_memory_is_needed_where_everything_fits(compiled: Planner, tmp_path: Path) -> None:
    trace = read_trace(training(LAYERS).write(tmp_path / "trace.json"))
    given = Machine(limit=1000 * MB, out_rate=1e9, in_rate=1e9, overhead=0)
    found = compiled.simulate(trace, given, host_memory=0)
    assert (found.host_least_bytes, found.host_most_bytes) == (0, 0)


def test_slabs_grow(compiled: Planner) -> None:
    host = lms_report.module("host")
    assert host.least(1) == 2 * MIB
    assert host.most(1 << 30) == (1 << 30) + 2 * 52 * MIB, "a twentieth, in huge pages"
    assert host.most(100 << 30) == (100 << 30) + 2 * 512 * MIB


def test_the_command_with_host_memory(
    compiled: Planner, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(training(LAYERS).write(tmp_path / "trace.json"))
    few = (path, "--gpu-memory", "80M", "--link", "1G")
    out, _ = run(monkeypatch, cache, *few)
    assert re.search(r"LMS pins at least 0.0\d GB for what is swapped, and up to 0.0\d GB", out)
    _, err = run(monkeypatch, cache, *few, "--host-memory", "1M", code=TraceError.exit_code)
    assert "what is swapped needs" in err
    assert "use more host memory" in err
    out, _ = run(monkeypatch, cache, *few, "--gpu-memory", "200M", "--host-memory", "1M", "--json")
    tight, ample = json.loads(out)["simulations"]
    assert "of host memory" in tight["problem"]
    assert ample["fits"]
    assert ample["host_least_bytes"] == 0
