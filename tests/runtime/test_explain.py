"""torch.cuda.lms.explain(): why it would not swap, in words; and `lmsbuild doctor`'s probe."""

import json
import runpy
from pathlib import Path

import pytest
import torch
from conftest import MIB
from releases import size_of
from simcuda.process import run_sim
from tensors import evict, managed, pattern, stat

PROBE = Path(__file__).parents[2] / "lmsbuild/data/probe.py"

explain = torch.cuda.lms.explain


def pressed():
    """More than the limit, in use at the same time; keep what it returns."""
    torch.cuda.set_limit_lms(24 * MIB)
    return [managed(pattern(10, start=i)) for i in range(4)]


def test_off():
    torch.cuda.set_enabled_lms(False)
    assert explain() == "LMS is off: torch.cuda.set_enabled_lms(True) turns it on."


def test_no_pressure():
    kept = managed(pattern(4))
    first, second = explain().splitlines()
    assert first == "LMS has paged nothing out."
    assert second.startswith("There was no need to: at most 4.00 MiB were in use, and the limit is")
    assert second.endswith("(automatic).")
    torch.cuda.set_limit_lms(10 * MIB)
    assert "the limit is 10.00 MiB (set with set_limit_lms)." in explain()
    assert size_of(kept) == 4 * MIB


@pytest.mark.usefixtures("uncompressed")
def test_it_swaps():
    kept = pressed()
    (line,) = explain().splitlines()
    assert line.startswith("LMS pages out: 2 page-outs moved 20.00 MiB to the host; 0 bytes came")
    assert line.endswith("and 20.00 MiB are there now.")
    next(tensor for tensor in kept if not torch.cuda.lms.is_resident(tensor)).sum()
    assert "10.00 MiB came back" in explain()


def test_all_storages_are_too_small():
    torch.cuda.set_size_lms(64 * MIB)
    kept = pressed()
    assert len(kept) == 4
    assert "40.00 MiB of 40.00 MiB in use are not managed: storages below 64.00 MiB" in explain()


def test_held():
    tensors = [managed(pattern(4, start=i)) for i in range(4)]
    torch.cuda.lms.exclude(*tensors)
    evict()
    text = explain()
    assert "16.00 MiB of 16.00 MiB managed on the GPU are held there" in text
    assert "hooks" not in text
    torch.cuda.lms.release(*tensors)
    assert "held" not in explain()


def test_held_by_hooks():
    tensors = [managed(pattern(4, start=i)) for i in range(4)]

    def use():
        for tensor in tensors[:3]:
            tensor.sum()

    torch.cuda.lms._as_hook(use)()
    evict()
    assert stat("hook_bytes") == 12 * MIB
    (line,) = (line for line in explain().splitlines() if "held" in line)
    assert line.startswith(
        "12.00 MiB of 12.00 MiB managed on the GPU are held there, because hooks of autograd nodes "
        "used 12.00 MiB"
    )
    assert "data_ptr()" not in line
    torch.cuda.lms.exclude(tensors[3])
    (line,) = (line for line in explain().splitlines() if "held" in line)
    assert line.startswith("16.00 MiB of 16.00 MiB")
    assert "hooks of autograd nodes used 12.00 MiB" in line
    assert "data_ptr()" in line
    torch.cuda.lms.release(*tensors)
    assert stat("hook_bytes") == 0
    assert "held" not in explain()


def test_one_operator_is_too_large():
    torch.cuda.set_limit_lms(8 * MIB)
    parts = [managed(pattern(4, start=i)) for i in range(2)]
    whole = torch.cat(parts)
    assert size_of(whole) == 8 * MIB
    assert "Operators that ran at the same time used" in explain()


def test_host_limit():
    torch.cuda.set_host_limit_lms(2 * MIB)
    kept = pressed()
    assert len(kept) == 4
    text = explain()
    assert text.startswith("LMS has paged nothing out.")
    assert "no need" not in text
    assert "0 bytes are pinned, and set_host_limit_lms allows 2.00 MiB." in text


def test_while_a_graph_is_captured():
    graph = torch.cuda.CUDAGraph()
    x = managed(pattern(1))
    with torch.cuda.graph(graph):
        x + 1
        text = explain()
    assert "A CUDA graph is being captured" in text
    assert "being captured" not in explain()


def test_another_device():
    torch.cuda.set_limit_lms(8 * MIB)
    kept = [torch.zeros(MIB, device="cuda:1").add_(i) for i in range(4)]
    assert len(kept) == 4
    assert explain(1).startswith("LMS pages out")
    assert explain(0).startswith("LMS has paged nothing out")


def test_another_device_is_not_disturbed():
    assert run_sim(explained_from_another_device, devices=2) == [True, True]


def explained_from_another_device(device):
    import torch

    torch.cuda.set_size_lms(1 << 12)
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    x = torch.arange(1 << 18, dtype=torch.int32).to("cuda:1")
    x.sum()
    torch.cuda.lms.explain(1)  # looks whether the release check works
    torch.cuda.reclaim_inactive()
    moved = not torch.cuda.lms.is_resident(x)
    return moved, torch.equal(x.cpu(), torch.arange(1 << 18, dtype=torch.int32))


def test_the_probe_tries_it_out(capsys):
    torch.cuda.set_enabled_lms(False)
    runpy.run_path(str(PROBE), run_name="__main__")
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["torch"]["version"] == torch.__version__
    assert told["lms"]["abi"] == told["lms"]["wanted"] == torch.cuda.lms._ABI_VERSION
    assert len(told["devices"]) == torch.cuda.device_count()
    assert told["backend"] == "native"
    assert told["trial"] == {"error": ""}
    assert not torch.cuda.get_enabled_lms()


def test_the_probe_tells_what_fails(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "reclaim_inactive", lambda: 0)
    runpy.run_path(str(PROBE), run_name="__main__")
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "stayed on the GPU" in told["trial"]["error"]
