"""What the official wheel is checked for."""

from __future__ import annotations

import dataclasses
import shutil
import stat
import zipfile
from pathlib import Path

import pytest

from lmsbuild.errors import (
    DamagedWheelError,
    ForeignWheelError,
    UnsafeMemberError,
    WrongPlatformError,
    WrongPythonError,
)
from lmsbuild.wheel import base as basewheel
from lmsbuild.wheel.base import AlreadyGraftedError, CpuOnlyWheelError
from toolkit.helpers.fake_torch import (
    COMMIT,
    CP,
    CUDA_WHEEL_NAME,
    DIST_INFO,
    MACHINE,
    PYTHON,
    VERSION,
    VERSION_PY,
    WHEEL_NAME,
    FakeTorch,
    replace_members,
)
from toolkit.helpers.fake_torch import fake as fake


def check(fake: FakeTorch, path: Path, python: str | None = PYTHON) -> None:
    basewheel.check(basewheel.identify(path), fake.tag, architecture=MACHINE, python=python)


def test_the_official_wheel_passes(fake: FakeTorch) -> None:
    base = basewheel.identify(fake.base)
    assert (str(base.version), base.dist_info) == (VERSION, DIST_INFO)
    assert (base.python, base.architecture) == (PYTHON, MACHINE)
    hashed: list[int] = []
    basewheel.check(base, fake.tag, architecture=MACHINE, python=None, advance=hashed.append)
    assert sum(hashed) == sum(len(data) for data in fake.wheel.members.values())


@pytest.mark.parametrize(
    ("platform", "architecture"),
    [
        ("manylinux_2_28_x86_64", "x86_64"),
        ("manylinux1_x86_64", "x86_64"),
        ("manylinux2014_aarch64.manylinux_2_17_aarch64", "aarch64"),
        ("linux_ppc64le", "ppc64le"),
        ("win_amd64", ""),
        ("macosx_11_0_arm64", ""),
    ],
)
def test_architectures(fake: FakeTorch, platform: str, architecture: str) -> None:
    base = dataclasses.replace(basewheel.identify(fake.base), platform_tag=platform)
    assert base.architecture == architecture


def test_a_truncated_wheel(fake: FakeTorch, tmp_path: Path) -> None:
    data = fake.base.read_bytes()
    path = tmp_path / WHEEL_NAME
    for share in (0, 0.3, 0.99):
        path.write_bytes(data[: int(len(data) * share)])
        with pytest.raises(DamagedWheelError, match="not a complete zip"):
            check(fake, path)


def changed(fake: FakeTorch, folder: Path, changes: dict[str, bytes | None]) -> Path:
    return replace_members(fake.base, folder / WHEEL_NAME, changes)


RECORD_FAULTS: dict[str, tuple[dict[str, bytes | None], str]] = {
    "content": ({"torch/nn/__init__.py": b"import os\n"}, "torch/nn/__init__.py has 10 bytes"),
    "same size": ({"torch/lib/libc10.so": b"?"}, "libc10.so"),
    "missing": ({"torch/nn/__init__.py": None}, "listed but missing"),
    "extra": ({"torch/evil.py": b""}, "torch/evil.py is not listed"),
}


@pytest.mark.parametrize("fault", RECORD_FAULTS)
def test_a_record_that_does_not_match(fake: FakeTorch, tmp_path: Path, fault: str) -> None:
    changes, message = RECORD_FAULTS[fault]
    with pytest.raises(DamagedWheelError, match="does not match its RECORD") as caught:
        check(fake, changed(fake, tmp_path, changes))
    assert message in caught.value.message


def test_a_flipped_bit_of_the_same_size(fake: FakeTorch, tmp_path: Path) -> None:
    data = bytearray(fake.wheel.members["torch/lib/libtorch_cpu.so"])
    data[-1] ^= 1
    with pytest.raises(DamagedWheelError, match=r"libtorch_cpu\.so does not match its hash"):
        check(fake, changed(fake, tmp_path, {"torch/lib/libtorch_cpu.so": bytes(data)}))


def test_a_damaged_stream(fake: FakeTorch, tmp_path: Path) -> None:
    with zipfile.ZipFile(fake.base) as archive:
        info = archive.getinfo("torch/lib/libtorch_cpu.so")
    data = bytearray(fake.base.read_bytes())
    start = info.header_offset + 30 + len(info.filename) + info.compress_size // 2
    data[start : start + 40] = b"\xff" * 40
    (tmp_path / WHEEL_NAME).write_bytes(data)
    with pytest.raises(DamagedWheelError, match=r"libtorch_cpu\.so"):
        check(fake, tmp_path / WHEEL_NAME)


def rows_fault(fake: FakeTorch, folder: Path, kind: str) -> Path:
    wheel = fake.wheel.copy()
    rows = wheel.true_rows()
    if kind == "twice":
        rows.append(rows[0])
    elif kind == "unhashed":
        rows[0] = (rows[0][0], "", "")
    elif kind == "weak":
        rows[0] = (rows[0][0], "md5=1B2M2Y8AsgTpgAmY7PhCfg", rows[0][2])
    elif kind == "columns":
        rows[0] = (rows[0][0], rows[0][1])  # type: ignore[assignment]
    wheel.rows = rows
    return wheel.write(folder / WHEEL_NAME)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("twice", "listed 2 times"),
        ("unhashed", "no usable hash"),
        ("weak", "no usable hash"),
        ("columns", "2 columns"),
    ],
)
def test_malformed_records(fake: FakeTorch, tmp_path: Path, kind: str, message: str) -> None:
    with pytest.raises(DamagedWheelError, match=message):
        check(fake, rows_fault(fake, tmp_path, kind))


@pytest.mark.parametrize("name", ["../../.bashrc", "/etc/passwd", "torch\\..\\x", "a/./b"])
def test_member_names_that_escape(fake: FakeTorch, tmp_path: Path, name: str) -> None:
    path = Path(shutil.copy(fake.base, tmp_path / WHEEL_NAME))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(zipfile.ZipInfo(name), b"")
    with pytest.raises(UnsafeMemberError, match="do not use this file"):
        check(fake, path)


def test_symbolic_links(fake: FakeTorch, tmp_path: Path) -> None:
    path = Path(shutil.copy(fake.base, tmp_path / WHEEL_NAME))
    with zipfile.ZipFile(path, "a") as archive:
        info = zipfile.ZipInfo("torch/link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(UnsafeMemberError, match="symbolic link"):
        check(fake, path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_that_is_there_twice(fake: FakeTorch, tmp_path: Path) -> None:
    path = Path(shutil.copy(fake.base, tmp_path / WHEEL_NAME))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("torch/__init__.py", b"")
    with pytest.raises(DamagedWheelError, match="in the archive twice"):
        check(fake, path)


def test_another_project(fake: FakeTorch, tmp_path: Path) -> None:
    with pytest.raises(ForeignWheelError, match="fake-cuda-headers"):
        check(fake, fake.links / CUDA_WHEEL_NAME)
    with pytest.raises(ForeignWheelError, match="wheel of other"):
        check(
            fake,
            changed(
                fake,
                tmp_path,
                {f"{DIST_INFO}/METADATA": b"Metadata-Version: 2.1\nName: other\nVersion: 9.1.0\n"},
            ),
        )


def test_files_that_are_no_wheel(fake: FakeTorch, tmp_path: Path) -> None:
    with pytest.raises(ForeignWheelError, match="no such file"):
        check(fake, tmp_path / WHEEL_NAME)
    path = Path(shutil.copy(fake.base, tmp_path / "download.whl"))
    with pytest.raises(ForeignWheelError, match="not named like a wheel"):
        check(fake, path)
    path = tmp_path / WHEEL_NAME
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("torch/__init__.py", b"")
    with pytest.raises(DamagedWheelError, match="0 dist-info folders"):
        check(fake, path)


def test_another_version(fake: FakeTorch) -> None:
    newer = dataclasses.replace(fake.tag, name="v9.2.0")
    base = basewheel.identify(fake.base)
    with pytest.raises(ForeignWheelError, match=r"is torch 9\.1\.0, v9\.2\.0 needs 9\.2\.0"):
        basewheel.check(base, newer, architecture=MACHINE, python=None)


def test_another_python(fake: FakeTorch) -> None:
    with pytest.raises(WrongPythonError, match=rf"is for CPython {PYTHON}, not 3\.99"):
        check(fake, fake.base, python="3.99")
    other = dataclasses.replace(fake.tag, pythons=("3.99",))
    with pytest.raises(WrongPythonError, match=r"supports CPython 3\.99"):
        basewheel.check(basewheel.identify(fake.base), other, architecture=MACHINE, python=None)


def test_a_free_threaded_python(fake: FakeTorch, tmp_path: Path) -> None:
    name = WHEEL_NAME.replace(f"{CP}-{CP}-", f"{CP}-{CP}t-")
    path = Path(shutil.copy(fake.base, tmp_path / name))
    with pytest.raises(WrongPythonError, match="ordinary CPython"):
        check(fake, path)


def test_another_platform(fake: FakeTorch, tmp_path: Path) -> None:
    base = basewheel.identify(fake.base)
    with pytest.raises(WrongPlatformError, match="Linux on riscv64"):
        basewheel.check(base, fake.tag, architecture="riscv64", python=None)
    name = WHEEL_NAME.replace(f"manylinux_2_28_{MACHINE}", "win_amd64")
    with pytest.raises(WrongPlatformError, match="win_amd64"):
        check(fake, Path(shutil.copy(fake.base, tmp_path / name)))


def test_a_wheel_without_cuda(fake: FakeTorch, tmp_path: Path) -> None:
    with pytest.raises(CpuOnlyWheelError, match="CPU-only"):
        check(fake, changed(fake, tmp_path, {"torch/lib/libtorch_cuda.so": None}))


def test_a_wheel_that_has_lms(fake: FakeTorch, tmp_path: Path) -> None:
    with pytest.raises(AlreadyGraftedError, match="has LMS already"):
        check(fake, changed(fake, tmp_path, {"torch/lib/libtorch_lms.so": b""}))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (COMMIT, "f" * 40, "built from commit f"),
        ("'13.0'", "'12.4'", "built for CUDA 12.4"),
        ("= '13.0'", "= None", "built for CUDA unknown"),
    ],
)
def test_another_build_of_the_same_version(
    fake: FakeTorch, tmp_path: Path, old: str, new: str, message: str
) -> None:
    text = VERSION_PY.replace(old, new).encode()
    with pytest.raises(ForeignWheelError, match=message):
        check(fake, changed(fake, tmp_path, {"torch/version.py": text}))
