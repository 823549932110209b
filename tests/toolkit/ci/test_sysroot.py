"""ci/sysroot.py: what tests of foreign architectures run in."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import jsonschema
import pytest

from lmsbuild._compat import tomllib
from lmsbuild.architecture import architectures
from toolkit.helpers.ci_script import load

CI = Path(__file__).parents[3] / "ci"
sysroot = load("sysroot")
debian_source = sys.modules["debian_source"]


def test_the_data_follows_its_schema() -> None:
    document = tomllib.loads((CI / "sysroots.toml").read_text("utf-8"))
    jsonschema.validate(document, json.loads((CI / "sysroots.schema.json").read_text("utf-8")))
    assert set(document) <= set(architectures())
    for name in document:
        described = sysroot.described(name)
        # A wheel for its Python, or the parts of a stand-in.
        assert bool(described.python) != bool(described.source)


def test_an_architecture_without_one() -> None:
    with pytest.raises(sysroot.Unavailable, match="no sysroot for sparc; there are: aarch64"):
        sysroot.described("sparc")


def test_other_packages_are_another_sysroot() -> None:
    one = sysroot.described("ppc64le")
    others = [
        dataclasses.replace(one, packages=(*one.packages, "x")),
        dataclasses.replace(one, alone=()),
        dataclasses.replace(one, suite="sid"),
    ]
    assert len({one.key, *(other.key for other in others)}) == 4


def test_one_that_is_kept_is_not_fetched_again(tmp_path: Path) -> None:
    described = sysroot.described("aarch64")
    kept = tmp_path / "sysroots" / described.key
    kept.mkdir(parents=True)
    assert sysroot.make(described, tmp_path, None) == kept


def test_apt_is_asked_for_another_architecture_in_a_place_of_its_own(tmp_path: Path) -> None:
    mirror = debian_source.Mirror("http://mirror.invalid/debian", "/key.gpg")
    flags = debian_source.configure(tmp_path, mirror, "deb", "trixie", "ppc64el")
    options = dict(flag.split("=", 1) for flag in flags if flag != "-o")
    assert options["APT::Architecture"] == options["APT::Architectures"] == "ppc64el"
    assert options["Dir::Etc::SourceList"] == "/dev/null"
    for name in ("Dir::State", "Dir::State::Lists", "Dir::State::status", "Dir::Cache"):
        assert Path(options[name]).is_relative_to(tmp_path)
    assert "Architectures: ppc64el" in (tmp_path / "parts" / "debian.sources").read_text()


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[str], where: Path) -> None:
        raise sysroot.Unavailable("no network")

    monkeypatch.setattr(sysroot, "run_apt", fail)
    mirror = debian_source.Mirror("http://mirror.invalid/debian", "")
    with pytest.raises(sysroot.Unavailable, match="no network"):
        sysroot.make(sysroot.described("aarch64"), tmp_path, mirror)
    assert list((tmp_path / "sysroots").iterdir()) == []
