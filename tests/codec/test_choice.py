"""What is packed: kinds of data, and a block's last rounds."""

from __future__ import annotations

from itertools import pairwise

import pytest

from packing import KINDS, Host, Kind


@pytest.mark.parametrize(
    ("scalar_type", "kind"),
    [
        ("BFloat16", Kind.BFLOAT16),
        ("Half", Kind.FLOAT16),
        ("Float", Kind.FLOAT32),
        ("ComplexFloat", Kind.FLOAT32),
        ("Float8_e4m3fn", Kind.FLOAT8_E4),
        ("Float8_e5m2", Kind.FLOAT8_E5),
        ("Long", Kind.INT64),
        ("Int", Kind.INT32),
        ("Short", Kind.INT16),
        ("Bool", Kind.BYTE),
        ("Byte", Kind.BYTE),
        ("Char", Kind.BYTE),
        ("Double", Kind.NONE),
        ("Undefined", Kind.NONE),
        ("", Kind.NONE),
    ],
)
def test_kinds(host: Host, scalar_type: str, kind: Kind) -> None:
    assert host.kind_of(scalar_type) == kind


def test_names(host: Host) -> None:
    assert [host.name(kind).upper() for kind in Kind] == [kind.name for kind in Kind]


def test_each_kind_has_a_source_of_its_own(host: Host) -> None:
    assert len({host.source(kind) for kind in KINDS}) == len(KINDS)


def test_what_shrinks_is_packed_each_time(host: Host) -> None:
    assert host.choices([True] * 500) == [True] * 500


def test_what_does_not_shrink_is_tried_again_later_and_later(host: Host) -> None:
    packs = host.choices([False] * 1000)
    tries = [i for i, pack in enumerate(packs) if pack]
    pauses = [b - a - 1 for a, b in pairwise(tries)]
    assert pauses == [8, 16, 32, 64, 128, 128, 128, 128, 128, 128]


def test_a_success_ends_the_pauses(host: Host) -> None:
    shrinks = [False] * 9 + [True] * 3 + [False] * 20
    assert host.choices(shrinks) == (
        [True] + [False] * 8 + [True] * 4 + [False] * 8 + [True] + [False] * 10
    )


def test_totals(host: Host) -> None:
    blocks = [(Kind.BYTE, 100, 20), (Kind.BFLOAT16, 300, 200), (Kind.BYTE, 100, 10)]
    sums, ratios = host.totals(blocks, Kind.BYTE)
    assert sums == [(2, 200, 30), (3, 500, 230)]
    assert ratios == [0.15, 0.46]
    assert host.totals([], Kind.BYTE) == ([(0, 0, 0), (0, 0, 0)], [1, 1])
