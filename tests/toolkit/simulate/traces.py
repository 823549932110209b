"""Traces as torch.cuda.lms.record() writes them, made by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

MB = 10**6


class Recording:
    """Writes the events of a program, whose operators take 1 ms each."""

    def __init__(self) -> None:
        self.names: list[str] = [""]
        self.events: list[list[Any]] = []
        self.blocks = 0
        self.milliseconds = 0

    def block(self, kind: str, size: int) -> int:
        self.blocks += 1
        self.events.append([kind, self.blocks, size])
        return self.blocks

    def operator(self, name: str, *reads: int, writes: tuple[int, ...] = ()) -> None:
        if name not in self.names:
            self.names.append(name)
        # LMS marks what is queued before the operator.
        self.events.append(["mark", 0, self.milliseconds * 10**6])
        self.events.append(["operator", 0, 0, self.names.index(name)])
        self.milliseconds += 1
        self.events += [["read", block, 0] for block in reads]
        self.events += [["written", block, 0] for block in writes]

    def free(self, block: int) -> None:
        self.events.append(["freed", block, 0])

    def step(self) -> None:
        self.events.append(["mark", 0, self.milliseconds * 10**6])
        self.events.append(["step", 0, 0])

    def trace(self, **changes: Any) -> dict[str, Any]:
        return {
            "format": "lms-trace",
            "version": 1,
            "torch": "2.11.0",
            "gpu": "A GPU",
            "gpu_bytes": 16 * 10**9,
            "limit_bytes": 15 * 10**9,
            "unmanaged_bytes": MB,
            "names": self.names,
            "events": self.events,
            **changes,
        }

    def write(self, path: Path, **changes: Any) -> Path:
        data = json.dumps(self.trace(**changes)).encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path


def training(layers: int = 8, iterations: int = 3) -> Recording:
    """Layers with 10 MB of activations each, 2 MB of weights each, and gradients that live on."""
    recording = Recording()
    weights = [recording.block("known", 2 * MB) for _ in range(layers)]
    gradients: list[int] = []
    for _ in range(iterations):
        for gradient in gradients:
            recording.free(gradient)
        gradients = []
        saved = []
        for weight in weights:
            recording.operator("forward", weight, *saved[-1:])
            saved.append(recording.block("allocated", 10 * MB))
        for weight in reversed(weights):
            recording.operator("backward", weight, saved[-1])
            gradients.append(recording.block("allocated", 2 * MB))
            recording.free(saved.pop())
        for weight, gradient in zip(weights, reversed(gradients), strict=True):
            recording.operator("update", gradient, writes=(weight,))
        recording.step()
    return recording


# As RecordFunction calls what autograd runs.
NODE = "autograd::engine::evaluate_function: "
RESNET50 = Path(__file__).with_name("resnet50.json.gz")


def adam(layers: int = 8, iterations: int = 3) -> Recording:
    """Every kind of block: weights of 2 MB, their states of 4 MB, gradients that the next iteration
    frees, activations of 10 MB, an input of 1 MB that stays, 5 MB that nothing uses, and 3 MB of
    scratch memory in each layer."""
    recording = Recording()
    recording.block("known", 5 * MB)
    images = recording.block("known", MB)
    weights = [recording.block("known", 2 * MB) for _ in range(layers)]
    states = [recording.block("known", 4 * MB) for _ in range(layers)]
    gradients: list[int] = []
    for _ in range(iterations):
        saved = []
        for weight in weights:
            scratch = recording.block("allocated", 3 * MB)
            recording.operator("aten::linear", weight, *(saved[-1:] or [images]))
            saved.append(recording.block("allocated", 10 * MB))
            recording.operator("aten::relu_", writes=(saved[-1], scratch))
            recording.free(scratch)
        for gradient in gradients:
            recording.free(gradient)
        gradients = []
        for weight in reversed(weights):
            recording.operator(NODE + "LinearBackward0", weight, saved[-1])
            gradients.append(recording.block("allocated", 2 * MB))
            recording.operator(NODE + "torch::autograd::AccumulateGrad", writes=(gradients[-1],))
            recording.free(saved.pop())
        for weight, state, gradient in zip(weights, states, reversed(gradients), strict=True):
            recording.operator("aten::addcdiv_", gradient, writes=(weight, state))
        recording.step()
    return recording
