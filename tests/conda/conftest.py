"""The README's lines for a conda user, run once, and what they made."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "simcuda"))

import companions  # noqa: E402
from simcuda.build import build  # noqa: E402

from lmsbuild.cli.main import main  # noqa: E402
from lmsbuild.conda import package  # noqa: E402
from lmsbuild.conda.channel import INDEX, Channel  # noqa: E402
from lmsbuild.conda.libraries import is_library_requirement  # noqa: E402
from lmsbuild.registry import load_registry  # noqa: E402
from lmsbuild.tools.cache import default_cache  # noqa: E402
from lmsbuild.tools.cache_content import in_use  # noqa: E402
from lmsbuild.tools.download import Target  # noqa: E402
from lmsbuild.tools.fetch import fetch_wheel  # noqa: E402

MACHINE = {"__unix": "0", "__linux": "6.1", "__glibc": "2.39", "__cuda": "13.0"}


@dataclass(frozen=True)
class User:
    """Somebody who follows the README: a folder, what is on the PATH, and the printed lines.

    ``name`` is the conda environment that is used.
    """

    folder: Path
    environment: dict[str, str]
    lines: tuple[str, ...]
    name: str = "lms"

    def run(self, line: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", line],
            cwd=cwd,
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
        )

    @property
    def channel(self) -> Path:
        return self.folder / "dist" / "channel"

    @property
    def prefix(self) -> Path:
        return self.folder / "environments" / self.name

    def conda(self, line: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """A line of conda, in the environment that is used."""
        return self.run(line, self.folder, CONDA_PREFIX=str(self.prefix), **variables)

    def installed(self) -> dict[str, str]:
        """The version and build of each package in the environment."""
        found = [json.loads(p.read_text()) for p in (self.prefix / "conda-meta").glob("*.json")]
        return {row["name"]: f"{row['version']} {row['build']}" for row in found}

    def python(self, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.prefix / "bin" / "python", "-c", code],
            env={**self.environment, **variables},
            cwd=self.folder,
            capture_output=True,
            text=True,
        )


def readme_lines() -> tuple[str, ...]:
    """The indented block of README.md that begins with `make conda`."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    match = re.search(r"^    make conda\b.*(?:\n    .+)*", text, re.MULTILINE)
    assert match, "README.md has no lines for a conda user"
    return tuple(line.strip() for line in match[0].splitlines())


@pytest.fixture(scope="session")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    """Before the first line."""
    tag = load_registry().default
    if not tag.has_wheel(companions.PYTHON):
        pytest.skip(f"{tag.name} has no wheel for Python {companions.PYTHON}")
    folder = tmp_path_factory.mktemp("user")
    # Of a `make` that runs these tests, too: its variables would go before ours.
    others = ("PYTHON", "LMS_", "MAKE", "MFLAGS", "TAG", "OUT")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(others)}
    environment |= {
        "OUT": str(folder / "dist"),
        "TAG": tag.name,  # the others would take minutes each
        "PATH": os.pathsep.join(
            [str(Path(__file__).parent), str(Path(sys.executable).parent), os.environ["PATH"]]
        ),
        "LMS_TEST_CHANNELS": (folder / "conda-forge").as_uri(),
        "LMS_TEST_ENVIRONMENTS": str(folder / "environments"),
        "LMS_TEST_MACHINE": json.dumps(MACHINE),
    }
    yield User(folder=folder, environment=environment, lines=readme_lines())
    shutil.rmtree(folder)  # 8 GB, of which pytest would keep three


@pytest.fixture(scope="session")
def made(user: User) -> User:
    """After the first line."""
    result = user.run(user.lines[0], ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    return user


@pytest.fixture(scope="session")
def graft(user: User) -> Path:
    """A channel with a package of PyTorch that has LMS."""
    out = user.folder / "graft"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(package, "LEVEL", 1)  # as the others here: half a minute less
        succeed("conda", user.environment["TAG"], "--out", out)
    succeed("channel", "add", out / "channel", *out.glob("linux-64/pytorch-*.conda"))
    return out / "channel"


def succeed(*arguments: object) -> None:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output


@pytest.fixture(scope="session")
def official(user: User) -> Path:
    """The files of the official wheel, to be linked: nothing here writes to them."""
    target = Target(python=companions.PYTHON, architecture=platform.machine())
    site = user.folder / "official"
    with in_use(default_cache()):
        found = fetch_wheel(f"torch=={load_registry().default.version}", target, default_cache())
        with zipfile.ZipFile(found.path) as archive:
            archive.extractall(site)
    return site


@pytest.fixture(scope="session")
def forge(user: User, graft: Path, official: Path) -> User:
    """With a conda-forge, which has the official PyTorch, a newer one, and what needs them."""
    work = user.folder / "companions"
    (info,) = official.glob("torch-*.dist-info")
    wheels = companions.pip_download([*from_pypi(info), "numpy"], work / "wheels")
    needs = depends_of(graft)
    companions.make(
        user.folder / "conda-forge",
        work / "stage",
        needs,
        wheels,
        build(official / "torch"),
        companions.condas_pytorch(
            work / "stage" / "out",
            work / "forge",
            official,
            load_registry().default.version,
            [spec for spec in needs if not spec.startswith("__")],
            load_registry().default.cuda,
        ),
    )
    shutil.rmtree(work)
    return user


@pytest.fixture(scope="session")
def installed(made: User, forge: User) -> User:
    """After the second line."""
    result = made.run(made.lines[1], made.folder)
    assert result.returncode == 0, result.stdout + result.stderr
    return made


def depends_of(channel: Path) -> list[str]:
    """What the package of PyTorch in a channel depends on."""
    (made,) = Channel(channel).packages()
    index = json.loads((channel / made.subdir / INDEX).read_text())
    return list(index["packages.conda"][made.file]["depends"])


def from_pypi(info: Path) -> list[str]:
    """What torch imports of other projects; the GPU's are stubs here."""
    requirements = [Requirement(line) for line in PathDistribution(info).requires or []]
    return [
        f"{requirement.name}{requirement.specifier}"
        for requirement in requirements
        if not is_library_requirement(requirement.name)
        and requirement.name not in ("triton", "cuda-bindings")
        and (requirement.marker is None or requirement.marker.evaluate({"extra": ""}))
    ]


def succeeded(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


SWAP = """\
import ctypes, sys
import torch

operators = ctypes.CDLL(f"{sys.prefix}/lib/libsimops.so")
operators.simops_install.restype = ctypes.c_long
assert operators.simops_install() > 0
torch.cuda.set_enabled_lms(True)
tensors = [torch.full((4 << 20,), float(value), device="cuda") for value in range(8)]  # 16 MiB each
assert torch.cuda.lms.stats()["page_out_count"] > 0, torch.cuda.lms.explain()
assert [tensor.sum().item() / (4 << 20) for tensor in tensors] == list(range(8))
print("paged out", torch.cuda.lms.stats()["page_out_bytes"] >> 20, "MiB")
"""


def check_pages_out(user: User) -> None:
    output = succeeded(user.python(SWAP, SIMCUDA_DEVICES="1", SIMCUDA_MIB="64"))
    assert output.startswith("paged out ")
