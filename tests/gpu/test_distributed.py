"""DDP, FSDP2 and plain collectives over NCCL, in two processes with a GPU each."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bits import gpus

WORKER = Path(__file__).parent / "distributed_worker.py"
TIMEOUT = 120  # seconds
CASES = (
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


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """What the processes found wrong with each case, and what they wrote."""
    if gpus() < 2:
        pytest.skip(f"two CUDA GPUs are needed, and there are {gpus()}")
    out = tmp_path_factory.mktemp("distributed") / "report.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(WORKER), str(out)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    try:
        output, _ = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # it ends the processes it launched
        output, _ = process.communicate()
        output += f"\nstopped after {TIMEOUT} s"
    return json.loads(out.read_text()) if out.exists() else {}, output[-6000:]


@pytest.mark.parametrize("case", CASES)
def test_same_bits(case, report):
    wrong, output = report
    assert case in wrong, f"it never ended:\n{output}"
    assert not wrong[case], wrong[case]
