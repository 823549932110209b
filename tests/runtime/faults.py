"""Makes each call of a CUDA function fail in turn, and checks what that leaves behind."""

from __future__ import annotations

from itertools import count

import torch
from conftest import DEVICE
from tensors import evict

OUT_OF_MEMORY = 2
NOT_READY = 600
UNKNOWN = 999

Values = dict[str, torch.Tensor]


class Job:
    """Work that causes page-outs, and that can be repeated with the same values."""

    limit = 0  # bytes; 0 means automatic
    quick = True

    def tensors(self) -> Values:
        """The tensors that exist across runs."""
        raise NotImplementedError

    def run(self) -> list[torch.Tensor]:
        """The work during which calls fail. PyTorch itself copies nothing here."""
        raise NotImplementedError

    def halfway(self, name: str, value: torch.Tensor) -> list[torch.Tensor]:
        """The values that a tensor may have after a failed run, besides those of a complete run."""
        return []

    def clear(self) -> None:
        """Frees what a run has left behind."""

    def prepare(self) -> None:
        """Called directly before a run."""
        evict()
        torch.cuda.set_limit_lms(self.limit)

    def restore(self, values: Values) -> None:
        self.clear()
        for name, tensor in self.tensors().items():
            tensor.copy_(values[name])
        self.prepare()


class Sweep:
    """A job, and its results when nothing fails."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.before = _read(job.tensors())
        job.restore(self.before)
        self.account = _account()
        job.restore(self.before)
        self.results = [tensor.cpu() for tensor in job.run()]
        job.clear()
        self.after = _read(job.tensors())

    def calls(self, api: str) -> int:
        """How often a run without a fault calls the function."""
        self.job.restore(self.before)
        DEVICE.reset_counts()
        self.job.run()
        calls = DEVICE.count(api)
        self.job.clear()
        return calls

    def fail_each(self, api: str, error: int, from_: bool = False, stride: int = 1) -> int:
        """Runs the job once for each call of `api` (or each stride-th) that can fail.

        Returns how many runs raised an exception.
        """
        raised = 0
        for nth in count(1, stride):
            where = f"{api} fails {'from the' if from_ else 'at'} call {nth}{' on' * from_}"
            message = self.try_with(where, lambda n=nth: DEVICE.fault(api, n, error, from_))
            raised += bool(message)
            if self.called[api] < nth:
                assert not message, f"nothing failed, and the job raised {message}"
                return raised
        raise AssertionError("not reached")

    def try_with(self, where: str, arrange, repair=DEVICE.clear_faults) -> str:
        """Runs the job with a fault and then without; returns the message of the exception."""
        job = self.job
        job.restore(self.before)
        DEVICE.clear_races()
        DEVICE.reset_counts()
        arrange()
        results, message = [], ""
        try:
            results = job.run()
        except RuntimeError as error:  # OutOfMemoryError is one
            message = str(error)
            assert message, f"{where}: an exception without a message"
        self.called = DEVICE.counts()
        repair()
        if not message:
            self.expect(where, results, self.results)
        else:
            for tensor in job.tensors().values():
                # If a copy was not waited for, it may still write to the memory of this tensor.
                torch.ones(tensor.shape, device="cuda")
        del results
        job.clear()
        for name, now in _read(job.tensors()).items():
            possible = [self.after[name]]
            if message:
                possible += [self.before[name], *job.halfway(name, self.before[name])]
            assert any(_same(now, value) for value in possible), f"{where}: {name} is lost"
        account = _account()
        assert account == self.account, (
            f"{where}: what is in use was {self.account} and became {account}"
        )
        job.restore(self.before)
        self.expect(f"{where}, the next run", job.run(), self.results)
        job.clear()
        for name, now in _read(job.tensors()).items():
            assert _same(now, self.after[name]), f"{where}, the next run: {name}"
        assert DEVICE.races() == [], where
        return message

    @staticmethod
    def expect(where, tensors, values):
        for i, (tensor, value) in enumerate(zip(tensors, values, strict=True)):
            assert _same(tensor.cpu(), value), f"{where}: result {i} differs"


def _read(tensors: Values) -> Values:
    return {name: tensor.cpu() for name, tensor in tensors.items()}


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def _let_go() -> None:
    """Waits until autograd's threads have freed what the last backward pass used.

    When backward() raises, the thread whose node failed still has the node and its tensors. It
    frees them before it takes the next node. Empty tensors have no memory of their own.
    """
    for index in range(torch.cuda.device_count()):
        x = torch.empty(0, device=index, requires_grad=True)
        x.clone().backward(x.detach())


def _account() -> dict[str, int]:
    """What is in use after all idle storages are paged out. Shows leaks, lost pins and holds."""
    _let_go()
    evict()
    stats = torch.cuda.lms.stats()
    names = ("resident_bytes", "paged_out_bytes", "held_bytes")
    # How much a compressed tensor takes depends on when LMS has seen that its copy has ended.
    host = stats["host_used_bytes"] - stats["host_compressed_bytes"]
    host += stats["host_compressed_tensor_bytes"]
    for index in range(2):
        torch.cuda.lms.reserve_host(0, index)  # so that a slab that is being pinned is counted
    live = DEVICE.live()
    pinned = sum(torch.cuda.lms.stats(i)["host_bytes"] for i in range(2))
    return {
        **{name: stats[name] for name in names},
        "host bytes of tensors": host,
        "pinned_bytes": torch.cuda.memory_stats()["pinned_bytes.all.current"],
        "allocated": torch.cuda.memory_allocated(),
        "streams": live["streams"],
        "host bytes unaccounted for": live["host_bytes"] - pinned,
    }
