"""The bugs that ci/ plants in the runtime have to fit it, or nobody is told what a test misses."""

from __future__ import annotations

import ast
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
        for test in bug["test"].split():
            assert is_test(tests, test), (bug["name"], test)


def is_test(folder: Path, name: str) -> bool:
    """Whether there is such a test, as pytest names it; or such a file, without a name in it."""
    file, *names = name.split("::")
    inside = ast.parse((folder / file).read_text("utf-8")).body
    for part in names:
        wanted = part.partition("[")[0]
        found = [
            node
            for node in inside
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == wanted
        ]
        if not found:
            return False
        inside = found[0].body
    return True


def test_a_test_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("class TestA:\n    def test_one(self): pass\n")
    assert is_test(tmp_path, "test_it.py::TestA::test_one[x]")
    assert not is_test(tmp_path, "test_it.py::TestA::test_two")
    assert not is_test(tmp_path, "test_it.py::test_one")


def test_a_bug_that_fits_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "part.h").write_text("int two = 1 + 1;\n")
    bug = {"name": "no sum", "file": "part.h", "find": "1", "replace": "2"}
    with pytest.raises(SystemExit, match="must occur once in part"):
        disposable.plant(bug, tmp_path)


class Torch:
    """Stands in for a DisposableTorch. Records what is installed in it."""

    tag = SimpleNamespace(variant=None)
    runtime = Path("true")

    def __init__(self, _: str) -> None:
        self.installed: list[str] = []

    def __enter__(self) -> Torch:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def install(self, runtime: Path) -> None:
        self.installed.append(str(runtime))

    def install_with(self, bug: dict[str, str]) -> Path:
        self.installed.append(bug["name"])
        return Path("copy")


@pytest.mark.parametrize("broken", [False, True])
def test_a_test_that_always_fails_detects_nothing(
    broken: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: str, tests: list[str], runtime: Path) -> bool:
        return runtime != torch.runtime or (broken and "test_b.py::one" in tests)

    torch = Torch("")
    planted = [
        {"name": "first", "test": "test_a.py"},
        {"name": "second", "test": "test_b.py::one"},
        {"name": "third", "test": "test_b.py"},
    ]
    monkeypatch.setattr(mutants, "DisposableTorch", lambda _: torch)
    monkeypatch.setattr(mutants, "load_bugs", lambda _: planted)
    monkeypatch.setattr(mutants, "fails", fails)
    assert mutants.main("python", []) == int(broken)
    output = capsys.readouterr().out
    if broken:
        assert torch.installed == ["true"]
        assert "without a bug these tests fail: test_b.py test_b.py::one;" in output
    else:
        assert torch.installed == ["true", "first", "second", "third"]
        assert output.count("seen  ") == 3
