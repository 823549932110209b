"""Links by name, and their data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click
import jsonschema
import pytest

from lmsbuild import resources
from lmsbuild._compat import tomllib
from lmsbuild.cli.types import LINK
from lmsbuild.simulate.link import links

ROOT = Path(__file__).parents[3]


def test_the_data_follows_its_schema() -> None:
    schema = json.loads(resources.data_file("links.schema.json").read_text("utf-8"))
    document = tomllib.loads(resources.data_file("links.toml").read_text("utf-8"))
    jsonschema.validate(document, schema)
    for row in document.values():
        if not row["source"].startswith("https://"):
            assert f"{row['out']:.1f} GB/s" in (ROOT / row["source"]).read_text("utf-8")
            assert f"{row['in']:.1f} GB/s" in (ROOT / row["source"]).read_text("utf-8")


def test_names() -> None:
    assert {"pcie3", "pcie4", "pcie5", "nvlink-c2c"} <= set(links())
    coherent = LINK.convert("nvlink-c2c", None, None)
    assert coherent is links()["nvlink-c2c"]
    assert coherent.in_rate > coherent.out_rate > links()["pcie5"].out_rate > 50e9


@pytest.mark.parametrize(("text", "rate"), [("25G", 25e9), ("12.5GB", 12.5e9), ("1GiB", 2**30)])
def test_rates(text: str, rate: float) -> None:
    link = LINK.convert(text, None, None)
    assert (link.out_rate, link.in_rate) == (rate, rate)


@pytest.mark.parametrize("text", ["pcie", "0", "fast", "-1G"])
def test_what_is_no_link(text: str) -> None:
    names = "pcie3, pcie4, pcie5, nvlink2, nvlink-c2c"
    with pytest.raises(click.BadParameter, match=f"'{text}' is neither a link .{names}. nor bytes"):
        LINK.convert(text, None, None)


@pytest.mark.parametrize(
    ("share", "speedup"),
    [(0.45, 2), (0.95, 1), (1, 1)],  # the kernels reach 0.9 of the link's rate
)
def test_compressed_bytes_cross_faster(share: float, speedup: float) -> None:
    assert replace(links()["nvlink-c2c"], compressed=share).planned_speedup == speedup


def test_a_shell_completes_names() -> None:
    context = click.Context(click.Command("simulate"))
    found = LINK.shell_complete(context, click.Option(["--link"]), "pcie")
    assert [item.value for item in found] == ["pcie3", "pcie4", "pcie5"]


def test_the_documentation_has_all_of_them() -> None:
    page = (ROOT / "docs/simulation.md").read_text("utf-8")
    document = tomllib.loads(resources.data_file("links.toml").read_text("utf-8"))
    rows = [
        f"| `{name}` | {row['title']} | {row['out']} | {row['in']} |\n"
        for name, row in document.items()
    ]
    assert "".join(rows) in page
