"""torch.cuda.lms.plot(): reports of a recording that is still in memory."""

from __future__ import annotations

import gzip
import json
import re
import sys

import pytest
import torch
from conftest import MIB
from releases import since
from tensors import evict, floats, managed, pattern
from torch import nn

WIDTH = 512
ROWS = 256


def train(steps: int = 3) -> None:
    """Layers of 1 MiB, with activations of half a MiB each."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(8))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    with torch.cuda.lms.record():
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(ROWS, WIDTH, device="cuda")).sum().backward()
            optimizer.step()


@since((2, 1), "hooks of all optimizers")
def test_every_form(tmp_path):
    train()
    torch.cuda.lms.plot(tmp_path / "page.html", gpu_memory=16 * MIB)
    torch.cuda.lms.plot(str(tmp_path / "report.txt"), gpu_memory=16 * MIB, link=1e9)
    torch.cuda.lms.plot(tmp_path / "trace.json.gz", gpu_memory=16 * MIB, link=(1e9, 2e9))
    page = (tmp_path / "page.html").read_text()
    data = json.loads(re.search(r'type="application/json">(.*?)</script>', page)[1])
    assert data["gpuMemory"] == 16 * MIB
    assert len(data["courses"][0]["transfers"]) > 0
    text = (tmp_path / "report.txt").read_text()
    assert "the given link (1.0 GB/s out, 1.0 GB/s in)" in text
    # 8 layers' weights, which live on and are written by the optimizer.
    assert re.search(r"parameters +8\.4 MB +8\.4 MB", text)
    trace = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    assert (trace["otherData"]["out_rate"], trace["otherData"]["in_rate"]) == (1e9, 2e9)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "page.html",
        "report.txt",
        "trace.json.gz",
    ]


@since((2, 1), "hooks of all optimizers")
def test_everything_fits(tmp_path):
    train()
    torch.cuda.lms.plot(tmp_path / "report.txt")
    assert (tmp_path / "report.txt").read_text().startswith("LMS is not necessary")


@since((2, 1), "hooks of all optimizers")
def test_a_picture_needs_matplotlib(tmp_path, monkeypatch):
    train()
    for name in list(sys.modules):
        if name.split(".")[0] == "matplotlib":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(RuntimeError, match="a PNG needs matplotlib: pip install matplotlib"):
        torch.cuda.lms.plot(tmp_path / "picture.png")
    torch.cuda.lms.plot(tmp_path / "page.html")
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]


@since((2, 1), "hooks of all optimizers")
def test_a_recording_in_which_lms_copied(tmp_path):
    x = managed(pattern(4))
    evict()
    model = nn.Linear(WIDTH, WIDTH).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.cuda.lms.record(tmp_path / "trace.json"):
        for _ in range(2):
            x.add_(1)
            model(x[: floats(1)].reshape(-1, WIDTH)).sum().backward()
            optimizer.step()
    assert json.loads((tmp_path / "trace.json").read_text())["page_in_bytes"] == 4 * MIB
    torch.cuda.lms.plot(tmp_path / "report.txt", gpu_memory=32 * MIB)
    assert "copied by LMS while it was recorded  4.2 MB" in (tmp_path / "report.txt").read_text()


def test_the_link_is_measured():
    from torch.cuda.lms_plot import measured_link

    assert all(rate > 0 for rate in measured_link(0))


def test_mistakes(tmp_path):
    torch.cuda.lms._headers.clear()
    with pytest.raises(RuntimeError, match="nothing was recorded on GPU 0"):
        torch.cuda.lms.plot(tmp_path / "page.html")
    with torch.cuda.lms.record():
        pass
    with pytest.raises(KeyError), torch.cuda.lms.record():
        raise KeyError
    with pytest.raises(RuntimeError, match="nothing was recorded on GPU 0"):
        torch.cuda.lms.plot(tmp_path / "page.html")
    with torch.cuda.lms.record(), pytest.raises(RuntimeError, match="GPU 0 is being recorded"):
        torch.cuda.lms.plot(tmp_path / "page.html")
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        torch.cuda.lms.plot(tmp_path / "no/page.html")
    with pytest.raises(ValueError, match=r"has to end with \.html"):
        torch.cuda.lms.plot(tmp_path / "page.pdf")
    with pytest.raises(RuntimeError, match="LMS: the trace has no complete iteration"):
        torch.cuda.lms.plot(tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


@since((2, 1), "hooks of all optimizers")
def test_an_operator_that_needs_more(tmp_path):
    train()
    with pytest.raises(RuntimeError, match=r"LMS: operator .* alone needs"):
        torch.cuda.lms.plot(tmp_path / "page.html", gpu_memory=2 * MIB)
    assert list(tmp_path.iterdir()) == []
