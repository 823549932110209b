"""Raw zip surgery."""

from __future__ import annotations

import io
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lmsbuild.tools import zipcopy
from lmsbuild.tools.zipcopy import ArchiveError, ArchiveWriter

WHEN = (2025, 1, 2, 3, 4, 6)


def sample(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as out:
        for name, method, mode in (
            ("dir/", zipfile.ZIP_STORED, 0o040755),
            ("dir/packed.txt", zipfile.ZIP_DEFLATED, 0o100644),
            ("dir/run", zipfile.ZIP_STORED, 0o100755),
            ("dir/grün.txt", zipfile.ZIP_DEFLATED, 0o100644),
        ):
            info = zipfile.ZipInfo(name, (2020, 2, 3, 4, 5, 6))
            info.compress_type, info.external_attr = method, mode << 16
            out.writestr(info, b"" if name.endswith("/") else name.encode() * 500)
    return path


def copy_all(source: Path, target: Path) -> None:
    with (
        zipfile.ZipFile(source) as old,
        source.open("rb") as raw,
        target.open("wb") as stream,
        ArchiveWriter(stream) as new,
    ):
        for info in old.infolist():
            new.copy(raw, info, "new-" + info.filename)
        new.add("added.so", b"added", when=WHEN, mode=zipcopy.SHARED_LIBRARY)


def test_copied_members_keep_bytes_mode_and_date(tmp_path: Path) -> None:
    source, target = sample(tmp_path / "a.zip"), tmp_path / "b.zip"
    copy_all(source, target)
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target) as new:
        assert new.testzip() is None
        assert new.namelist() == ["new-" + name for name in old.namelist()] + ["added.so"]
        for info in old.infolist():
            copied = new.getinfo("new-" + info.filename)
            for key in (
                "CRC",
                "compress_size",
                "file_size",
                "date_time",
                "external_attr",
                "compress_type",
            ):
                assert getattr(copied, key) == getattr(info, key)
            assert new.read(copied) == old.read(info)


def test_added_members_are_stored_with_date_and_mode(tmp_path: Path) -> None:
    target = tmp_path / "b.zip"
    copy_all(sample(tmp_path / "a.zip"), target)
    with zipfile.ZipFile(target) as new:
        info = new.getinfo("added.so")
        assert new.read(info) == b"added"
        assert info.compress_type == zipfile.ZIP_STORED
        assert info.date_time == WHEN
        assert stat.filemode(info.external_attr >> 16) == "-rwxr-xr-x"


def test_members_with_a_data_descriptor_are_copied(tmp_path: Path) -> None:
    class Unseekable(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def tell(self) -> int:
            raise OSError

    # zipfile writes sizes behind the data when it cannot go back to the header.
    stream = Unseekable()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("a", b"a" * 1000)
        out.writestr("b", b"b" * 1000)
    source, target = tmp_path / "a.zip", tmp_path / "b.zip"
    source.write_bytes(stream.getvalue())
    assert zipfile.ZipFile(source).getinfo("a").flag_bits & 0x08
    copy_all(source, target)
    with zipfile.ZipFile(target) as new:
        assert not new.getinfo("new-a").flag_bits & 0x08
        assert new.read("new-b") == b"b" * 1000


def test_other_programs_read_the_result(tmp_path: Path) -> None:
    target = tmp_path / "b.zip"
    copy_all(sample(tmp_path / "a.zip"), target)
    listed = subprocess.run(
        [sys.executable, "-m", "zipfile", "-t", str(target)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Done testing" in listed.stdout


def test_an_archive_that_ends_early_is_refused(tmp_path: Path) -> None:
    source = sample(tmp_path / "a.zip")
    with zipfile.ZipFile(source) as old:
        info = old.getinfo("dir/run")
    cut = io.BytesIO(source.read_bytes()[: info.header_offset + 60])
    writer = ArchiveWriter(io.BytesIO())
    with pytest.raises(ArchiveError, match="ends inside dir/run"):
        writer.copy(cut, info, "x")


def test_a_damaged_local_header_is_refused(tmp_path: Path) -> None:
    source = sample(tmp_path / "a.zip")
    with zipfile.ZipFile(source) as old:
        info = old.getinfo("dir/run")
    data = bytearray(source.read_bytes())
    data[info.header_offset] = 0
    writer = ArchiveWriter(io.BytesIO())
    with pytest.raises(ArchiveError, match="damaged"):
        writer.copy(io.BytesIO(data), info, "x")


def test_a_name_is_written_once() -> None:
    writer = ArchiveWriter(io.BytesIO())
    writer.add("a", b"", when=WHEN)
    with pytest.raises(ArchiveError, match="twice"):
        writer.add("a", b"", when=WHEN)


def test_an_error_leaves_no_directory_behind() -> None:
    stream = io.BytesIO()

    def write_half() -> None:
        with ArchiveWriter(stream) as writer:
            writer.add("a", b"a", when=WHEN)
            raise KeyError

    with pytest.raises(KeyError):
        write_half()
    assert not zipfile.is_zipfile(stream)


@pytest.mark.parametrize(
    "name",
    ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "C:/x", "c:x", "a\\b", "a\0b", "a/.."],
)
def test_names_that_lead_out_are_unsafe(name: str) -> None:
    assert zipcopy.unsafe_name(name) is not None


@pytest.mark.parametrize("name", ["a", "a/b.py", "a/", "..a/b..", "a/...", "torch/lib/libx.so.1"])
def test_ordinary_names_are_safe(name: str) -> None:
    assert zipcopy.unsafe_name(name) is None


def test_extract_keeps_mode_bits(tmp_path: Path) -> None:
    with zipfile.ZipFile(sample(tmp_path / "a.zip")) as old:
        for info in old.infolist():
            zipcopy.extract(old, info, tmp_path / "out")
    assert (tmp_path / "out/dir/run").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "out/dir/grün.txt").read_bytes() == "dir/grün.txt".encode() * 500


def test_extract_refuses_links_and_escapes(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as out:
        link = zipfile.ZipInfo("link", WHEN)
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        out.writestr(link, "/etc")
        out.writestr(zipfile.ZipInfo("../out", WHEN), b"")
    with zipfile.ZipFile(path) as old:
        for info in old.infolist():
            with pytest.raises(ArchiveError):
                zipcopy.extract(old, info, tmp_path / "folder")
    assert not (tmp_path / "out").exists()
