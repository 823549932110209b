"""torch.cuda.lms.integrations with the libraries that they are for."""

from __future__ import annotations

import functools
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

MIB = 1 << 20
LIMIT = 24 * MIB
STEPS = 6


class Layers(torch.nn.Module):
    """Keeps 40 MiB for the backward pass, of 1 MiB each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(20))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return {"loss": torch.nn.functional.mse_loss(x, labels)}


class Data(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(4096, 64, generator=generator)
        return {"x": x, "labels": torch.sin(x)}


@pytest.fixture(autouse=True)
def off() -> Iterator[None]:
    torch.cuda.lms.set_planning(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the libraries
        yield
    torch.cuda.set_enabled_lms(False)
    torch.cuda.set_limit_lms(0)
    torch.cuda.lms.set_planning(True)
    torch.cuda.empty_cache()


def plain() -> list[float]:
    """The losses without LMS and without a library."""
    model = Layers().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    losses = []
    for item in (Data()[k] for k in range(STEPS)):
        optimizer.zero_grad()
        loss = model(item["x"].cuda()[None], item["labels"].cuda()[None])["loss"]
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_metrics() -> None:
    metrics = torch.cuda.lms.Metrics(prefix="")
    torch.cuda.set_enabled_lms(True)
    metrics()
    x = torch.ones(MIB, device="cuda")
    torch.cuda.reclaim_inactive()
    found = metrics()
    assert found["page_out_bytes"] == found["paged_out_bytes"] == 4 * MIB
    assert found["page_in_count"] == 0
    assert x.sum().item() == MIB
    found = metrics()
    assert (found["page_out_count"], found["page_in_count"]) == (0, 1)
    assert (found["resident_bytes"], found["paged_out_bytes"]) == (4 * MIB, 0)
    torch.cuda.reset_accumulated_memory_stats()
    assert metrics()["page_in_count"] == 0


class TestTransformers:
    @pytest.fixture
    def trainer(self, tmp_path: Path) -> Any:
        transformers = pytest.importorskip("transformers")
        pytest.importorskip("accelerate")

        class Losses(transformers.TrainerCallback):
            """Sees what a callback of report_to sees."""

            def on_log(self, args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:
                seen.append(dict(logs))

        seen: list[dict[str, float]] = []

        def make(*callbacks: Any, **options: Any) -> tuple[Any, list[dict[str, float]]]:
            arguments = transformers.TrainingArguments(
                output_dir=str(tmp_path),
                per_device_train_batch_size=1,
                max_steps=STEPS,
                logging_steps=1,
                learning_rate=0.1,
                lr_scheduler_type="constant",
                max_grad_norm=0,
                optim="sgd",
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                train_sampling_strategy="sequential",
            )
            trainer = transformers.Trainer(
                model=Layers(),
                args=arguments,
                train_dataset=Data(),
                callbacks=[Losses(), *callbacks],
                **options,
            )
            return trainer, seen

        return make

    def test_a_callback(self, trainer: Any) -> None:
        from torch.cuda.lms.integrations.transformers import LargeModelSupport

        made, seen = trainer(LargeModelSupport(limit="24MiB"))
        assert torch.cuda.get_limit_lms() == LIMIT
        made.train()
        rows = [row for row in made.state.log_history if "loss" in row]
        assert len(rows) == STEPS
        assert all(row["lms/page_out_bytes"] > 0 for row in rows)
        assert not any("lms/page_out_bytes" in row for row in seen)

    def test_attached(self, trainer: Any) -> None:
        from torch.cuda.lms.integrations.transformers import attach

        made, seen = trainer()
        attach(made, limit=LIMIT)
        made.train()
        assert all("lms/page_out_bytes" in row for row in seen if "loss" in row)
        assert [round(loss, 4) for loss in plain()] == [
            round(row["loss"], 4) for row in seen if "loss" in row
        ]

    def test_an_optimizer_with_an_operator_for_each_parameter(self, trainer: Any) -> None:
        from torch.cuda.lms.integrations.transformers import LargeModelSupport

        sgd = (torch.optim.SGD, {"lr": 0.1, "foreach": False})
        made, seen = trainer(LargeModelSupport(limit=LIMIT), optimizer_cls_and_kwargs=sgd)
        made.train()
        assert {group["foreach"] for group in made.optimizer.param_groups} == {False}
        assert [round(loss, 4) for loss in plain()] == [
            round(row["loss"], 4) for row in seen if "loss" in row
        ]

    def test_gradients_are_clipped_one_by_one(
        self, trainer: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As docs/how-to/trainers.md says, where one operator for all does not fit."""

        def fails(*_: Any) -> None:
            raise AssertionError("one operator for all gradients")

        utils = torch.nn.utils
        made, _ = trainer()
        made.args.max_grad_norm = 0.5
        for name in ("_foreach_norm", "_foreach_mul_"):
            monkeypatch.setattr(torch, name, fails)
        for norm in (0, 0.5):
            made.args.max_grad_norm = norm
            with pytest.raises(AssertionError, match="one operator"):
                made.train()
        clip = functools.partial(utils.clip_grad_norm_, foreach=False)
        monkeypatch.setattr(utils, "clip_grad_norm_", clip)
        made.train()
        assert sum("grad_norm" in row for row in made.state.log_history) >= STEPS


@pytest.mark.parametrize(
    ("name", "accumulated", "rows"),
    [
        ("lightning.pytorch", 1, 3),
        ("pytorch_lightning", 1, 3),
        ("lightning.pytorch", 2, 1),
        ("lightning.pytorch", "by hand", 3),
    ],
)
def test_lightning(name: str, accumulated: int | str, rows: int, tmp_path: Path, run: Any) -> None:
    by_hand = accumulated == "by hand"
    if by_hand:
        accumulated = 1
    pytest.importorskip(name)
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(f"""
        import csv, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import {name} as pl, torch
        from test_integrations import Data, Layers, plain, LIMIT, STEPS
        from torch.cuda.lms.integrations.lightning import LargeModelSupport

        class Module(pl.LightningModule):
            losses = []

            def __init__(self):
                super().__init__()
                self.model = Layers()
                self.automatic_optimization = {not by_hand}

            def training_step(self, batch, index):
                loss = self.model(**batch)["loss"]
                self.losses.append(loss.item())
                self.log("loss", loss)
                if {by_hand}:
                    self.manual_backward(loss)
                    if index % 2 == 0:  # not when the trainer logs
                        self.optimizers().step()
                        self.optimizers().zero_grad()
                return loss

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1, foreach=False)

        logger = pl.loggers.CSVLogger({str(tmp_path)!r})
        expected = plain()
        trainer = pl.Trainer(
            accelerator="gpu", devices=1, max_epochs=1, log_every_n_steps=2, logger=logger,
            enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False,
            callbacks=[LargeModelSupport(limit=LIMIT, planning=False)],
            accumulate_grad_batches={accumulated},
        )
        trainer.fit(Module(), torch.utils.data.DataLoader(Data()))
        assert torch.cuda.get_limit_lms() == LIMIT
        assert {accumulated > 1 or by_hand} or Module.losses == expected, (Module.losses, expected)
        logger.save()
        with open(logger.log_dir + "/metrics.csv") as file:
            rows = list(csv.DictReader(file))
        losses = [row["step"] for row in rows if row["loss"]]
        rows = [row for row in rows if row["lms/page_out_bytes"]]
        assert [row["step"] for row in rows] == losses
        print(len(rows), min(int(row["lms/page_out_bytes"]) for row in rows) > 0)
        """)
    )
    assert run(program, mib=64).stdout.splitlines()[-1] == f"{rows} True"


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.cuda.lms.integrations.tensorboard import Logger
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        log = Logger(writer)
        torch.cuda.set_enabled_lms(True)
        x = torch.ones(MIB, device="cuda")
        torch.cuda.reclaim_inactive()
        log(7)
        del x
    events = EventAccumulator(str(tmp_path)).Reload().Scalars("lms/paged_out_bytes")
    assert [(event.step, event.value) for event in events] == [(7, 4 * MIB)]


def test_accelerate() -> None:
    accelerate = pytest.importorskip("accelerate")
    from torch.cuda.lms.integrations import turn_on

    expected = plain()
    turn_on(limit=LIMIT)
    accelerator = accelerate.Accelerator()
    loader = torch.utils.data.DataLoader(Data())
    model = Layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    metrics = torch.cuda.lms.Metrics()
    losses, moved = [], []
    for batch in loader:
        optimizer.zero_grad()
        loss = model(**batch)["loss"]
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())
        moved.append(metrics()["lms/page_out_bytes"])
    assert losses == expected
    assert min(moved) > 0


@pytest.mark.parametrize("size", ["lots", -1])
def test_wrong_settings_leave_lms_off(size: object) -> None:
    from torch.cuda.lms.integrations import turn_on

    with pytest.raises(ValueError, match=r"number of bytes|negative"):
        turn_on(limit=size)
    assert not torch.cuda.get_enabled_lms()
