"""README's lines: torch-lms beside conda-forge's PyTorch, which stays as it is."""

from __future__ import annotations

import json
from pathlib import Path

import companions
import pytest
from conftest import MACHINE, ROOT, User, check_pages_out, succeeded

from lmsbuild.registry import load_registry

WHERE = "import torch\nprint(torch.__file__, torch.cuda.lms._path())"
CHANNELS = "-c ./dist/channel -c conda-forge"


def test_the_readme_works_as_printed(installed: User) -> None:
    assert len(installed.lines) == 3
    assert "set_enabled_lms(True)" in installed.lines[2]
    succeeded(installed.run(installed.lines[2], installed.folder))


def test_it_is_condas_pytorch(installed: User) -> None:
    found, tag = installed.installed(), load_registry().default
    assert found["pytorch"].startswith(f"{tag.version} cuda")
    assert "_lms" not in found["pytorch"]
    assert {"torch-lms", "torchvision", "libtorch"} <= found.keys()
    site = installed.prefix / companions.SITE
    torch, library = succeeded(installed.python(WHERE, SIMCUDA_DEVICES="1")).split()
    assert Path(torch) == site / "torch" / "__init__.py"
    assert Path(library).is_relative_to(site / "torch_lms" / "releases")
    libraries = site / "torch" / "lib"
    assert (libraries / "libc10.so").resolve() == (installed.prefix / "lib/libc10.so").resolve()
    version = succeeded(installed.python("import torch\nprint(torch.__version__)"))
    assert version.strip() == tag.version


def test_it_pages_out(installed: User) -> None:
    check_pages_out(installed)


@pytest.mark.parametrize(
    "line", [f"conda install {CHANNELS} torchvision", f"conda update --all {CHANNELS}"]
)
def test_conda_keeps_lms(installed: User, line: str) -> None:
    before = installed.installed()
    succeeded(installed.conda(line))  # although there is a newer PyTorch
    assert installed.installed() == before


@pytest.mark.parametrize("name", ["torchaudio", "lightning"])
def test_what_else_is_built_for_pytorch_installs_beside_it(installed: User, name: str) -> None:
    before = installed.installed()
    succeeded(installed.conda(f"conda install {CHANNELS} {name}"))
    after = installed.installed()
    assert after.keys() - before.keys() == {name}
    assert {known: after[known] for known in before} == before


def test_without_it_conda_takes_the_newer_pytorch(installed: User) -> None:
    line = "conda create -n newer -c conda-forge pytorch torchvision"
    succeeded(installed.run(line, installed.folder))
    version = load_registry().default.version
    (meta,) = (installed.prefix.parent / "newer" / "conda-meta").glob("pytorch-*.json")
    assert not meta.name.startswith(f"pytorch-{version}-")


@pytest.mark.parametrize(
    ("machine", "wanted", "named"),
    [
        ({"__glibc": "2.17"}, "", "__glibc"),
        ({"__cuda": ""}, "", "__cuda"),
        ({}, "python=3.8", "python"),
    ],
)
def test_refusals(installed: User, machine: dict[str, str], wanted: str, named: str) -> None:
    found = {name: version for name, version in {**MACHINE, **machine}.items() if version}
    line = f"{installed.lines[1].replace(' lms ', ' refused ')} {wanted}"
    result = installed.run(line, installed.folder, LMS_TEST_MACHINE=json.dumps(found))
    assert result.returncode == 1
    assert "Cannot solve" in result.stderr
    assert named in result.stderr
    assert not (installed.prefix.parent / "refused").exists()


def test_the_page_has_the_lines(installed: User) -> None:
    text = (ROOT / "docs" / "how-to" / "conda.md").read_text(encoding="utf-8")
    assert "conda install -c DIR -c conda-forge pytorch torch-lms" in text
