"""Runs PyTorch's OpInfo database, forward and backward, on the simulated device against the CPU.

sweep() is the part that runs in a child process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simcuda.process import ScenarioError

if TYPE_CHECKING:
    from simcuda.process import Session

_BATCH = 40  # operators for each request: what a crash costs to run again
MEMORY_MIB = 2048
_BATCH_TIMEOUT = 900.0  # seconds


def operator_names(device: Any) -> list[str]:
    """Every operator of the database, in its order."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [op.formatted_name for op in op_db]


def sweep(device: Any, names: list[str], lms: bool) -> dict[str, Any]:
    """Each operator's outcome, "pass", "skip: ..." or "fail: ...", and how often LMS paged out.

    A failure is a result that differs from the CPU's, an error that the CPU's run does not raise,
    or a race. With `lms`, everything that no operator uses is paged out at each allocation.
    """
    import warnings

    import torch
    from samples import choose_dtype, evaluate, samples
    from torch.testing._internal.common_methods_invocations import op_db

    warnings.simplefilter("ignore")
    # Operators that draw random numbers, or leave memory uninitialised: only shapes can be equal.
    unpredictable = (
        "bernoulli", "cauchy", "dropout", "empty", "exponential", "fractional_max_pool",
        "geometric", "lowrank", "multi_head_attention", "multinomial", "normal", "rand", "rrelu",
        "uniform",
    )  # fmt: skip

    def check(op: Any) -> str:
        dtype = choose_dtype(op, "cpu")
        if dtype is None:
            return "skip: no dtype"
        try:
            inputs = samples(op, dtype)
        except Exception as error:
            return f"skip: no samples: {type(error).__name__}"
        random = any(word in op.name for word in unpredictable)
        compared = 0
        for sample in inputs:
            try:
                expected = evaluate(op, sample, "cpu", dtype)
            except Exception:
                continue
            try:
                found = evaluate(op, sample, "cuda", dtype)
                for a, b in zip(expected, found, strict=True):
                    if random or sample.kwargs.get("dropout_p", 0) > 0:
                        assert a.shape == b.shape, "another shape"
                    else:
                        torch.testing.assert_close(a, b.to("cpu"), equal_nan=True)
            except Exception as error:
                kernels = "".join(f" [kernel {name}]" for name in device.launches())
                device.reset_counts()
                text = str(error).strip().splitlines()
                return f"fail: {type(error).__name__}: {text[0] if text else ''}{kernels}"
            compared += 1
        races = device.races()
        device.clear_races()
        if races:
            return f"fail: {races[0]}"
        return "pass" if compared else "skip: the CPU ran no sample"

    if lms:
        torch.cuda.set_size_lms(1)  # the database's tensors are small
        torch.cuda.set_enabled_lms(True)
        torch.cuda.lms._set_stress(True)
        torch.ones(1, device="cuda")  # there are no statistics before
        paged_out_before = torch.cuda.lms.stats()["page_out_count"]
    by_name = {op.formatted_name: op for op in op_db}
    outcomes = {}
    for name in names:
        print(name, flush=True)  # the last one printed is the one that crashed
        outcomes[name] = check(by_name[name])
    page_outs = torch.cuda.lms.stats()["page_out_count"] - paged_out_before if lms else 0
    return {"outcomes": outcomes, "page_outs": page_outs}


def run(session: Session, names: list[str], lms: bool) -> tuple[dict[str, str], int]:
    """Each operator's outcome as sweep() gives it, a crash being a failure, and the page-outs."""
    outcomes: dict[str, str] = {}
    page_outs = 0

    def add(batch: list[str]) -> None:
        nonlocal page_outs
        result = session.run(sweep, batch, lms, timeout=_BATCH_TIMEOUT)
        outcomes.update(result["outcomes"])
        page_outs += result["page_outs"]

    for start in range(0, len(names), _BATCH):
        batch = names[start : start + _BATCH]
        try:
            add(batch)
        except ScenarioError:
            for name in batch:  # one by one, to find the one that crashed
                try:
                    add([name])
                except ScenarioError as error:
                    outcomes[name] = f"fail: {str(error).splitlines()[0]}"
    return outcomes, page_outs


def failures(outcomes: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in outcomes.items() if text.startswith("fail")}
