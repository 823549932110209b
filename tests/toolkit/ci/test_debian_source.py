"""ci/debian_source.py: finding the machine's own Debian mirror."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.helpers.ci_script import load

debian_source = load("debian_source")

SOURCES = """\
# A remark
Types: deb
URIs: http://mirror.invalid/debian-security
Suites: bookworm-security
Components: main
Signed-By: /wrong.gpg

Types: deb
URIs: http://mirror.invalid/debian/
Suites: bookworm bookworm-updates
# another remark
Components: main contrib
Signed-By: /right.gpg
"""


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("sources.list.d/debian.sources", SOURCES, ("http://mirror.invalid/debian/", "/right.gpg")),
        (
            "sources.list",
            "# x\ndeb http://other.invalid/repo stable main\n"
            "deb [arch=amd64 signed-by=/k.gpg] http://m.invalid/debian bookworm main # y\n",
            ("http://m.invalid/debian", "/k.gpg"),
        ),
        (
            "sources.list.d/a.list",
            "deb http://m.invalid/debian trixie main",
            (
                "http://m.invalid/debian",
                "",
            ),
        ),
    ],
)
def test_the_machines_mirror(
    tmp_path: Path, name: str, text: str, expected: tuple[str, str]
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    mirror = debian_source.find_mirror(tmp_path)
    assert (mirror.uri, mirror.signed_by) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        SOURCES.replace("/debian/", "/ubuntu/"),
        SOURCES.replace("/debian/", "/debian/\nEnabled: no"),
        SOURCES.replace("main contrib", "contrib"),
    ],
)
def test_no_mirror_here(tmp_path: Path, text: str) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d/debian.sources").write_text(text)
    with pytest.raises(debian_source.Unavailable, match="no Debian mirror"):
        debian_source.find_mirror(tmp_path)


def test_no_apt_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    mirror = debian_source.Mirror("http://m.invalid/debian", "")
    with pytest.raises(debian_source.Unavailable, match="no apt"):
        debian_source.fetch("x", "trixie", tmp_path / "cache", mirror)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("E: Failed to fetch X  File has unexpected size (1 != 2). Mirror sync in progress?", True),
        ("E: Failed to fetch http://x/X_1_all.deb  404  Not Found [IP: 1.2.3.4 80]", True),
        ("E: Failed to fetch http://x/Packages.xz  404  Not Found [IP: 1.2.3.4 80]", False),
        ("E: Unable to locate package X", False),
    ],
)
def test_a_mirror_that_is_being_updated(tmp_path: Path, said: str, error: bool) -> None:
    command = ["sh", "-c", f"echo '{said}' >&2; exit 100"]
    with pytest.raises(debian_source.Unavailable, match="apt failed: E: ") as raised:
        debian_source.run_apt(command, tmp_path)
    assert isinstance(raised.value, debian_source.Inconsistent) is error
