"""`lmsbuild verify` finds each planted fault, and none in a good wheel."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from lmsbuild.cli.main import main
from lmsbuild.errors import DamagedWheelError, ForeignWheelError, UnsafeMemberError, VerifyError
from lmsbuild.native import manylinux
from lmsbuild.native.manylinux import ManylinuxPolicy
from lmsbuild.wheel.graft import build_wheel
from lmsbuild.wheel.verify import Check, verify
from toolkit.helpers.fake_torch import (
    MACHINE,
    VERSION,
    FakeTorch,
    Wheel,
    members_of,
    shared_library,
)
from toolkit.helpers.fake_torch import fake as fake
from toolkit.helpers.fake_torch import offline as offline
from toolkit.helpers.fake_torch import shared_cache as shared_cache
from toolkit.wheel.test_graft import NEW_INFO, request_for

LIBRARY = "torch/lib/libtorch_lms.so"
BILL = f"{NEW_INFO}/sboms/lmsbuild.cdx.json"


@pytest.fixture(scope="module")
def good(fake: FakeTorch, shared_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(fake.links))
        folder = tmp_path_factory.mktemp("good")
        return build_wheel(request_for(fake, folder, shared_cache, fake.base), lambda *_: None).path


def failures(checks: list[Check]) -> dict[str, list[str]]:
    return {check.name: check.problems for check in checks if check.problems}


def rebuilt(
    good: Path,
    folder: Path,
    changes: dict[str, bytes | None] | None = None,
    rows: Callable[[list[tuple[str, str, str]]], None] | None = None,
    name: str | None = None,
) -> Path:
    """The good wheel with changed members and a RECORD that is true, but for what ``rows`` does."""
    members = members_of(good)
    members.pop(f"{NEW_INFO}/RECORD")
    if LIBRARY in (changes or {}):
        members.pop(BILL)  # it is of the library that was there
    for member, data in (changes or {}).items():
        if data is None:
            members.pop(member)
        else:
            members[member] = data
    wheel = Wheel(members, NEW_INFO)
    wheel.rows = wheel.true_rows()
    if rows:
        rows(wheel.rows)
    return wheel.write(folder / (name or good.name))


def test_a_good_wheel_passes(fake: FakeTorch, good: Path) -> None:
    checks = verify(good)
    assert failures(checks) == {}
    assert [check.name for check in checks] == [
        "RECORD",
        "version",
        "provenance",
        "SBOM",
        "upstream's binaries",
        "one LMS library",
        "manylinux symbols",
        "C interface",
        "Python interface",
    ]
    assert failures(verify(good, fake.base)) == {}


def test_rebuilding_alone_is_no_fault(good: Path, tmp_path: Path) -> None:
    # The faults below are planted in a wheel that is otherwise good.
    assert failures(verify(rebuilt(good, tmp_path))) == {}


# RECORD --------------------------------------------------------------------------------------


def test_a_tampered_member(good: Path, tmp_path: Path) -> None:
    old_rows = Wheel(
        {k: v for k, v in members_of(good).items() if not k.endswith("/RECORD")}, NEW_INFO
    ).true_rows()

    def keep_old(rows: list[tuple[str, str, str]]) -> None:
        rows[:] = old_rows

    text = members_of(good)["torch/cuda/memory.py"]
    path = rebuilt(good, tmp_path, {"torch/cuda/memory.py": text + b"#"}, keep_old)
    assert failures(verify(path)) == {"RECORD": ["torch/cuda/memory.py has 1 bytes, not 0"]}


def test_a_duplicate_row(good: Path, tmp_path: Path) -> None:
    path = rebuilt(good, tmp_path, rows=lambda rows: rows.append(rows[0]))
    assert failures(verify(path)) == {"RECORD": ["torch/__init__.py is listed 2 times"]}


def test_a_missing_row(good: Path, tmp_path: Path) -> None:
    path = rebuilt(good, tmp_path, rows=lambda rows: rows.pop(0) and None)
    assert failures(verify(path)) == {"RECORD": ["torch/__init__.py is not listed"]}


def test_a_row_without_member(good: Path, tmp_path: Path) -> None:
    path = rebuilt(
        good, tmp_path, rows=lambda rows: rows.append(("torch/ghost.py", "sha256=x", "1"))
    )
    assert failures(verify(path)) == {"RECORD": ["torch/ghost.py is listed but missing"]}


# Binaries ------------------------------------------------------------------------------------


def test_a_changed_binary_with_a_true_record(fake: FakeTorch, good: Path, tmp_path: Path) -> None:
    data = members_of(good)["torch/lib/libc10.so"] + b"\0"
    path = rebuilt(good, tmp_path, {"torch/lib/libc10.so": data})
    expected = {"upstream's binaries": ["torch/lib/libc10.so has changed"]}
    assert failures(verify(path)) == expected
    assert failures(verify(path, fake.base)) == expected


def test_a_removed_and_a_foreign_binary(good: Path, tmp_path: Path) -> None:
    data = members_of(good)["torch/lib/libc10.so"]
    path = rebuilt(good, tmp_path, {"torch/lib/libc10.so": None, "torch/lib/libgcc_s.so.1": data})
    assert failures(verify(path)) == {
        "upstream's binaries": [
            "torch/lib/libc10.so is missing",
            "torch/lib/libgcc_s.so.1 is not upstream's",
        ]
    }


def test_provenance_cannot_vouch_for_another_base(
    fake: FakeTorch, good: Path, tmp_path: Path
) -> None:
    """A wheel whose provenance was rewritten to fit a changed binary fails against the base."""
    name = f"{NEW_INFO}/lms.json"
    members = members_of(good)
    data = members["torch/lib/libc10.so"] + b"\0"
    document = json.loads(members[name])
    rows = {r[0]: r[1] for r in Wheel({"torch/lib/libc10.so": data}, "x").true_rows()}
    document["base_binaries"]["torch/lib/libc10.so"] = rows["torch/lib/libc10.so"]
    path = rebuilt(
        good, tmp_path, {"torch/lib/libc10.so": data, name: json.dumps(document).encode()}
    )
    assert failures(verify(path)) == {}
    assert list(failures(verify(path, fake.base))) == ["upstream's binaries"]


def test_another_base_file(fake: FakeTorch, good: Path, tmp_path: Path) -> None:
    wheel = fake.wheel.copy()
    wheel.members["torch/nn/__init__.py"] = b"# other\n"
    other = wheel.write(tmp_path / fake.base.name)
    assert list(failures(verify(good, other))) == ["provenance"]


# The library ---------------------------------------------------------------------------------


def test_no_library_and_two(good: Path, tmp_path: Path) -> None:
    data = members_of(good)[LIBRARY]
    gone = failures(verify(rebuilt(good, tmp_path, {LIBRARY: None})))
    assert gone["one LMS library"] == [f"LMS libraries: none; expected {LIBRARY}"]
    second = "torch/lib/libtorch_lms_cu12.so"
    two = failures(verify(rebuilt(good, tmp_path, {second: data})))
    assert second in two["one LMS library"][0]


def test_a_library_that_is_none(good: Path, tmp_path: Path) -> None:
    found = failures(verify(rebuilt(good, tmp_path, {LIBRARY: b"not ELF"})))
    assert found["one LMS library"] == [f"{LIBRARY} is no shared library"]


def test_a_library_for_another_machine(good: Path, tmp_path: Path) -> None:
    name = good.name.replace(MACHINE, "riscv64")
    found = failures(verify(rebuilt(good, tmp_path, name=name)))
    assert found["one LMS library"] == [
        f"the library is for {MACHINE}, the wheel for manylinux_2_28_riscv64"
    ]


def test_a_symbol_that_is_too_new(good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "lib"
    stub = shared_library(
        folder / "libc.so.6",
        'extern "C" int lms_future() { return 1; }',
        "-nostdlib",
        f"-Wl,--version-script,{_script(folder, 'GLIBC_2.99 { global: lms_future; };')}",
    )
    assert stub
    source = (
        'extern "C" int lms_future(); extern "C" int lms_get_enabled() { return lms_future(); }'
    )
    data = shared_library(
        folder / "libtorch_lms.so", source, "-nostdlib", str(folder / "libc.so.6")
    )
    found = failures(verify(rebuilt(good, tmp_path, {LIBRARY: data})))
    assert found["manylinux symbols"] == [
        "libc.so.6: GLIBC_2.99 is newer than manylinux_2_28 allows"
    ]


def _script(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "map"
    path.write_text(text)
    return path


def test_an_old_tag_falls_back_on_the_linked_policy(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = good.name.replace("manylinux_2_28", "manylinux1")
    path = rebuilt(good, tmp_path, name=name)
    (check,) = [c for c in verify(path) if c.name == "manylinux symbols"]
    assert (check.detail, check.problems) == ("manylinux_2_28", [])
    # The policy is really looked at.
    oldest = ManylinuxPolicy(name="oldest", limits={"GLIBC": (1, 0)})
    monkeypatch.setattr(manylinux, "load_policy", lambda *_: oldest)
    assert "manylinux symbols" in failures(verify(path))


def test_missing_and_foreign_exports(good: Path, tmp_path: Path) -> None:
    source = 'extern "C" int lms_get_enabled() { return 1; } extern "C" int other() { return 1; }'
    data = shared_library(tmp_path / "libtorch_lms.so", source, "-nostdlib")
    found = failures(verify(rebuilt(good, tmp_path, {LIBRARY: data})))
    assert "lms_set_enabled is not exported" in found["C interface"]
    assert "other is exported, but not part of the interface" in found["C interface"]
    assert "lms_get_enabled is not exported" not in found["C interface"]


# Python and metadata -------------------------------------------------------------------------


def test_a_missing_python_function(good: Path, tmp_path: Path) -> None:
    text = members_of(good)["torch/cuda/lms/__init__.py"].replace(
        b"def reclaim_inactive", b"def other"
    )
    found = failures(verify(rebuilt(good, tmp_path, {"torch/cuda/lms/__init__.py": text})))
    assert found == {"Python interface": ["torch.cuda.lms has no reclaim_inactive"]}


def test_functions_that_torch_cuda_does_not_offer(good: Path, tmp_path: Path) -> None:
    text = members_of(good)["torch/cuda/__init__.py"]
    bare = text.replace(b"from .lms import *  # noqa: F403\n", b"")
    found = failures(verify(rebuilt(good, tmp_path, {"torch/cuda/__init__.py": bare})))
    assert "torch.cuda has no set_enabled_lms" in found["Python interface"]
    named = text.replace(b"from .lms import *", b"from .lms import set_enabled_lms")
    found = failures(verify(rebuilt(good, tmp_path, {"torch/cuda/__init__.py": named})))
    assert "torch.cuda has no set_enabled_lms" not in found["Python interface"]
    assert "torch.cuda has no get_enabled_lms" in found["Python interface"]


def test_missing_and_broken_python_files(good: Path, tmp_path: Path) -> None:
    found = failures(verify(rebuilt(good, tmp_path, {"torch/cuda/lms/__init__.py": None})))
    assert found["Python interface"] == ["torch/cuda/lms/__init__.py is missing"]
    found = failures(verify(rebuilt(good, tmp_path, {"torch/cuda/lms/__init__.py": b"def ("})))
    assert "torch/cuda/lms/__init__.py cannot be read" in found["Python interface"][0]


def test_versions_that_disagree(good: Path, tmp_path: Path) -> None:
    members = members_of(good)
    metadata = members[f"{NEW_INFO}/METADATA"].replace(b"+lms1", b"+lms2", 1)
    version = members["torch/version.py"].replace(b".lms1", b"")
    found = failures(
        verify(
            rebuilt(good, tmp_path, {f"{NEW_INFO}/METADATA": metadata, "torch/version.py": version})
        )
    )
    assert found == {
        "version": [
            f"METADATA does not say version {VERSION}+lms1",
            "torch.__version__ has no lms1",
        ]
    }
    renamed = good.name.replace("+lms1", "+lms2")
    found = failures(verify(rebuilt(good, tmp_path, name=renamed)))
    assert found["version"][:2] == [
        f"version {VERSION}+lms2 has no lms1",
        f"{NEW_INFO} does not belong to version {VERSION}+lms2",
    ]


@pytest.mark.parametrize("content", [None, b"{", b"{}", b"[]", b'{"format": 99}'])
def test_a_wheel_without_readable_provenance(
    good: Path, tmp_path: Path, content: bytes | None
) -> None:
    found = failures(verify(rebuilt(good, tmp_path, {f"{NEW_INFO}/lms.json": content})))
    assert found["provenance"] == ["no readable lms.json"]
    assert "upstream's binaries" in found


# Files that are no wheel ---------------------------------------------------------------------


def test_what_cannot_be_verified_at_all(fake: FakeTorch, good: Path, tmp_path: Path) -> None:
    with pytest.raises(ForeignWheelError, match="no such file"):
        verify(tmp_path / good.name)
    with pytest.raises(ForeignWheelError, match="fake-cuda-headers"):
        verify(next(fake.links.glob("fake_*.whl")))
    cut = tmp_path / good.name
    cut.write_bytes(good.read_bytes()[:-100])
    with pytest.raises(DamagedWheelError):
        verify(cut)
    shutil.copy(good, cut)
    with zipfile.ZipFile(cut, "a") as archive:
        archive.writestr(zipfile.ZipInfo("../evil"), b"")
    with pytest.raises(UnsafeMemberError):
        verify(cut)


def test_an_official_wheel_is_no_lms_wheel(fake: FakeTorch) -> None:
    found = failures(verify(fake.base))
    assert {"version", "provenance", "one LMS library", "Python interface"} <= set(found)


def test_the_command(good: Path, tmp_path: Path) -> None:
    passed = CliRunner().invoke(main, ["verify", str(good)])
    assert passed.exit_code == 0, passed.output
    assert "manylinux_2_28" in passed.stdout
    path = rebuilt(good, tmp_path, rows=lambda rows: rows.append(rows[0]))
    failed = CliRunner().invoke(main, ["verify", str(path)])
    assert failed.exit_code == VerifyError.exit_code
    assert "RECORD: torch/__init__.py is listed 2 times" in failed.stdout
    assert "breaks 1 of 9 promises" in failed.stderr
    passed, failed = (
        CliRunner().invoke(main, ["verify", "--json", str(wheel)]) for wheel in (good, path)
    )
    assert json.loads(passed.stdout)["kept"] is True
    document = json.loads(failed.stdout)
    assert failed.exit_code == VerifyError.exit_code
    assert (document["wheel"], document["kept"]) == (str(path), False)
    assert [check["name"] for check in document["checks"] if check["problems"]] == ["RECORD"]


def test_a_wheel_that_was_built_from_source(good: Path, tmp_path: Path) -> None:
    """Nothing records how it was made, and there is no base."""
    wheel = rebuilt(good, tmp_path, {f"{NEW_INFO}/lms.json": None, BILL: None})
    checks = {check.name: check for check in verify(wheel)}
    assert not failures(list(checks.values()))
    for name in ("provenance", "upstream's binaries"):
        assert checks[name].detail == "none: built from source"
