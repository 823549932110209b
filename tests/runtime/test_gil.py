"""Storages that only their Python objects own: a second reference to them takes the GIL."""

from __future__ import annotations

import pytest
from releases import since
from simcuda.process import run_sim


def freed_meanwhile(device, how):
    """A thread that has the GIL frees a storage, while LMS handles such storages in another one."""
    import ctypes
    import sys
    import threading

    import torch

    torch.cuda.set_size_lms(4096)
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    tensors = [torch.full((1 << 14,), float(k), device="cuda") for k in range(12)]
    total = sum(float(tensor[0]) for tensor in tensors)
    storages = [tensor.untyped_storage() for tensor in tensors]
    freed = torch.empty(20000, device="cuda").untyped_storage()
    if how == "move":
        torch.cuda.lms._set_shuffle(True)  # as a request that finds free memory in pieces
    else:
        torch.cuda.reclaim_inactive()
    del tensors[1::2]  # Python alone has the storages of these

    def work():
        if how == "move":
            torch.empty(20000, device="cuda")
        elif how == "off":
            torch.cuda.set_enabled_lms(False)
        else:
            storages[0].copy_(storages[1])  # the first is a tensor's, too; 0 becomes 1

    device.hold("cudaMemcpyAsync", seconds=0.2)
    thread = threading.Thread(target=work)
    thread.start()
    device.wait_for("cudaMemcpyAsync")
    sys.setswitchinterval(60)
    ctypes.PyDLL(None).usleep(500000)  # with the GIL, as any function in C
    del freed  # waits for the mutex of LMS
    sys.setswitchinterval(0.005)
    thread.join()
    torch.cuda.lms._set_shuffle(False)
    values = [float(torch.tensor([], device="cuda").set_(s)[0]) for s in storages]
    return sum(values) - total, device.races()


@since((2, 0), "Tensor.untyped_storage()")
@pytest.mark.parametrize("how", ["move", "off", "method"])
def test_a_thread_with_the_gil_frees_a_storage(how):
    assert run_sim(freed_meanwhile, how, timeout=60) == [1 if how == "method" else 0, []]
