"""Copies between host and devices, and the current device they are made on."""

import pytest
import torch
from stress import assert_same_bits
from tensors import evict, managed, pattern
from torch.utils.data import DataLoader, TensorDataset
from training import WIDTH, inputs

ROWS = 512


def test_current_device_that_changes():
    def run():
        x = inputs(WIDTH)
        with torch.cuda.device(1):
            y = x.cuda() @ torch.randn(WIDTH, WIDTH).cuda()
            z = x @ x  # of the other device
        torch.cuda.set_device(1)
        try:
            w = y.to("cuda:0") + z
            v = w * 2 + x
        finally:
            torch.cuda.set_device(0)
        return x, y, z, w, v

    assert_same_bits(run)


@pytest.mark.parametrize("non_blocking", [False, True])
def test_peer_copies_while_the_source_is_written(non_blocking):
    def run():
        x = inputs(ROWS)
        y = torch.empty_like(x, device="cuda:1")
        torch.cuda.reclaim_inactive()
        y.copy_(x, non_blocking=non_blocking)
        x.zero_()
        back = torch.empty_like(x).copy_(y, non_blocking=non_blocking)
        return x, y + 1, back

    assert_same_bits(run)


def test_copies_from_and_to_pinned_memory():
    def run():
        source = torch.randn(ROWS, WIDTH).pin_memory()
        target = torch.empty_like(source).pin_memory()
        x = source.cuda(non_blocking=True) * 2
        torch.cuda.reclaim_inactive()
        target.copy_(x, non_blocking=True)
        x.zero_()
        # The host may write the source again once the copy from it has run.
        torch.cuda.synchronize()
        source.zero_()
        return target, x

    assert_same_bits(run)


def test_page_out_behind_a_copy_to_pinned_memory():
    x = managed(pattern(2))
    target = torch.empty(x.shape, pin_memory=True)
    evict()
    target.copy_(x, non_blocking=True)
    evict()
    x.add_(1)
    torch.cuda.synchronize()
    assert torch.equal(target, pattern(2, device="cpu"))
    assert torch.equal(x.cpu(), pattern(2, start=1, device="cpu"))


def test_data_loader_with_pinned_memory():
    def run():
        data = TensorDataset(torch.randn(64, WIDTH), torch.arange(64))
        loader = DataLoader(data, batch_size=16, pin_memory=True)
        batches = [[part.cuda(non_blocking=True) for part in batch] for batch in loader]
        return [(x * 2, y + 1) for x, y in batches]

    assert_same_bits(run)
