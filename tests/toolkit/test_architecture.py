"""What the toolkit knows of each architecture."""

from __future__ import annotations

import json
from dataclasses import fields

import jsonschema
import pytest

from lmsbuild import resources
from lmsbuild._compat import tomllib
from lmsbuild.architecture import Architecture, architecture, architectures
from lmsbuild.errors import WrongPlatformError
from lmsbuild.native import manylinux
from lmsbuild.registry import load_registry


def test_the_data_follows_its_schema() -> None:
    schema = json.loads(resources.data_file("architectures.schema.json").read_text("utf-8"))
    document = tomllib.loads(resources.data_file("architectures.toml").read_text("utf-8"))
    jsonschema.validate(document, schema)
    (row,) = schema["patternProperties"].values()
    assert {"name", *row["properties"]} == {field.name for field in fields(Architecture)}


def test_every_architecture_of_a_tag_is_known() -> None:
    for tag in load_registry():
        assert set(tag.architectures) <= set(architectures())


def test_header_packages_come_from_an_architecture_that_has_them() -> None:
    for known in architectures().values():
        source = architecture(known.cuda_packages)
        assert source.cuda_packages == source.name


def test_an_unknown_architecture_names_the_known_ones() -> None:
    with pytest.raises(WrongPlatformError, match="no architecture s390x; known: x86_64, aarch64"):
        architecture("s390x")


def test_policies_differ_where_auditwheels_do() -> None:
    glibc = {
        name: manylinux.load_policy("manylinux_2_17", name).limits["GLIBC"]
        for name in architectures()
    }
    assert glibc == {"x86_64": (2, 17), "aarch64": (2, 18), "ppc64le": (2, 17)}
    assert manylinux.load_policy("manylinux_2_34", "aarch64").limits["GCC"] == (11, 0)
    assert manylinux.load_policy("manylinux_2_34", "ppc64le").limits["GCC"] == (7, 0, 0)
