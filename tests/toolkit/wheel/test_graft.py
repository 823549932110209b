"""Grafting: from the official wheel to the LMS wheel."""

from __future__ import annotations

import csv
import dataclasses
import errno
import fcntl
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import IO

import pytest
from click.testing import CliRunner
from installer.sources import WheelFile

import lmsbuild.cli.commands.wheel as wheel_command
from lmsbuild.cli.main import main
from lmsbuild.errors import (
    BusyError,
    DamagedWheelError,
    HookError,
    MissingCompilerError,
    NoSpaceError,
    WrongPlatformError,
    WrongPythonError,
)
from lmsbuild.tools import elf, zipcopy
from lmsbuild.wheel import provenance
from lmsbuild.wheel.base import AlreadyGraftedError
from lmsbuild.wheel.graft import build_wheel
from lmsbuild.wheel.request import GraftRequest, GraftResult
from lmsbuild.wheel.verify import verify
from toolkit.helpers.fake_torch import (
    CP,
    DATE,
    DIST_INFO,
    MACHINE,
    PYTHON,
    VERSION,
    WHEEL_NAME,
    FakeTorch,
    members_of,
    replace_members,
    write_patches,
)
from toolkit.helpers.fake_torch import fake as fake
from toolkit.helpers.fake_torch import offline as offline
from toolkit.helpers.fake_torch import shared_cache as shared_cache

GRAFTED = f"torch-{VERSION}+lms1-{CP}-{CP}-manylinux_2_28_{MACHINE}.whl"
NEW_INFO = f"torch-{VERSION}+lms1.dist-info"


def ignore(_stage: str, _done: int, _total: int | None) -> None:
    pass


def request_for(fake: FakeTorch, out: Path, cache: Path, base: Path | None = None) -> GraftRequest:
    return GraftRequest(
        tag=fake.tag,
        architecture=MACHINE,
        python=None if base else PYTHON,
        base=base,
        out=out,
        patches=fake.patches,
        cache=cache,
    )


@pytest.fixture
def grafted(fake: FakeTorch, offline: None, shared_cache: Path, tmp_path: Path) -> GraftResult:
    return build_wheel(request_for(fake, tmp_path / "dist", shared_cache, fake.base), ignore)


def test_the_new_wheel_replaces_adds_and_keeps(fake: FakeTorch, grafted: GraftResult) -> None:
    assert grafted.path.name == GRAFTED
    old, new = members_of(fake.base), members_of(grafted.path)
    added = {"torch/cuda/lms/__init__.py", "torch/lib/libtorch_lms.so", f"{NEW_INFO}/lms.json"}
    added |= {f"{NEW_INFO}/sboms/lmsbuild.cdx.json"}
    renamed = {name.replace(DIST_INFO, NEW_INFO) for name in old}
    assert set(new) == renamed | added
    touched = {
        "torch/cuda/__init__.py",
        "torch/version.py",
        f"{DIST_INFO}/METADATA",
        f"{DIST_INFO}/RECORD",
    }
    for name in old.keys() - touched:
        assert new[name.replace(DIST_INFO, NEW_INFO)] == old[name]
    assert new["torch/cuda/__init__.py"].endswith(
        b"from .memory import *  # noqa: F403\nfrom .lms import *  # noqa: F403\n"
    )
    assert f"__version__ = '{VERSION}+cu130.lms1'".encode() in new["torch/version.py"]
    assert (
        new["torch/cuda/lms/__init__.py"]
        == (fake.patches / "runtime/torch/cuda/lms/__init__.py").read_bytes()
    )


def test_only_the_header_of_metadata_changes(grafted: GraftResult) -> None:
    metadata = members_of(grafted.path)[f"{NEW_INFO}/METADATA"].decode()
    header, _, description = metadata.partition("\n\n")
    assert f"\nVersion: {VERSION}+lms1\n" in header + "\n"
    assert description == f"Version: {VERSION}\n"


def test_record_is_complete_true_and_last(grafted: GraftResult) -> None:
    members = members_of(grafted.path)
    with zipfile.ZipFile(grafted.path) as wheel:
        assert wheel.namelist()[-1] == f"{NEW_INFO}/RECORD"
        assert wheel.namelist().count(f"{NEW_INFO}/RECORD") == 1
        assert all(
            name.startswith(NEW_INFO)
            for name in wheel.namelist()[-len([n for n in members if NEW_INFO in n]) :]
        )
    rows = list(csv.reader(io.StringIO(members[f"{NEW_INFO}/RECORD"].decode())))
    assert sorted(row[0] for row in rows) == sorted(members)
    for name, digest, size in rows:
        if not name.endswith("/RECORD"):
            raw = hashlib.sha256(members[name]).digest()
            assert digest == provenance_digest(raw)
            assert int(size) == len(members[name])


def provenance_digest(raw: bytes) -> str:
    from base64 import urlsafe_b64encode

    return "sha256=" + urlsafe_b64encode(raw).decode().rstrip("=")


def test_installer_finds_record_true(grafted: GraftResult) -> None:
    with WheelFile.open(grafted.path) as wheel:
        wheel.validate_record(validate_contents=True)


def test_upstreams_members_are_copied_still_compressed(
    fake: FakeTorch, grafted: GraftResult
) -> None:
    name = "torch/lib/libtorch_cpu.so"
    with zipfile.ZipFile(fake.base) as old, zipfile.ZipFile(grafted.path) as new:
        assert new.getinfo(name).compress_size == old.getinfo(name).compress_size
        assert new.getinfo(name).external_attr >> 16 == 0o100755
        library = new.getinfo("torch/lib/libtorch_lms.so")
        assert library.external_attr >> 16 == 0o100755
        assert new.getinfo("torch/cuda/lms/__init__.py").external_attr >> 16 == 0o100644
        assert {info.date_time for info in new.infolist()} == {DATE}


def test_the_same_inputs_give_the_same_bytes(
    fake: FakeTorch, grafted: GraftResult, tmp_path: Path
) -> None:
    # Everything anew, the library too: other folders, an empty cache.
    base = Path(shutil.copy(fake.base, tmp_path))
    again = build_wheel(request_for(fake, tmp_path / "second", tmp_path / "cache", base), ignore)
    assert again.path.read_bytes() == grafted.path.read_bytes()


def test_a_fetched_base_gives_the_same_members(
    fake: FakeTorch, grafted: GraftResult, shared_cache: Path, tmp_path: Path
) -> None:
    fetched = build_wheel(request_for(fake, tmp_path / "second", shared_cache), ignore)
    assert members_of(fetched.path) == members_of(grafted.path)


def test_the_provenance_says_where_it_came_from(fake: FakeTorch, grafted: GraftResult) -> None:
    data = members_of(grafted.path)[f"{NEW_INFO}/lms.json"]
    origin = provenance.load(data)
    assert origin == grafted.provenance
    assert (origin.tag, origin.base) == (f"v{VERSION}", WHEEL_NAME)
    assert origin.base_sha256 == hashlib.sha256(fake.base.read_bytes()).hexdigest()
    assert origin.hooks == ("0001-offer-LMS.patch",)
    assert origin.skipped == ("c10/core/thing.cpp",)
    assert "torch/lib/libc10.so" in origin.base_binaries
    assert "-std=c++17" in origin.flags
    assert origin.pythons == (PYTHON,)
    assert str(grafted.path.parent) not in data.decode()


def test_every_input_counts_in_the_provenance(
    fake: FakeTorch, offline: None, grafted: GraftResult, shared_cache: Path, tmp_path: Path
) -> None:
    patches = write_patches(tmp_path / "patches")
    runtime = patches / "runtime/torch/cuda/lms/__init__.py"
    runtime.write_text(runtime.read_text() + "# changed\n")
    hook = patches / f"v{VERSION}/0001-offer-LMS.patch"
    hook.write_text(hook.read_text().replace("Why.", "Why not."))
    request = dataclasses.replace(
        request_for(fake, tmp_path / "second", shared_cache, fake.base), patches=patches
    )
    other = build_wheel(request, ignore).provenance
    assert other.runtime_sha256 != grafted.provenance.runtime_sha256
    assert other.hooks_sha256 != grafted.provenance.hooks_sha256


def test_the_library_is_compiled_once(
    fake: FakeTorch, offline: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    stages: list[str] = []

    def report(stage: str, _done: int, _total: int | None) -> None:
        stages.append(stage)

    build_wheel(request_for(fake, tmp_path / "one", cache, fake.base), report)
    assert {"read", "check", "unpack", "compile", "write"} <= set(stages)
    stages.clear()
    build_wheel(request_for(fake, tmp_path / "two", cache, fake.base), report)
    assert "compile" not in stages
    # A damaged copy in the cache is not used.
    (kept,) = cache.glob("libraries/*/libtorch_lms.so")
    kept.write_bytes(kept.read_bytes()[:100])
    build_wheel(request_for(fake, tmp_path / "three", cache, fake.base), report)
    assert "compile" in stages
    assert not list(cache.glob("scratch-*"))


def test_pip_installs_it(grafted: GraftResult, tmp_path: Path) -> None:
    target = tmp_path / "site"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--no-index",
            "--target",
            str(target),
            str(grafted.path),
        ],
        check=True,
    )
    code = (
        "import ctypes, importlib.metadata as m, torch; print(torch.__version__, "
        "m.version('torch'))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown == f"{VERSION}+cu130.lms1 {VERSION}+lms1\n"


def test_a_local_version_is_extended(
    fake: FakeTorch, offline: None, shared_cache: Path, tmp_path: Path
) -> None:
    wheel = fake.wheel.copy()
    info = f"torch-{VERSION}+cu130.dist-info"
    wheel.members = {name.replace(DIST_INFO, info): data for name, data in wheel.members.items()}
    wheel.dist_info = info
    wheel.members[f"{info}/METADATA"] = wheel.members[f"{info}/METADATA"].replace(
        f"Version: {VERSION}\nR".encode(), f"Version: {VERSION}+cu130\nR".encode()
    )
    base = wheel.write(tmp_path / WHEEL_NAME.replace(f"-{VERSION}-", f"-{VERSION}+cu130-"))
    made = build_wheel(request_for(fake, tmp_path / "dist", shared_cache, base), ignore)
    assert made.path.name.startswith(f"torch-{VERSION}+cu130.lms1-")
    assert f"torch-{VERSION}+cu130.lms1.dist-info/RECORD" in members_of(made.path)


# What can go wrong ---------------------------------------------------------------------------


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_grafted_wheel_is_no_base(
    fake: FakeTorch, grafted: GraftResult, shared_cache: Path, tmp_path: Path
) -> None:
    with pytest.raises(AlreadyGraftedError):
        build_wheel(request_for(fake, tmp_path / "out", shared_cache, grafted.path), ignore)
    assert files_in(tmp_path / "out") == []


def test_another_wheel_on_the_index_does_not_stick(
    fake: FakeTorch, grafted: GraftResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_for(fake, tmp_path / "out", tmp_path / "cache")
    official = os.environ["PIP_FIND_LINKS"]
    monkeypatch.setenv("PIP_FIND_LINKS", f"{official} {grafted.path.parent}")
    with pytest.raises(AlreadyGraftedError, match="what pip's index has for torch"):
        build_wheel(request, ignore)
    monkeypatch.setenv("PIP_FIND_LINKS", official)
    assert build_wheel(request, ignore).path.exists()


def test_a_damaged_base_leaves_nothing(
    fake: FakeTorch, offline: None, shared_cache: Path, tmp_path: Path
) -> None:
    base = replace_members(fake.base, tmp_path / WHEEL_NAME, {"torch/nn/__init__.py": b"evil"})
    with pytest.raises(DamagedWheelError):
        build_wheel(request_for(fake, tmp_path / "out", shared_cache, base), ignore)
    assert files_in(tmp_path / "out") == []


def with_hook_changed(request: GraftRequest, folder: Path, old: str, new: str) -> GraftRequest:
    """The request with patches of its own, in whose first hook a text is replaced."""
    patches = write_patches(folder / "patches")
    hook = patches / f"v{VERSION}/0001-offer-LMS.patch"
    hook.write_text(hook.read_text().replace(old, new))
    return dataclasses.replace(request, patches=patches)


def test_a_hook_that_does_not_fit_is_named(
    fake: FakeTorch, offline: None, shared_cache: Path, tmp_path: Path
) -> None:
    request = with_hook_changed(
        request_for(fake, tmp_path / "out", shared_cache, fake.base),
        tmp_path,
        " from .memory import",
        " from .other import",
    )
    with pytest.raises(HookError) as caught:
        build_wheel(request, ignore)
    for part in ("0001-offer-LMS.patch", "hunk 1 of torch/cuda/__init__.py", "line 5"):
        assert part in caught.value.message
    assert files_in(tmp_path / "out") == []


def test_a_hook_for_a_python_file_that_is_not_there_is_not_skipped(
    fake: FakeTorch, offline: None, shared_cache: Path, tmp_path: Path
) -> None:
    request = with_hook_changed(
        request_for(fake, tmp_path / "out", shared_cache, fake.base),
        tmp_path,
        "torch/cuda/__init__.py",
        "torch/cuda/gone.py",
    )
    with pytest.raises(HookError, match="no such file"):
        build_wheel(request, ignore)


def test_no_space_is_seen_before_writing(
    fake: FakeTorch,
    offline: None,
    shared_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    with pytest.raises(NoSpaceError, match="MB free"):
        build_wheel(request_for(fake, tmp_path / "out", shared_cache, fake.base), ignore)
    assert files_in(tmp_path / "out") == []


def test_a_disk_that_fills_up_while_writing_leaves_nothing(
    fake: FakeTorch,
    offline: None,
    shared_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy = zipcopy.ArchiveWriter.copy

    def full(
        self: zipcopy.ArchiveWriter, source: IO[bytes], info: zipfile.ZipInfo, *rest: object
    ) -> None:
        if info.filename == "torch/lib/libtorch_cpu.so":
            raise OSError(errno.ENOSPC, "No space left on device")
        copy(self, source, info, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(zipcopy.ArchiveWriter, "copy", full)
    with pytest.raises(OSError, match="No space left"):
        build_wheel(request_for(fake, tmp_path / "out", shared_cache, fake.base), ignore)
    assert files_in(tmp_path / "out") == []


def test_an_older_wheel_survives_a_failure(
    fake: FakeTorch, grafted: GraftResult, shared_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = grafted.path.read_bytes()

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(zipcopy.ArchiveWriter, "add", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build_wheel(request_for(fake, grafted.path.parent, shared_cache, fake.base), ignore)
    assert grafted.path.read_bytes() == before
    assert files_in(grafted.path.parent) == [GRAFTED]


def test_what_a_killed_build_left_is_removed(
    fake: FakeTorch, offline: None, shared_cache: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / f".{GRAFTED}.unfinished").write_bytes(b"half")
    build_wheel(request_for(fake, out, shared_cache, fake.base), ignore)
    assert files_in(out) == [GRAFTED]


def test_two_builds_in_one_folder(
    fake: FakeTorch, offline: None, shared_cache: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with (out / ".lmsbuild.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="another lmsbuild"):
            build_wheel(request_for(fake, out, shared_cache, fake.base), ignore)
    assert build_wheel(request_for(fake, out, shared_cache, fake.base), ignore).path.exists()


def test_a_missing_compiler_is_found_out_before_the_download(
    fake: FakeTorch, offline: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(MissingCompilerError, match="no-such-compiler"):
        build_wheel(request_for(fake, tmp_path / "out", tmp_path / "cache"), ignore)
    assert files_in(tmp_path / "cache") == []


def test_what_the_tag_does_not_offer(fake: FakeTorch, tmp_path: Path) -> None:
    request = request_for(fake, tmp_path / "out", tmp_path / "cache")
    with pytest.raises(WrongPythonError, match=r"not 3\.2"):
        build_wheel(dataclasses.replace(request, python="3.2"), ignore)
    with pytest.raises(WrongPlatformError, match="riscv64"):
        build_wheel(dataclasses.replace(request, architecture="riscv64"), ignore)
    source_only = dataclasses.replace(fake.tag, strategies=("source",))
    with pytest.raises(WrongPlatformError, match="from source"):
        build_wheel(dataclasses.replace(request, tag=source_only), ignore)


# The command ---------------------------------------------------------------------------------


def test_the_command(
    fake: FakeTorch,
    offline: None,
    shared_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wheel_command, "patches_dir", lambda: fake.patches)
    monkeypatch.setattr(wheel_command, "default_cache", lambda: shared_cache)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["wheel"])
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == f"dist/{GRAFTED}"
    assert json.loads(members_of(tmp_path / "dist" / GRAFTED)[f"{NEW_INFO}/lms.json"])
    failed = CliRunner().invoke(main, ["wheel", "--python", "3.1"])
    assert failed.exit_code == WrongPythonError.exit_code
    assert failed.stderr.splitlines()[-1].startswith("lmsbuild: error: ")
    assert "Traceback" not in failed.output


def test_the_base_decides_the_tag(
    fake: FakeTorch,
    offline: None,
    shared_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patches = write_patches(tmp_path / "patches")
    tags = (patches / "tags.toml").read_text()
    newer = tags[tags.index("[[tag]]") :].replace(f"v{VERSION}", "v9.9.0")
    (patches / "tags.toml").write_text(tags + newer)
    monkeypatch.setattr(wheel_command, "patches_dir", lambda: patches)
    monkeypatch.setattr(wheel_command, "default_cache", lambda: shared_cache)
    arguments = ["wheel", "--base", str(fake.base), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out" / GRAFTED).is_file()


def test_a_variant_with_a_seam(
    fake: FakeTorch, offline: None, shared_cache: Path, tmp_path: Path
) -> None:
    """A second library, which torch's Python loads before torch's own."""
    patches = Path(shutil.copytree(fake.patches, tmp_path / "patches"))
    own = patches / "runtime-v9" / "torch"
    seam = own / "csrc" / "cuda" / "lms" / "seam"
    seam.mkdir(parents=True)
    (own / "_lms_seam.py").write_text("# loads it\n")
    (seam / "seam.cpp").write_text(
        'extern "C" __attribute__((visibility("default"))) int taken() { return 1; }\n'
    )
    (seam / "exports.map").write_text("{ global: taken; local: *; };\n")
    request = dataclasses.replace(
        request_for(fake, tmp_path / "dist", shared_cache, fake.base),
        tag=dataclasses.replace(fake.tag, variant="runtime-v9"),
        patches=patches,
    )
    path = build_wheel(request, ignore).path
    members = members_of(path)
    assert "torch/_lms_seam.py" in members
    (tmp_path / "seam.so").write_bytes(members["torch/lib/libtorch_lms_seam.so"])
    made = elf.read(tmp_path / "seam.so")
    assert (made.soname, made.exported) == ("libtorch_lms_seam.so", {"taken"})
    assert [check.problems for check in verify(path, fake.base) if check.problems] == []
    again = build_wheel(dataclasses.replace(request, out=tmp_path / "again"), ignore).path
    assert again.read_bytes() == path.read_bytes()
    without = tmp_path / "without" / path.name
    without.parent.mkdir()
    replace_members(path, without, {"torch/lib/libtorch_lms_seam.so": None})
    found = [check for check in verify(without) if check.name == "one LMS library"]
    assert "expected torch/lib/libtorch_lms.so, torch/lib/libtorch_lms_seam.so" in str(found)
