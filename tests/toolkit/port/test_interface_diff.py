"""What changed in the interfaces that the runtime uses."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest

from lmsbuild._compat import tomllib
from lmsbuild.port.cpp_header import declarations
from lmsbuild.port.interface_diff import Change, Headers, compare, load_watched
from lmsbuild.port.port import headers_of
from lmsbuild.registry import Tag, load_registry
from lmsbuild.resources import data_file, patches_dir
from lmsbuild.wheel.base import identify
from toolkit.checkout.test_round_trip import PYTHON, wheel_of

ALLOCATOR = "c10/cuda/CUDACachingAllocator.h"
BASES = "c10/core/CachingDeviceAllocator.h"


def changes(before: dict[str, str], after: dict[str, str]) -> list[Change]:
    return list(compare(before.get, after.get))


@pytest.mark.parametrize("name", ["watch", "toolkits"])
def test_the_data_keeps_to_its_schema(name: str) -> None:
    document = tomllib.loads(data_file(f"{name}.toml").read_text("utf-8"))
    schema = json.loads(data_file(f"{name}.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(schema).validate(document)


def test_every_header_that_the_runtime_includes_is_watched() -> None:
    included = set()
    for path in (patches_dir() / "runtime").rglob("*"):
        if path.suffix in (".h", ".cpp"):
            included |= set(re.findall(r"#include <((?:c10|ATen|torch)/[^>]+)>", path.read_text()))
    included = {name for name in included if not name.startswith("torch/csrc/cuda/lms/")}
    assert len(included) > 10
    assert included - {watched.path for watched in load_watched()} == set()


def test_every_class_that_the_allocator_derives_from_is_forwarded() -> None:
    overridden = {name for watched in load_watched() for name in watched.overridden}
    assert overridden == {"Allocator", "DeviceAllocator", "CUDAAllocator"}


def headers(tag: Tag) -> Headers:
    return headers_of(identify(wheel_of(tag)))


@pytest.mark.network
def test_every_watched_name_is_in_the_newest_release_or_old() -> None:
    # A name that no release has any more would be compared with nothing, and never differ.
    known = [tag for tag in load_registry() if tag.has_wheel(PYTHON)]
    oldest, newest = headers(known[0]), headers(known[-1])
    for watched in load_watched():
        names = {*watched.overridden, *watched.classes, *watched.names}
        present = set(declarations(newest(watched.path) or ""))
        assert names - present == set(), watched.path
        assert present & set(watched.old) == set(), watched.path
        assert set(watched.old) <= set(declarations(oldest(watched.path) or "")), watched.path


@pytest.mark.network
def test_a_new_type_of_elements_is_told() -> None:
    found = compare(*(headers(load_registry().get(name)) for name in ("v2.13.0", "v2.14.1")))
    (types,) = (change for change in found if "SCALAR_TYPES" in change.name)
    assert "BComplex32" in types.after[0]
    assert "BComplex32" not in types.before[0]


def test_a_new_virtual_method_has_to_be_forwarded() -> None:
    text = "class CUDAAllocator : public X { virtual void old() = 0; };"
    (change,) = changes({ALLOCATOR: text}, {ALLOCATOR: text.replace("};", "virtual int n(); };")})
    assert (change.name, change.before, change.after) == (
        "CUDAAllocator::n",
        (),
        ("virtual int n()",),
    )
    assert change.forwarded


def test_a_body_is_no_change_and_a_parameter_is() -> None:
    text = "class CUDAAllocator { virtual int f(int a) { return 1; } };"
    assert changes({ALLOCATOR: text}, {ALLOCATOR: text.replace("1", "2")}) == []
    (change,) = changes({ALLOCATOR: text}, {ALLOCATOR: text.replace("(int a)", "(long a)")})
    assert change.after == ("virtual int f(long a)",)


def test_what_is_not_watched_is_not_told() -> None:
    text = "class CUDAAllocator {}; class Other { int x; }; int free_function();"
    assert changes({ALLOCATOR: text}, {ALLOCATOR: "class CUDAAllocator {};"}) == []


def test_what_moved_is_told_when_it_changed_on_the_way() -> None:
    segment = "struct SegmentInfo { void* stream; bool is_large; };"
    moved = segment.replace("void*", "cudaStream_t")
    found = changes({BASES: segment}, {ALLOCATOR: moved})
    assert [(change.name, change.path) for change in found] == [
        ("SegmentInfo::stream", f"{BASES}, now {ALLOCATOR}")
    ]
    assert changes({BASES: segment}, {ALLOCATOR: segment}) == []


def test_a_header_that_is_gone() -> None:
    path = "c10/core/StorageImpl.h"
    found = changes({path: "struct StorageImpl { bool throws_; };"}, {})
    assert [change.name for change in found] == ["StorageImpl", "StorageImpl::throws_"]
    assert not any(change.after for change in found)
