"""ci/addon_tests.py and ci/same_code.py: whether torch-lms does what the hooks do."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from toolkit.helpers.ci_script import load
from toolkit.helpers.fake_torch import FakeTorch
from toolkit.helpers.fake_torch import fake as fake

load("torch_tests")  # which the next one imports
addon_tests = load("addon_tests")
same_code = load("same_code")

SOURCE = """\
from __future__ import annotations
import torch

def plain(value: int):
    return torch.size(value)

class Code:
    @torch.cuda.lms.region
    def run(self):
        return 1

    @property
    def other(self):
        return 2
"""


def test_the_patched_files_are_those_that_the_hooks_change(
    fake: FakeTorch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addon_tests, "patches_dir", lambda: fake.patches)
    addon_tests.write_patched(fake.tag, fake.base, tmp_path)
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert path == tmp_path / "torch/cuda/__init__.py"
    assert path.read_text().endswith("from .lms import *  # noqa: F403\n")


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Runs same_code on a file, and a module that has other source."""
    monkeypatch.setattr(same_code.simcuda, "start", lambda **_: None)
    wanted = tmp_path / "wanted"
    wanted.mkdir()
    (wanted / "compared.py").write_text(SOURCE)

    def run(source: str) -> int:
        path = tmp_path / "compared.py"
        path.write_text("import functools\n" + source.replace("import torch", WRAPPER))
        spec = importlib.util.spec_from_file_location("compared", path)
        assert spec is not None
        assert spec.loader is not None
        module: ModuleType = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "compared", module)
        spec.loader.exec_module(module)
        return int(same_code.main(wanted))

    return run


WRAPPER = """\
class torch:
    class cuda:
        class lms:
            region = staticmethod(lambda function: functools.wraps(function)(lambda self: 1))
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("", "", ""),
        ("size(value)", "size(value, 2)", "compared: plain"),
        ("return 1\n", "return 3\n", "compared: Code.run"),
        ("    @torch.cuda.lms.region\n", "", "compared: Code.run has no wrapper"),
    ],
)
def test_a_difference_is_found(
    compare: object, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    source = SOURCE.removeprefix("from __future__ import annotations\n")
    assert callable(compare)
    assert compare(source.replace(old, new)) == bool(said)
    out = capsys.readouterr().out
    assert ("not what the hooks make of it: " + said in out) if said else "differ" in out


def test_the_decorated_functions() -> None:
    assert list(same_code.decorated(ast.parse(SOURCE))) == [("Code", "run")]
