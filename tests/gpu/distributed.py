"""DDP, FSDP2 and collectives with LMS, in two processes with a GPU each: the bits of LMS off.

    python tests/gpu/distributed.py [ROW ...] [--processes NAME]

prints a line for each row, in five minutes for all of them on H200s. With one GPU, --processes
shared has two processes on it, over Gloo, because NCCL refuses that, and --processes one has one
process, over NCCL. --simulated needs no GPU; what the environment's LMS_STRESS=1 does is said in
distributed_worker.py.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Processes:
    backend: str
    gpus: tuple[int, ...]  # of each process

    def environments(self) -> list[dict[str, str]]:
        """Of each process."""
        port = str(free_port())
        return [
            {
                "BACKEND": self.backend,
                "LOCAL_RANK": str(gpu),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "RANK": str(rank),
                "WORLD_SIZE": str(len(self.gpus)),
            }
            for rank, gpu in enumerate(self.gpus)
        ]


PROCESSES = {
    "two": Processes(backend="nccl", gpus=(0, 1)),
    "shared": Processes(backend="gloo", gpus=(0, 0)),
    "one": Processes(backend="nccl", gpus=(0,)),
}
SIMULATED = Processes(backend="gloo", gpus=(0, 1))


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


class Group:
    """The processes, and what they write."""

    def __init__(
        self, names: Sequence[str], folder: Path, processes: Processes, simulated_mib: int
    ) -> None:
        self.out = folder / "outcomes.json"
        environment = {
            **os.environ,
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # the same bits each time
            "LMS_SIMULATED_MIB": str(simulated_mib),
        }
        environment.setdefault("OMP_NUM_THREADS", "1" if simulated_mib else "8")
        environments = processes.environments()
        self.logs = [folder / f"log{rank}" for rank in range(len(environments))]
        self.processes = []
        for own, log in zip(environments, self.logs, strict=True):
            with log.open("w") as output:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, str(WORKER), str(self.out), *names],
                        env={**environment, **own},
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
    names: Sequence[str], processes: Processes, simulated_mib: int, show: Callable[[str], None]
) -> Outcomes:
    """The outcomes of the first rows; of all of them, unless one fails."""
    with tempfile.TemporaryDirectory() as folder:
        group = Group(names, Path(folder), processes, simulated_mib)
        shown: set[str] = set()
        deadline = time.monotonic() + START_SECONDS + ROW_SECONDS
        late = False
        try:
            while group.running() and not late:
                time.sleep(0.2)
                for name, outcome in group.outcomes().items():
                    if name not in shown:
                        shown.add(name)
                        deadline = time.monotonic() + ROW_SECONDS
                        if not outcome["wrong"]:
                            show(line(name, outcome))
                late = time.monotonic() > deadline
        finally:
            group.end()
        outcomes = group.outcomes()
        failed = [name for name, outcome in outcomes.items() if outcome["wrong"]]
        missing = [name for name in names if name not in outcomes]
        if not failed and missing:
            failed = missing[:1]
            reason = "out of time" if late else "a process ended"
            outcomes[missing[0]] = {"wrong": reason, "skipped": "", "summary": ""}
        for name in names:
            if name in failed:
                show(line(name, outcomes[name]))
                outcomes[name]["wrong"] += f"\n{group.output()}"
            elif name in outcomes and name not in shown:
                show(line(name, outcomes[name]))
        return outcomes


def run_rows(
    names: Sequence[str],
    *,
    processes: Processes = PROCESSES["two"],
    simulated_mib: int = 0,
    show: Callable[[str], None] = print,
) -> Outcomes:
    """What came out of each row. After one that fails, new processes go on with the next."""
    outcomes: Outcomes = {}
    while len(outcomes) < len(names):
        left = [name for name in names if name not in outcomes]
        outcomes.update(run_until_failure(left, processes, simulated_mib, show))
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--processes", choices=PROCESSES, default="two", help="default: two")
    parser.add_argument("--simulated", type=int, default=0, metavar="MIB", help="GPUs of that size")
    parser.add_argument("--out", type=Path, metavar="FILE", help="all that came out, as JSON")
    arguments = parser.parse_args()
    unknown = set(arguments.rows) - set(ROWS)
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    outcomes = run_rows(
        arguments.rows or ROWS,
        processes=SIMULATED if arguments.simulated else PROCESSES[arguments.processes],
        simulated_mib=arguments.simulated,
        show=lambda text: print(text, flush=True),
    )
    if arguments.out:
        arguments.out.write_text(json.dumps(outcomes, indent=1) + "\n")
    return int(any(outcome["wrong"] for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
