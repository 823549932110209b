"""Runs jobs: `python worker.py sim|gpu`, with one JSON object per job on standard input.

Each job has a process of its own, because what a job sets cannot be taken back: the memory cap, the
allocator's cache, whether LMS was ever on. It is forked from one that has imported torch, which
takes longer than most jobs.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from job import MODELS, Ending, Job, Mode, Report

# Small enough that the small tensors of the simulated scale are swapped too.
SIM_LMS_SIZE = 128 << 10  # bytes


def tensors(value: Any) -> Iterator[tuple[str, Any]]:
    """Everything in nested dicts and lists, each with where it is, in a fixed order."""
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            for name, item in tensors(value[key]):
                yield f"{key}.{name}", item
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            for name, item in tensors(part):
                yield f"{index}.{name}", item
    else:
        yield "", value


def digest(value: Any) -> str:
    """SHA-256 of every byte of every tensor in `value`, and of all else as text."""
    import torch

    sha = hashlib.sha256()
    for name, item in tensors(value):
        if isinstance(item, torch.Tensor):
            host = item.detach().cpu().contiguous()
            sha.update(f"{name} {host.dtype} {tuple(host.shape)}\n".encode())
            sha.update(ctypes.string_at(host.data_ptr(), host.numel() * host.element_size()))
        else:
            sha.update(f"{name} {item!r}\n".encode())
    return sha.hexdigest()


class OperatorSizes:
    """Finds the operator with the most bytes of inputs and outputs; views count as their base."""

    def __init__(self) -> None:
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils._pytree import tree_flatten

        sizes = self
        self.bytes = 0
        self.name = ""

        class Watch(TorchDispatchMode):
            def __torch_dispatch__(
                self, op: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                result = op(*args, **(kwargs or {}))
                leaves, _ = tree_flatten((args, kwargs, result))
                sizes.count(str(op), [leaf for leaf in leaves if hasattr(leaf, "storage_offset")])
                return result

        self.watch = Watch()

    def count(self, name: str, used: list[Any]) -> None:
        # Before 2.0 it has another name.
        own = [getattr(t, "untyped_storage", None) or t._storage for t in used if t.is_cuda]
        storages = {storage().data_ptr(): storage().nbytes() for storage in own}
        if sum(storages.values()) > self.bytes:
            self.bytes, self.name = sum(storages.values()), name


class Lms:
    """The job's LMS settings, and what LMS counted. Never loads LMS when the job has it off."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def enable(self) -> None:
        import torch

        if not self.job.lms:
            return
        if self.job.simulated:
            torch.cuda.set_size_lms(SIM_LMS_SIZE)
        torch.cuda.set_limit_lms(self.job.limit_bytes)
        torch.cuda.set_enabled_lms(True)

    def counts(self) -> dict[str, int]:
        import torch

        if not self.job.lms:
            return {}
        import torch.cuda.lms

        stats = torch.cuda.lms.stats()
        return {
            "page_out_bytes": stats["page_out_bytes"],
            "page_in_bytes": stats["page_in_bytes"],
            "out_of_memory_caught": stats["out_of_memory_caught"],
            "pinned_blocks": torch.cuda.memory_stats()["pinned.all.current"],
            "pinned_peak_bytes": torch.cuda.memory_stats()["pinned_bytes.all.peak"],
            "resident_peak_bytes": stats["resident_bytes_peak"],
        }


def train(workload: Any, model: Any) -> tuple[list[str], str]:
    """Losses as hexadecimal floats, and the digest of the state that training left."""
    import torch

    model.train()
    optimizer = workload.optimizer(model.parameters())
    losses = []
    for _ in range(workload.steps):
        optimizer.zero_grad(set_to_none=True)
        for _ in range(workload.accumulation):
            batch = [part.cuda() for part in workload.batch()]
            loss = workload.loss(model, *batch) / workload.accumulation
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
    torch.cuda.synchronize()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    return [loss.item().hex() for loss in losses], digest(state)


def infer(workload: Any, model: Any) -> tuple[list[str], str]:
    """Digests of each request's inputs and outputs, and of the model."""
    import torch

    model.eval()
    held = []
    with torch.no_grad():
        for _ in range(workload.requests):
            inputs = [part.cuda() for part in workload.batch()[: workload.inputs]]
            held.append((inputs, model(*inputs)))
    torch.cuda.synchronize()
    return [digest(request) for request in held], digest(model.state_dict())


def work(job: Job, races: Callable[[], tuple[str, ...]]) -> Report:
    import models
    import torch

    torch.manual_seed(0)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    if job.expandable_segments:
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    if job.cap_bytes:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(job.cap_bytes / total)
    lms = Lms(job)
    if job.oracle:
        # As PYTORCH_LMS_ORACLE does when torch is imported, which was for all jobs.
        torch.cuda.lms._start_oracle()
    if not job.enable_late:
        lms.enable()

    workload = models.build(job.model, models.Scale.SIM if job.simulated else models.Scale.GPU)
    facts: dict[str, Any] = {
        "cap_share": workload.cap_share if job.mode is Mode.TRAIN else workload.infer_cap_share
    }
    values: list[str] = []
    state = ""
    started = time.monotonic()
    ending, message = Ending.FINISHED, ""
    try:
        model = workload.model.cuda()
        if job.enable_late:
            lms.enable()
        torch.cuda.reset_peak_memory_stats()
        run = train if job.mode is Mode.TRAIN else infer
        if job.measure_operators:
            sizes = OperatorSizes()
            with sizes.watch:
                values, state = run(workload, model)
            facts.update(largest_operator_bytes=sizes.bytes, largest_operator=sizes.name)
        else:
            values, state = run(workload, model)
    except torch.cuda.OutOfMemoryError as error:
        ending, message = Ending.OUT_OF_MEMORY, str(error)
    except Exception:
        ending, message = Ending.ERROR, traceback.format_exc()
    return Report(
        ending=ending,
        message=message,
        values=tuple(values),
        state_sha256=state,
        peak_bytes=torch.cuda.max_memory_allocated(),
        peak_reserved_bytes=torch.cuda.max_memory_reserved(),
        races=races(),
        seconds=time.monotonic() - started,
        **facts,
        **lms.counts(),
    )


def run_job(job: Job, device: Any) -> Report:
    """What a process made for one job does."""
    if device is None:
        return work(job, tuple)
    device.set_cap(job.device_bytes)
    return work(job, lambda: tuple(device.races()))


def start(simulated: bool) -> Any:
    """Imports torch, and returns the simulated device if it is to run on one.

    CUDA must not be initialized: a process forked after that cannot use it.
    """
    # cuBLAS is deterministic only with a workspace of a fixed size.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    device = None
    if simulated:
        import simcuda

        device = simcuda.start(mib=64)
    import torch

    # Sums depend on how many threads share them, and idle threads spin on a busy machine.
    torch.set_num_threads(1)
    # Here, because it imports a thousand modules.
    torch.use_deterministic_algorithms(True)
    # The fill is a kernel for every tensor made, and nothing here reads what it has not written.
    if hasattr(torch.utils, "deterministic"):  # since 2.2
        torch.utils.deterministic.fill_uninitialized_memory = False
    for name in MODELS:
        importlib.import_module(f"models.{name}")
    return device


def serve(simulated: bool) -> None:
    """Runs each job of standard input, and prints its process's exit status."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    device = start(simulated)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            # Ends a job that hangs, wherever it does.
            signal.alarm(request["timeout_seconds"])
            with open(request["log"], "wb", buffering=0) as log:
                os.dup2(log.fileno(), sys.stdout.fileno())
                os.dup2(log.fileno(), sys.stderr.fileno())
            report = run_job(Job.from_json(request["job"]), device)
            Path(request["report"]).write_text(report.to_json())
            return  # not _exit(): leaving Python with LMS on is part of the job
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=replies, flush=True)


if __name__ == "__main__":
    serve(simulated=sys.argv[1] == "sim")
