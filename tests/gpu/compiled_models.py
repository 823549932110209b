"""The models of compiled.py, with a batch and a loss each. Random weights: nothing is fetched."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

sys.path.append(str(Path(__file__).resolve().parent.parent / "suite"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """A model in training.

    ``loss`` takes the model and what ``batch`` drew on the host, moved to the GPU. ``blocks`` are
    the modules whose activations checkpointing computes again.
    """

    title: str
    model: nn.Module
    batch: Callable[[], tuple[torch.Tensor, ...]]
    loss: Callable[..., torch.Tensor]
    blocks: Callable[[nn.Module], list[nn.Module]]


def llama(*, tiny: bool) -> Work:
    import transformers

    words, length, rows = (64, 8, 1) if tiny else (32000, 1024, 16)
    config = transformers.LlamaConfig(
        vocab_size=words,
        hidden_size=16 if tiny else 1024,
        intermediate_size=32 if tiny else 2816,
        num_hidden_layers=2 if tiny else 16,
        num_attention_heads=2 if tiny else 16,
        max_position_embeddings=length,
        use_cache=False,
    )
    return Work(
        title=f"Llama, 16 layers, hidden 1024, batch {rows} x {length}",
        model=transformers.LlamaForCausalLM(config),
        batch=lambda: (torch.randint(words, (rows, length)),),
        loss=lambda model, ids: model(input_ids=ids, labels=ids).loss,
        blocks=lambda model: list(model.model.layers),
    )


def bert(*, tiny: bool) -> Work:
    import transformers

    words, length, rows = (64, 8, 1) if tiny else (30522, 512, 32)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=words, **(sizes if tiny else {}))
    return Work(
        title=f"transformers BERT base, masked words, batch {rows} x {length}",
        model=transformers.BertForMaskedLM(config),
        batch=lambda: (torch.randint(words, (rows, length)), torch.randint(words, (rows, length))),
        loss=lambda model, ids, labels: model(input_ids=ids, labels=labels).loss,
        blocks=lambda model: list(model.bert.encoder.layer),
    )


def convnext(*, tiny: bool) -> Work:
    import timm

    rows, pixels = (1, 32) if tiny else (128, 224)
    model = timm.create_model("convnext_atto" if tiny else "convnext_base")
    return Work(
        title=f"timm ConvNeXt base, batch {rows} x {pixels} x {pixels}",
        model=model.to(memory_format=torch.channels_last),
        batch=lambda: (torch.randn(rows, 3, pixels, pixels), torch.randint(1000, (rows,))),
        loss=lambda model, images, labels: F.cross_entropy(model(images), labels),
        blocks=lambda model: [block for stage in model.stages for block in stage.blocks],
    )


def unet(*, tiny: bool) -> Work:
    from models import diffusion_unet
    from models.workload import Scale

    rows, pixels = (1, 8) if tiny else (64, 64)
    size = diffusion_unet.SIZES[Scale.SIM if tiny else Scale.GPU]
    return Work(
        title=f"diffusion U-Net (tests/suite), batch {rows} x {pixels} x {pixels}",
        model=diffusion_unet.DiffusionUNet(size),
        batch=lambda: (
            torch.randn(rows, 3, pixels, pixels),
            torch.randint(diffusion_unet.TIMESTEPS, (rows,)).float(),
        ),
        loss=lambda model, images, times: F.mse_loss(model(images, times), images),
        blocks=lambda model: [*model.down, model.middle1, model.middle2, *model.up],
    )


MODELS: dict[str, Callable[..., Work]] = {
    "llama": llama,
    "convnext": convnext,
    "bert": bert,
    "unet": unet,
}


def checkpoint(block: nn.Module) -> None:
    """Makes a block keep its inputs only, and compute the rest again in the backward pass."""
    forward = block.forward

    def again(*args: Any, **kwargs: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(forward, *args, use_reentrant=False, **kwargs)

    block.forward = again  # type: ignore[method-assign]
