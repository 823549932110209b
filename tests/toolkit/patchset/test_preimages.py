"""The record of the files that a tag's hooks were made against."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lmsbuild import resources
from lmsbuild.checkout.apply import apply
from lmsbuild.errors import HookError, SeriesError
from lmsbuild.patchset.diff import blob_id
from lmsbuild.patchset.preimages import FILE, SCHEMA, load_preimages
from lmsbuild.patchset.series import load_hooks
from lmsbuild.registry import load_registry
from toolkit.helpers.fake_upstream import MEMORY, Upstream, commit, git
from toolkit.helpers.fake_upstream import upstream as upstream


def record(upstream: Upstream, text: str) -> None:
    (upstream.hooks / FILE).write_text(text)
    schema = resources.patches_dir() / SCHEMA
    (upstream.patches / SCHEMA).write_bytes(schema.read_bytes())


def row(path: str, blob: str) -> str:
    return f'[[file]]\npath = "{path}"\nblob = "{blob}"\nproof = "wheel"\n'


@pytest.fixture
def recorded(upstream: Upstream) -> Upstream:
    names = (MEMORY, "version.txt")
    record(
        upstream,
        "".join(row(name, blob_id((upstream.checkout / name).read_bytes())) for name in names),
    )
    return upstream


def drifted(upstream: Upstream) -> set[tuple[str, str]]:
    outcome = apply(
        upstream.tag,
        upstream_url="",
        given_source=str(upstream.checkout),
        patches=upstream.patches,
        check=True,
    )
    return set(outcome.drifted)


def test_the_very_files(recorded: Upstream) -> None:
    assert drifted(recorded) == set()


def test_a_file_that_no_hook_touches(recorded: Upstream) -> None:
    with (recorded.checkout / "version.txt").open("a") as file:
        file.write("\n")
    commit(recorded.checkout, "a blank line")
    assert drifted(recorded) == {(f"the series of {recorded.tag.name}", "version.txt")}


def test_a_file_that_is_gone(recorded: Upstream) -> None:
    with (recorded.hooks / FILE).open("a") as file:
        file.write(row("aten/gone.cpp", "0" * 40))
    assert drifted(recorded) == {(f"the series of {recorded.tag.name}", "aten/gone.cpp")}


def test_a_file_is_named_once(recorded: Upstream) -> None:
    with (recorded.checkout / MEMORY).open("a") as file:
        file.write("\n# local\n")
    commit(recorded.checkout, "a comment")
    assert {path for _, path in drifted(recorded)} == {MEMORY}
    assert all(hook.endswith(".patch") for hook, _ in drifted(recorded))


def test_a_hook_that_does_not_apply_names_the_files_that_differ(recorded: Upstream) -> None:
    path = recorded.checkout / MEMORY
    path.write_text(path.read_text().replace("return 3\n", "return 4\n"))
    commit(recorded.checkout, "another number")
    before = git(recorded.checkout, "rev-parse", "HEAD")
    with pytest.raises(HookError, match=f"not the tag's own files: {re.escape(MEMORY)};"):
        drifted(recorded)
    assert git(recorded.checkout, "rev-parse", "HEAD") == before


@pytest.mark.parametrize(
    "text",
    ["[[file", "", row("/etc/passwd", "0" * 40), row("a", "0" * 7), row("a", "0" * 40) + "x = 1\n"],
)
def test_a_malformed_record(upstream: Upstream, text: str) -> None:
    record(upstream, text)
    with pytest.raises(SeriesError, match=rf"{FILE}: malformed .*{SCHEMA}"):
        load_preimages(upstream.tag, upstream.patches)


def test_a_tag_without_one(upstream: Upstream) -> None:
    assert load_preimages(upstream.tag, upstream.patches) == ()


def test_the_projects_own_records_and_hooks_agree() -> None:
    recorded = [tag for tag in load_registry() if (_hooks(tag.hooks) / FILE).exists()]
    assert recorded
    for tag in recorded:
        blobs = {preimage.path: preimage.blob for preimage in load_preimages(tag)}
        for mail in load_hooks(tag):
            for file in mail.files:
                assert file.old_path is not None
                assert blobs[file.old_path] == file.old_blob, f"{mail.name}: {file.path}"


def _hooks(name: str) -> Path:
    return resources.patches_dir() / name
