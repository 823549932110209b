"""DDP, FSDP2 and plain collectives over NCCL, in two processes with a GPU each.

Some rows train models of transformers and torchvision; -s shows a line for each while they run.
"""

import pytest
from bits import gpus
from distributed import ROWS, run_rows


@pytest.fixture(scope="module")
def outcomes(request):
    """What came out of the rows that were asked for."""
    if gpus() < 2:
        pytest.skip(f"two CUDA GPUs are needed, and there are {gpus()}")
    asked = [item.callspec.params["row"] for item in request.session.items if is_row(item)]
    return run_rows(asked)


def is_row(item):
    return getattr(item, "function", None) is test_same_bits


@pytest.mark.parametrize("row", ROWS)
def test_same_bits(row, outcomes):
    outcome = outcomes[row]
    assert not outcome["wrong"], outcome["wrong"]
    if outcome["skipped"]:
        pytest.skip(outcome["skipped"])
