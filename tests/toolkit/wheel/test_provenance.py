"""What a wheel says about its making."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import lmsbuild
from lmsbuild.wheel import provenance
from lmsbuild.wheel.provenance import Provenance, ProvenanceError


@pytest.fixture
def origin() -> Provenance:
    return Provenance(
        tag="v9",
        base="torch.whl",
        base_sha256="a" * 64,
        base_index_sha256=None,
        base_binaries={"torch/lib/b.so": "sha256=b", "torch/lib/a.so": "sha256=a"},
        runtime_sha256="c" * 64,
        hooks_sha256="d" * 64,
        hooks=("0001", "0002"),
        skipped=(),
        compiler="g++ 1",
        flags=("-O2",),
        header_packages={"x==1": "e" * 64},
        manylinux="manylinux_2_28",
        pythons=("3.12",),
        lmsbuild="1",
        commit="unknown",
    )


def test_what_is_dumped_is_loaded(origin: Provenance) -> None:
    assert provenance.load(provenance.dump(origin)) == origin


def test_the_order_of_a_mapping_does_not_show(origin: Provenance) -> None:
    turned = dict(reversed(list(origin.base_binaries.items())))
    other = Provenance(**{**vars(origin), "base_binaries": turned})
    assert provenance.dump(other) == provenance.dump(origin)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"{}", b'{"format": 99}', b'{"format": 1, "tag": "v9"}', b"\xff"]
)
def test_other_documents_are_refused(data: bytes) -> None:
    with pytest.raises(ProvenanceError):
        provenance.load(data)


def test_the_toolkits_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "lmsbuild" / "__init__.py"
    package.parent.mkdir()
    package.write_text("")
    monkeypatch.setattr(lmsbuild, "__file__", str(package))
    assert provenance.toolkit_commit() == "unknown"

    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "-q")
    assert provenance.toolkit_commit() == "unknown"  # no commit yet
    git("add", ".")
    git("commit", "-q", "-m", "first")
    commit = git("rev-parse", "HEAD")
    assert provenance.toolkit_commit() == commit
    # As in a hook of another repository.
    with monkeypatch.context() as hook:
        hook.setenv("GIT_DIR", str(tmp_path / "another"))
        assert provenance.toolkit_commit() == commit
    package.write_text("changed = 1\n")
    assert provenance.toolkit_commit() == f"{commit}-dirty"
    monkeypatch.setenv("PATH", "")
    assert provenance.toolkit_commit() == "unknown"
