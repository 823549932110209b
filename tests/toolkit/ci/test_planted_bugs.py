"""The bugs that ci/ plants in the runtime have to fit it, or nobody is told what a test misses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from lmsbuild.patchset.runtime import lay_out
from lmsbuild.registry import load_registry
from lmsbuild.resources import patches_dir
from toolkit.helpers.ci_script import load

disposable = load("disposable")
mutants = load("mutants")
VARIANTS = sorted({tag.variant or "" for tag in load_registry() if "graft" in tag.strategies})


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_bug_can_be_planted(variant: str, tmp_path: Path) -> None:
    torch = SimpleNamespace(tag=SimpleNamespace(variant=variant or None))
    bugs = mutants.bugs(torch)
    if not variant:
        bugs = [*bugs, *disposable.load_bugs("sanitizers.toml")]
    assert len(bugs) > 10
    runtime = lay_out(patches_dir(), variant or None, tmp_path)
    sources = runtime / disposable.SOURCES
    tests = Path(__file__).parents[2] / "runtime"
    for bug in bugs:
        text = (sources / bug["file"]).read_text("utf-8")
        assert text.count(bug["find"]) == 1, bug["name"]
        assert bug["find"] != bug["replace"], bug["name"]
        assert (tests / bug["test"].partition("::")[0].partition(" ")[0]).is_file(), bug["name"]


def test_a_bug_that_fits_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "part.h").write_text("int two = 1 + 1;\n")
    bug = {"name": "no sum", "file": "part.h", "find": "1", "replace": "2"}
    with pytest.raises(SystemExit, match="must occur once in part"):
        disposable.plant(bug, tmp_path)
