"""Operators on the simulated device give the CPU's results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from simcuda.process import Session


def compare_layer(device: Any, name: str) -> dict[str, Any]:
    """The largest difference of outputs and gradients from the CPU's."""
    import copy

    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = {
        "convolution": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
        "gru": lambda: nn.GRU(8, 16, 2),
        "gru without bias": lambda: nn.GRU(8, 16, bias=False),
        "layer norm": lambda: nn.LayerNorm(8),
        "lstm": lambda: nn.LSTM(8, 16, 2),
        "lstm without bias": lambda: nn.LSTM(8, 16, bias=False),
        "rms norm": lambda: nn.RMSNorm(8),
        "transformer": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0),
    }
    on_cpu = layers[name]()
    on_cuda = copy.deepcopy(on_cpu).cuda()
    shape = (2, 3, 12, 12) if name == "convolution" else (5, 3, 8)
    batch = torch.randn(shape)
    results = []
    for model, kind in ((on_cpu, "cpu"), (on_cuda, "cuda")):
        entry = batch.detach().clone().to(kind).requires_grad_()
        output = model(entry)
        output = output[0] if isinstance(output, tuple) else output
        output.square().sum().backward()
        gradients = [p.grad for p in model.parameters()]
        results.append([output.detach(), entry.grad, *gradients])
    differences = [(a - b.cpu()).abs().max().item() for a, b in zip(*results, strict=True)]
    return {
        "difference": max(differences),
        "races": device.races(),
        "launches": device.launches(),
    }


@pytest.mark.parametrize(
    "name",
    [
        "convolution",
        "gru",
        "gru without bias",
        "layer norm",
        "lstm",
        "lstm without bias",
        "rms norm",
        "transformer",
    ],
)
def test_layer_equals_the_cpus(sim: Session, name: str) -> None:
    out = sim.run(compare_layer, name)
    assert out["difference"] < 1e-4
    assert out["races"] == []
    assert out["launches"] == {}


def optimizer_steps(device: Any, name: str, options: dict[str, Any]) -> bool:
    import torch

    results = []
    for kind in ("cpu", "cuda"):
        torch.manual_seed(0)
        parameter = torch.randn(100).to(kind).requires_grad_()
        optimizer = getattr(torch.optim, name)([parameter], lr=0.1, **options)
        for _ in range(3):
            optimizer.zero_grad()
            parameter.square().sum().backward()
            optimizer.step()
        results.append(parameter.detach().cpu())
    return torch.allclose(*results, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    [("SGD", {}), ("Adam", {"foreach": True}), ("AdamW", {"fused": True}), ("RMSprop", {})],
)
def test_optimizer_equals_the_cpus(sim: Session, name: str, options: dict[str, Any]) -> None:
    assert sim.run(optimizer_steps, name, options)


def random_numbers(device: Any) -> dict[str, bool]:
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    torch.cuda.manual_seed(3)
    first, second = torch.randn(5, device="cuda"), torch.randn(5, device="cuda")
    torch.cuda.manual_seed(3)
    again = torch.randn(5, device="cuda")
    cpu_state = torch.get_rng_state()
    model = nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.5), nn.Linear(32, 32)).cuda()
    batch = torch.randn(8, 32, device="cuda", requires_grad=True)
    state = torch.cuda.get_rng_state()
    model(batch).sum().backward()
    direct, batch.grad = batch.grad, None
    torch.cuda.set_rng_state(state)
    checkpoint(model, batch, use_reentrant=False).sum().backward()
    return {
        "seed repeats": torch.equal(first, again),
        "draws differ": not torch.equal(first, second),
        "checkpoint repeats": torch.equal(direct, batch.grad),
        "CPU generator untouched": torch.equal(cpu_state[:100], torch.get_rng_state()[:100]),
    }


def test_random_state(sim: Session) -> None:
    out = sim.run(random_numbers)
    assert out.pop("CPU generator untouched") is not None  # nn.Linear draws on the CPU
    assert all(out.values()), out


def resized_output(device: Any) -> dict[str, list[Any]]:
    import torch

    out = torch.empty(0, device="cuda")
    torch.add(torch.ones(3, device="cuda"), 1, out=out)
    view = torch.arange(6.0, device="cuda").view(2, 3).t()
    return {"out": out.tolist(), "copy": view.contiguous().tolist(), "cast": view.int().tolist()}


def test_outputs_are_resized_and_layouts_kept(sim: Session) -> None:
    columns = [[0, 3], [1, 4], [2, 5]]
    assert sim.run(resized_output) == {"out": [2, 2, 2], "copy": columns, "cast": columns}


def unknown_kernel(device: Any) -> list[Any]:
    import torch

    values = torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (2,), device="cuda")
    try:
        values.coalesce()
    except RuntimeError as error:
        return [str(error).splitlines()[0], len(device.launches())]
    return ["", 0]


def test_missed_operator_fails_loudly(sim: Session) -> None:
    message, launches = sim.run(unknown_kernel)
    assert "a kernel was launched" in message
    assert launches >= 1
