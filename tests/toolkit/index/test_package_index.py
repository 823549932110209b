"""lmsbuild index: the pages say what lies in the folder, and are written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lmsbuild.cli.main import main
from lmsbuild.errors import (
    BusyError,
    ChangedPackageError,
    StaleIndexError,
    WheelIndexError,
)
from lmsbuild.index import package_index
from lmsbuild.index.package_index import PackageIndex
from lmsbuild.tools import lock
from toolkit.helpers import small_wheel
from toolkit.helpers.fake_conda import ignore, unheard

TIME = 1_770_000_000  # seconds since the epoch: 2026-02-02T02:40:00Z


@pytest.fixture
def index(tmp_path: Path) -> PackageIndex:
    folder = tmp_path / "site"
    wheel = small_wheel.write(folder, "thing", "1.0+lms1", headers="Requires-Python: >=3.8,<4\n")
    os.utime(wheel, (TIME, TIME))
    small_wheel.write(folder, "Other_Thing", "2.0")
    made = PackageIndex(folder)
    made.index(ignore)
    return made


def page(index: PackageIndex, project: str = "") -> dict[str, Any]:
    path = index.folder / "simple" / project / "index.json"
    return dict(json.loads(path.read_text()))


def state(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Each file's inode, time of change and content."""
    return {
        path.relative_to(folder).as_posix(): (
            path.stat().st_ino,
            path.stat().st_mtime_ns,
            path.read_bytes(),
        )
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_two_files_of_one_name(tmp_path: Path) -> None:
    one = small_wheel.write(tmp_path / "one", "thing", "1.0")
    same = Path(shutil.copy(one, tmp_path))
    other = small_wheel.write(tmp_path / "two", "thing", "1.0", headers="Requires-Python: >=3.8\n")
    made = PackageIndex(tmp_path / "site")
    with pytest.raises(ChangedPackageError, match="the same name and other content"):
        made.add([one, other], unheard, ignore)
    assert not list((tmp_path / "site").glob("*"))
    assert [path.name for path in made.add([one, same], unheard, ignore)] == [one.name]


def test_the_json_has_what_pep_691_and_pep_700_ask_for(index: PackageIndex) -> None:
    wheel = index.folder / "thing-1.0+lms1-py3-none-any.whl"
    metadata = (index.folder / f"{wheel.name}.metadata").read_bytes()
    assert b"Version: 1.0+lms1" in metadata
    assert page(index) == {
        "meta": {"api-version": "1.1"},
        "projects": [{"name": "other-thing"}, {"name": "thing"}],
    }
    assert page(index, "thing") == {
        "meta": {"api-version": "1.1"},
        "name": "thing",
        "versions": ["1.0+lms1"],
        "files": [
            {
                "filename": wheel.name,
                "url": "../../thing-1.0%2Blms1-py3-none-any.whl",
                "hashes": {"sha256": hashlib.sha256(wheel.read_bytes()).hexdigest()},
                "requires-python": ">=3.8,<4",
                "core-metadata": {"sha256": hashlib.sha256(metadata).hexdigest()},
                "size": wheel.stat().st_size,
                "upload-time": "2026-02-02T02:40:00Z",
            }
        ],
    }
    (other,) = page(index, "other-thing")["files"]
    assert "requires-python" not in other


def test_the_html_is_escaped(index: PackageIndex) -> None:
    html = (index.folder / "simple/thing/index.html").read_text()
    assert 'data-requires-python="&gt;=3.8,&lt;4"' in html
    assert '<meta name="pypi:repository-version" content="1.1">' in html


def test_versions_are_in_their_order(index: PackageIndex) -> None:
    for version in ("10.0", "9.0"):
        small_wheel.write(index.folder, "thing", version)
    index.index(ignore)
    assert page(index, "thing")["versions"] == ["1.0+lms1", "9.0", "10.0"]
    files = [file["filename"].split("-")[1] for file in page(index, "thing")["files"]]
    assert files == ["1.0+lms1", "9.0", "10.0"]


def test_nothing_is_touched_when_nothing_changed(index: PackageIndex) -> None:
    before = state(index.folder)
    PackageIndex(index.folder).index(ignore)
    assert state(index.folder) == before


def test_a_copy_of_the_folder_keeps_the_upload_times(index: PackageIndex, tmp_path: Path) -> None:
    copy = PackageIndex(tmp_path / "copy")
    shutil.copytree(index.folder, copy.folder, copy_function=shutil.copyfile)
    copy.index(ignore)
    assert page(copy, "thing") == page(index, "thing")
    # Another wheel of this name came at another time.
    wheel = small_wheel.write(copy.folder, "thing", "1.0+lms1", content="new = 1\n")
    os.utime(wheel, (TIME + 60, TIME + 60))
    copy.index(ignore)
    assert page(copy, "thing")["files"][0]["upload-time"] == "2026-02-02T02:41:00Z"


def test_what_belonged_to_a_wheel_goes_with_it(index: PackageIndex) -> None:
    (index.folder / "Other_Thing-2.0-py3-none-any.whl").unlink()
    kept = index.folder / "simple" / "notes" / "page.html"
    kept.parent.mkdir()
    kept.write_text("not ours")
    index.index(ignore)
    assert sorted(path.relative_to(index.folder).as_posix() for path in _files(index.folder)) == [
        "simple/index.html",
        "simple/index.json",
        "simple/notes/page.html",
        "simple/thing/index.html",
        "simple/thing/index.json",
        "thing-1.0+lms1-py3-none-any.whl",
        "thing-1.0+lms1-py3-none-any.whl.metadata",
    ]
    (index.folder / "thing-1.0+lms1-py3-none-any.whl").unlink()
    index.index(ignore)
    assert page(index)["projects"] == []


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_add_copies_what_is_new(index: PackageIndex, tmp_path: Path) -> None:
    wheel = small_wheel.write(tmp_path / "made", "thing", "3.0")
    said: list[str] = []
    assert index.add([wheel], said.append, ignore) == [index.folder / wheel.name]
    assert page(index, "thing")["versions"] == ["1.0+lms1", "3.0"]
    before = state(index.folder)
    assert index.add([wheel, index.folder / wheel.name], said.append, ignore) == []
    assert said == [f"{wheel.name}: already there"]
    assert state(index.folder) == before


def test_another_wheel_of_the_same_name_is_refused(index: PackageIndex, tmp_path: Path) -> None:
    new = small_wheel.write(tmp_path / "made", "thing", "3.0")
    other = small_wheel.write(tmp_path / "made", "thing", "1.0+lms1", content="other = 1\n")
    before = state(index.folder)
    with pytest.raises(ChangedPackageError, match=r"another thing-1\.0\+lms1.*another version"):
        index.add([new, other], unheard, ignore)
    assert state(index.folder) == before


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def renamed(path: Path) -> None:
    path.rename(path.with_name("thing-4.0-py3-none-any.whl"))


def nameless(path: Path) -> None:
    path.rename(path.with_name("thing.whl"))


def bare(path: Path) -> None:
    shutil.make_archive(str(path), "zip", path.parent, "nothing")
    path.with_name(f"{path.name}.zip").replace(path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncated, r"thing-3.*is no wheel: .*not a complete zip archive"),
        (renamed, r"thing-4.*has the METADATA of thing 3\.0"),
        (nameless, r"thing\.whl is not named like a wheel"),
        (bare, r"is no wheel: .*has 0 dist-info folders"),
    ],
)
def test_what_is_no_wheel_is_named(
    index: PackageIndex, tmp_path: Path, damage: Any, message: str
) -> None:
    wheel = small_wheel.write(tmp_path / "made", "thing", "3.0")
    (wheel.parent / "nothing").mkdir()
    damage(wheel)
    (broken,) = wheel.parent.glob("*.whl")
    before = state(index.folder)
    with pytest.raises(WheelIndexError, match=message):
        index.add([broken], unheard, ignore)
    assert state(index.folder) == before
    # And when it lies there: the old pages stay.
    shutil.copy(broken, index.folder)
    with pytest.raises(WheelIndexError, match=message):
        index.index(ignore)
    (index.folder / broken.name).unlink()
    assert state(index.folder) == before


def test_a_broken_wheel_that_lies_there_keeps_others_out(
    index: PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (index.folder / "broken-1.0-py3-none-any.whl").write_bytes(b"no zip")
    new = small_wheel.write(tmp_path / "made", "thing", "3.0")
    before = state(index.folder)
    # Not even copied, and removed again.
    monkeypatch.setattr(shutil, "copyfile", None)
    with pytest.raises(WheelIndexError, match=r"broken-1.*is no wheel"):
        index.add([new], unheard, ignore)
    assert state(index.folder) == before


def test_a_wheel_that_cannot_be_indexed_does_not_stay(
    index: PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = small_wheel.write(tmp_path / "made", "thing", "3.0")
    before = state(index.folder)

    def fail(path: Path, *_: Any) -> None:
        raise OSError(f"planted: {path.name}")

    monkeypatch.setattr(package_index, "read_entry", fail)
    with pytest.raises(OSError, match="planted"):
        index.add([new], unheard, ignore)
    assert state(index.folder) == before


def test_a_malformed_requires_python_is_refused(index: PackageIndex, tmp_path: Path) -> None:
    small_wheel.write(index.folder, "thing", "3.0", headers="Requires-Python: three\n")
    with pytest.raises(WheelIndexError, match="Requires-Python cannot be read"):
        index.index(ignore)
    other = small_wheel.write(tmp_path, "thing", "4.0", headers="Requires-Python: four\n")
    with pytest.raises(WheelIndexError, match=r"thing-4.*Requires-Python cannot be read"):
        index.add([other], unheard, ignore)
    assert not (index.folder / other.name).exists()


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_without_wheels_is_a_mistake(tmp_path: Path, exists: bool) -> None:
    folder = tmp_path / "docs"
    if exists:
        folder.mkdir()
    with pytest.raises(WheelIndexError, match=r"has no wheels|no such folder"):
        PackageIndex(folder).index(ignore)
    assert not (folder / "simple").exists()


def test_a_killed_copy_is_no_wheel(index: PackageIndex, tmp_path: Path) -> None:
    draft = index.folder / ".thing-5.0-py3-none-any.whl.unfinished"
    draft.write_bytes(b"half")
    index.index(ignore)
    assert page(index, "thing")["versions"] == ["1.0+lms1"]
    index.add([small_wheel.write(tmp_path / "made", "thing", "3.0")], unheard, ignore)
    assert not draft.exists()


def test_one_at_a_time(index: PackageIndex) -> None:
    with (
        lock.exclusive(index.folder / ".lmsbuild.lock", index.folder),
        pytest.raises(BusyError),
    ):
        index.index(ignore)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("thing-1.0+lms1-py3-none-any.whl", None, "is missing"),
        ("thing-1.0+lms1-py3-none-any.whl", b"x", "has changed since it was indexed"),
        ("thing-1.0+lms1-py3-none-any.whl.metadata", None, "is missing"),
        ("simple/thing/index.html", b"x", "has changed since it was indexed"),
        ("new-1.0-py3-none-any.whl", b"x", "is not in the index"),
    ],
)
def test_check_finds_what_is_stale(
    index: PackageIndex, name: str, data: bytes | None, message: str
) -> None:
    index.check()
    path = index.folder / name
    path.unlink(missing_ok=True)
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(StaleIndexError) as raised:
        index.check()
    assert f"the index is stale: {name} {message}; run: lmsbuild index" in str(raised.value)


@pytest.mark.parametrize("text", ["", "[]", '{"projects": 1}', '{"projects": [{"name": "gone"}]}'])
def test_an_index_that_cannot_be_read_is_made_again(index: PackageIndex, text: str) -> None:
    before = state(index.folder)
    root = index.folder / "simple" / "index.json"
    root.write_text(text)
    with pytest.raises(WheelIndexError, match="run: lmsbuild index"):
        index.check()
    index.index(ignore)
    assert {name: data for name, (_, _, data) in state(index.folder).items()} == {
        name: data for name, (_, _, data) in before.items()
    }


def test_the_command(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    wheel = small_wheel.write(tmp_path / "made")

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["index", str(folder), *arguments])
        return result.exit_code, result.output

    for option in ((), ("--check",)):
        code, output = run(*option)
        assert (code, "no such folder" in output) == (WheelIndexError.exit_code, True)
    code, output = run(str(wheel))
    assert (code, output.splitlines()[-1]) == (0, str(folder / "simple"))
    assert "1 wheel of thing" in output
    assert run("--check") == (0, "")
    assert run("--check", str(wheel))[0] == 2
    small_wheel.write(folder, "more")
    code, output = run("--check")
    assert (code, "more-1.0-py3-none-any.whl is not in the index" in output) == (1, True)
    assert run()[0] == 0
    assert run("--check")[0] == 0
