"""Runs benchmarks' models at their full size without a GPU, in a model of time.

    python tests/gpu/rehearse.py WORKLOAD [--part PART] [--iterations N] [--on-demand]
    python tests/gpu/rehearse.py WORKLOAD --trace FILE

needs a torch with Large Model Support, torchvision and transformers. On the simulated device,
operators allocate their outputs and compute nothing, and nothing is copied. But PyTorch's own
allocator and LMS do what they do on a GPU of this size, and LMS takes as much host memory for it.
Operators and copies have durations, which streams and events add up
(tests/simcuda/device/clockwork.h). Those of operators are estimates from an H200's peak rates,
scaled so that an iteration in memory takes as long as measured. Prints how long each iteration
would take, what LMS moved, and how often PyTorch's allocator found no memory, freed what it had
cached, and tried again. With --trace, writes a trace of the model in memory, for `lmsbuild
simulate`.

This shows where the host and the device would wait for each other. How fast a GPU is, only a GPU
says: operators that decompose, workspaces, and what copies and kernels do to each other are not as
there.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
GPU = "h200"
LINK = (52.0e9, 53.6e9)  # to the host and to the device, bytes per second: PCI Express 5.0
HOST_SECONDS = 10e-6  # that the host needs for an operator
CAPACITY = 100_000  # MiB; expandable segments reserve more addresses than that
LMS = ("page_out_count", "page_out_bytes", "page_in_count", "prefetch_count")
LMS += ("compacted_count", "compacted_bytes", "out_of_memory_retries")
LMS += ("planned_iterations", "plan_departures")
ALLOCATOR = ("num_alloc_retries", "num_device_alloc", "num_device_free")


class Durations:
    """How long operators take. They are multiplied with ``scale``."""

    def __init__(self, device: Any) -> None:
        sys.path.append(str(TESTS.parent))
        import torch.cuda.lms_fake.cost as cost

        from lmsbuild.simulate.gpu import gpus

        self._device = device
        self._cost = cost
        self._gpu = cost.Gpu(**gpus()[GPU].as_dict())
        self.scale = 1.0

    def spend(self, func: Any, args: Any, kwargs: Any, result: Any, tensors: Sequence[Any]) -> None:
        import torch

        seconds = self._cost.seconds_of(self._gpu, func, args, kwargs, result, bytes_of(tensors))
        stream = torch.cuda.current_stream()
        number = stream.device.index
        self._device.takes(stream.cuda_stream, number, seconds * self.scale, HOST_SECONDS)


def bytes_of(tensors: Sequence[Any]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def without_computing(durations: Durations, workspace: float) -> Any:
    """A mode in which operators on CUDA tensors allocate their outputs, and do no more.

    A convolution allocates a workspace, too: so many times the bytes of its tensors.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves, tree_map_only

    def like(tensor: Any, device: str) -> Any:
        return torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device
        )

    def attention(q: Any, k: Any, v: Any, *_: Any, is_causal: bool = False, **__: Any) -> Any:
        # The choice of a kernel needs a real GPU.
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal)[0]

    torch.nn.functional.scaled_dot_product_attention = attention
    aten = torch.ops.aten
    same = (aten.detach.default, aten.alias.default, aten._unsafe_view.default)

    class WithoutComputing(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            leaves = tree_leaves((args, kwargs))
            on_device = any(isinstance(x, torch.Tensor) and x.is_cuda for x in leaves)
            made = str(kwargs.get("device", "")).startswith("cuda")
            if not (on_device or made) or func.is_view or func in same:
                return func(*args, **kwargs)
            if func is aten._local_scalar_dense.default:
                return 1.0
            result = self._result(func, args, kwargs, made)
            used = [x for x in (*leaves, *tree_leaves(result)) if isinstance(x, torch.Tensor)]
            if workspace and "convolution" in func._schema.name:
                size = int(workspace * bytes_of(used))
                # As for cuDNN: from PyTorch's allocator, and not as a tensor of the program.
                torch.UntypedStorage(size, device="cuda")
            durations.spend(func, args, kwargs, result, used)
            return result

        @staticmethod
        def _result(func: Any, args: Any, kwargs: Any, made: bool) -> Any:
            schema = func._schema
            if not schema.returns:
                return None
            for place, argument in enumerate(schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    return args[place] if place < len(args) else kwargs[argument.name]
            if made:
                kwargs = {**kwargs, "device": "meta"}
            args, kwargs = tree_map_only(torch.Tensor, lambda t: like(t, "meta"), (args, kwargs))
            return tree_map_only(torch.Tensor, lambda t: like(t, "cuda"), func(*args, **kwargs))

    return WithoutComputing()


def rehearse(device: Any, options: argparse.Namespace) -> None:
    import torch
    from planned import Training, record
    from workloads import GB, WORKLOADS

    def timed(what: Callable[[], Any]) -> float:
        """Seconds until the current stream is done."""
        began = device.host_time()
        what()
        torch.cuda.current_stream().synchronize()
        return float(device.host_time() - began)

    workload = WORKLOADS[options.workload]
    durations = Durations(device)
    with without_computing(durations, options.workspace):
        training = Training(workload)
        for _ in range(3):
            torch.cuda.reset_peak_memory_stats()
            seconds = timed(training.step)
        if workload.seconds:
            durations.scale = workload.seconds / seconds
        if options.trace:
            record(training, options.trace)
            return
        forward = timed(training.forward)
        seconds = timed(training.step)
        peak = torch.cuda.max_memory_allocated()
        limit = int(options.part * peak)
        out = max(forward, (peak - limit) / LINK[0])
        bound = out + max(seconds - forward, (peak - limit) / LINK[1])
        print(
            f"{options.workload}: {seconds * 1e3:.1f} ms and {peak / GB:.2f} GB in memory; "
            f"limit {limit / GB:.2f} GB, bound {bound * 1e3:.1f} ms",
            flush=True,
        )
        # Without host memory, page-outs fail, and the limit gives way.
        excess, available = peak - limit, available_bytes()
        if excess > available:
            sys.exit(
                f"rehearse: LMS keeps {excess / GB:.1f} GB or more in host memory, of which "
                f"{available / GB:.1f} GB are available; choose a larger --part"
            )
        torch.cuda.empty_cache()
        torch.cuda.set_limit_lms(limit)
        torch.cuda.set_enabled_lms(True)
        torch.cuda.lms.set_planning(not options.on_demand)
        torch.cuda.lms._keep_plans(True)
        for number in range(options.iterations):
            before = counts()
            seconds = timed(training.step)
            torch.cuda.lms._wait_for_plans()
            after = counts()
            changes = {key.replace("num_", ""): after[key] - before[key] for key in after}
            text = ", ".join(f"{key} {change}" for key, change in changes.items() if change)
            print(f"{number}: {seconds * 1e3:.1f} ms, {text}", flush=True)


def available_bytes() -> int:
    """Bytes of host memory that can be had without swapping, as Linux estimates them."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":") for line in lines)
    return 1024 * int(fields["MemAvailable"].split()[0])


def counts() -> dict[str, int]:
    import torch

    native = torch.cuda.memory_stats()
    lms = torch.cuda.lms.stats()
    return {key: lms[key] for key in LMS} | {key: native.get(key, 0) for key in ALLOCATOR}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", metavar="WORKLOAD", help="as in workloads.py")
    parser.add_argument("--part", type=float, default=0.85, help="limit as a part of the peak")
    parser.add_argument("--iterations", type=int, default=12, metavar="N")
    parser.add_argument("--on-demand", action="store_true", help="without plans")
    parser.add_argument(
        "--workspace",
        type=float,
        default=0,
        metavar="PART",
        help="of each convolution, as a part of the bytes of its tensors",
    )
    parser.add_argument("--trace", metavar="FILE", help="only record the model in memory")
    parser.add_argument("--fixed-segments", action="store_true", help="not expandable ones")
    options = parser.parse_args(arguments)
    if not options.fixed_segments:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    sys.path.append(str(TESTS / "simcuda"))
    from simcuda.device import start

    to_host, to_device = (int(rate / 1e6) for rate in LINK)
    device = start(
        mib=CAPACITY, race=0, poison=0, bytes=0, timing=1, to_host=to_host, to_device=to_device
    )
    rehearse(device, options)
    sys.stdout.flush()
    os._exit(0)  # the model is freed with the process


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
