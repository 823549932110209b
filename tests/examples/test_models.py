"""unet3d.py and gpt_finetune.py: they train in less memory than they need, with the same losses."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import gpt_finetune
import pytest
import torch
import unet3d
from conftest import EXAMPLES, MIB
from simcuda.process import run_sim

UNET = "unet3d --size 32 --width 8 --levels 3 --batch-size 2 --steps 3"
GPT = (
    "gpt_finetune --layers 2 --embedding 384 --vocabulary 512 --length 32 --batch-size 2 --steps 3"
)
LIMIT = 40  # MiB


def three_runs(device, examples, command, gib):
    """What an example prints in memory, with too little of it, and with LMS in as little."""
    import contextlib
    import gc
    import importlib
    import io
    import sys

    import torch

    sys.path.append(examples)
    name, *arguments = command.split()
    main = importlib.import_module(name).main
    found = []
    limit = f"--limit={gib}"
    for more in (["--no-lms"], ["--no-lms", limit], [limit, "--log=steps.csv"]):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*arguments, *more])
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(1.0)
        found.append([code, out.getvalue(), err.getvalue()])
    return found


def losses(output: str) -> list[str]:
    return re.findall(r"^step \d+: loss ([0-9.]+),", output, re.MULTILINE)


@pytest.mark.parametrize("command", [UNET, GPT], ids=["unet3d", "gpt"])
def test_the_same_losses_in_less_memory(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    offline = {"HF_HUB_OFFLINE": "1"}  # nothing may be downloaded
    in_memory, failed, with_lms = run_sim(
        three_runs, str(EXAMPLES), command, LIMIT / 1024, mib=256, environment=offline
    )
    assert (in_memory[0], failed[0], with_lms[0]) == (0, 1, 0)
    expected = losses(in_memory[1])
    assert len(set(expected)) == 3
    assert failed[2].startswith("error: CUDA out of memory")
    assert losses(with_lms[1]) == expected
    with (tmp_path / "steps.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3
    assert all(int(row["page_out_bytes"]) > 0 for row in rows)
    assert all(int(row["peak_reserved_bytes"]) <= LIMIT * MIB for row in rows)


def test_a_ball_is_where_its_mask_is() -> None:
    torch.manual_seed(0)
    volumes, masks = unet3d.balls(2, 16)
    assert volumes.shape == masks.shape == (2, 1, 16, 16, 16)
    assert volumes[masks > 0].mean().item() == pytest.approx(1, abs=0.2)
    assert volumes[masks == 0].mean().item() == pytest.approx(0, abs=0.2)
    share = masks.mean(dim=(1, 2, 3, 4))
    assert share.min().item() > 0.04
    assert not torch.equal(masks[0], masks[1])


@pytest.mark.parametrize(
    ("main", "arguments", "message"),
    [
        (unet3d.main, ["--size", "100"], "--size has to be a multiple of 8"),
        (unet3d.main, ["--width", "12"], "--width has to be a multiple of 8"),
        (gpt_finetune.main, ["--heads", "5"], "--embedding has to be a multiple of --heads"),
        (gpt_finetune.main, ["--vocabulary", "9"], "--vocabulary has to be 256 or more"),
    ],
)
def test_usage(
    main: object, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)  # type: ignore[operator]
    assert message in capsys.readouterr().err
