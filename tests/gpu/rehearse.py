"""Runs benchmarks' models at their full size without a GPU, and counts what the memory does.

    python tests/gpu/rehearse.py WORKLOAD [--part PART] [--iterations N] [--on-demand]

needs a torch with Large Model Support, torchvision and transformers. On the simulated device,
operators allocate their outputs and compute nothing, and nothing is copied. But PyTorch's own
allocator and LMS do what they do on a GPU of this size. Prints, for each iteration, what LMS moved,
and how often PyTorch's allocator found no memory, freed what it had cached, and tried again.

Operators that decompose, and workspaces, are not as on a GPU, so peaks can differ. Plans depend on
times, and these are the host's: nothing here says how fast anything is.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
CAPACITY = 100_000  # MiB; expandable segments reserve more addresses than that
LMS = ("page_out_count", "page_out_bytes", "page_in_count", "prefetch_count")
LMS += ("compacted_count", "compacted_bytes", "out_of_memory_retries")
LMS += ("planned_iterations", "plan_departures")
ALLOCATOR = ("num_alloc_retries", "num_device_alloc", "num_device_free")


def without_computing() -> Any:
    """A mode in which operators on CUDA tensors allocate their outputs, and do no more."""
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


def rehearse(name: str, part: float, iterations: int, planned: bool) -> None:
    import torch
    from planned import Training
    from workloads import GB, WORKLOADS

    with without_computing():
        training = Training(WORKLOADS[name])
        for _ in range(3):
            torch.cuda.reset_peak_memory_stats()
            training.step()
        peak = torch.cuda.max_memory_allocated()
        limit = int(part * peak)
        print(f"{name}: {peak / GB:.2f} GB in memory, limit {limit / GB:.2f} GB", flush=True)
        torch.cuda.empty_cache()
        torch.cuda.set_limit_lms(limit)
        torch.cuda.set_enabled_lms(True)
        torch.cuda.lms.set_planning(planned)
        torch.cuda.lms._keep_plans(True)
        for number in range(iterations):
            before = counts()
            training.step()
            torch.cuda.lms._wait_for_plans()
            after = counts()
            changes = (f"{key.replace('num_', '')} {after[key] - before[key]}" for key in after)
            print(f"{number}: {', '.join(changes)}", flush=True)


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
    parser.add_argument("--late", action="store_true", help="the host sees no event as done")
    parser.add_argument("--fixed-segments", action="store_true", help="not expandable ones")
    options = parser.parse_args(arguments)
    if not options.fixed_segments:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    sys.path.append(str(TESTS / "simcuda"))
    from simcuda.device import start

    start(mib=CAPACITY, race=0, poison=0, bytes=0, query_notready=int(options.late))
    rehearse(options.workload, options.part, options.iterations, not options.on_demand)
    sys.stdout.flush()
    os._exit(0)  # the model is freed with the process


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
