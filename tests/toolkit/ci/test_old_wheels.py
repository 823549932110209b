"""Programs in ci/ that build a wheel into a folder where an older one may lie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from lmsbuild.registry import load_registry
from toolkit.helpers.ci_script import load

MODULES = {name: load(name) for name in ("torch_tests", "addon_tests", "oracle", "cross_tests")}
TAG = load_registry().default


def build_across() -> Path:
    tools = object.__new__(MODULES["cross_tests"].Tools)
    tools.architecture = "aarch64"
    wheel = tools.build_wheel(TAG.name)
    assert isinstance(wheel, Path)
    return wheel


def try_tag() -> Path:
    """The wheel that is tested."""
    tested: list[Path] = []
    module = MODULES["torch_tests"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "packages", lambda _: ())
        patch.setattr(module, "run_suite", lambda wheel, *_: tested.append(wheel))
        module.try_tag(TAG, [])
    return tested[0]


@pytest.mark.parametrize(
    ("module", "folder", "build"),
    [
        ("torch_tests", f"wheels/{TAG.name}", try_tag),
        ("addon_tests", f"addon/{TAG.name}", lambda: MODULES["addon_tests"].build(TAG)),
        ("oracle", f"wheels/v{MODULES['oracle'].RELEASE}", MODULES["oracle"].build_wheel),
        ("cross_tests", "wheels/aarch64", build_across),
    ],
)
def test_the_new_wheel_is_taken(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    folder: str,
    build: Callable[[], Path],
) -> None:
    out = tmp_path / "build" / folder
    out.mkdir(parents=True)
    python = MODULES["torch_tests"].PYTHON.replace(".", "")
    (out / f"torch-1.0+lms0-cp{python}-cp{python}-linux_aarch64.whl").write_bytes(b"")
    new = out / f"torch-1.0+lms1-cp{python}-cp{python}-linux_aarch64.whl"

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        if "--out" in command:
            assert Path(command[command.index("--out") + 1]) == out
            new.write_bytes(b"")
        return SimpleNamespace(returncode=0)

    loaded: ModuleType = MODULES[module]
    monkeypatch.setattr(loaded, "ROOT", tmp_path)
    monkeypatch.setattr(loaded.subprocess, "run", run)
    assert build() == new
