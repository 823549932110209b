"""Threads that share tensors under a tight limit.

The simulated device counts all host threads as one, so it sees no races between them: what these
tests see is wrong bytes, errors, and threads that wait for each other forever.
"""

from simcuda.process import run_sim

TIMEOUT = 120  # seconds, for the scenario's process; it dumps its threads' stacks before


def shared_tensors(device, threads, rounds, seconds, own_streams):
    import faulthandler
    import random
    import threading

    import torch

    faulthandler.dump_traceback_later(seconds, exit=True)
    KIB = 1 << 10
    torch.cuda.set_size_lms(4 * KIB)
    torch.cuda.set_limit_lms(160 * KIB)
    torch.cuda.set_enabled_lms(True)

    def numbers(i):
        return torch.arange(4096 + 512 * i, dtype=torch.int32) % 1021 + i

    plain = [numbers(i) for i in range(12)]
    shared = [tensor.cuda() for tensor in plain]
    torch.cuda.synchronize()
    failures = []
    done = threading.Event()

    def check(what, found, expected):
        if not torch.equal(found.cpu(), expected):
            failures.append(what)

    def read(draw):
        i, j = sorted(draw.sample(range(12), 2))
        n = len(plain[i])
        check("add", shared[i] + shared[j][:n], plain[i] + plain[j][:n])
        check("cat", torch.cat([shared[i], shared[j]]), torch.cat([plain[i], plain[j]]))

    def write_own(draw):
        i = draw.randrange(12)
        own, expected = shared[i].clone(), plain[i].clone()
        for tensor in (own, expected):
            tensor[::3].mul_(2)
            torch._foreach_add_([tensor[:8], tensor[8:]], 5)
            old = not hasattr(tensor, "untyped_storage")  # before 2.0
            storage = tensor._storage() if old else tensor.untyped_storage()
            storage.resize_(storage.nbytes() + 64)
        check("write", own, expected)

    def backward(draw):
        i = draw.randrange(12)
        gradients = []
        for tensor in (shared[i], plain[i]):
            leaf = tensor.remainder(5).float().requires_grad_()
            # Parts that autograd runs in its own thread.
            (leaf[:2048] * leaf[-2048:] + leaf[:1]).relu().sum().backward()
            gradients.append(leaf.grad)
        check("gradient", *gradients)

    def cross_over(draw):
        i = draw.randrange(12)
        check("other device", shared[i].to("cuda:1") + 1, plain[i] + 1)

    def work(seed):
        draw = random.Random(seed)
        stream = torch.cuda.Stream() if own_streams else torch.cuda.default_stream()
        try:
            with torch.cuda.stream(stream):
                for _ in range(rounds):
                    draw.choice((read, write_own, backward, cross_over))(draw)
        except BaseException as error:
            failures.append(repr(error))

    def disturb():
        draw = random.Random(99)
        try:
            while not done.wait(0.001):
                torch.cuda.reclaim_inactive()
                torch.cuda.set_limit_lms(draw.choice((1, 80 * KIB, 160 * KIB, 0)))
                with torch.cuda.lms.resident(*shared[:2]):
                    torch.cuda.lms.stats()
                torch.cuda.lms.trim_host()
        except BaseException as error:
            failures.append(repr(error))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    disturber = threading.Thread(target=disturb)
    for thread in (*workers, disturber):
        thread.start()
    for thread in workers:
        thread.join()
    done.set()
    disturber.join()
    faulthandler.cancel_dump_traceback_later()
    for tensor, expected in zip(shared, plain, strict=True):
        check("shared", tensor, expected)
    page_ins = torch.cuda.lms.stats()["page_in_count"]
    shared.clear()
    del tensor
    torch.cuda.synchronize()
    left = torch.cuda.lms.stats()
    return {
        "failures": failures,
        "races": device.races(),
        "page_ins": page_ins,
        "left": {name: left[name + "_bytes"] for name in ("resident", "paged_out", "host_used")},
    }


def judge(result):
    assert result["failures"] == []
    assert result["races"] == []
    assert result["left"] == {"resident": 0, "paged_out": 0, "host_used": 0}
    assert result["page_ins"] > 0


def test_streams_of_their_own():
    judge(run_sim(shared_tensors, 4, 30, TIMEOUT - 20, True, devices=2, timeout=TIMEOUT))


def test_one_default_stream():
    judge(run_sim(shared_tensors, 4, 30, TIMEOUT - 20, False, devices=2, timeout=TIMEOUT))


def known_to_python(device, seconds):
    import faulthandler
    import threading

    import torch

    faulthandler.dump_traceback_later(seconds, exit=True)
    torch.cuda.set_size_lms(1 << 12)
    torch.cuda.set_enabled_lms(True)
    done = threading.Event()

    def page_out():
        while not done.is_set():
            torch.cuda.reclaim_inactive()

    thread = threading.Thread(target=page_out)
    thread.start()
    old = not hasattr(torch.Tensor, "untyped_storage")  # before 2.0
    rows = torch.arange(4096, dtype=torch.int32)
    wrong = 0
    for i in range(4000):
        tensor = (rows + i).cuda() + 1
        # The Python object lives as long as the storage.
        tensor._storage() if old else tensor.untyped_storage()
        if i % 100 == 0:
            wrong += not torch.equal(tensor.cpu(), rows + i + 1)
        del tensor
    done.set()
    thread.join()
    faulthandler.cancel_dump_traceback_later()
    return wrong, device.races()


def test_storages_with_a_python_object_die_while_they_are_paged_out():
    # Whoever drops the last reference of C++ to such a storage takes the GIL.
    assert run_sim(known_to_python, 60, timeout=TIMEOUT) == [0, []]
