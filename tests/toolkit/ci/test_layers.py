"""The layers of the runtime: what its files include."""

from __future__ import annotations

import json
import re

import jsonschema

from lmsbuild._compat import tomllib
from lmsbuild.resources import patches_dir
from toolkit.helpers.ci_script import load

layers = load("layers")
ORDER = ["low", "middle", "high"]


def include(*paths: str) -> str:
    return "".join(f"#include <torch/csrc/cuda/lms/{path}>\n" for path in paths)


def wrong(files: dict[str, str]) -> list[str]:
    return layers.check(files, ORDER)


def test_no_file_of_the_runtime_includes_from_above() -> None:
    hint = "include from the layers below only: patches/layers.toml has their order"
    assert layers.check_all() == set(), hint


def test_the_order_keeps_to_its_schema() -> None:
    document = tomllib.loads((patches_dir() / "layers.toml").read_text("utf-8"))
    schema = json.loads((patches_dir() / "layers.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(schema).validate(document)
    assert len(set(layers.order())) == len(layers.order())


def test_the_guide_has_the_layers_in_their_order() -> None:
    text = (patches_dir() / "README.md").read_text("utf-8")
    table = re.findall(r"^\| `(\w+)/` \|", text.partition("## The runtime")[2], re.MULTILINE)
    # 1.13's alone, and in the text.
    assert table == [layer for layer in layers.order() if layer != "seam"]


def test_each_variant_of_the_runtime_is_read() -> None:
    trees = layers.trees()
    assert set(trees) == {"runtime", "runtime-v1", "runtime-v113"}
    assert all(len(tree) > 40 for tree in trees.values())
    assert "inside_inl.h" in trees["runtime-v1"]


def test_includes_from_below_and_beside_are_right() -> None:
    files = {"low/a.h": "", "low/b.h": include("low/a.h"), "high/c.cpp": include("low/b.h")}
    assert wrong(files | {"front.h": include("high/d.h"), "high/d.h": "#include <vector>"}) == []


def test_an_include_from_above() -> None:
    files = {"middle/a.cpp": include("low/b.h", "high/c.h"), "low/b.h": "", "high/c.h": ""}
    assert wrong(files) == ["middle/a.cpp includes high/c.h"]


def test_an_include_from_above_in_quotes_and_with_spaces() -> None:
    files = {"low/a.h": '#  include "../high/b.h"\n', "high/b.h": '#include "c.h"', "high/c.h": ""}
    assert wrong(files) == ["low/a.h includes high/b.h"]


def test_an_include_in_a_comment_is_none() -> None:
    assert wrong({"low/a.h": "// #include <torch/csrc/cuda/lms/high/b.h>\n", "high/b.h": ""}) == []


def test_files_in_no_folder_are_above_all() -> None:
    assert wrong({"high/a.cpp": include("b.h"), "b.h": ""}) == ["high/a.cpp includes b.h"]


def test_a_circle() -> None:
    files = {
        "low/a.h": include("low/b.h"),
        "low/b.h": include("low/c.h"),
        "low/c.h": include("low/a.h"),
        "low/d.h": include("low/a.h"),
    }
    assert wrong(files) == ["circle: low/a.h low/b.h low/c.h low/a.h"]


def test_two_circles_and_a_file_that_includes_itself() -> None:
    files = {
        "low/a.h": include("low/b.h"),
        "low/b.h": include("low/a.h"),
        "high/c.h": include("high/d.h"),
        "high/d.h": include("high/c.h"),
        "middle/e.h": include("middle/e.h"),
    }
    assert wrong(files) == [
        "circle: high/c.h high/d.h high/c.h",
        "circle: low/a.h low/b.h low/a.h",
        "circle: middle/e.h middle/e.h",
    ]


def test_a_folder_without_a_place() -> None:
    assert wrong({"new/a.h": "", "high/b.h": ""}) == ["folder new is not in layers.toml"]


def test_what_is_included_has_to_be_there() -> None:
    assert wrong({"high/a.cpp": include("low/gone.h")}) == [
        "high/a.cpp includes low/gone.h, which is not there"
    ]
