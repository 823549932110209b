"""The tag registry and its schema."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from lmsbuild import resources
from lmsbuild.errors import RegistryError, UnknownTagError, UnportedTagError
from lmsbuild.native.manylinux import policy_names
from lmsbuild.registry import Registry, Tag, load_registry, validate_registry
from toolkit.helpers.fake_upstream import make_tag, write_registry


def registry_of(*names: str) -> Registry:
    tags = tuple(make_tag(name) for name in names)
    return Registry(upstream_url="https://upstream.invalid", tags=tags)


def test_the_projects_own_registry_follows_its_schema() -> None:
    validate_registry()
    registry = load_registry()
    assert len(registry.tags) >= 4


def test_every_tag_has_a_known_policy_and_its_hooks() -> None:
    policies = policy_names()
    for tag in load_registry():
        assert tag.manylinux in policies or "graft" not in tag.strategies
        assert (resources.patches_dir() / tag.hooks / "series").is_file()


def test_no_code_names_a_tag() -> None:
    package = Path(resources.__file__).parent
    versions = [re.escape(tag.version) for tag in load_registry()]
    named = re.compile(rf"(?<![\d.])({'|'.join(versions)})(?![\d.]*\d)")
    sources = [*package.rglob("*.py"), package.parent / "Makefile"]
    assert len(sources) > 10
    found = [
        f"{path}: {line.strip()}"
        for path in sources
        if path.is_file()
        for line in path.read_text("utf-8").splitlines()
        if named.search(line)
    ]
    assert found == []


def test_with_and_without_the_v() -> None:
    registry = registry_of("v1.2.3", "v1.3.0")
    assert registry.get("1.2.3") is registry.get("v1.2.3") is registry.tags[0]
    assert registry.tags[0].version == "1.2.3"


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ("v1.2.4", "v1.2.3, v1.3.0"),
        ("1.9", "v1.13.0, v1.3.0"),
        ("v3.0.0", "v2.0.0"),
        ("main", "v"),
        ("", "v"),
        ("v1.3.O", "v1.3.0"),
    ],
)
def test_an_unknown_tag_names_the_nearest(asked: str, nearest: str) -> None:
    registry = registry_of("v1.2.3", "v1.3.0", "v1.13.0", "v2.0.0")
    with pytest.raises(UnknownTagError, match=rf"nearest: {nearest}.*lmsbuild tags"):
        registry.get(asked)


@pytest.mark.parametrize(
    ("asked", "nearest", "port"),
    [
        ("v1.3.1", "v1.3.0, v1.2.3", "v1.3.0 v1.3.1"),
        ("1.14.0", "v1.13.0, v1.3.0", "v1.13.0 v1.14.0"),
    ],
)
def test_a_release_without_patches_can_be_ported(asked: str, nearest: str, port: str) -> None:
    registry = registry_of("v1.2.3", "v1.3.0", "v1.13.0", "v2.0.0")
    with pytest.raises(
        UnportedTagError, match=rf"nearest: {nearest} .*: lmsbuild dev port {port}$"
    ):
        registry.get(asked)


@pytest.mark.parametrize("asked", ["v1.3", "v1.3.1-rc2", "main", "v1.3.O"])
def test_what_is_no_release_cannot(asked: str) -> None:
    with pytest.raises(UnknownTagError) as caught:
        registry_of("v1.2.3", "v1.3.0").get(asked)
    assert type(caught.value) is UnknownTagError
    assert "lmsbuild dev port" not in str(caught.value)


def test_landmarks_are_the_ends_and_the_default() -> None:
    tags = [make_tag(f"v1.{minor}.0", gpu="X1" if minor == 2 else "") for minor in range(5)]

    def landmarks(*changed: Tag) -> list[str]:
        by_name = {tag.name: tag for tag in (*tags, *changed)}
        registry = Registry(upstream_url="", tags=tuple(by_name.values()))
        return [tag.name for tag in registry.landmarks("3.12")]

    assert landmarks() == ["v1.0.0", "v1.2.0", "v1.4.0"]
    source = replace(tags[0], strategies=("source",))
    newer = replace(tags[4], pythons=("3.13",))
    assert landmarks(source, newer) == ["v1.1.0", "v1.2.0", "v1.3.0"]
    assert landmarks(replace(tags[2], pythons=("3.13",))) == ["v1.0.0", "v1.4.0"]
    assert landmarks(*(replace(tag, pythons=("3.13",)) for tag in tags)) == []


def test_oldest_first_by_number_not_by_letter(tmp_path: Path) -> None:
    write_registry(tmp_path, [make_tag("v1.10.0"), make_tag("v1.9.0")])
    assert [tag.name for tag in load_registry(tmp_path)] == ["v1.9.0", "v1.10.0"]


def test_the_default_is_the_newest_that_a_gpu_has_seen() -> None:
    def default(*tags: object) -> str:
        return Registry(upstream_url="", tags=tags).default.name  # type: ignore[arg-type]

    old, new = make_tag("v1.9.0", gpu="X1"), make_tag("v1.10.0", gpu="X1")
    newest = make_tag("v2.0.0", simulated=True, hooks_wheel=True)
    assert default(newest, new, old) == "v1.10.0"
    assert default(make_tag("v3.0.0"), newest) == "v2.0.0"
    assert default(make_tag("v3.0.0"), make_tag("v3.10.0"), make_tag("v3.9.0")) == "v3.10.0"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('cuda = "13.0"', "cuda = 13", r"\$\.tag\[0\]\.cuda"),
        ('name = "v1.2.3"', 'name = "1.2.3"', r"\$\.tag\[0\]\.name"),
        ("cxx_standard = 17", "cxx_standard = 14", "14 is not one of"),
        ('["x86_64"]', '["i386"]', "i386"),
        ("cuda =", "kuda =", "kuda"),
        ("cxx11_abi = 1\n", "", "cxx11_abi"),
        ("==13.0.96", ">=13.0", "nvidia-cuda-runtime>=13.0"),
        ("[upstream]", "[downstream]", "'upstream' is a required"),
    ],
)
def test_the_schema_finds_mistakes(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    write_registry(tmp_path, [make_tag("v1.2.3")])
    validate_registry(tmp_path)
    path = tmp_path / "tags.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(RegistryError, match=complaint):
        validate_registry(tmp_path)


def test_a_tag_listed_twice(tmp_path: Path) -> None:
    write_registry(tmp_path, [make_tag("v1.2.3"), make_tag("v1.2.3")])
    with pytest.raises(RegistryError, match=r"listed twice: v1\.2\.3"):
        validate_registry(tmp_path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[tag]\n", "unreadable"),
        ('[upstream]\nurl = "x"\n', "malformed"),
        ('tag = []\n[upstream]\nurl = "x"\n', "holds no tag"),
        ('[upstream]\nurl = "x"\n[[tag]]\nname = "v1.2.3"\n', "malformed"),
    ],
)
def test_a_broken_file_is_one_clear_error(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "tags.toml").write_text(text)
    with pytest.raises(RegistryError, match=complaint):
        load_registry(tmp_path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match=r"tags\.toml: no such file"):
        load_registry(tmp_path)


def test_an_installation_without_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path / "lmsbuild")
    for find in (resources.patches_dir, resources.tests_dir):
        with pytest.raises(RegistryError, match="reinstall lmsbuild"):
            find()
    with pytest.raises(RegistryError, match="reinstall lmsbuild"):
        resources.data_file("manylinux.toml")
    (tmp_path / "lmsbuild/patches").mkdir(parents=True)
    (tmp_path / "lmsbuild/patches/tags.toml").write_text("")
    assert resources.patches_dir() == tmp_path / "lmsbuild/patches"
