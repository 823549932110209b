"""DDP, FSDP2 and collectives with LMS, in two processes with a GPU each: the bits of LMS off.

    python tests/gpu/distributed.py [ROW ...]

prints a line for each row, in five minutes for all of them on H200s. --simulated needs no GPU; what
the environment's LMS_STRESS=1 does is said in distributed_worker.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

WORKER = Path(__file__).parent / "distributed_worker.py"
PROCESSES = 2
START_SECONDS = 120  # for the first row besides what a row has
ROW_SECONDS = 90

COLLECTIVES = (
    "ddp",
    "ddp_bucket_views",
    "ddp_static_graph",
    "fsdp2",
    "fsdp2_no_reshard",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "functional",
)
MODELS = (
    "llama_ddp",
    "llama_static_graph",
    "llama_unused",
    "llama_no_sync",
    "llama_bucket_views",
    "llama_autocast",
    "llama_autocast_clipped",
    "llama_low_precision",
    "llama_clipped",
    "llama_zeroed",
    "llama_checkpoint",
    "llama_checkpoint_reentrant",
    "gpt2_ddp",
    "gpt2_everything",
    "bert_unused",
    "resnet50_ddp",
    "resnet50_autocast",
    "llama_fsdp2",
    "llama_fsdp2_low_precision",
    "llama_fsdp2_checkpoint",
    "llama_fsdp2_checkpoint_reentrant",
    "gpt2_fsdp2",
)
ROWS = (*COLLECTIVES, *MODELS)

Outcomes = dict[str, dict[str, str]]


def line(name: str, outcome: dict[str, str]) -> str:
    what = "ok"
    if outcome["wrong"]:
        what = "FAILED: " + outcome["wrong"].strip().split("\n")[0]
    elif outcome["skipped"]:
        what = "skipped: " + outcome["skipped"].split("\n")[0]
    return f"{name:<34}{outcome['summary']:<70}{what}"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Pair:
    """The processes, and what they write."""

    def __init__(self, names: Sequence[str], folder: Path, simulated_mib: int) -> None:
        self.out = folder / "outcomes.json"
        self.logs = [folder / f"log{rank}" for rank in range(PROCESSES)]
        environment = {
            **os.environ,
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # the same bits each time
            "LMS_SIMULATED_MIB": str(simulated_mib),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(PROCESSES),
        }
        environment.setdefault("OMP_NUM_THREADS", "1" if simulated_mib else "8")
        self.processes = []
        for rank, log in enumerate(self.logs):
            with log.open("w") as output:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, str(WORKER), str(self.out), *names],
                        env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )

    def outcomes(self) -> Outcomes:
        return json.loads(self.out.read_text()) if self.out.exists() else {}

    def running(self) -> bool:
        """False when all have ended, or one of them badly."""
        codes = [process.poll() for process in self.processes]
        return None in codes and not any(codes)

    def output(self) -> str:
        texts = [log.read_text(errors="replace")[-6000:] for log in self.logs]
        return "\n".join(f"process {rank}:\n{text}" for rank, text in enumerate(texts))

    def end(self) -> None:
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()


def run_until_failure(
    names: Sequence[str], simulated_mib: int, show: Callable[[str], None]
) -> Outcomes:
    """The outcomes of the first rows; of all of them, unless one fails."""
    with tempfile.TemporaryDirectory() as folder:
        pair = Pair(names, Path(folder), simulated_mib)
        shown: set[str] = set()
        deadline = time.monotonic() + START_SECONDS + ROW_SECONDS
        late = False
        try:
            while pair.running() and not late:
                time.sleep(0.2)
                for name, outcome in pair.outcomes().items():
                    if name not in shown:
                        shown.add(name)
                        deadline = time.monotonic() + ROW_SECONDS
                        if not outcome["wrong"]:
                            show(line(name, outcome))
                late = time.monotonic() > deadline
        finally:
            pair.end()
        outcomes = pair.outcomes()
        failed = [name for name, outcome in outcomes.items() if outcome["wrong"]]
        missing = [name for name in names if name not in outcomes]
        if not failed and missing:
            failed = missing[:1]
            reason = "out of time" if late else "a process ended"
            outcomes[missing[0]] = {"wrong": reason, "skipped": "", "summary": ""}
        for name in names:
            if name in failed:
                show(line(name, outcomes[name]))
                outcomes[name]["wrong"] += f"\n{pair.output()}"
            elif name in outcomes and name not in shown:
                show(line(name, outcomes[name]))
        return outcomes


def run_rows(
    names: Sequence[str], *, simulated_mib: int = 0, show: Callable[[str], None] = print
) -> Outcomes:
    """What came out of each row. After one that fails, new processes go on with the next."""
    outcomes: Outcomes = {}
    while len(outcomes) < len(names):
        left = [name for name in names if name not in outcomes]
        outcomes.update(run_until_failure(left, simulated_mib, show))
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--simulated", type=int, default=0, metavar="MIB", help="GPUs of that size")
    parser.add_argument("--out", type=Path, metavar="FILE", help="all that came out, as JSON")
    arguments = parser.parse_args()
    unknown = set(arguments.rows) - set(ROWS)
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    outcomes = run_rows(
        arguments.rows or ROWS,
        simulated_mib=arguments.simulated,
        show=lambda text: print(text, flush=True),
    )
    if arguments.out:
        arguments.out.write_text(json.dumps(outcomes, indent=1) + "\n")
    return int(any(outcome["wrong"] for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
