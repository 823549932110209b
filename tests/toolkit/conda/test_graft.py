"""LMS on a conda package: the same kind comes out, and what will not do is refused."""

from __future__ import annotations

import builtins
import dataclasses
import hashlib
import io
import json
import re
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lmsbuild.cli.main import main
from lmsbuild.conda import base as condabase
from lmsbuild.conda.graft import build_package
from lmsbuild.errors import (
    DamagedWheelError,
    ForeignWheelError,
    IncompleteBaseError,
    LmsbuildError,
    RenamedLibrariesError,
    ToolMissingError,
    UnsafeMemberError,
    WrongPlatformError,
    WrongPythonError,
)
from lmsbuild.tools import elf
from lmsbuild.wheel.base import AlreadyGraftedError, CpuOnlyWheelError
from lmsbuild.wheel.request import GraftRequest
from toolkit.helpers.damage import flipped
from toolkit.helpers.fake_conda_base import (
    BUILD,
    INDEX,
    SITE,
    STEM,
    files_of,
    read_package,
    write_package,
)
from toolkit.helpers.fake_torch import DIST_INFO, MACHINE, PYTHON, VERSION, FakeTorch
from toolkit.helpers.fake_torch import fake as fake
from toolkit.helpers.fake_torch import offline as offline
from toolkit.helpers.fake_torch import shared_cache as shared_cache

LIBRARY = f"{SITE}/torch/lib/libtorch_lms.so"
# The number at the end of a build string stays there.
MARKED = re.sub(r"_(\d+)$", r"_lms1_\1", BUILD)


def build(
    fake: FakeTorch, base: Path, out: Path, cache: Path, *others: Path, python: str | None = None
) -> Path:
    request = GraftRequest(
        tag=fake.tag,
        architecture=MACHINE,
        python=python,
        base=base,
        out=out,
        patches=fake.patches,
        cache=cache,
        companions=others,
    )
    return build_package(request, lambda *_: None).path


@pytest.mark.parametrize("suffix", condabase.SUFFIXES)
def test_the_same_kind_comes_out(
    fake: FakeTorch, offline: None, shared_cache: Path, tmp_path: Path, suffix: str
) -> None:
    base = write_package(tmp_path / f"{STEM}{suffix}", files_of(fake))
    made = build(fake, base, tmp_path / "out", shared_cache)
    assert made.name == f"pytorch-{VERSION}-{MARKED}{suffix}"
    old, new = read_package(base), read_package(made)
    assert old.keys() - new.keys() == set()
    assert new.keys() - old.keys() == {
        LIBRARY,
        f"{SITE}/torch/cuda/lms/__init__.py",
        "info/lms.json",
    }
    assert {name for name in old if old[name] != new[name]} == {
        f"{SITE}/torch/cuda/__init__.py",
        f"{SITE}/torch/version.py",
        f"{SITE}/{DIST_INFO}/METADATA",
        f"{SITE}/{DIST_INFO}/RECORD",
        "info/index.json",
        "info/paths.json",
        "info/files",
    }
    assert json.loads(new["info/index.json"]) == {**INDEX, "build": MARKED}
    assert f"Version: {VERSION}+lms1".encode() in new[f"{SITE}/{DIST_INFO}/METADATA"]
    library = elf.read_stream(io.BytesIO(new[LIBRARY]))
    assert (library.machine, library.soname) == (MACHINE, "libtorch_lms.so")
    origin = json.loads(new["info/lms.json"])
    assert origin["base_sha256"] == hashlib.sha256(base.read_bytes()).hexdigest()


def test_the_package_tells_the_truth_about_itself(
    fake: FakeTorch, offline: None, shared_cache: Path, tmp_path: Path
) -> None:
    base = write_package(tmp_path / f"{STEM}.conda", files_of(fake))
    made = read_package(build(fake, base, tmp_path / "out", shared_cache))
    installed = {name: data for name, data in made.items() if not name.startswith("info/")}
    rows = {row["_path"]: row for row in json.loads(made["info/paths.json"])["paths"]}
    assert rows.keys() == installed.keys()
    for name, data in installed.items():
        assert rows[name]["sha256"] == hashlib.sha256(data).hexdigest()
        assert rows[name]["size_in_bytes"] == len(data)
    assert made["info/files"].decode().split() == sorted(installed)
    record = made[f"{SITE}/{DIST_INFO}/RECORD"].decode()
    assert "torch/lib/libtorch_lms.so,sha256=" in record
    assert record.count("torch/version.py,") == 1


@pytest.mark.parametrize("suffix", condabase.SUFFIXES)
def test_the_same_inputs_give_the_same_bytes(
    fake: FakeTorch,
    offline: None,
    shared_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    suffix: str,
) -> None:
    base = write_package(tmp_path / f"{STEM}{suffix}", files_of(fake))
    first = build(fake, base, tmp_path / "first", shared_cache).read_bytes()
    # zipfile dates a member so unless it is told a date, as conda_package_streaming does not.
    monkeypatch.setattr(time, "localtime", lambda _=None: time.gmtime(2_000_000_000))
    assert build(fake, base, tmp_path / "second", shared_cache).read_bytes() == first


def test_libraries_and_headers_may_lie_in_another_package(
    fake: FakeTorch, offline: None, shared_cache: Path, tmp_path: Path
) -> None:
    whole = files_of(fake)
    prefix = f"{SITE}/torch/"
    moved = {name for name in whole if name.startswith((f"{prefix}lib/", f"{prefix}include/"))}
    links = {f"{prefix}include/c10": "../../../../../include/c10"}
    links |= {name: f"../../../../{Path(name).name}" for name in moved if "/lib/lib" in name}
    rest = {name: data for name, data in whole.items() if name not in moved}
    base = write_package(tmp_path / f"{STEM}.conda", rest, links=links)
    with pytest.raises(IncompleteBaseError, match="as a second --base"):
        build(fake, base, tmp_path / "out", shared_cache)
    others = {
        (f"lib/{Path(name).name}" if "/lib/lib" in name else name.removeprefix(prefix)): whole[name]
        for name in moved
    }
    other = write_package(tmp_path / f"libtorch-{VERSION}-0.conda", others)
    made = read_package(build(fake, base, tmp_path / "out", shared_cache, other))
    assert LIBRARY in made
    assert "lib/libc10.so" not in made


def change(name: str, data: bytes | None) -> Any:
    def changed(files: dict[str, bytes]) -> dict[str, bytes]:
        others = {path: old for path, old in files.items() if path != f"{SITE}/{name}"}
        return others if data is None else {**others, f"{SITE}/{name}": data}

    return changed


def renamed(files: dict[str, bytes]) -> dict[str, bytes]:
    path = f"{SITE}/torch/lib/"
    return {**files, f"{path}libcudart-1a2b3c4d.so.13": b"x", f"{path}libtorch_cuda.so": b"y"}


@pytest.mark.parametrize(
    ("files", "index", "kind", "message"),
    [
        (change("torch/lib/libtorch_lms.so", b"x"), {}, AlreadyGraftedError, "already has LMS"),
        (change("torch/version.py", b"cuda = None\n"), {}, CpuOnlyWheelError, "CPU-only"),
        (dict, {"version": "1.2.3"}, ForeignWheelError, "is PyTorch 1.2.3"),
        (dict, {"version": "x"}, DamagedWheelError, "no valid version"),
        (dict, {"subdir": "osx-64"}, WrongPlatformError, "is for osx-64"),
        (change("torch/lib/libtorch_cuda.so", None), {}, CpuOnlyWheelError, "libtorch_cuda"),
        (renamed, {}, RenamedLibrariesError, "auditwheel has renamed"),
        (lambda files: {"x": b"y"}, {}, IncompleteBaseError, "pytorch-base"),
    ],
)
def test_what_will_not_do(
    fake: FakeTorch,
    tmp_path: Path,
    files: Any,
    index: dict[str, str],
    kind: type[LmsbuildError],
    message: str,
) -> None:
    base = write_package(tmp_path / f"{STEM}.conda", files(files_of(fake)), {**INDEX, **index})
    with pytest.raises(kind, match=message):
        build(fake, base, tmp_path / "out", tmp_path / "cache")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_release_that_is_built_from_source_only(fake: FakeTorch, tmp_path: Path) -> None:
    base = write_package(tmp_path / f"{STEM}.conda", files_of(fake))
    old = dataclasses.replace(fake.tag, strategies=("source",))
    request = GraftRequest(
        tag=old,
        architecture=MACHINE,
        python=None,
        base=base,
        out=tmp_path / "out",
        patches=fake.patches,
        cache=tmp_path / "cache",
    )
    with pytest.raises(WrongPlatformError, match="can only be built from source"):
        build_package(request, lambda *_: None)


def test_another_python_is_refused(fake: FakeTorch, tmp_path: Path) -> None:
    base = write_package(tmp_path / f"{STEM}.conda", files_of(fake))
    with pytest.raises(WrongPythonError, match=r"supports CPython .*, not 3\.99"):
        build(fake, base, tmp_path / "out", tmp_path / "cache", python="3.99")
    unpacked = condabase.unpack(base, [], tmp_path / "unpacked")
    for tag, python, message in (
        (fake.tag, "3.98", f"is for CPython {PYTHON}, not 3.98"),
        (dataclasses.replace(fake.tag, pythons=("3.98",)), None, "supports CPython 3.98"),
    ):
        with pytest.raises(WrongPythonError, match=message):
            condabase.check(unpacked, tag, architecture=MACHINE, python=python)


def test_a_changed_file_is_seen(fake: FakeTorch, tmp_path: Path) -> None:
    base = write_package(tmp_path / f"{STEM}.tar.bz2", files_of(fake))
    content = read_package(base)
    content[f"{SITE}/torch/nn/__init__.py"] = b"changed"
    damaged = tmp_path / "damaged" / base.name
    damaged.parent.mkdir()
    # Under its old list of hashes.
    paths = content.pop("info/paths.json")
    write_package(damaged, {k: v for k, v in content.items() if not k.startswith("info/")})
    unpacked = condabase.unpack(damaged, [], tmp_path / "unpacked")
    (tmp_path / "unpacked" / condabase.PATHS).write_bytes(paths)
    with pytest.raises(DamagedWheelError, match=r"nn/__init__\.py does not match"):
        condabase.check(unpacked, fake.tag, architecture=MACHINE, python=None)


@pytest.mark.parametrize("suffix", condabase.SUFFIXES)
def test_a_truncated_package(fake: FakeTorch, tmp_path: Path, suffix: str) -> None:
    base = write_package(tmp_path / f"{STEM}{suffix}", files_of(fake))
    base.write_bytes(base.read_bytes()[:2000])
    with pytest.raises(DamagedWheelError, match=r"not a complete conda package|cannot be unpacked"):
        build(fake, base, tmp_path / "out", tmp_path / "cache")


@pytest.mark.parametrize("part", ["info", "pkg"])
def test_a_part_that_is_not_compressed(fake: FakeTorch, tmp_path: Path, part: str) -> None:
    base = write_package(tmp_path / f"{STEM}.conda", files_of(fake))
    with zipfile.ZipFile(base) as package:
        parts = {name: package.read(name) for name in package.namelist()}
    with zipfile.ZipFile(base, "w") as package:
        for name, data in parts.items():
            package.writestr(name, b"not zstd" if name.startswith(part) else data)
    with pytest.raises(DamagedWheelError, match=base.name):
        build(fake, base, tmp_path / "out", tmp_path / "cache")
    if part == "info":
        with pytest.raises(DamagedWheelError, match=base.name):
            condabase.release(base)


@pytest.mark.parametrize("suffix", condabase.SUFFIXES)
def test_a_package_with_a_wrong_byte(fake: FakeTorch, tmp_path: Path, suffix: str) -> None:
    base = write_package(tmp_path / f"{STEM}{suffix}", files_of(fake))
    whole = base.read_bytes()
    refused = 0
    for at in range(len(whole) // 4, len(whole) // 2, len(whole) // 40):
        base.write_bytes(flipped(whole, at))
        try:
            condabase.unpack(base, [], tmp_path / f"out-{at}")
        except LmsbuildError:
            refused += 1
    assert refused > 5


def test_a_member_that_climbs_out(fake: FakeTorch, tmp_path: Path) -> None:
    base = write_package(tmp_path / f"{STEM}.conda", {**files_of(fake), "../outside": b"x"})
    with pytest.raises(UnsafeMemberError, match="do not use this file"):
        build(fake, base, tmp_path / "out", tmp_path / "cache")
    assert not list(tmp_path.rglob("outside"))


def test_without_the_library_it_says_what_to_install(
    fake: FakeTorch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name.startswith("conda_package_streaming"):
            raise ImportError(name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ToolMissingError, match=r"pip install '\.\[conda\]'"):
        condabase.release(write_package(tmp_path / f"{STEM}.conda", files_of(fake)))


def test_the_version_is_read_from_the_package(fake: FakeTorch, tmp_path: Path) -> None:
    for suffix in condabase.SUFFIXES:
        package = write_package(tmp_path / f"{STEM}{suffix}", files_of(fake))
        assert condabase.release(package) == VERSION


def test_the_command_takes_it(
    fake: FakeTorch, offline: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("lmsbuild.cli.commands.wheel.patches_dir", lambda: fake.patches)
    base = str(write_package(tmp_path / f"{STEM}.conda", files_of(fake)))
    out = ["--out", str(tmp_path / "out")]
    result = CliRunner().invoke(main, ["wheel", "--base", base, *out])
    assert result.exit_code == 0, result.output
    assert [path.name for path in (tmp_path / "out").iterdir()] == [
        f"{STEM.removesuffix(BUILD)}{MARKED}.conda"
    ]
    result = CliRunner().invoke(main, ["wheel", "--base", str(fake.base), "--base", base, *out])
    assert result.exit_code == 2
    assert "only a conda package can have a second --base" in result.output


def test_a_member_that_writes_through_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    base = tmp_path / f"{STEM}.tar.bz2"
    with tarfile.open(base, "w:bz2") as tar:
        for name, data in (("info/index.json", b"{}"), ("lib/x", None), ("lib/x", b"theirs")):
            member = tarfile.TarInfo(name)
            if data is None:
                member.type, member.linkname = tarfile.LNKTYPE, str(precious)
            member.size = len(data or b"")
            tar.addfile(member, io.BytesIO(data or b""))
    with pytest.raises(UnsafeMemberError, match="do not use this file"):
        condabase.unpack(base, [], tmp_path / "out")
    assert precious.read_text() == "mine"


def test_a_post_release_is_the_release_packed_again(fake: FakeTorch, tmp_path: Path) -> None:
    base = tmp_path / f"{STEM}.conda"
    write_package(base, files_of(fake), {**INDEX, "version": f"{VERSION}.post1"})
    assert condabase.release(base) == VERSION
    write_package(base, files_of(fake), {**INDEX, "version": "none"})
    with pytest.raises(DamagedWheelError, match="no valid version"):
        condabase.release(base)
