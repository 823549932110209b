"""RECORD: rows and digests."""

from __future__ import annotations

import hashlib
import io

import pytest
from installer.records import RecordEntry, parse_record_file

from lmsbuild.wheel import record
from lmsbuild.wheel.record import RecordSyntaxError, Row


def test_digests_are_urlsafe_base64_without_padding() -> None:
    # 0xfb 0xff encodes to "+/8=" in ordinary base64.
    assert record.encode_digest("sha256", b"\xfb\xff") == "sha256=-_8"


def test_a_row_has_hash_and_size() -> None:
    row = record.row_of("a/b.py", b"x = 1\n")
    assert row.size == 6
    assert row.algorithm == "sha256"
    assert row.hash == record.encode_digest("sha256", hashlib.sha256(b"x = 1\n").digest())


def test_parse_and_serialize_are_inverse() -> None:
    rows = [
        Row(path="a.py", hash="sha256=abc", size=3),
        Row(path='odd, "name".py', hash="sha256=def", size=0),
        Row(path="x.dist-info/RECORD"),
    ]
    text = record.serialize(rows)
    assert text.splitlines()[1] == '"odd, ""name"".py",sha256=def,0'
    assert record.parse(text) == rows


def test_others_read_what_is_written() -> None:
    rows = [
        record.row_of('odd, "name".py', b"x = 1\n"),
        record.row_of("empty/__init__.py", b""),
        Row(path="x.dist-info/RECORD"),
    ]
    text = record.serialize(rows)
    entries = [RecordEntry.from_elements(*cells) for cells in parse_record_file(io.StringIO(text))]
    assert [(entry.path, str(entry.hash_ or ""), entry.size) for entry in entries] == [
        (row.path, row.hash, row.size) for row in rows
    ]
    assert entries[0].validate_stream(io.BytesIO(b"x = 1\n"))
    assert not entries[0].validate_stream(io.BytesIO(b"x = 2\n"))


def test_carriage_returns_and_empty_lines_are_read() -> None:
    assert record.parse("a,sha256=b,1\r\n\r\nc,,\r\n") == [
        Row(path="a", hash="sha256=b", size=1),
        Row(path="c"),
    ]


def test_duplicates_are_kept_for_the_reader_to_judge() -> None:
    assert [row.path for row in record.parse("a,,\na,,\n")] == ["a", "a"]


@pytest.mark.parametrize("text", ["a,b\n", "a,b,c,d\n", "a,sha256=x,ten\n", "a,sha256=x,-1\n"])
def test_malformed_rows_are_refused(text: str) -> None:
    with pytest.raises(RecordSyntaxError, match="line 1"):
        record.parse(text)
