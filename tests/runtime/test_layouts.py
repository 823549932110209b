"""Sparse and nested tensors: several storages behind one tensor."""

import pytest
import torch
from releases import since
from stress import assert_same_bits
from tensors import evict, is_resident, managed

ROWS = 32


def dense() -> torch.Tensor:
    return torch.randn(ROWS, ROWS) * (torch.rand(ROWS, ROWS) > 0.8)


def nested(layout: torch.layout) -> torch.Tensor:
    parts = [torch.randn(rows, ROWS) for rows in (3, 5, 40)]
    return torch.nested.nested_tensor(parts, layout=layout).cuda()


# The simulated device has no cuSPARSE, and none of the kernels that are no operators.
def coo():
    sparse = dense().to_sparse().cuda()
    return (sparse * 3)._values(), sparse.neg()._values(), sparse._indices() + 1


def csr():
    sparse = dense().to_sparse_csr().cuda()
    return (sparse * 3).values(), sparse.crow_indices() + 1, sparse.clone().values()


def strided():
    doubled = nested(torch.strided) * 2
    return list(doubled.relu().unbind()), list((doubled + doubled).unbind())


def jagged():
    x = nested(torch.jagged).requires_grad_()
    y = (x * 2).sin()
    y.values().sum().backward()
    padded = torch.nested.to_padded_tensor(y.detach(), 0.0)
    return y.values(), x.grad.values(), padded, y.offsets()


COMPRESSED = since((2, 0), "compressed layouts that the simulated device can copy")
NESTED = since((2, 1), "layouts of nested tensors")


@pytest.mark.parametrize(
    "layout",
    [
        coo,
        pytest.param(csr, marks=COMPRESSED),
        pytest.param(strided, marks=NESTED),
        pytest.param(jagged, marks=NESTED),
    ],
)
def test_layout(layout):
    assert_same_bits(layout)


WITH_PARTS = {
    "coo": (lambda: dense().to_sparse().cuda(), lambda t: (t._indices(), t._values())),
    "csr": (lambda: dense().to_sparse_csr().cuda(), lambda t: (t.col_indices(), t.values())),
    "csc": (lambda: dense().to_sparse_csc().cuda(), lambda t: (t.row_indices(), t.values())),
    "strided": (lambda: nested(torch.strided), lambda t: t.unbind()[:1]),
    "jagged": (lambda: nested(torch.jagged), lambda t: (t.values(), t.offsets())),
}


@pytest.mark.parametrize(
    "layout",
    [
        "coo",
        pytest.param("csr", marks=COMPRESSED),
        pytest.param("csc", marks=COMPRESSED),
        pytest.param("strided", marks=NESTED),
        pytest.param("jagged", marks=NESTED),
    ],
)
def test_resident_holds_every_part(layout):
    make, parts_of = WITH_PARTS[layout]
    torch.cuda.set_size_lms(1)
    tensor = make()
    parts = [managed(part) for part in parts_of(tensor)]
    evict()
    assert not torch.cuda.lms.is_resident(tensor)
    with torch.cuda.lms.resident(tensor):
        evict()
        assert all(is_resident(part) for part in parts)
        assert torch.cuda.lms.is_resident(tensor)
    evict()
    assert not any(is_resident(part) for part in parts)
