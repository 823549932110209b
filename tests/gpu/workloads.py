"""What people train: models of other people's libraries, with synthetic data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

GB = 1e9
VOCABULARY = 32000  # of the language models


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    title: str
    build: Callable[[], tuple[Any, Callable[[], Any]]]  # (model, what computes the loss)
    optimizer: Callable[[Any], Any] | None  # None: no training, and each call is an iteration
    limits: tuple[float, ...]  # parts of the peak in memory
    iterations: int = 44  # until all that LMS tries has been timed, and some more
    varying: bool = False  # whether iterations differ
    # Of an iteration in memory on an H200, if measured (docs/results/2026-11-23-fake.md).
    seconds: float = 0


def _sgd(parameters: Any) -> Any:
    import torch

    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def _adamw(parameters: Any) -> Any:
    import torch

    return torch.optim.AdamW(parameters, lr=1e-4, foreach=False)


def _images(model: Any, batch: int, size: int) -> tuple[Any, Callable[[], Any]]:
    import torch
    from torch.nn import functional

    given = torch.randn(batch, 3, size, size, device="cuda")
    given = given.to(memory_format=torch.channels_last)
    labels = torch.randint(1000, (batch,), device="cuda")
    return model, lambda: functional.cross_entropy(model(given), labels)


def resnet(depth: int, batch: int, size: int) -> tuple[Any, Callable[[], Any]]:
    import torch
    import torchvision

    model = torchvision.models.get_model(f"resnet{depth}").cuda().train()
    return _images(model.to(memory_format=torch.channels_last), batch, size)


def vit_l() -> tuple[Any, Callable[[], Any]]:
    import torchvision

    return _images(torchvision.models.vit_l_16().cuda().train(), 256, 224)


def _llama(**sizes: Any) -> Any:
    import torch
    import transformers

    config = transformers.LlamaConfig(vocab_size=VOCABULARY, num_attention_heads=16, **sizes)
    with torch.device("cuda"):
        return transformers.LlamaForCausalLM(config)


def llama() -> tuple[Any, Callable[[], Any]]:
    import torch

    model = _llama(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=24,
        num_key_value_heads=16,
        max_position_embeddings=2048,
        use_cache=False,
    ).train()
    tokens = torch.randint(VOCABULARY, (8, 2048), device="cuda")
    return model, lambda: model(input_ids=tokens, labels=tokens).loss


def lengths() -> tuple[Any, Callable[[], Any]]:
    """Batches whose sequences have one of six lengths, in an order that does not repeat."""
    import random

    import torch

    model = _llama(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=16, use_cache=False
    ).train()
    tokens = torch.randint(VOCABULARY, (16, 1024), device="cuda")
    draw = random.Random(0)

    def loss() -> Any:
        batch = tokens[:, : draw.choice((512, 640, 768, 832, 896, 1024))]
        return model(input_ids=batch, labels=batch).loss

    return model, loss


def generation() -> tuple[Any, Callable[[], Any]]:
    """48 tokens for each of 64 prompts, with a cache of keys and values that grows."""
    import torch

    model = _llama(
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=16,
        max_position_embeddings=1024,
        eos_token_id=None,
    )
    model = model.eval().bfloat16()
    prompts = torch.randint(VOCABULARY, (64, 464), device="cuda")
    given = torch.ones_like(prompts)
    weights = torch.arange(512, device="cuda")

    def answers() -> Any:
        tokens = model.generate(
            prompts, attention_mask=given, max_new_tokens=48, do_sample=False, pad_token_id=0
        )
        return (tokens * weights).sum().double()  # different for different answers

    return model, answers


def unet3d(size: int = 160) -> tuple[Any, Callable[[], Any]]:
    import torch
    from torch import nn

    def level(inputs: int, outputs: int) -> nn.Module:
        layers = []
        for k in (inputs, outputs):
            layers += [nn.Conv3d(k, outputs, 3, padding=1), nn.InstanceNorm3d(outputs), nn.ReLU()]
        return nn.Sequential(*layers)

    class UNet(nn.Module):
        def __init__(self, width: int = 32, depth: int = 4) -> None:
            super().__init__()
            sizes = [width << k for k in range(depth)]
            self.down = nn.ModuleList(map(level, [4, *sizes[:-1]], sizes))
            pairs = list(zip(sizes[1:], sizes[:-1], strict=True))[::-1]
            self.grow = nn.ModuleList(nn.ConvTranspose3d(a, b, 2, stride=2) for a, b in pairs)
            self.up = nn.ModuleList(level(2 * b, b) for _, b in pairs)
            self.shrink = nn.ModuleList(nn.Conv3d(b, b, 2, stride=2) for _, b in pairs[::-1])
            self.head = nn.Conv3d(width, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept = []
            for k, layer in enumerate(self.down):
                x = layer(self.shrink[k - 1](x) if k else x)
                kept.append(x)
            kept.pop()
            for grow, layer in zip(self.grow, self.up, strict=True):
                x = layer(torch.cat([grow(x), kept.pop()], 1))
            return self.head(x)

    model = UNet().cuda().train()
    volume = torch.randn(1, 4, size, size, size, device="cuda")
    return model, lambda: model(volume).square().mean()


def blocks(model: Any) -> list[Any]:
    """The modules that the model has several of in a row: what people checkpoint."""
    from torch import nn

    found = []
    for child in model.children():
        parts = list(child.children()) if isinstance(child, (nn.ModuleList, nn.Sequential)) else []
        alike = len(parts) > 1 and len({type(part) for part in parts}) == 1
        found += parts if alike and any(parts[0].children()) else blocks(child)
    return found


WORKLOADS = {
    "resnet50": Workload(
        title="ResNet-50, batch 512, 224x224, channels-last, SGD with momentum",
        build=partial(resnet, 50, 512, 224),
        optimizer=_sgd,
        limits=(0.862, 0.703, 0.517),
        seconds=0.1048,
    ),
    "llama": Workload(
        title="Llama of transformers, 1.7 billion parameters, batch 8 x 2048, AdamW foreach=False",
        build=llama,
        optimizer=_adamw,
        limits=(0.85, 0.60),
        iterations=32,
        seconds=0.5217,
    ),
    "vit_l": Workload(
        title="ViT-L/16 of torchvision, batch 256, AdamW foreach=False",
        build=vit_l,
        optimizer=_adamw,
        limits=(0.80, 0.50, 0.30),
        iterations=36,
        seconds=0.3318,
    ),
    "lengths": Workload(
        title="Llama of transformers, 0.3 billion parameters, batch 16, six lengths up to 1024",
        build=lengths,
        optimizer=_adamw,
        limits=(0.60,),
        iterations=96,
        varying=True,
    ),
    "generation": Workload(
        title="Llama of transformers, 0.9 billion parameters, 64 x 48 tokens are generated",
        build=generation,
        optimizer=None,
        limits=(0.80, 0.60),
        iterations=14,
    ),
    "images_3x": Workload(
        title="ResNet-50, batch 64, 912x912, channels-last, SGD with momentum",
        build=partial(resnet, 50, 64, 912),
        optimizer=_sgd,
        limits=(1 / 3,),
        iterations=36,
    ),
    "images_7x": Workload(
        title="ResNet-50, batch 64, 1392x1392, channels-last, SGD with momentum",
        build=partial(resnet, 50, 64, 1392),
        optimizer=_sgd,
        limits=(1 / 7,),
        iterations=32,
    ),
    "unet3d": Workload(
        title="3D U-Net, 160^3, instance norm, SGD with momentum",
        build=unet3d,
        optimizer=_sgd,
        limits=(0.70, 0.40),
        seconds=0.0978,
    ),
    "unet3d_192": Workload(
        title="3D U-Net, 192^3, instance norm, SGD with momentum",
        build=partial(unet3d, 192),
        optimizer=_sgd,
        limits=(0.70, 0.40),
        seconds=0.1711,
    ),
    "unet3d_320": Workload(
        title="3D U-Net, 320^3, instance norm, SGD with momentum",
        build=partial(unet3d, 320),
        optimizer=_sgd,
        limits=(0.48,),  # 16 GB
        iterations=36,
        seconds=0.7765,
    ),
}
