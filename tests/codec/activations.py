"""What the codec makes of the tensors that real models save, on the CPU. Sizes, not speed.

    python tests/codec/activations.py [--models NAME ...] [--steps N]

needs numpy, g++, a PyTorch, torchvision and transformers. Trains each model for some steps with
random data, and packs the storages that autograd has saved in the next one, the parameters, the
gradients and AdamW's states, each once. Every block is unpacked and compared. Prints a table:

- left: bytes that go over the link, heads included, as a share of all bytes
- exponents: the same if exponents were coded by their entropy (order 0, of each storage), and signs
  and mantissas were stored as they are; for integers, if values were coded by theirs
- zeros apart: as before, with whether a value is zero coded first
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from packing import BYTES_OF, FLOATS, Codec, Host, Kind
from reference import CODES

sys.path.append(str(Path(__file__).resolve().parent.parent / "runtime"))
from scalar_types import SCALAR_TYPES

SMALLEST = 1 << 16  # bytes; smaller storages are not worth a page-out
SPARSE = 0.1  # the share of zeros from which on floats are listed apart


def entropy(counts: np.ndarray) -> float:
    """Bits per symbol."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def bounds(kind: Kind, data: np.ndarray) -> tuple[float, float]:
    """Bytes if exponents were coded by their entropy, and if zeros were so before."""
    size = BYTES_OF[kind]
    words = data[: data.size // size * size].view({1: "u1", 2: "u2", 4: "u4", 8: "u8"}[size])
    if kind not in FLOATS:
        _, counts = np.unique(words, return_counts=True)
        coded = entropy(counts) * words.size / 8
        return coded, coded
    bits, place = CODES[kind]
    codes = (words >> place & ((1 << bits) - 1)).astype(np.int64)
    rest = 8 * size - bits
    dense = (entropy(np.bincount(codes)) + rest) * words.size / 8
    present = words != 0
    count = int(present.sum())
    flags = entropy(np.array([count, words.size - count])) * words.size
    coded = entropy(np.bincount(codes[present])) if count else 0
    return dense, (flags + (coded + rest) * count) / 8


@dataclass
class Row:
    bytes: int = 0
    written: int = 0
    exponents: float = 0
    apart: float = 0
    chunks: int = 0
    raw: int = 0


class Table:
    """Rows by (model, what it is, kind)."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.rows: dict[tuple[str, str, str], Row] = defaultdict(Row)

    def add(self, model: str, what: str, tensor: torch.Tensor) -> None:
        kind = self._codec.host.kind_of(SCALAR_TYPES.get(tensor.dtype, ""))
        storage = tensor.detach().untyped_storage()
        if kind is Kind.NONE or storage.nbytes() < SMALLEST:
            return
        data = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
        packed = self._codec.pack(kind, data)
        if not np.array_equal(self._codec.unpack(kind, packed), data):
            raise SystemExit(f"{model}: {what}, {kind.name}: other bits came back")
        name = kind.name.lower()
        if kind in FLOATS:
            words = data[: data.size // BYTES_OF[kind] * BYTES_OF[kind]]
            zeros = (words.reshape(-1, BYTES_OF[kind]) == 0).all(axis=1).mean()
            name += ", zeros among it" if zeros > SPARSE else ""
        row = self.rows[model, what, name]
        exponents, apart = bounds(kind, data)
        row.bytes += data.size
        row.written += packed.written
        row.exponents += exponents
        row.apart += apart
        row.chunks += -(-data.size // 2048)
        row.raw += packed.raw

    def print(self) -> None:
        print("| model | data | kind | MB | left | exponents | zeros apart | raw chunks |")
        print("|---|---|---|---|---|---|---|---|")
        sums: dict[tuple[str, str], Row] = defaultdict(Row)
        for (model, what, name), row in self.rows.items():
            self._line(model, what, name, row)
            total = sums[model, what]
            for field in row.__dataclass_fields__:
                setattr(total, field, getattr(total, field) + getattr(row, field))
        for (model, what), row in sums.items():
            self._line(model, what, "**all**", row)

    def _line(self, model: str, what: str, name: str, row: Row) -> None:
        shares = " | ".join(
            f"{value / row.bytes:.3f}" for value in (row.written, row.exponents, row.apart)
        )
        raw = row.raw / row.chunks
        print(f"| {model} | {what} | {name} | {row.bytes / 1e6:.1f} | {shares} | {raw:.1%} |")


Step = Callable[[], torch.Tensor]


def resnet50(mixed: bool) -> tuple[torch.nn.Module, Step]:
    import torchvision

    model = torchvision.models.resnet50().to(memory_format=torch.channels_last)
    images = torch.randn(4, 3, 224, 224).to(memory_format=torch.channels_last)
    labels = torch.randint(1000, (4,))
    return model, lambda: torch.nn.functional.cross_entropy(model(images), labels)


def vit(mixed: bool) -> tuple[torch.nn.Module, Step]:
    import torchvision

    model = torchvision.models.VisionTransformer(
        224, 16, num_layers=4, num_heads=12, hidden_dim=768, mlp_dim=3072, dropout=0.1
    )
    images, labels = torch.randn(4, 3, 224, 224), torch.randint(1000, (4,))
    return model, lambda: torch.nn.functional.cross_entropy(model(images), labels)


def llama(mixed: bool) -> tuple[torch.nn.Module, Step]:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=8,
        max_position_embeddings=512,
    )
    model = transformers.LlamaForCausalLM(config)
    words = torch.randint(32000, (2, 512))
    return model, lambda: model(input_ids=words, labels=words).loss


MODELS = {"ResNet-50": resnet50, "ViT-B, 4 layers": vit, "Llama, 4 layers": llama}


def run(table: Table, name: str, mixed: bool, steps: int) -> None:
    torch.manual_seed(0)
    model, loss_of = MODELS[name](mixed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    title = f"{name}, {'bf16 autocast' if mixed else 'float32'}"
    for step in range(steps + 1):
        optimizer.zero_grad()
        saved: dict[int, torch.Tensor] = {}
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}

        def keep(tensor: torch.Tensor, saved=saved, own=own) -> torch.Tensor:
            address = tensor.untyped_storage().data_ptr()
            if address not in own:
                saved.setdefault(address, tensor)
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed), hooks:
            loss = loss_of()
        if step == steps:
            for tensor in saved.values():
                table.add(title, "saved", tensor)
        saved.clear()
        loss.backward()
        if step < steps:
            optimizer.step()
    if not mixed:
        for what, tensors in states(model, optimizer):
            for tensor in tensors:
                table.add(title, what, tensor)


def states(model, optimizer) -> Iterator[tuple[str, list[torch.Tensor]]]:
    parameters = list(model.parameters())
    yield "parameters", parameters
    yield "gradients", [p.grad for p in parameters if p.grad is not None]
    for state in ("exp_avg", "exp_avg_sq"):
        yield state, [optimizer.state[p][state] for p in parameters if p in optimizer.state]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--steps", type=int, default=3, help="steps before the one that counts")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lms-codec-") as work:
        kinds = [Kind.BFLOAT16, Kind.FLOAT32, Kind.INT64, Kind.INT32, Kind.BYTE]
        table = Table(Codec(Host(Path(work)), Path(work), kinds=kinds))
    for name in arguments.models:
        for mixed in (True, False):
            run(table, name, mixed, arguments.steps)
    table.print()


if __name__ == "__main__":
    main()
