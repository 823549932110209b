"""GPUs by name, and their data."""

from __future__ import annotations

import json
from pathlib import Path

import click
import jsonschema
import pytest

from lmsbuild import resources
from lmsbuild._compat import tomllib
from lmsbuild.cli.types import GPU
from lmsbuild.errors import RegistryError
from lmsbuild.simulate import gpu

ROOT = Path(__file__).parents[3]


def test_the_data_follows_its_schema() -> None:
    schema = json.loads(resources.data_file("gpus.schema.json").read_text("utf-8"))
    document = tomllib.loads(resources.data_file("gpus.toml").read_text("utf-8"))
    jsonschema.validate(document, schema)
    assert (ROOT / document["efficiency"]["source"]).is_file()


def test_names() -> None:
    assert {"h200", "h100", "a100", "v100", "rtx4090"} <= set(gpu.gpus())
    h200 = GPU.convert("h200", None, None)
    assert h200.memory == 141 * 10**9
    assert h200.bandwidth == 4.8e12
    assert h200.flops["bfloat16"] > h200.flops["tensorfloat32"] > h200.flops["float32"] > 1e13
    with pytest.raises(click.BadParameter, match=r"'b1000' is no GPU that is known .h200, h100"):
        GPU.convert("b1000", None, None)


def test_a_shell_completes_names() -> None:
    context = click.Context(click.Command("trace"))
    found = GPU.shell_complete(context, click.Option(["--gpu"]), "h")
    assert [item.value for item in found] == ["h200", "h100"]


def test_damaged_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpus.toml").write_text("[gpus.x]\ntitle = 'x'\n")
    monkeypatch.setattr(gpu, "data_file", tmp_path.joinpath)
    with pytest.raises(RegistryError, match=r"gpus.toml: malformed .KeyError"):
        gpu.gpus.__wrapped__()


def test_the_documentation_has_all_of_them() -> None:
    page = (ROOT / "docs/simulation.md").read_text("utf-8")
    reached = tomllib.loads(resources.data_file("gpus.toml").read_text("utf-8"))["efficiency"]
    assert all(f"`{name}`" in page for name in gpu.gpus())
    assert f"{reached['compute']:.0%}".replace("%", " %") in page.replace("\n", " ")
    assert f"{reached['bandwidth']:.0%}".replace("%", " %") in page
    assert f"{reached['seconds'] * 1e6:.0f} microseconds" in page
