"""The recorder of fake programs, with storages that are made by hand: it needs no torch.

tests/runtime/test_fake.py tests what it writes of programs.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from lmsbuild.resources import patches_dir

KIB = 1 << 10


class Storage:
    """As much of an untyped storage as the recorder asks."""

    def __init__(self, size: int) -> None:
        self._size = size

    @property
    def _cdata(self) -> int:
        return id(self)

    def nbytes(self) -> int:
        return self._size


@pytest.fixture
def recorder() -> Any:
    path = patches_dir() / "runtime/torch/cuda/lms_fake/recorder.py"
    spec = importlib.util.spec_from_file_location("recorder", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Recorder(smallest=64 * KIB)


def test_small_storages_that_come_and_go_count_with_their_most(recorder: Any) -> None:
    weight = Storage(64 * KIB)
    bias = Storage(KIB)

    def iteration(activations: int) -> None:
        kept = [Storage(32 * KIB) for _ in range(activations)]
        for storage in (weight, bias, *kept):
            recorder.unit("layer")
            recorder.use(storage, write=False)
        recorder.spend(1e-3)
        del storage
        kept.clear()
        recorder.step()

    iteration(8)
    iteration(8)
    iteration(3)
    assert recorder.trace()["unmanaged_bytes"] == (1 + 3 * 32) * KIB, "the last iteration's"
    iteration(0)
    assert recorder.trace()["unmanaged_bytes"] == KIB


def test_small_storages_between_the_steps_of_two_optimizers(recorder: Any) -> None:
    weight = Storage(64 * KIB)
    for _ in range(3):
        recorder.unit("forward")
        recorder.use(weight, write=False)
        activation = Storage(32 * KIB)
        recorder.use(activation, write=True)
        recorder.spend(1e-3)
        del activation
        for optimizer in (1, 2):
            recorder.unit("update")
            recorder.use(weight, write=True)
            recorder.spend(1e-3)
            recorder.step(optimizer)
    assert recorder.trace()["unmanaged_bytes"] == 32 * KIB, "before the first one's step"
