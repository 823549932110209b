"""An operator of PyTorch's OpInfo database, run forward and backward on samples of its inputs."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

SAMPLES = 4  # for each operator


def tensors(values: Any) -> list[torch.Tensor]:
    return [v for v in tree_flatten(values)[0] if isinstance(v, torch.Tensor)]


def choose_dtype(op: Any, kind: str) -> torch.dtype | None:
    """float32, or the first that the operator has on this kind of device."""
    dtypes = op.supported_dtypes(kind)
    return torch.float32 if torch.float32 in dtypes else next(iter(dtypes), None)


def samples(op: Any, dtype: torch.dtype) -> list[Any]:
    """The first of the operator's sample inputs, on the CPU and the same each time."""
    torch.manual_seed(0)
    gradient = op.supports_autograd and dtype == torch.float32
    generator = op.sample_inputs("cpu", dtype, requires_grad=gradient)
    return list(itertools.islice(generator, SAMPLES))


def evaluate(
    op: Any, sample: Any, kind: str, dtype: torch.dtype, call: Any = None
) -> list[torch.Tensor]:
    """The operator's outputs and its inputs' gradients on a kind of device.

    ``call`` is called in the operator's place, if it is given.
    """
    arguments, keywords, first = tree_map(
        lambda value: _on(kind, value), (sample.args, sample.kwargs, sample.input)
    )
    torch.manual_seed(1)
    outputs = tensors((call or op)(first, *arguments, **keywords))
    if not op.supports_autograd or dtype != torch.float32:
        return outputs
    inputs = [t for t in tensors((first, arguments, keywords)) if t.requires_grad]
    roots = [t for t in outputs if t.requires_grad]
    if not inputs or not roots:
        return outputs
    sums = [t.abs().sum() if t.is_complex() else t.sum() for t in roots]
    gradients = torch.autograd.grad(sums, inputs, allow_unused=True)
    return outputs + [g for g in gradients if g is not None]


def _on(kind: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _moved(value, kind).requires_grad_(value.requires_grad)
    if isinstance(value, torch.device):
        return torch.device(kind)
    return kind if isinstance(value, str) and value == "cpu" else value


def _moved(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    """The tensor elsewhere, the same view of the same storage when that can be told."""
    detached = tensor.detach()
    if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
        return detached.to(kind)
    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    base = detached.as_strided((elements,), (1,), 0).to(kind, copy=True)
    return base.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
