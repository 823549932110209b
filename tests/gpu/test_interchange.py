"""CUDA IPC: another process reads and writes a tensor that would be paged out."""

import torch
import torch.multiprocessing as multiprocessing
from bits import lms

ELEMENTS = 1 << 20


def add_one(tensors, done):
    tensor = tensors.get(timeout=60)
    tensor.add_(1)
    torch.cuda.synchronize()
    del tensor
    done.put(True)


def test_ipc():
    context = multiprocessing.get_context("spawn")
    tensors, done = context.Queue(), context.Queue()
    with lms(limit=0):
        x = torch.arange(ELEMENTS, dtype=torch.float32).cuda()
        x.sum()
        torch.cuda.reclaim_inactive()
        assert not torch.cuda.lms.is_resident(x)
        process = context.Process(target=add_one, args=(tensors, done))
        process.start()
        tensors.put(x)
        assert done.get(timeout=100)
        process.join(60)
        torch.cuda.reclaim_inactive()
        assert torch.cuda.lms.is_resident(x), "its address is known to another process"
        assert torch.equal(x.cpu(), torch.arange(ELEMENTS, dtype=torch.float32) + 1)
    assert process.exitcode == 0
