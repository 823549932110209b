"""Models that people train, in the ways that DDP and FSDP2 are used.

Rows for distributed_worker.py. Random weights from small configurations: nothing is fetched. What
is drawn is drawn on the host.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

STEPS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """What a model is made of: as large as is quick on a GPU, or as small as can be simulated."""

    width: int
    layers: int
    words: int
    length: int
    rows: int
    pixels: int
    images: int


LARGE = Size(width=768, layers=6, words=8192, length=512, rows=4, pixels=160, images=24)
SMALL = Size(width=64, layers=2, words=256, length=16, rows=2, pixels=32, images=2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """How a model is trained."""

    model: str = "llama"
    sharded: bool = False  # FSDP2, not DDP
    options: tuple[tuple[str, Any], ...] = ()  # DistributedDataParallel's
    low_precision: bool = False  # DDP's mixed_precision, or FSDP2's policy
    autocast: bool = False
    branches: bool = False  # with parameters that no step uses, and some that every other does
    parts: int = 1  # of a step, with no_sync() for all but the last
    clipped: bool = False
    zeroed: bool = False  # zero_grad(set_to_none=False)
    reentrant: bool | None = None  # activation checkpointing, of that kind
    channels_last: bool = False


def ddp(**options: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(options.items())


ROWS = {
    "llama_ddp": Row(),
    "llama_static_graph": Row(options=ddp(static_graph=True)),
    "llama_unused": Row(branches=True, options=ddp(find_unused_parameters=True)),
    "llama_no_sync": Row(parts=3),
    "llama_bucket_views": Row(options=ddp(gradient_as_bucket_view=True)),
    "llama_autocast": Row(autocast=True),
    "llama_autocast_clipped": Row(autocast=True, clipped=True),
    "llama_low_precision": Row(low_precision=True),
    "llama_clipped": Row(clipped=True),
    "llama_zeroed": Row(zeroed=True, parts=2),
    "llama_checkpoint": Row(reentrant=False, autocast=True),
    "llama_checkpoint_reentrant": Row(reentrant=True, options=ddp(static_graph=True)),
    "gpt2_ddp": Row(model="gpt2"),  # its embeddings are tied to its head
    "gpt2_everything": Row(
        model="gpt2",
        autocast=True,
        branches=True,
        clipped=True,
        options=ddp(find_unused_parameters=True, gradient_as_bucket_view=True),
        parts=2,
        reentrant=False,
        zeroed=True,
    ),
    "bert_unused": Row(model="bert", options=ddp(find_unused_parameters=True), branches=True),
    "resnet50_ddp": Row(model="resnet50"),
    "resnet50_autocast": Row(
        model="resnet50",
        autocast=True,
        channels_last=True,
        options=ddp(gradient_as_bucket_view=True),
    ),
    "llama_fsdp2": Row(sharded=True),
    "llama_fsdp2_low_precision": Row(sharded=True, low_precision=True, clipped=True),
    "llama_fsdp2_checkpoint": Row(sharded=True, low_precision=True, reentrant=False),
    "llama_fsdp2_checkpoint_reentrant": Row(sharded=True, low_precision=True, reentrant=True),
    "gpt2_fsdp2": Row(model="gpt2", sharded=True, parts=2),
}


def transformer(name: str, size: Size) -> nn.Module:
    import transformers

    common = {"vocab_size": size.words, "hidden_size": size.width, "attn_implementation": "eager"}
    if name == "llama":
        return transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                **common,
                intermediate_size=size.width * 5 // 2,
                num_hidden_layers=size.layers,
                num_attention_heads=size.width // 32,
                num_key_value_heads=size.width // 64,
                max_position_embeddings=size.length,
                use_cache=False,
            )
        )
    if name == "gpt2":
        return transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                **common,
                n_layer=size.layers,
                n_head=size.width // 32,
                n_positions=size.length,
                use_cache=False,
            )
        )
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            **common,
            intermediate_size=size.width * 4,
            num_hidden_layers=size.layers,
            num_attention_heads=size.width // 32,
            max_position_embeddings=size.length,
        )
    )


class WithBranches(nn.Module):
    """A model with parameters beside it, which most steps do not use."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body = body
        self.never = nn.Linear(width, width)
        self.sometimes = nn.Linear(width, width)

    def forward(self, step: int, **batch: torch.Tensor) -> torch.Tensor:
        loss = self.body(**batch).loss
        if step % 2:
            loss = loss + self.sometimes.weight.square().mean()
        return loss


class Plain(nn.Module):
    """A model whose output is its loss."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, step: int, **batch: torch.Tensor) -> torch.Tensor:
        if "images" not in batch:
            return self.body(**batch).loss
        return nn.functional.cross_entropy(self.body(batch["images"]).float(), batch["labels"])


def missing(row: Row) -> str:
    """What has to be installed, or nothing."""
    package = "torchvision" if row.model == "resnet50" else "transformers"
    return "" if importlib.util.find_spec(package) else f"{package} is not installed"


def model_of(row: Row, size: Size) -> nn.Module:
    if row.model == "resnet50":
        import torchvision

        body = torchvision.models.resnet50(num_classes=100)
    else:
        body = transformer(row.model, size)
    if row.reentrant is not None:
        options = {"use_reentrant": row.reentrant}
        body.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    model = WithBranches(body, size.width) if row.branches else Plain(body)
    model.cuda().train()
    return model.to(memory_format=torch.channels_last) if row.channels_last else model


def batches(row: Row, size: Size) -> Iterable[dict[str, torch.Tensor]]:
    """Without end; each process has its own."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    while True:
        if row.model == "resnet50":
            shape = (size.images, 3, size.pixels, size.pixels)
            images = torch.randn(shape, generator=generator).cuda()
            if row.channels_last:
                images = images.to(memory_format=torch.channels_last)
            labels = torch.randint(100, (size.images,), generator=generator).cuda()
            yield {"images": images, "labels": labels}
        else:
            shape = (size.rows, size.length)
            words = torch.randint(size.words, shape, generator=generator).cuda()
            yield {"input_ids": words, "labels": words}


def blocks(model: nn.Module) -> list[nn.Module]:
    lists = [child for child in model.modules() if isinstance(child, nn.ModuleList)]
    return list(max(lists, key=len))


def distribute(row: Row, model: nn.Module) -> nn.Module:
    if row.sharded:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy()
        if row.low_precision:
            policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        for block in blocks(model):
            fully_shard(block, mp_policy=policy)
        return fully_shard(model, mp_policy=policy)
    options = dict(row.options)
    if row.low_precision:
        from torch.distributed.fsdp import MixedPrecision

        options["mixed_precision"] = MixedPrecision(torch.bfloat16, torch.bfloat16)
    device = torch.cuda.current_device()
    return nn.parallel.DistributedDataParallel(model, device_ids=[device], **options)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[operator]


def quiet(model: nn.Module) -> Any:
    """Gradients are not exchanged."""
    if hasattr(model, "no_sync"):
        return model.no_sync()

    @contextlib.contextmanager
    def unsynchronised() -> Any:
        model.set_requires_gradient_sync(False)  # type: ignore[operator]
        yield
        model.set_requires_gradient_sync(True)  # type: ignore[operator]

    return unsynchronised()


def training(row: Row, size: Size) -> Callable[[], list[torch.Tensor]]:
    """Trains the row's model; gives the losses and norms of all steps, and the parameters."""

    def run() -> list[torch.Tensor]:
        model = distribute(row, model_of(row, size))
        parameters = list(model.parameters())
        optimizer = torch.optim.AdamW(parameters, lr=1e-3, foreach=False)
        data = iter(batches(row, size))
        numbers = []
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=not row.zeroed)
            for part in range(row.parts):
                last = part == row.parts - 1
                with contextlib.nullcontext() if last else quiet(model):
                    with torch.autocast("cuda", torch.bfloat16, enabled=row.autocast):
                        loss = model(step, **next(data))
                    loss.backward()
                numbers.append(loss.detach())
            if row.clipped:
                numbers.append(nn.utils.clip_grad_norm_(parameters, 0.1, foreach=False))
            optimizer.step()
        return [local(result).detach() for result in (*numbers, *parameters)]

    return run
