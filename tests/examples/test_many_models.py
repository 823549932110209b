"""many_models.py on small devices: what it prints, its CSV files, and its mistakes."""

from __future__ import annotations

import csv
import gc
import importlib.util
import json
import re
import shutil
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace

import many_models
import pytest
import torch
from conftest import MIB, Run

# So that 64 MiB do not hold it, and one operator is small.
TINY = ("-a", "tiny:net", "--image-size", 64, "-b", 48, "--seed", 0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current one has the tiny model's module, and gets what is written."""
    shutil.copy(Path(__file__).with_name("tiny.py"), tmp_path)
    monkeypatch.chdir(tmp_path)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def main(*arguments: object) -> int:
    return many_models.main(list(map(str, arguments)))


def test_a_model_of_torchvision_with_options_of_the_first_lms(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ("--lms-limit", 50, "--log", "summary", "--learning-rate", 0.01, "--steps", 3)
    assert main("-a", "squeezenet1_1", "--image-size", 64, *options, "--out", "results") == 0
    assert capsys.readouterr().out.startswith("squeezenet1_1, image size 64: ")
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["squeezenet1_1-summary.csv"]
    (row,) = read(tmp_path / "results" / "squeezenet1_1-summary.csv")
    assert (row["arch"], row["image_size"], row["batch_size"]) == ("squeezenet1_1", "64", "1")
    assert (row["limit_bytes"], row["lms"], row["steps"]) == (str(50 * MIB), "True", "1")


def test_it_trains_only_with_lms_where_memory_is_small(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(*TINY, "--no-lms") == 1
    failed = capsys.readouterr().err
    assert failed.startswith("error: CUDA out of memory")
    assert "Traceback" not in failed
    assert read(tmp_path / "tiny_net-64.csv") == []
    assert not (tmp_path / "tiny_net-summary.csv").exists()
    gc.collect()
    torch.cuda.empty_cache()
    assert main(*TINY, "--steps", 4, "--plot", "step.json") == 0
    rows = read(tmp_path / "tiny_net-64.csv")
    assert [row["step"] for row in rows] == ["0", "1", "2", "3"]
    assert all(int(row["page_out_bytes"]) > 0 for row in rows)
    assert all(int(row["peak_reserved_bytes"]) <= 64 * MIB for row in rows)
    (row,) = read(tmp_path / "tiny_net-summary.csv")
    assert float(row["page_out_bytes_mean"]) > 0
    assert json.loads((tmp_path / "step.json").read_text())["traceEvents"]


def test_on_demand() -> None:
    assert main(*TINY[:4], "--steps", 1, "--log", "--on-demand", "--limit", 1 / 64) == 0
    assert torch.cuda.lms.get_planning() is False
    assert torch.cuda.get_limit_lms() == 16 * MIB
    assert main(*TINY[:4], "--steps", 1, "--log", "--plan") == 0
    assert torch.cuda.lms.get_planning() is True
    assert torch.cuda.get_limit_lms() == 0


def test_a_seed_repeats(capsys: pytest.CaptureFixture[str]) -> None:
    def losses(seed: int) -> list[str]:
        args = many_models.parse([*map(str, TINY[:4]), "--seed", str(seed), "--log", "--steps=2"])
        many_models.train(args)
        return [torch.rand(1).item()]

    assert losses(1) == losses(1) != losses(2)


def test_the_largest_batch(run: Run, tmp_path: Path) -> None:
    done = run(
        "many_models.py", "-a", "tiny:net", "--image-size", 64, "-b", 12, "--find-largest",
        "batch-size", "--precision", 6, "--no-lms", mib=32,
    )  # fmt: skip
    *trials, last = done.stdout.splitlines()
    found = [re.match(r"batch-size (\d+) (trains|does not train): (.*)", trial) for trial in trials]
    fits = [int(trial[1]) for trial in found if trial[2] == "trains"]
    fails = [int(trial[1]) for trial in found if trial[2] != "trains"]
    assert last == f"largest batch-size: {max(fits)}"
    assert max(fits) < min(fails) <= max(fits) + 6
    assert {trial[3] for trial in found if trial[2] != "trains"} == {"out of GPU memory"}
    # What failed left nothing behind: each of them is a line of the summary.
    rows = read(tmp_path / "tiny_net-summary.csv")
    assert [int(row["batch_size"]) for row in rows] == fits


def test_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    largest = 0

    def train(trial: SimpleNamespace) -> None:
        tried.append(trial.batch_size)
        if trial.batch_size > largest:
            raise torch.cuda.OutOfMemoryError

    in_this_process(train, monkeypatch)
    args = many_models.parse(["--find-largest", "batch-size", "-b", "8"])
    coarse = many_models.parse(["--find-largest", "batch-size", "-b", "8", "--precision", "4"])
    for largest in range(1, 70):
        tried.clear()
        assert many_models.find_largest(args) == largest
        assert len(set(tried)) == len(tried) <= 12
        assert 0 <= largest - many_models.find_largest(coarse) < 4


def test_the_search_keeps_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """LMS exceeds a limit that is too low."""

    def train(trial: SimpleNamespace) -> dict[str, float]:
        peak = trial.batch_size * many_models.GIB
        return {"seconds_median": 1, "peak_reserved_bytes_max": peak, "page_out_bytes_mean": 0}

    in_this_process(train, monkeypatch)
    args = many_models.parse(["--find-largest", "batch-size", "-b", "8", "--limit", "21"])
    assert many_models.find_largest(args) == 21


def in_this_process(train: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes trials call a function here."""

    class Pool:
        def __init__(self, *_: object) -> None:
            pass

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def submit(self, _: object, trial: SimpleNamespace) -> SimpleNamespace:
            names = ("seconds_median", "peak_reserved_bytes_max", "page_out_bytes_mean")
            summary = train(trial) or dict.fromkeys(names, 0)
            return SimpleNamespace(result=lambda: summary)

    monkeypatch.setattr(many_models, "ProcessPoolExecutor", Pool)


def test_a_search_where_nothing_trains(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(trial: SimpleNamespace) -> None:
        raise BrokenProcessPool

    in_this_process(train, monkeypatch)
    assert main("--find-largest", "image-size", "--image-size", 100) == 1
    *trials, last = capsys.readouterr().out.splitlines()
    assert [trial.split()[1] for trial in trials] == ["100", "32"]
    assert all("its process was killed" in trial for trial in trials)
    assert last == "largest image-size: none trains"


def test_a_search_ends_with_an_error_of_another_kind(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(trial: SimpleNamespace) -> None:
        raise ValueError("no such model")

    in_this_process(train, monkeypatch)
    assert main("--find-largest", "image-size") == 1
    assert capsys.readouterr() == ("", "error: no such model\n")


def test_images_of_a_size_that_a_model_refuses(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchvision's ViT asserts that images consist of whole patches."""

    def train(trial: SimpleNamespace) -> None:
        if trial.image_size != 32:
            raise AssertionError("Input shape indivisible by patch size!")

    in_this_process(train, monkeypatch)
    assert main("--find-largest", "image-size", "--image-size", 50) == 1
    assert capsys.readouterr() == ("", "error: Input shape indivisible by patch size!\n")
    assert main("--find-largest", "image-size", "--image-size", 32) == 0
    *_, failed, last = capsys.readouterr().out.splitlines()
    assert failed == "image-size 64 does not train: Input shape indivisible by patch size!"
    assert last == "largest image-size: 32"


def test_several_gpus(run: Run, tmp_path: Path) -> None:
    options = ("--dist-backend", "gloo", "--steps", 3, "--limit", 0.03)
    done = run("many_models.py", *TINY, *options, mib=64, devices=2)
    assert done.stdout.count("image size 64") == 1
    for rank in range(2):
        rows = read(tmp_path / f"tiny_net-64-rank{rank}.csv")
        assert len(rows) == 3
        assert all(int(row["page_out_bytes"]) > 0 for row in rows)
    (row,) = read(tmp_path / "tiny_net-summary.csv")
    assert row["gpus"] == "2"
    # Each has images and a start of its own, so that they are equal only if gradients are shared.
    parameters = [(tmp_path / f"parameters{rank}.json").read_text() for rank in range(2)]
    assert parameters[0] == parameters[1]


def shape(arch: str, size: int) -> list[int]:
    outputs = many_models.make_model(arch, size).eval()(torch.zeros(1, 3, size, size))
    return list((outputs["out"] if isinstance(outputs, dict) else outputs).shape)


def test_where_models_come_from() -> None:
    assert shape("resnet18", 32) == [1, 1000]
    assert shape("lraspp_mobilenet_v3_large", 64) == [1, 21, 64, 64]
    assert shape("tiny:counts", 8) == [1, 10]


@pytest.mark.skipif(not importlib.util.find_spec("timm"), reason="timm is not installed")
def test_models_of_timm() -> None:
    assert shape("vit_tiny_patch16_224", 64) == [1, 1000]
    assert shape("test_resnet", 64) == [1, 1000]


def test_losses_of_what_models_return() -> None:
    images, pixels = torch.zeros(2, 10), torch.zeros(2, 10, 4, 4)
    one = torch.tensor(10.0).log()
    for outputs, losses in (
        (images, 1),
        ({"out": pixels, "aux": pixels}, 2),
        ((images, None), 1),
    ):
        assert many_models.loss_of(outputs).item() == pytest.approx(losses * one.item())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-a", "resnet19"], "error: neither torchvision nor timm has a model 'resnet19'"),
        (["-a", "tiny:nothing"], "error: module 'tiny' has no attribute 'nothing'"),
        (["-a", "nowhere:net"], "error: No module named 'nowhere'"),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(*arguments, "--no-lms", "--image-size", 32) == 1
    found = capsys.readouterr().err
    assert found.startswith(message)
    assert found.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        (["--plot", "x.html", "--no-lms"], {}, "--plot needs --lms"),
        (["--find-largest", "image-size"], {"WORLD_SIZE": "2"}, "run it without torchrun"),
        (["--find-largest", "epochs"], {}, "invalid choice"),
        (["--log", "epochs"], {}, "invalid choice"),
        (["--plot", "no/such.html"], {}, "--plot: there is no folder no"),
    ],
)
def test_usage(
    arguments: list[str],
    variables: dict[str, str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="2"):
        many_models.parse(arguments)
    assert message in capsys.readouterr().err


def test_a_torch_without_lms(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch.cuda, "lms")
    with pytest.raises(SystemExit):
        many_models.parse([])
    assert "has no Large Model Support" in capsys.readouterr().err
    assert many_models.parse(["--no-lms"]).lms is False
