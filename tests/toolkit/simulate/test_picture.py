"""The picture of a report."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from lmsbuild.errors import PictureError
from lmsbuild.simulate import lms_report
from lmsbuild.simulate.planner import Planner
from tests.toolkit.simulate.reports import report
from tests.toolkit.simulate.traces import MB, adam


def pixels(data: bytes) -> np.ndarray:
    return np.round(255 * matplotlib.image.imread(io.BytesIO(data))[:, :, :3]).astype(int)


def has(image: np.ndarray, color: str) -> int:
    """How many pixels have the color."""
    wanted = [int(color[k : k + 2], 16) for k in (1, 3, 5)]
    return int((image == wanted).all(axis=2).sum())


def test_everything_is_drawn(compiled: Planner, tmp_path: Path) -> None:
    found = report(compiled, adam(), tmp_path, 60 * MB)
    image = pixels(found.render(Path("x.png")))
    assert image.shape == (1800, 1650, 3)
    palette = lms_report.module("palette")
    for color in (
        *(palette.LIGHT[name] for name in ("gpu", "host", "limit", "in", "out")),
        *palette.COMPUTE.values(),
        palette.STALL,
        palette.ROLE["activations"],
        palette.ROLE["optimizer state"],
    ):
        assert has(image, color) > 50, color
    assert found.render(Path("y.png")) == found.render(Path("x.png"))


def test_what_fits(compiled: Planner, tmp_path: Path) -> None:
    image = pixels(report(compiled, adam(), tmp_path, 1000 * MB).render(Path("x.png")))
    palette = lms_report.module("palette")
    assert has(image, palette.STALL) == 0
    assert has(image, palette.LIGHT["gpu"]) > 50


def test_without_matplotlib(
    compiled: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = report(compiled, adam(), tmp_path, 60 * MB)
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PictureError, match="a PNG needs matplotlib: pip install matplotlib"):
        found.render(Path("x.png"))
    assert found.render(Path("x.html"))
