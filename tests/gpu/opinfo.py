"""Runs PyTorch's operator database with LMS in stress mode, and compares bits with LMS off.

    python tests/gpu/opinfo.py --out DIR [--part K/N] [--compiled]

needs a GPU, a torch with Large Model Support, expecttest and rich. In stress mode everything that
no operator uses is paged out at each allocation. With --compiled, Inductor compiles each operator
and its backward pass, with LMS off and on, so that kernels are launched. Prints a table, and leaves
opinfo.json and opinfo.md in DIR. Exits 1 when an operator's results are different with LMS, or it
fails only there. LMS_TEST_DEVICE=sim runs it on the simulated device, to test this program.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import machine
import report

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
SIMCUDA = HERE.parent / "simcuda"
SECONDS = 180.0  # for one operator, the start of its process included
FAILURES = ("different", "error")
OUTCOMES = ("identical", "close", "nondeterministic", "undefined", *FAILURES, "skipped")
GENTLE = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}

Outcome = dict[str, Any]


def start_device() -> None:
    """Makes torch find the simulated device, where that is wanted, and this folder's samples."""
    sys.path.insert(0, str(SIMCUDA))
    if os.environ.get("LMS_TEST_DEVICE") == "sim":
        import simcuda

        simcuda.start(mib=2048, race=0)


# ---- in a child process ----------------------------------------------------------------------


def serve(compiled: bool) -> None:
    """Checks the operators that are named on stdin; an answer is a line with the outcome as JSON.

    The first line is "ready"; "lms" before an outcome tells that LMS is on from then on.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what operators print is no answer
    start_device()
    import torch

    torch.backends.cudnn.deterministic = True  # the database's import forbids it
    from torch.testing._internal.common_methods_invocations import op_db

    torch.cuda.set_size_lms(1)  # the database's tensors are small
    by_name = {op.formatted_name: op for op in op_db}
    undefined = tomllib.loads((HERE / "opinfo_undefined.toml").read_text())
    answers.write("ready\n")
    for line in sys.stdin:
        name = line.strip()
        op = by_name[name]
        left_out = undefined["undefined_outputs"].get(op.name, ())
        call = torch.compile(op, dynamic=False) if compiled else op
        outcome = check(op, call, op.name in undefined["undefined"], left_out, answers)
        if compiled:
            torch._dynamo.reset()
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            # The context is broken, and only a new process gets another.
            outcome = {"detail": first_line(error), **outcome, "last": True}
        answers.write(json.dumps(outcome) + "\n")


def check(op: Any, call: Any, undefined: bool, left_out: Collection[int], answers: Any) -> Outcome:
    """Runs ``call``, an operator of the database, twice with LMS off and once with LMS on.

    Compares shapes only when its outputs are undefined, and else all but those left out.
    """
    import samples
    import torch

    dtype = samples.choose_dtype(op, "cuda")
    if dtype is None:
        return skipped("no dtype")
    try:
        inputs = samples.samples(op, dtype)
    except Exception as error:
        return skipped(f"no samples: {first_line(error)}")

    def evaluate(sample: Any) -> list[torch.Tensor]:
        outputs = samples.evaluate(op, sample, "cuda", dtype, call)
        compared = [output for i, output in enumerate(outputs) if i not in left_out]
        on_host = [part.cpu() for output in compared for part in parts(output.detach())]
        torch.cuda.synchronize()
        return on_host

    expected, reason = [], "no samples"
    for sample in inputs:
        try:
            expected.append((sample, evaluate(sample), evaluate(sample)))
        except Exception as error:
            reason = f"fails with LMS off: {first_line(error)}"
    if not expected:
        return skipped(reason)

    answers.write("lms\n")
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._set_stress(True)
    torch.cuda.lms._set_verify_clean(True)
    before = torch.cuda.lms.stats()
    try:
        found = [evaluate(sample) for sample, *_ in expected]
        after = torch.cuda.lms.stats()
        torch.cuda.lms._set_stress(False)
        torch.cuda.set_enabled_lms(False)
    except Exception as error:
        # Whatever LMS's state is now, the next operator shall not meet it.
        return {"outcome": "error", "detail": first_line(error), "last": True}
    worst = {"outcome": "undefined" if undefined else "identical", "detail": ""}
    for outputs, (_, first, second) in zip(found, expected, strict=True):
        outcome = compare(outputs, first, second, undefined)
        worst = max(worst, outcome, key=lambda each: OUTCOMES.index(each["outcome"]))
    if after["clean_violations"] > before.get("clean_violations", 0):
        worst = {"outcome": "different", "detail": "writes an input that it does not mark"}
    page_outs = after["page_out_count"] - before.get("page_out_count", 0)
    return {**worst, "page_outs": page_outs, "samples": len(expected)}


def parts(tensor: Any) -> list[Any]:
    """The strided tensors that a tensor consists of."""
    import torch

    if tensor.layout == torch.strided:
        return [tensor.resolve_conj().resolve_neg()]
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]


def compare(found: list[Any], first: list[Any], second: list[Any], undefined: bool) -> Outcome:
    import torch

    if [t.shape for t in found] != [t.shape for t in first]:
        return {"outcome": "different", "detail": "another shape"}
    if undefined:
        return {"outcome": "undefined", "detail": ""}
    if all(same_bits(a, b) for a, b in zip(found, first, strict=True)):
        return {"outcome": "identical", "detail": ""}
    try:
        for a, b in zip(found, first, strict=True):
            torch.testing.assert_close(a, b, equal_nan=True)
    except AssertionError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return {"outcome": "different", "detail": "; ".join(lines[:3])}
    stable = all(same_bits(a, b) for a, b in zip(first, second, strict=True))
    largest = max(difference(a, b) for a, b in zip(found, first, strict=True))
    return {
        "outcome": "close" if stable else "nondeterministic",
        "detail": f"largest difference {largest:.3g}",
    }


def same_bits(a: Any, b: Any) -> bool:
    import torch

    def flat(tensor: Any) -> Any:
        return tensor.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8)

    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(flat(a), flat(b))


def difference(a: Any, b: Any) -> float:
    """The largest, of what is finite in both."""
    import torch

    wide = torch.complex128 if a.is_complex() else torch.float64
    distance = (a.to(wide) - b.to(wide)).abs()
    distance = distance[distance.isfinite()]
    return float(distance.max()) if distance.numel() else 0.0


def skipped(reason: str) -> Outcome:
    return {"outcome": "skipped", "detail": reason}


def first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


# ---- in the parent ---------------------------------------------------------------------------


class Worker:
    """A child process that checks one operator after another; a new one after a crash."""

    def __init__(self, *, compiled: bool) -> None:
        self._command = [sys.executable, __file__, "--serve", "--out", "."]
        self._command += ["--compiled"] if compiled else []
        self._process: subprocess.Popen[str] | None = None

    def check(self, name: str) -> Outcome:
        if self._process is None or self._process.poll() is not None:
            self._last = "start"
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
                env={**os.environ, **GENTLE},
            )
        process = self._process
        assert process.stdin
        assert process.stdout
        if self._last != "start":
            self._last = "ready"
        timer = threading.Timer(SECONDS, process.kill)
        timer.start()
        try:
            process.stdin.write(name + "\n")
            for line in process.stdout:
                if line.startswith("{"):
                    outcome = json.loads(line)
                    if outcome.pop("last", False):
                        self.close()
                    return outcome
                self._last = line.strip()
        except BrokenPipeError:
            pass
        finally:
            timer.cancel()
        reason = f"the process ended with {process.wait()}"
        self.close()
        if self._last == "ready":
            return skipped(f"LMS off: {reason}")
        return {"outcome": "error", "detail": f"{reason} after {self._last!r}"}

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def check_all(names: list[str], workers: int, *, compiled: bool) -> dict[str, Outcome]:
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        waiting.put(name)
    outcomes: dict[str, Outcome] = {}

    def work() -> None:
        worker = Worker(compiled=compiled)
        while True:
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                break
            outcomes[name] = worker.check(name)
            if outcomes[name]["outcome"] in FAILURES:
                print(name, outcomes[name], file=sys.stderr, flush=True)
        worker.close()

    threads = [threading.Thread(target=work) for _ in range(min(workers, len(names)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {name: outcomes[name] for name in names}


def tables(outcomes: dict[str, Outcome]) -> dict[str, list[dict[str, str]]]:
    counts = collections.Counter(each["outcome"] for each in outcomes.values())
    page_outs = collections.Counter[str]()
    for each in outcomes.values():
        page_outs[each["outcome"]] += each.get("page_outs", 0)
    found = {
        "Operators": [
            {"": kind, "operators": str(counts[kind]), "page-outs": str(page_outs[kind])}
            for kind in OUTCOMES
        ]
    }
    others = [
        {"": name, "outcome": each["outcome"], "detail": each["detail"].replace("|", "/")}
        for name, each in outcomes.items()
        if each["outcome"] != "identical"
    ]
    if others:
        found["Not identical"] = others
    return found


def part_of(text: str) -> tuple[int, int]:
    number, count = map(int, text.split("/"))
    if not 1 <= number <= count:
        raise ValueError(text)
    return number, count


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--part", type=part_of, default=(1, 1), metavar="K/N")
    parser.add_argument("--operators", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--workers", type=int, default=max(1, len(os.sched_getaffinity(0)) - 2))
    parser.add_argument("--compiled", action="store_true", help="compile each with Inductor")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.compiled)
        return 0
    start_device()
    from torch.testing._internal.common_methods_invocations import op_db

    number, count = arguments.part
    names = [op.formatted_name for op in op_db]
    if unknown := set(arguments.operators or ()) - set(names):
        parser.error(f"the database has no {', '.join(sorted(unknown))}")
    names = arguments.operators or names[number - 1 :: count]
    outcomes = check_all(names, arguments.workers, compiled=arguments.compiled)
    report.write(
        arguments.out,
        "opinfo",
        f"{len(names)} {'compiled ' * arguments.compiled}operators in stress mode, against LMS off",
        machine.describe(),
        tables(outcomes),
        {"operators": outcomes},
    )
    return int(any(each["outcome"] in FAILURES for each in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
