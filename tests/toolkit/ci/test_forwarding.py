"""The generator of the class that forwards the virtual methods of PyTorch's CUDA allocator."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import jsonschema
import pytest

from lmsbuild._compat import tomllib
from toolkit.checkout.test_round_trip import PYTHON, wheel_of
from toolkit.helpers.ci_script import load

forwarding = load("forwarding")
ALLOCATOR = "c10/core/Allocator.h"
DEVICE = "c10/core/CachingDeviceAllocator.h"
CUDA = "c10/cuda/CUDACachingAllocator.h"
BASE = "struct C10_API Allocator { virtual ~Allocator() = default; %s };"


def declared(cuda: str, base: str = "", device: str | None = None) -> list[str]:
    headers = {
        ALLOCATOR: BASE % base,
        CUDA: f"class CUDAAllocator : public Allocator {{ {cuda} }};",
    }
    if device is not None:
        headers[DEVICE] = f"struct DeviceAllocator : public c10::Allocator {{ {device} }};"
        headers[CUDA] = headers[CUDA].replace("public Allocator", "public DeviceAllocator")
    return [method.declaration for method in forwarding.methods_of(headers.get)]


def method(text: str) -> forwarding.Method:
    return forwarding._method(text)


def written(read: dict[int, list[str]]) -> str:
    merged = forwarding.merge([], {}, {m: [method(t) for t in read[m]] for m in read})
    return forwarding.header(*merged)


def test_the_data_keeps_to_its_schema() -> None:
    schema = json.loads(forwarding.DATA.with_name("allocator.schema.json").read_text("utf-8"))
    document = tomllib.loads(forwarding.DATA.read_text("utf-8"))
    jsonschema.Draft202012Validator(schema).validate(document)


def test_what_is_committed_is_what_is_generated() -> None:
    assert forwarding.main(["--check"]) == 0
    assert forwarding.data(*forwarding.load()) == forwarding.DATA.read_text("utf-8")


def test_the_headers_of_every_release_were_read() -> None:
    read = {forwarding.minor_of(tag.version) for tag in forwarding.tags_with_class()}
    assert forwarding.load()[0] == sorted(read)


def test_a_stale_file_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = tmp_path / "forwarding.h"
    text = forwarding.HEADER.read_text("utf-8")
    stale.write_text(text.replace("bool initialized()", "bool is_initialized()"), "utf-8")
    monkeypatch.setattr(forwarding, "HEADER", stale)
    monkeypatch.setattr(forwarding, "ROOT", tmp_path)
    shutil.copy(Path(__file__).parents[3] / ".clang-format", tmp_path)
    assert forwarding.main(["--check"]) == 1
    assert "forwarding.h is stale" in capsys.readouterr().err
    assert forwarding.main([]) == 0
    assert stale.read_text("utf-8") == text


def test_virtual_methods_of_every_class_and_nothing_else() -> None:
    assert declared(
        "public: virtual void init(int n) = 0; void plain(); virtual bool on() const { return 1; }",
        base="virtual DataPtr allocate(size_t n) = 0; DataPtr clone(const void* data, size_t n);",
    ) == ["void init(int n)", "bool on() const", "c10::DataPtr allocate(size_t n)"]


def test_defaults_and_bodies_are_left_out() -> None:
    assert declared("virtual void emptyCache(MempoolId_t id = {0, 0}, bool all = true) = 0;") == [
        "void emptyCache(MempoolId id, bool all)"
    ]


def test_an_override_of_upstreams_own_is_forwarded_once() -> None:
    text = "size_t used(c10::DeviceIndex device) override { return 0; }"
    assert declared(text, device="virtual size_t used(DeviceIndex index);") == [
        "size_t used(c10::DeviceIndex device)"
    ]


def test_an_overload_that_upstream_defines_by_another_is_kept() -> None:
    # Were it forwarded as well, the tier would not be told.
    assert declared(
        "virtual void record(CUDAStream stream) = 0; void record(c10::Stream s) override { }",
        device="virtual void record(c10::Stream stream) = 0;",
    ) == ["void record(c10::cuda::CUDAStream stream)", "using cca::CUDAAllocator::record"]


def test_what_is_not_known_is_asked_for() -> None:
    with pytest.raises(forwarding.NotUnderstood, match="what is Novelty"):
        declared("virtual void f(const Novelty& n);")
    with pytest.raises(forwarding.NotUnderstood, match="no class CUDAAllocator"):
        forwarding.methods_of({ALLOCATOR: BASE % ""}.get)


def test_a_base_class_that_is_not_watched_is_asked_for() -> None:
    with pytest.raises(forwarding.NotUnderstood, match="DeviceAllocator"):
        forwarding.methods_of({CUDA: "class CUDAAllocator : public DeviceAllocator {};"}.get)


def test_releases_are_told_apart() -> None:
    text = written({6: ["void f()", "int g()"], 7: ["void f()"], 8: ["void f(int a)", "void f()"]})
    assert text.index("void f()") < text.index("#if !LMS_TORCH_AT_LEAST(7)\n  int g()")
    assert "#if LMS_TORCH_AT_LEAST(8)\n  void f(int a) override {\n" in text
    assert text.count("void f()") == 1


def test_a_method_that_was_there_for_some_releases() -> None:
    text = written({6: [], 7: ["int g()"], 8: ["int g()"], 9: [], 10: ["int g()"]})
    assert "#if LMS_TORCH_AT_LEAST(7) && !LMS_TORCH_AT_LEAST(9)\n  int g()" in text
    assert "#if LMS_TORCH_AT_LEAST(10)\n  int g()" in text


def test_parameters_are_moved_where_that_saves_a_copy() -> None:
    (text,) = declared(
        "virtual int f(std::string s, const std::string& r, std::size_t n, OutOfMemoryObserver o);"
    )
    assert "f(std::move(s), r, n, std::move(o))" in method(text).definition


def test_the_hook_follows_the_emptied_cache() -> None:
    assert "target_->emptyCache();\n  cache_emptied();" in written(
        {6: ["void emptyCache()"]}
    ).replace("    ", "  ")


def test_a_release_that_is_read_again_takes_its_own_place() -> None:
    old = forwarding.merge([], {}, {6: [method("void f(int a)")], 7: [method("void f(int a)")]})
    known, methods = forwarding.merge(*old, {7: [method("void f(int)"), method("int g()")]})
    assert known == [6, 7]
    named = {found.declaration: minors for found, minors in methods.items()}
    # A name that one release has left out is taken from another.
    assert named == {"void f(int a)": [6, 7], "int g()": [7]}


@pytest.mark.network
def test_the_data_is_what_the_wheels_say() -> None:
    _, methods = forwarding.load()
    tags = [tag for tag in forwarding.tags_with_class() if tag.has_wheel(PYTHON)]
    for tag in (tags[0], tags[-1]):
        minor = forwarding.minor_of(tag.version)
        with zipfile.ZipFile(wheel_of(tag)) as wheel:
            read = set(forwarding.read_wheel(wheel))
        assert read == {found for found, minors in methods.items() if minor in minors}, tag.name
