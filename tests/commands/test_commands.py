"""The commands of the documentation run as a user runs them, on the simulated device.

They need the environment of `make test`: a torch with LMS, lmsbuild, and what the examples import.
commands.toml says which commands run here, and where the others do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from book import load
from listings import train
from pages import ROOT

from lmsbuild.registry import load_registry
from lmsbuild.tools.cache import default_cache

BOOK = load()
BIN = Path(sys.executable).parent
SIMULATED = "mib=256"
# Of a `make` and of the tests that run these tests.
OTHERS = ("ARGS", "LMS_", "MAKE", "MFLAGS", "OUT", "PIP_P", "PYTEST", "PYTHON", "TAG", "VIRTUAL")

PREPARE = """\
set -eo pipefail
serve() {
  : > "$SANDBOX/url"
  "$@" >> "$SANDBOX/url" &
  until grep http "$SANDBOX/url"; do
    kill -0 $! || return 1
    sleep 0.1
  done
  kill $!
}
"""

TESTS = "import torch\n\n\ndef test_it():\n    assert torch.ones(3, device='cuda').sum() == 3\n"


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """A user's variables; every Python has a simulated device."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(OTHERS)}
    return {
        **kept,
        "CHECKOUT": str(ROOT),
        "DEFAULT_TAG": load_registry().default.name,
        "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT / "tests" / "simcuda" / "auto"),
        "SIMCUDA_AUTO": SIMULATED,
        "XDG_CACHE_HOME": str(default_cache().parent),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Iterator[Path]:
    """What the pages take for granted: the wheel torch-lms, and a recording."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "train.py").write_text(train())
    tag = load_registry().default
    for command in (
        ["lmsbuild", "addon", "--tag", tag.name, "--out", "dist"],
        ["lmsbuild", "trace", "train:make", "64", "--out", "trace.json.gz"],
    ):
        subprocess.run([BIN / command[0], *command[1:]], cwd=folder, env=environment, check=True)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def sandbox(tmp_path: Path, made: Path) -> Iterator[Path]:
    """A user's folder, which is also their home."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(TESTS)
    for name in ("train.py", "package/train.py"):
        (tmp_path / name).write_text(train())
    shutil.copytree(made / "dist", tmp_path / "dist")
    shutil.copy(made / "trace.json.gz", tmp_path)
    yield tmp_path
    shutil.rmtree(tmp_path)  # a torch, perhaps


@pytest.mark.parametrize("page", BOOK.scenes)
def test_a_page(page: str, sandbox: Path, environment: dict[str, str]) -> None:
    scene = BOOK.scenes[page]
    script = PREPARE
    for command in BOOK.run(page):
        script += f"echo {command.page}:{command.line}\n{scene.line(command)}\n"
    variables = {"SANDBOX": str(sandbox), "HOME": str(sandbox)}
    for name, value in scene.environment.items():
        variables[name] = value.replace("$SANDBOX", str(sandbox))
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT if scene.folder == "checkout" else sandbox,
        env={**environment, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
