"""A Triton kernel that is launched by hand, and inside of compiled code."""

import gc

import pytest
import torch
from bits import lms

triton = pytest.importorskip("triton", reason="there is no triton")
tl = pytest.importorskip("triton.language")

ELEMENTS = 1 << 20


@triton.jit
def scaled_sum(a, b, result, count, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < count
    total = tl.load(a + index, mask=mask) * 2 + tl.load(b + index, mask=mask)
    tl.store(result + index, total, mask=mask)


@triton.autotune([triton.Config({"BLOCK": size}) for size in (256, 1024)], key=["count"])
@triton.jit
def tuned_sum(a, b, result, count, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < count
    total = tl.load(a + index, mask=mask) * 2 + tl.load(b + index, mask=mask)
    tl.store(result + index, total, mask=mask)


def launch(a, b, result):
    scaled_sum[(triton.cdiv(ELEMENTS, 1024),)](a, b, result, ELEMENTS, BLOCK=1024)


def values(start):
    return (torch.arange(ELEMENTS, dtype=torch.float32) % 1021) + start


@pytest.mark.parametrize("paged_out", [True, False])
def test_launch(paged_out):
    gc.collect()
    with lms(limit=0):
        held = torch.cuda.lms.stats()["held_bytes"]  # by what other tests have left
        a, b = values(0).cuda(), values(5).cuda()
        result = torch.zeros(ELEMENTS, device="cuda")
        for tensor in (a, b, result):
            tensor.sum()
        if paged_out:
            torch.cuda.reclaim_inactive()
            assert not torch.cuda.lms.is_resident(a)
        for _ in range(3):
            launch(a, b, result)
            torch.cuda.reclaim_inactive()
            assert not torch.cuda.lms.is_resident(result), "the launch has ended"
            assert torch.equal(result.cpu(), values(0) * 2 + values(5))
        assert torch.cuda.lms.stats()["held_bytes"] == held


def test_a_kernel_that_is_tuned():
    with lms(limit=0, stress=True):
        a, b = values(0).cuda(), values(5).cuda()
        result = torch.zeros(ELEMENTS, device="cuda")
        for _ in range(2):
            tuned_sum[lambda meta: (triton.cdiv(ELEMENTS, meta["BLOCK"]),)](a, b, result, ELEMENTS)
            torch.cuda.reclaim_inactive()
            assert not torch.cuda.lms.is_resident(result), "the launch has ended"
            assert torch.equal(result.cpu(), values(0) * 2 + values(5))


def test_launch_in_compiled_code():
    @torch.compile(fullgraph=True)
    def function(a, b):
        result = torch.empty_like(a)
        launch(a.sin(), b, result)
        return result.cos()

    expected = function(values(0).cuda(), values(5).cuda())
    with lms(limit=0, stress=True):
        a, b = values(0).cuda(), values(5).cuda()
        for _ in range(2):
            result = function(a, b)
            torch.cuda.reclaim_inactive()
            assert not torch.cuda.lms.is_resident(a)
            assert torch.equal(result, expected)


def test_launch_in_an_operator():
    @torch.library.custom_op("lms_gpu::scaled_sum", mutates_args=())
    def operator(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        result = torch.empty_like(a)
        launch(a, b, result)
        return result

    with lms(limit=0, stress=True):
        a, b = values(0).cuda(), values(5).cuda()
        results = [operator(a, b) for _ in range(3)]
        torch.cuda.reclaim_inactive()
        assert not torch.cuda.lms.is_resident(a), "its operator has ended"
        for result in results:
            assert torch.equal(result.cpu(), values(0) * 2 + values(5))
