"""CPU semantics for the fused recurrent cells, which have CUDA kernels only.

nn.LSTM and nn.GRU use them on a CUDA device without cuDNN, such as the simulated one. Gates are in
PyTorch's order: input, forget, cell, output for LSTM; reset, update, new for GRU.
"""

from __future__ import annotations

import torch
from torch import Tensor


def with_bias(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


def lstm(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    gates = with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat((i, f, g, o), 1)


def lstm_backward(
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    cx: Tensor,
    cy: Tensor,
    workspace: Tensor,
    has_bias: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    i, f, g, o = workspace.chunk(4, 1)
    grad_hy = torch.zeros_like(cy) if grad_hy is None else grad_hy
    squashed = cy.tanh()
    grad = grad_hy * o * (1 - squashed * squashed)
    if grad_cy is not None:
        grad = grad + grad_cy
    grad_gates = torch.cat(
        (
            grad * g * i * (1 - i),
            grad * cx * f * (1 - f),
            grad * i * (1 - g * g),
            grad_hy * squashed * o * (1 - o),
        ),
        1,
    )
    return grad_gates, grad * f, grad_gates.sum(0) if has_bias else None


def gru(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    input_r, input_z, input_n = with_bias(input_gates, input_bias).chunk(3, 1)
    hidden_r, hidden_z, hidden_n = with_bias(hidden_gates, hidden_bias).chunk(3, 1)
    r = (input_r + hidden_r).sigmoid()
    z = (input_z + hidden_z).sigmoid()
    n = (input_n + r * hidden_n).tanh()
    return n + z * (hx - n), torch.cat((r, z, n, hx, hidden_n), 1)


def gru_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    r, z, n, hx, hidden_n = workspace.chunk(5, 1)
    grad_n = grad_hy * (1 - z) * (1 - n * n)
    grad_r = grad_n * hidden_n * r * (1 - r)
    grad_z = grad_hy * (hx - n) * z * (1 - z)
    grad_input = torch.cat((grad_r, grad_z, grad_n), 1)
    grad_hidden = torch.cat((grad_r, grad_z, grad_n * r), 1)
    biases = (grad_input.sum(0), grad_hidden.sum(0)) if has_bias else (None, None)
    return (grad_input, grad_hidden, grad_hy * z, *biases)


def install() -> torch.library.Library:
    """Registers them for CUDA, for as long as the result lives."""
    library = torch.library.Library("aten", "IMPL")
    for name, kernel in (
        ("_thnn_fused_lstm_cell", lstm),
        ("_thnn_fused_lstm_cell_backward_impl", lstm_backward),
        ("_thnn_fused_gru_cell", gru),
        ("_thnn_fused_gru_cell_backward", gru_backward),
    ):
        library.impl(name, kernel, "CUDA")
    return library
