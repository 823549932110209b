"""A Triton kernel that is launched by hand: Triton asks its arguments for data_ptr()."""

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


def launch(a, b, result):
    scaled_sum[(triton.cdiv(ELEMENTS, 1024),)](a, b, result, ELEMENTS, BLOCK=1024)


def values(start):
    return (torch.arange(ELEMENTS, dtype=torch.float32) % 1021) + start


@pytest.mark.parametrize("paged_out", [True, False])
def test_launch(paged_out):
    with lms(limit=0):
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
            assert torch.cuda.lms.is_resident(result), "its address was handed out"
        assert torch.equal(result.cpu(), values(0) * 2 + values(5))
        torch.cuda.lms.release(a, b, result)
        torch.cuda.reclaim_inactive()
        assert not torch.cuda.lms.is_resident(result)
        assert torch.equal(result.cpu(), values(0) * 2 + values(5))


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
