"""Trains compiled models in less memory than they need, on a real GPU, beside other ways to do it.

    python tests/gpu/compiled.py --out DIR [--models NAME ...] [--rows NAME ...] [--shares X ...]

needs a torch with Large Model Support, Triton, transformers, timm and rich. Prints a table for each
model, and leaves compiled.json and compiled.md in DIR. Each model is a process of its own. All rows
of a model begin with the same weights and see the same batches, under deterministic settings, in
bfloat16 autocast, with AdamW(foreach=False). Exits with 1 if a row of compiled code with LMS has
other bits than the one without, or has more allocated than its limit.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

GB = 1e9
SHARES = (0.6, 0.3)
"""Limits, as shares of the peak of the compiled model without LMS."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    title: str
    compiled: bool = True
    share: float = 0.0  # the limit, of the peak without LMS; 0 is LMS off
    offload: dict[str, bool] = dataclasses.field(default_factory=dict)  # functorch's settings
    checkpoint: bool = False


def limited(shares: Sequence[float]) -> dict[str, Row]:
    """Rows of compiled code with LMS: compiled30 for 0.3."""
    percents = {f"{100 * share:g}": share for share in shares}
    return {
        f"compiled{percent}": Row(title=f"compiled, LMS, {percent}% of its peak", share=share)
        for percent, share in percents.items()
    }


ROWS = {
    "compiled": Row(title="compiled, LMS off"),
    **limited(SHARES),
    "eager": Row(title="eager, LMS off", compiled=False),
    "eager30": Row(title="eager, LMS, the same limit", compiled=False, share=SHARES[-1]),
    "offload": Row(
        title="compiled, enable_activation_offloading, everything marked",
        offload={"enable_activation_offloading": True},
    ),
    "overlap": Row(
        title="the same, with its overlap",
        offload={
            "enable_activation_offloading": True,
            "activation_offload_separate_stream": True,
            "activation_offload_sink_wait": True,
            "activation_reload_prefetch": True,
        },
    ),
    "checkpoint": Row(title="compiled, torch.utils.checkpoint", checkpoint=True),
}


def marks() -> Any:
    """A pass that marks every operator's output to be offloaded: unmarked ones stay."""
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Marks(CustomGraphPass):
        def __call__(self, graph: Any) -> None:
            for node in graph.nodes:
                if node.op == "call_function":
                    node.meta["should_offload"] = True

        def uuid(self) -> str:
            return "marks every operator"

    return Marks()


def mend_record_stream() -> None:
    """Gives the operator that overlap needs a function for fake tensors with its parameters.

    That of some releases has three parameters, but the operator has two, so compiling fails.
    """
    try:
        from torch._dynamo.variables.streams import record_stream
    except ImportError:
        return  # this release has no such operator
    record_stream.register_fake(lambda tensor, stream_index: None)


def offload(settings: Mapping[str, bool]) -> None:
    """Makes code that is compiled from now on offload activations, with functorch's settings."""
    import torch
    import torch._functorch.config
    import torch._inductor.config

    for key, value in settings.items():
        setattr(torch._functorch.config, key, value)
    mend_record_stream()
    torch._inductor.config.joint_custom_post_pass = marks()
    # Its prefetching measures operators, which Inductor refuses to do otherwise.
    torch.use_deterministic_algorithms(False)


class Trainer:
    """One model, its first weights and batches, and rows that train it."""

    def __init__(self, name: str, *, tiny: bool, iterations: int) -> None:
        import compiled_models
        import torch

        self.torch = torch
        torch.manual_seed(0)
        self.work = compiled_models.MODELS[name](tiny=tiny)
        self.model = self.work.model.cuda().train()
        self.first = {key: value.cpu().clone() for key, value in self.model.state_dict().items()}
        self.batches = [self.work.batch() for _ in range(iterations)]
        self.compiled: Any = None
        self.checkpoint = compiled_models.checkpoint

    def loss(self, model: Any) -> Callable[..., Any]:
        def loss(*batch: Any) -> Any:
            with self.torch.autocast("cuda", dtype=self.torch.bfloat16):
                return self.work.loss(model, *batch)

        return loss

    def start(self) -> Any:
        """The first weights again, and a new optimizer."""
        torch = self.torch
        self.model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for key, value in self.model.state_dict().items():
                value.copy_(self.first[key])
        torch.manual_seed(1)
        return torch.optim.AdamW(self.model.parameters(), lr=1e-4, foreach=False)

    def run(self, row: Row, limit: int) -> dict[str, Any]:
        """Seconds of each iteration and of its forward pass, bytes, losses and final weights."""
        torch = self.torch
        torch._dynamo.reset()
        if row.offload:
            offload(row.offload)
        forwards = [block.forward for block in self.work.blocks(self.model)]
        if row.checkpoint:
            for block in self.work.blocks(self.model):
                self.checkpoint(block)
        model = torch.compile(self.model) if row.compiled else self.model
        loss_of = self.loss(model)
        optimizer = self.start()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        if limit:
            torch.cuda.set_limit_lms(limit)
            torch.cuda.set_enabled_lms(True)
        result: dict[str, Any] = {"seconds": [], "forward": [], "losses": [], "moved": []}
        try:
            for number, batch in enumerate(self.batches):
                # What compiling and measuring allocates is not part of the peak.
                if number == 2:
                    torch.cuda.reset_peak_memory_stats()
                before = self.moved()
                torch.cuda.synchronize()
                began = time.perf_counter()
                optimizer.zero_grad(set_to_none=True)
                loss = loss_of(*(part.cuda() for part in batch))
                torch.cuda.synchronize()
                result["forward"].append(time.perf_counter() - began)
                loss.backward()
                optimizer.step()
                torch.cuda.synchronize()
                result["seconds"].append(time.perf_counter() - began)
                result["moved"].append([a - b for a, b in zip(self.moved(), before, strict=True)])
                result["losses"].append(loss.item().hex())
                del loss
            result["allocated"] = torch.cuda.max_memory_allocated()
            result["reserved"] = torch.cuda.max_memory_reserved()
            result["weights"] = [p.detach().cpu() for p in self.model.parameters()]
        finally:
            if limit:
                result["stats"] = torch.cuda.lms.stats()
            del optimizer
            self.model.zero_grad(set_to_none=True)
            if limit:
                torch.cuda.set_limit_lms(0)
                torch.cuda.set_enabled_lms(False)
                torch.cuda.reset_accumulated_memory_stats()
            for key in row.offload:
                setattr(torch._functorch.config, key, False)
            torch._inductor.config.joint_custom_post_pass = None
            torch.use_deterministic_algorithms(True)
            for block, forward in zip(self.work.blocks(self.model), forwards, strict=True):
                block.forward = forward
        return result

    def moved(self) -> tuple[int, int]:
        stats = self.torch.cuda.lms.stats()
        return stats.get("page_out_bytes", 0), stats.get("page_in_bytes", 0)


def link() -> tuple[float, float]:
    """Bytes per second from the GPU to the host, and back."""
    import torch

    host = torch.empty(1 << 29, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(1 << 29, dtype=torch.uint8, device="cuda")
    rates = []
    for target, source in ((host, device), (device, host)):
        times = []
        for _ in range(3):
            torch.cuda.synchronize()
            began = time.perf_counter()
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        rates.append(host.numel() / min(times))
    return rates[0], rates[1]


def settled(values: Sequence[float]) -> float:
    """The median of the last third. Before it, LMS works on demand, plans and tries compression."""
    return statistics.median(values[-max(1, len(values) // 3) :])


def bound(base: dict[str, Any], limit: int, rates: tuple[float, float]) -> float:
    """Seconds that an iteration takes at least.

    What exceeds the limit has to leave before the peak, during the forward pass, and to come back
    after it.
    """
    excess = max(0, base["allocated"] - limit)
    up = settled(base["forward"])
    down = settled(base["seconds"]) - up
    return max(up, excess / rates[0]) + max(down, excess / rates[1])


def measure(name: str, rows: list[str], *, tiny: bool, iterations: int) -> dict[str, Any]:
    import determinism
    import torch
    import torch._functorch.config
    import torch._inductor.config

    determinism.turn_on()
    torch.set_float32_matmul_precision("high")
    rates = link()
    trainer = Trainer(name, tiny=tiny, iterations=iterations)
    results: dict[str, Any] = {"title": trainer.work.title, "link": rates, "rows": {}}
    base: dict[str, Any] = {}
    for key in dict.fromkeys(["compiled", *rows]):
        row = ROWS[key]
        limit = int(row.share * base["allocated"]) if row.share else 0
        began = time.perf_counter()
        try:
            found = trainer.run(row, limit)
        except Exception as error:  # a row that fails is a result, too
            results["rows"][key] = {"error": f"{type(error).__name__}: {error}"[:300]}
            print(f"{name} {key}: {results['rows'][key]['error']}", flush=True)
            torch.cuda.empty_cache()
            if key == "compiled":
                break  # the other rows are compared with it
            continue
        weights = found.pop("weights")
        if key == "compiled":
            base = {**found, "weights": weights}
        found["limit"] = limit
        found["bound"] = bound(base, limit, rates) if limit else 0.0
        found["same"] = found["losses"] == base["losses"] and all(
            torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
            for a, b in zip(weights, base["weights"], strict=True)
        )
        del weights
        results["rows"][key] = found
        print(
            f"{name} {key}: {settled(found['seconds']) * 1e3:.1f} ms, "
            f"{found['allocated'] / GB:.2f} GB, same {found['same']}, "
            f"in all {time.perf_counter() - began:.1f} s",
            flush=True,
        )
    return results


def cells(results: dict[str, Any]) -> Iterator[dict[str, str]]:
    for key, found in results["rows"].items():
        cell = {"": ROWS[key].title}
        if "error" in found:
            names = ("limit GB", "allocated GB", "ms", "bound ms", "out GB", "in GB", "same bits")
            yield {**cell, **dict.fromkeys(names, ""), "same bits": found["error"][:60]}
            continue
        milliseconds = settled(found["seconds"]) * 1e3
        out, back = (settled([m[i] for m in found["moved"]]) for i in (0, 1))
        same = key != "compiled" and ROWS[key].share and ROWS[key].compiled
        yield {
            **cell,
            "limit GB": f"{found['limit'] / GB:.2f}" if found["limit"] else "",
            "allocated GB": f"{found['allocated'] / GB:.2f}",
            "ms": f"{milliseconds:.0f}",
            "bound ms": f"{found['bound'] * 1e3:.0f}" if found["limit"] else "",
            "out GB": f"{out / GB:.1f}" if out else "",
            "in GB": f"{back / GB:.1f}" if back else "",
            "same bits": ("yes" if found["same"] else "NO") if same else "",
        }


def wrong(results: dict[str, Any]) -> list[str]:
    """The rows of compiled code with LMS that did not do what they must."""
    return [
        key
        for key, found in results["rows"].items()
        if ROWS[key].share
        and ROWS[key].compiled
        and ("error" in found or not found["same"] or found["allocated"] > found["limit"])
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--models", nargs="+", metavar="NAME", default=["llama", "convnext", "bert", "unet"]
    )
    parser.add_argument("--rows", nargs="+", default=list(ROWS), metavar="NAME")
    parser.add_argument(
        "--shares", nargs="+", type=float, default=[], help="limits of additional rows"
    )
    parser.add_argument("--iterations", type=int, default=30, help="of each row")
    parser.add_argument("--tiny", action="store_true", help="models that can be simulated")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    more = limited(arguments.shares)
    ROWS.update(more)
    arguments.rows += [name for name in more if name not in arguments.rows]
    if unknown := set(arguments.rows) - set(ROWS):
        parser.error(f"no such rows: {', '.join(sorted(unknown))}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    options = {"tiny": arguments.tiny, "iterations": arguments.iterations}
    if arguments.one:
        (name,) = arguments.models
        found = measure(name, arguments.rows, **options)
        (arguments.out / f"{name}.json").write_text(json.dumps(found))
        return 0
    import machine
    import report

    tables, data = {}, {}
    for name in arguments.models:
        command = [sys.executable, __file__, "--one", "--out", str(arguments.out)]
        command += ["--models", name, "--rows", *arguments.rows]
        command += ["--iterations", str(arguments.iterations)]
        command += ["--shares", *map(str, arguments.shares)] if arguments.shares else []
        command += ["--tiny"] if arguments.tiny else []
        environment = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", **os.environ}
        subprocess.run(command, check=False, env=environment)
        part = arguments.out / f"{name}.json"
        if part.exists():
            data[name] = json.loads(part.read_text())
            part.unlink()
            tables[data[name]["title"]] = list(cells(data[name]))
    report.write(
        arguments.out,
        "compiled",
        "Compiled training in less memory",
        machine.describe(),
        tables,
        data,
    )
    missing = [name for name in arguments.models if name not in data]
    failed = [f"{name} {key}" for name, found in data.items() for key in wrong(found)]
    for line in (*missing, *failed):
        print(f"failed: {line}")
    return int(bool(missing or failed))


if __name__ == "__main__":
    sys.exit(main())
