"""The option of the tag's own build."""

from __future__ import annotations

from pathlib import Path

import pytest
from build import Build, run

from lmsbuild.checkout.state import Outcome


@pytest.fixture(scope="module")
def without(
    cmake: None,
    patched: Outcome,
    cuda: tuple[Path, ...],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """libc10_cuda.so, built with the option turned off."""
    folder = tmp_path_factory.mktemp("without")
    return Build(patched.directory, cuda, folder).make("-DUSE_LMS=OFF")[-1]


def test_a_build_without_lms(without: Path) -> None:
    symbols = run("nm", "-DC", without)
    assert "CUDACachingAllocator::get()" in symbols
    assert "lms_" not in symbols
    assert "torch::cuda::lms" not in symbols


def test_only_the_c_interface_is_added(lms: object, without: Path) -> None:
    """An extension finds the same C++ names in both builds, and none of the runtime's."""
    with_lms = Path(lms.runtime._name)  # type: ignore[attr-defined]

    def exported(library: Path) -> set[str]:
        lines = run("nm", "-D", "--defined-only", library).splitlines()
        return {line.split()[-1] for line in lines if line.split()[-2] in "TDBV"}

    added = exported(with_lms) - exported(without)
    assert exported(without) <= exported(with_lms)
    assert [name for name in added if "lms" in name and not name.startswith("lms_")] == []
    assert "lms_set_enabled" in added
