"""Threads that use LMS at the same time: for ThreadSanitizer, see ci/sanitizers.py."""

import threading

import torch
from tensors import evict, is_resident, pattern

THREADS = 4
ROUNDS = 12


def run_together(work):
    """Calls work(index) in each thread at the same time; raises what one of them raised."""
    barrier = threading.Barrier(THREADS)
    errors = []

    def body(index):
        barrier.wait()
        try:
            work(index)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(index,)) for index in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_operators_page_outs_and_statistics():
    shared = pattern(0.25)
    expected = pattern(0.25, device="cpu") * 4

    def work(index):
        for turn in range(ROUNDS):
            if index == 0:
                torch.cuda.lms._set_stress(turn % 2 == 0)
                torch.cuda.set_limit_lms(turn % 3 << 20)
            mine = shared * 2
            torch.cuda.lms.stats()
            mine.add_(shared)
            evict()
            is_resident(shared)
            with torch.cuda.lms.resident(mine):
                mine.add_(shared)
            assert torch.equal(mine.cpu(), expected)

    run_together(work)


def test_the_moment_from_which_lms_looks_at_operators():
    shared = pattern(0.25)
    expected = pattern(0.25, device="cpu") * 5
    waiting = threading.Barrier(THREADS)

    def work(index):
        for turn in range(ROUNDS):
            if index == 0:
                torch.cuda.set_enabled_lms(False)
                torch.cuda.set_limit_lms(0)
                torch.cuda.set_enabled_lms(True)
            waiting.wait(60)
            mine = shared * 2
            if index == turn % THREADS:
                torch.cuda.set_limit_lms(1)
            for _ in range(3):
                mine.add_(shared)
            evict()
            assert torch.equal(mine.cpu(), expected)
            waiting.wait(60)

    run_together(work)


def test_backward_passes():
    # Their operators run on autograd's thread, one for the device.
    weight = pattern(0.25).requires_grad_()
    torch.cuda.lms._set_stress(True)

    def work(_):
        for _ in range(ROUNDS // 4):
            (gradient,) = torch.autograd.grad((weight * weight).sum(), weight)
            assert torch.equal(gradient, weight.detach() * 2)

    run_together(work)
