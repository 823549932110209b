"""lmsbuild channel: a folder that conda installs from, never stale."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from click.testing import CliRunner

from lmsbuild.cli.main import main
from lmsbuild.conda import channel as channel_module
from lmsbuild.conda.channel import ALL_SUBDIRS, Channel
from lmsbuild.conda.package_file import edit_index, read_index
from lmsbuild.errors import (
    BusyError,
    ChangedPackageError,
    ChannelError,
    PackagingError,
    StaleIndexError,
)
from lmsbuild.tools import lock
from toolkit.helpers.fake_conda import index_of, stub, unheard
from toolkit.helpers.fake_conda import package as package


@pytest.fixture
def channel(tmp_path: Path, package: Path) -> Channel:
    made = Channel(tmp_path / "channel")
    made.add([package], unheard)
    return made


def changed(package: Path, folder: Path, **values: Any) -> Path:
    """A package of the same name with other content."""
    folder.mkdir()
    copy = folder / package.name
    shutil.copy(package, copy)
    edit_index(copy, lambda index: index.update(depends=["changed"], **values))
    return copy


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


INDEXES = {f"{s}/repodata.json{ending}" for s in ALL_SUBDIRS for ending in ("", ".zst")}


def test_add_makes_a_channel(channel: Channel, package: Path) -> None:
    assert names(channel.folder) == INDEXES | {f"linux-64/{package.name}"}
    (found,) = channel.packages()
    assert (found.name, found.version, found.subdir) == ("thing", "1.0", "linux-64")
    assert (channel.folder / "linux-64" / package.name).read_bytes() == package.read_bytes()
    channel.check()


def test_a_package_with_large_metadata_is_added(channel: Channel, tmp_path: Path) -> None:
    large = stub(tmp_path / "made", "large", subdir="linux-64")

    def begin_with_64_mib(files: dict[str, bytes]) -> None:
        others = dict(files)
        files.clear()
        files.update({"info/recipe/large": bytes(64 << 20), **others})

    with_files(large, begin_with_64_mib, part="info-")
    (added,) = channel.add([large], unheard)
    assert read_index(added)["name"] == "large"


def test_every_platform_has_an_index(channel: Channel, tmp_path: Path) -> None:
    for subdir in ALL_SUBDIRS:
        document = json.loads((channel.folder / subdir / "repodata.json").read_text())
        assert document["info"]["subdir"] == subdir


def test_a_package_goes_to_its_own_platform(channel: Channel, tmp_path: Path) -> None:
    made = [stub(tmp_path / "more", "thing", subdir=subdir) for subdir in ALL_SUBDIRS[1:]]
    assert [path.parent.name for path in channel.add(made, unheard)] == list(ALL_SUBDIRS[1:])
    assert {found.subdir for found in channel.packages()} == set(ALL_SUBDIRS)


def test_adding_the_same_again_changes_nothing(channel: Channel, package: Path) -> None:
    said: list[str] = []
    assert channel.add([package], said.append) == []
    assert said == [f"{package.name}: already there"]
    # Also when the file is the channel's own.
    assert channel.add([channel.folder / "linux-64" / package.name], unheard) == []


def test_two_files_of_one_name(package: Path, tmp_path: Path) -> None:
    made = Channel(tmp_path / "two")
    with pytest.raises(ChangedPackageError, match="the same name and other content"):
        made.add([package, changed(package, tmp_path / "other")], unheard)
    assert not made.exists


def test_other_content_under_an_old_name_is_refused(
    channel: Channel, package: Path, tmp_path: Path
) -> None:
    before = (channel.folder / "linux-64" / package.name).read_bytes()
    other = stub(tmp_path / "made", "other", subdir="linux-64")
    with pytest.raises(ChangedPackageError, match=f"another {package.name}.*--build-number"):
        channel.add([other, changed(package, tmp_path / "changed")], unheard)
    assert (channel.folder / "linux-64" / package.name).read_bytes() == before
    assert [found.name for found in channel.packages()] == ["thing"]
    channel.check()


def test_what_lies_there_changed_is_stale_until_it_is_indexed(
    channel: Channel, package: Path, tmp_path: Path
) -> None:
    target = channel.folder / "linux-64" / package.name
    old = index_of(channel.folder, "linux-64")[package.name]["sha256"]
    shutil.copy(changed(package, tmp_path / "changed"), target)
    with pytest.raises(StaleIndexError, match=f"{package.name} has changed.*channel index"):
        channel.check()
    channel.index()
    channel.check()
    row = index_of(channel.folder, "linux-64")[package.name]
    assert row["depends"] == ["changed"]
    assert row["sha256"] != old
    assert row["size"] == target.stat().st_size


def test_same_size_and_date_do_not_hide_a_change(channel: Channel, package: Path) -> None:
    target = channel.folder / "linux-64" / package.name
    channel.check()
    status = target.stat()
    data = bytearray(target.read_bytes())
    data[-30] ^= 1
    other = target.with_name("other")
    other.write_bytes(bytes(data))
    os.replace(other, target)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert target.stat().st_size == status.st_size
    # Asked again by the same Channel, which remembers hashes.
    with pytest.raises(StaleIndexError):
        channel.check()


def test_same_size_and_date_in_the_same_file_do_not_hide_a_change(
    channel: Channel, package: Path
) -> None:
    target = channel.folder / "linux-64" / package.name
    channel.check()
    status = target.stat()
    time.sleep(0.05)  # the clock of file systems ticks every few milliseconds
    with target.open("r+b") as stream:
        stream.seek(-30, os.SEEK_END)
        stream.write(b"x")
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert target.stat().st_ino == status.st_ino
    with pytest.raises(StaleIndexError):
        channel.check()


def test_added_by_hand_or_deleted_is_stale(channel: Channel, package: Path, tmp_path: Path) -> None:
    shutil.copy(stub(tmp_path / "made", "more", subdir="linux-64"), channel.folder / "linux-64")
    with pytest.raises(StaleIndexError, match=r"more-1\.0-0\.conda is not in the index"):
        channel.check()
    (channel.folder / "linux-64" / package.name).unlink()
    assert len(channel.problems()) == 2
    channel.index()
    assert [found.name for found in channel.packages()] == ["more"]


@pytest.mark.parametrize(
    "name",
    [
        "linux-64/current_repodata.json",
        "linux-64/run_exports.json",
        "linux-64/run_exports.json.zst",
        "linux-64/0a1b.msgpack.zst",
        "linux-64/repodata_shards.msgpack.zst",
        "noarch/shards/0a1b.msgpack.zst",
        "channeldata.json",
    ],
)
def test_indexes_of_other_tools_do_not_stay_behind(channel: Channel, name: str) -> None:
    old, other = channel.folder / name, channel.folder / "linux-64" / "notes.txt"
    old.parent.mkdir(exist_ok=True)
    old.write_text("{}")
    other.write_text("")
    channel.index()
    assert not old.exists()
    assert other.exists()


def test_a_failure_leaves_the_old_index(
    channel: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {name: (channel.folder / name).read_bytes() for name in INDEXES}

    def fail(_index_fs: Any, _folder: Path) -> None:
        raise PackagingError("planted")

    monkeypatch.setattr(channel_module, "_run", fail)
    with pytest.raises(PackagingError, match="planted"):
        channel.index()
    assert {name: (channel.folder / name).read_bytes() for name in INDEXES} == before
    assert not [name for name in names(channel.folder) if "lmsbuild" in name]


def test_a_failure_leaves_no_new_package(
    channel: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = stub(tmp_path / "made", "more", subdir="linux-64")

    def fail(_index_fs: Any, _folder: Path) -> None:
        raise PackagingError("planted")

    monkeypatch.setattr(channel_module, "_run", fail)
    before = names(channel.folder)
    with pytest.raises(PackagingError, match="planted"):
        channel.add([more], unheard)
    assert names(channel.folder) == before
    channel.check()


@pytest.mark.parametrize("broken", ["broken-1.0-0.conda", "broken-1.0-0.tar.bz2"])
def test_a_broken_package_that_lies_there_keeps_others_out(
    channel: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    more = stub(tmp_path / "made", "more", subdir="linux-64")
    (channel.folder / "linux-64" / broken).write_bytes(b"no package")
    before = names(channel.folder)
    # Not even copied, and removed again.
    monkeypatch.setattr(shutil, "copyfile", None)
    with pytest.raises(ChannelError, match="broken"):
        channel.add([more], unheard)
    assert names(channel.folder) == before


def test_only_one_lmsbuild_works_there(channel: Channel, package: Path) -> None:
    with (
        lock.exclusive(channel.folder / ".lmsbuild.lock", channel.folder),
        pytest.raises(BusyError),
    ):
        channel.add([package], unheard)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("thing-1.0-0.conda", b"no zip", "not a readable .conda file"),
        ("thing-1.0-0.tar.bz2", b"", "is not a .conda file"),
        ("missing-1.0-0.conda", None, "no such file"),
    ],
)
def test_what_is_no_package_is_refused(
    tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ChannelError, match=words):
        Channel(tmp_path / "channel").add([tmp_path / name], unheard)
    assert not (tmp_path / "channel").exists()


def test_a_cut_off_package_is_refused(package: Path, tmp_path: Path) -> None:
    package.write_bytes(package.read_bytes()[:-40])
    with pytest.raises(ChannelError, match="not a readable"):
        Channel(tmp_path / "channel").add([package], unheard)


def with_files(package: Path, edit: Callable[[dict[str, bytes]], None], part: str = "pkg-") -> None:
    """Change the files in a part of a package, and nothing that describes them."""
    with zipfile.ZipFile(package) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    (name,) = (name for name in members if name.startswith(part))
    with tarfile.open(
        fileobj=io.BytesIO(zstandard.ZstdDecompressor().decompressobj().decompress(members[name]))
    ) as tar:
        files = {m.name: tar.extractfile(m).read() for m in tar if m.isreg()}  # type: ignore[union-attr]
    edit(files)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, data in files.items():
            member = tarfile.TarInfo(path)
            member.type = tarfile.DIRTYPE if path.endswith("/") else tarfile.REGTYPE
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    members[name] = zstandard.ZstdCompressor(level=1).compress(buffer.getvalue())
    with zipfile.ZipFile(package, "w") as archive:
        for member_name, data in members.items():
            archive.writestr(member_name, data)


def flip(files: dict[str, bytes]) -> None:
    path = min(files)
    files[path] = bytes([*files[path][:-1], files[path][-1] ^ 1]) if files[path] else b"1"


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (flip, "is not the file that info/paths.json describes"),
        (lambda files: files.update(more=b""), "more is not the file that"),
        (lambda files: files.clear(), "lacks .*, which info/paths.json lists"),
    ],
)
def test_a_package_with_other_files_than_it_lists_is_refused(
    package: Path, tmp_path: Path, edit: Callable[[dict[str, bytes]], None], words: str
) -> None:
    with_files(package, lambda files: None)
    Channel(tmp_path / "same").add([package], unheard)
    with_files(package, edit)
    with pytest.raises(ChannelError, match=words):
        Channel(tmp_path / "channel").add([package], unheard)
    assert not list((tmp_path / "channel").rglob("*.conda"))


def test_a_package_under_another_name_is_refused(package: Path, tmp_path: Path) -> None:
    renamed = package.rename(package.with_name("thing-2.0-0.conda"))
    with pytest.raises(ChannelError, match=r"has the content of thing-1\.0-0\.conda"):
        Channel(tmp_path / "channel").add([renamed], unheard)


def test_a_package_of_another_system_is_refused(tmp_path: Path) -> None:
    made = stub(tmp_path / "made", "thing", subdir="osx-arm64")
    with pytest.raises(ChannelError, match="is for osx-arm64"):
        Channel(tmp_path / "channel").add([made], unheard)


def test_a_package_in_the_wrong_folder_is_not_indexed(channel: Channel, package: Path) -> None:
    lost = channel.folder / "linux-64" / package.name
    lost.rename(channel.folder / "noarch" / package.name)
    with pytest.raises(ChannelError, match="is in noarch, but is for linux-64"):
        channel.index()


@pytest.mark.parametrize("text", ["", "[]", '{"packages.conda": {"x.conda": {}}}'])
def test_an_index_that_cannot_be_read_is_an_error(channel: Channel, text: str) -> None:
    (channel.folder / "linux-64" / "repodata.json").write_text(text)
    with pytest.raises(ChannelError, match="channel index"):
        channel.packages()
    channel.index()
    channel.check()


def test_an_edited_package_is_the_same_each_time(package: Path, tmp_path: Path) -> None:
    one, two = changed(package, tmp_path / "one"), changed(package, tmp_path / "two")
    assert one.read_bytes() == two.read_bytes()
    assert read_index(one)["depends"] == ["changed"]


def test_the_commands(package: Path, tmp_path: Path) -> None:
    folder = tmp_path / "channel"

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["channel", *arguments])
        return result.exit_code, result.output

    assert run("list", str(folder))[0] == 2
    assert run("serve", str(folder))[0] == 2
    folder.mkdir()
    assert run("list", str(folder))[0] == ChannelError.exit_code
    assert run("serve", str(folder))[0] == ChannelError.exit_code
    assert run("add", str(folder), str(package)) == (0, f"{folder}/linux-64/{package.name}\n")
    code, output = run("list", str(folder))
    assert code == 0
    assert "thing" in output
    assert (
        run("add", str(folder), str(changed(package, tmp_path / "changed")))[0]
        == ChangedPackageError.exit_code
    )
    (folder / "linux-64" / package.name).unlink()
    code, output = run("list", str(folder))
    assert code == StaleIndexError.exit_code
    assert f"linux-64/{package.name} is missing" in output
    told = CliRunner().invoke(main, ["channel", "list", str(folder), "--json"])
    assert told.exit_code == StaleIndexError.exit_code
    document = json.loads(told.stdout)
    assert document["channel"] == str(folder)
    assert [row["file"] for row in document["packages"]] == [package.name]
    assert document["stale"] == [f"linux-64/{package.name} is missing"]
    assert run("serve", str(folder))[0] == StaleIndexError.exit_code
    assert run("index", str(folder)) == (0, f"{folder}: 0 packages\n")


def test_an_older_format_is_not_left_out_in_silence(channel: Channel, package: Path) -> None:
    channel.add([package], unheard)
    (channel.folder / "noarch/old-1-0.tar.bz2").write_bytes(b"")
    for act in (channel.index, channel.problems):
        with pytest.raises(ChannelError, match=r"noarch/old-1-0.tar.bz2 is not .* `cph transmute`"):
            act()


def test_a_package_may_list_an_empty_folder(package: Path, tmp_path: Path) -> None:
    def list_one(files: dict[str, bytes]) -> None:
        paths = json.loads(files["info/paths.json"])
        paths["paths"].append({"_path": "share/empty", "path_type": "directory"})
        files["info/paths.json"] = json.dumps(paths).encode()

    with_files(package, list_one, "info-")
    with pytest.raises(ChannelError, match="lacks share/empty"):
        Channel(tmp_path / "channel").add([package], unheard)
    with_files(package, lambda files: files.update({"share/empty/": b""}))
    Channel(tmp_path / "channel").add([package], unheard)
