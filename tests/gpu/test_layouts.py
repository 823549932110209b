"""Sparse and nested tensors: the kernels that the simulated device has not."""

import pytest
import torch
from bits import assert_same_bits

ROWS = 512


def dense():
    return torch.randn(ROWS, ROWS) * (torch.rand(ROWS, ROWS) > 0.9)


def coo():
    sparse, x = dense().to_sparse().cuda(), torch.randn(ROWS, ROWS).cuda().requires_grad_()
    doubled = (sparse + sparse).coalesce()
    y = torch.sparse.mm(sparse, x)
    y.sum().backward()
    return doubled.to_dense(), y, x.grad


def csr():
    sparse = dense().cuda().to_sparse_csr()
    return sparse @ torch.randn(ROWS, ROWS).cuda(), (sparse * 3).to_dense()


def strided():
    parts = [torch.randn(rows, ROWS) for rows in (64, 128)]
    x = torch.nested.nested_tensor(parts, layout=torch.strided).cuda()
    y = (x * 2).relu()
    return torch.nested.to_padded_tensor(y, 0.0), torch.nested.to_padded_tensor(x, 0.0)


def jagged():
    parts = [torch.randn(rows, ROWS) for rows in (64, 128)]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged).cuda().requires_grad_()
    y = (x * 2).sin()
    y.values().sum().backward()
    return torch.nested.to_padded_tensor(y.detach(), 0.0), x.grad.values()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", [coo, csr, strided, jagged])
def test_layout(layout):
    assert_same_bits(layout, limit=4 << 20, stress=True)
