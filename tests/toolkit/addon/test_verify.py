"""`lmsbuild verify` of torch-lms finds each planted fault, and none in a good wheel."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import lmsbuild
from lmsbuild.addon.metadata import DIST_INFO
from lmsbuild.addon.verify import verify_addon
from lmsbuild.cli.main import main
from lmsbuild.errors import DamagedWheelError, VerifyError
from toolkit.addon.test_build import NAME, RELEASE, build
from toolkit.helpers.damage import flipped
from toolkit.helpers.fake_torch import (
    MACHINE,
    VERSION,
    FakeTorch,
    Wheel,
    members_of,
    shared_library,
)
from toolkit.helpers.fake_torch import fake as fake
from toolkit.helpers.fake_torch import shared_cache as shared_cache

LIBRARY = f"{RELEASE}/libtorch_lms.so"
BILL = f"{DIST_INFO}/sboms/lmsbuild.cdx.json"


@pytest.fixture(scope="module")
def good(fake: FakeTorch, shared_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(fake.links))
        return build(fake, tmp_path_factory.mktemp("good"), shared_cache)


def failures(path: Path) -> dict[str, list[str]]:
    return {check.name: check.problems for check in verify_addon(path) if check.problems}


def test_a_good_wheel_passes(good: Path) -> None:
    assert failures(good) == {}
    result = CliRunner().invoke(main, ["verify", str(good), "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["kept"]
    assert [check["name"] for check in document["checks"]] == [
        "RECORD",
        "files",
        "provenance",
        "SBOM",
        "hooks",
        "LMS libraries",
        "manylinux symbols",
        "C interface",
        "Python interface",
    ]
    with_base = CliRunner().invoke(main, ["verify", str(good), "--base", str(good)])
    assert with_base.exit_code == 2


@pytest.mark.parametrize("name", ["entry_points.txt", "sboms/lmsbuild.cdx.json", "METADATA"])
def test_a_member_with_a_wrong_byte(name: str, good: Path, tmp_path: Path) -> None:
    wheel = tmp_path / good.name
    wheel.write_bytes(damaged(good, f"{DIST_INFO}/{name}"))
    result = CliRunner().invoke(main, ["verify", str(wheel)])
    assert result.exit_code in (VerifyError.exit_code, DamagedWheelError.exit_code), result.output
    assert "bug in lmsbuild" not in result.output


def damaged(path: Path, member: str) -> bytes:
    """The archive with other bytes in the middle of a member."""
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(member)
    at = info.header_offset + 30 + len(info.filename) + info.compress_size // 2
    return flipped(path.read_bytes(), at)


def without(text: str) -> Callable[[bytes], bytes]:
    def remove(data: bytes) -> bytes:
        assert text.encode() in data
        return data.replace(text.encode(), b"")

    return remove


@pytest.mark.parametrize(
    ("member", "change", "check", "problem"),
    [
        (
            "torch/cuda/lms/__init__.py",
            lambda _: b"",
            "files",
            "torch/cuda/lms/__init__.py does not belong",
        ),
        (f"{DIST_INFO}/entry_points.txt", lambda _: b"", "files", "does not name torch_lms"),
        (f"{RELEASE}/lms.json", lambda _: b"{}", "provenance", "cannot be read"),
        (f"{RELEASE}/lms.json", without(VERSION), "provenance", "is that of v"),
        (BILL, without("CycloneDX"), "SBOM", "its format is"),
        (
            BILL,
            lambda data: data.replace(b'"content": "', b'"content": "0'),
            "SBOM",
            "not the file",
        ),
        (f"{RELEASE}/release.json", lambda _: b"[]", "hooks", "cannot be read"),
        (f"{RELEASE}/release.json", without("import "), "hooks", "SyntaxError"),
        (f"{RELEASE}/libtorch_lms.so", lambda _: b"", "LMS libraries", "no shared library"),
        (
            "torch_lms/runtime/cuda/lms/__init__.py",
            without("set_limit"),
            "Python interface",
            "no set_limit",
        ),
    ],
)
def test_a_fault_is_found(
    good: Path,
    tmp_path: Path,
    member: str,
    change: Callable[[bytes], bytes],
    check: str,
    problem: str,
) -> None:
    members = members_of(good)
    members.pop(f"{DIST_INFO}/RECORD")
    members[member] = change(members.get(member, b""))
    if member == LIBRARY:
        members.pop(BILL)  # it is of the library that was there
    path = Wheel(members, DIST_INFO).write(tmp_path / NAME)
    found = failures(path)
    assert list(found) == [check]
    assert problem in " ".join(found[check])
    result = CliRunner().invoke(main, ["verify", str(path)])
    assert result.exit_code == VerifyError.exit_code


def test_a_changed_member_is_found(good: Path, tmp_path: Path) -> None:
    members = members_of(good)
    members.pop(f"{DIST_INFO}/RECORD")
    wheel = Wheel(members, DIST_INFO)
    wheel.rows = wheel.true_rows()
    members["torch_lms/install.py"] += b"# more\n"
    assert list(failures(wheel.write(tmp_path / NAME))) == ["RECORD"]


def test_another_library_is_found(good: Path, tmp_path: Path) -> None:
    members = members_of(good)
    members.pop(f"{DIST_INFO}/RECORD")
    library = shared_library(tmp_path / "libtorch_lms.so", 'extern "C" int stray() { return 1; }')
    members[LIBRARY] = library
    members.pop(BILL)
    path = Wheel(members, DIST_INFO).write(tmp_path / NAME)
    (problems,) = failures(path).values()
    assert f"{VERSION}: stray is exported, but not part of the interface" in problems
    assert f"{VERSION}: lms_abi_version is not exported" in problems
    other = path.rename(tmp_path / NAME.replace(MACHINE, "riscv64"))
    assert any("the library is for" in p for p in failures(other)["LMS libraries"])


def test_one_of_another_lmsbuild(good: Path, tmp_path: Path) -> None:
    version = lmsbuild.__version__
    members = members_of(good)
    members.pop(f"{DIST_INFO}/RECORD")
    info = DIST_INFO.replace(version, "99.0")
    for name in [name for name in members if name.startswith(DIST_INFO)]:
        data = members.pop(name)
        if name.endswith(("METADATA", ".json")):
            data = data.replace(version.encode(), b"99.0")
        members[name.replace(DIST_INFO, info)] = data
    wheel = Wheel(members, info)
    wheel.rows = wheel.true_rows()
    path = wheel.write(tmp_path / good.name.replace(version, "99.0"))
    assert failures(path) == {}
    renamed = path.rename(tmp_path / good.name)
    assert f"{info} does not belong to version {version}" in failures(renamed)["files"]
