"""Trains in a worker of Ray Train, and writes its metrics as JSON.

ray_training.py FILE lms|plain
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray

# Ray looks for GPUs when it starts. The simulated one has no NVML, and comes with torch.
ray.init(num_cpus=2, num_gpus=1, include_dashboard=False)

from ray.train import RunConfig, ScalingConfig  # noqa: E402
from ray.train.torch import TorchConfig, TorchTrainer  # noqa: E402
from torch.cuda.lms.integrations.ray import large_model_support  # noqa: E402


def train(config: dict[str, Any]) -> None:
    import torch

    metrics = torch.cuda.lms.Metrics()
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(20)]).cuda()
    x = torch.randn(4096, 64).cuda()
    for _ in range(3):
        for layer in layers:
            x = torch.tanh(layer(x))
        x.square().mean().backward()
        x = x.detach()
    found = {"limit": torch.cuda.lms.stats().get("limit_bytes", 0), **metrics()}
    found["gradient"] = layers[0].weight.grad.double().sum().item().hex()
    Path(config["file"]).write_text(json.dumps(found))
    ray.train.report(found)


settings = {"limit": "16MiB", "planning": False} if sys.argv[2] == "lms" else None
TorchTrainer(
    large_model_support(train, **settings) if settings else train,
    train_loop_config={"file": sys.argv[1]},
    scaling_config=ScalingConfig(num_workers=1, use_gpu=True),
    torch_config=TorchConfig(backend="gloo"),
    run_config=RunConfig(storage_path=str(Path(sys.argv[1]).parent)),
).fit()
ray.shutdown()
