"""`lmsbuild addon`: the wheel torch-lms."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from installer.sources import WheelFile
from packaging.requirements import Requirement

import lmsbuild
import lmsbuild.cli.commands.addon as addon_command
from lmsbuild.addon.build import build_addon, members_for
from lmsbuild.addon.metadata import DIST_INFO, wheel_name
from lmsbuild.addon.release import Release, suitable
from lmsbuild.addon.request import AddonRequest
from lmsbuild.cli.main import main
from lmsbuild.errors import AddonHookError, AddonTagError, HookError
from lmsbuild.registry import Tag, load_registry
from lmsbuild.wheel import provenance
from toolkit.helpers.fake_torch import (
    MACHINE,
    VERSION,
    WHEEL_NAME,
    FakeTorch,
    members_of,
    write_patches,
)
from toolkit.helpers.fake_torch import fake as fake
from toolkit.helpers.fake_torch import offline as offline
from toolkit.helpers.fake_torch import shared_cache as shared_cache
from toolkit.helpers.formats import invalid

RELEASE = f"torch_lms/releases/{VERSION}"
NAME = wheel_name(f"manylinux_2_28_{MACHINE}")


def build(fake: FakeTorch, out: Path, cache: Path, **changes: object) -> Path:
    request = AddonRequest(
        tags=(fake.tag,), architecture=MACHINE, out=out, patches=fake.patches, cache=cache
    )
    return build_addon(dataclasses.replace(request, **changes), lambda *_: None)  # type: ignore[arg-type]


@pytest.fixture
def wheel(fake: FakeTorch, offline: None, shared_cache: Path, tmp_path: Path) -> Path:
    return build(fake, tmp_path / "dist", shared_cache)


def test_it_has_the_library_the_edits_and_the_modules(fake: FakeTorch, wheel: Path) -> None:
    assert wheel.name == NAME
    members = members_of(wheel)
    assert set(members) == {
        "torch_lms/__init__.py",
        "torch_lms/install.py",
        "torch_lms/edits.py",
        "torch_lms/package.json",
        "torch_lms/runtime/cuda/lms/__init__.py",
        f"{RELEASE}/libtorch_lms.so",
        f"{RELEASE}/release.json",
        f"{RELEASE}/lms.json",
        f"{DIST_INFO}/METADATA",
        f"{DIST_INFO}/WHEEL",
        f"{DIST_INFO}/RECORD",
        f"{DIST_INFO}/entry_points.txt",
        f"{DIST_INFO}/licenses/LICENSE",
        f"{DIST_INFO}/licenses/NOTICE",
        f"{DIST_INFO}/sboms/lmsbuild.cdx.json",
    }
    assert invalid(members[f"{DIST_INFO}/sboms/lmsbuild.cdx.json"]) is None
    runtime = fake.patches / "runtime/torch/cuda/lms/__init__.py"
    assert members["torch_lms/runtime/cuda/lms/__init__.py"] == runtime.read_bytes()
    assert json.loads(members["torch_lms/package.json"]) == {"extends": ["torch.cuda"]}
    # No file of PyTorch's is in it, and version.py, which is marked in a grafted wheel, is no edit.
    assert json.loads(members[f"{RELEASE}/release.json"]) == {
        "cuda": "13.0",
        "cxx11_abi": 1,
        "modules": [["torch.cuda", [{"run": "from .lms import *"}]]],
    }
    origin = provenance.load(members[f"{RELEASE}/lms.json"])
    assert (origin.tag, origin.base) == (f"v{VERSION}", WHEEL_NAME)


def test_the_library_is_that_of_the_grafted_wheel(
    fake: FakeTorch, wheel: Path, shared_cache: Path, tmp_path: Path
) -> None:
    from lmsbuild.wheel.graft import build_wheel
    from toolkit.wheel.test_graft import request_for

    grafted = build_wheel(request_for(fake, tmp_path, shared_cache, fake.base), lambda *_: None)
    library = members_of(grafted.path)["torch/lib/libtorch_lms.so"]
    assert members_of(wheel)[f"{RELEASE}/libtorch_lms.so"] == library
    with zipfile.ZipFile(wheel) as archive:
        info = archive.getinfo(f"{RELEASE}/libtorch_lms.so")
        assert info.external_attr >> 16 == 0o100755


def test_its_metadata(wheel: Path) -> None:
    members = members_of(wheel)
    metadata = HeaderParser().parsestr(members[f"{DIST_INFO}/METADATA"].decode())
    assert (metadata["Name"], metadata["Version"]) == ("torch-lms", lmsbuild.__version__)
    (requirement,) = metadata.get_all("Requires-Dist") or []
    required = Requirement(requirement)
    assert required.name == "torch"
    # A newer torch can be installed beside it: then LMS warns.
    assert all(
        version in required.specifier for version in ("2.5.0", VERSION, "99.0", "2.11.0+lms1")
    )
    assert "2.4.1" not in required.specifier
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert f"Tag: py3-none-manylinux_2_28_{MACHINE}\n" in members[f"{DIST_INFO}/WHEEL"].decode()
    with WheelFile.open(wheel) as opened:
        opened.validate_record(validate_contents=True)


def test_the_same_inputs_give_the_same_bytes(fake: FakeTorch, wheel: Path, tmp_path: Path) -> None:
    again = build(fake, tmp_path / "second", tmp_path / "cache")
    assert again.read_bytes() == wheel.read_bytes()


def test_pip_installs_and_removes_all_of_it(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    site = next(environment.glob("lib/python*/site-packages"))
    before = {path.relative_to(site) for path in site.rglob("*")}
    pip = [str(environment / "bin/python"), "-m", "pip", "--quiet"]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel)], check=True)
    assert (site / "torch_lms" / "__init__.py").is_file()
    subprocess.run([*pip, "uninstall", "--yes", "torch-lms"], check=True)
    after = {path.relative_to(site) for path in site.rglob("*")}
    assert {path for path in after - before if "pip" not in path.parts} == set()


def test_the_help_names_the_oldest_release() -> None:
    oldest = suitable(load_registry(), MACHINE)[0]
    shown = CliRunner().invoke(main, ["addon", "--help"]).output
    assert f"from {oldest.version.rpartition('.')[0]} on" in " ".join(shown.split())


def other_tag(tag: Tag, **changes: object) -> Tag:
    return dataclasses.replace(tag, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"name": "v2.4.1"}, "PyTorch loads no such package before 2.5"),
        ({"strategies": ("source",)}, "inside of PyTorch's own libraries"),
        ({"variant": "runtime-v9"}, "it has a runtime of its own"),
        ({"architectures": ("sparc",)}, f"no official CUDA wheel for {MACHINE}"),
    ],
)
def test_a_tag_that_it_cannot_be_made_for(
    fake: FakeTorch, tmp_path: Path, changes: dict[str, object], why: str
) -> None:
    tag = other_tag(fake.tag, **changes)
    with pytest.raises(AddonTagError, match=why):
        build(fake, tmp_path, tmp_path / "cache", tags=(tag,))
    assert list(tmp_path.glob("*.whl")) == []


def test_a_hook_that_an_imported_module_cannot_get(
    fake: FakeTorch, offline: None, shared_cache: Path, tmp_path: Path
) -> None:
    patches = write_patches(tmp_path / "patches")
    hook = patches / f"v{VERSION}/0001-offer-LMS.patch"
    text = hook.read_text()
    assert "@@ -5 +5,2 @@" in text
    hook.write_text(
        text.replace("@@ -5 +5,2 @@", "@@ -5 +5 @@").replace(
            " from .memory import *  # noqa: F403\n+from .lms",
            "-from .memory import *  # noqa: F403\n+from .lms",
        )
    )
    with pytest.raises(AddonHookError, match=r"torch/cuda/__init__\.py: line 5"):
        build(fake, tmp_path / "dist", shared_cache, patches=patches)
    assert list((tmp_path / "dist").glob("*.whl")) == []


def test_a_hook_that_does_not_apply(
    fake: FakeTorch, offline: None, shared_cache: Path, tmp_path: Path
) -> None:
    patches = write_patches(tmp_path / "patches")
    hook = patches / f"v{VERSION}/0001-offer-LMS.patch"
    hook.write_text(hook.read_text().replace(" from .memory", " from .memories"))
    with pytest.raises(HookError):
        build(fake, tmp_path / "dist", shared_cache, patches=patches)


def test_several_releases_share_the_python_files(fake: FakeTorch) -> None:
    one = Release(
        tag=fake.tag,
        files={"release.json": b"1"},
        modules={"torch/cuda/lms/__init__.py": b"x"},
        extends=frozenset(["torch.cuda"]),
    )
    two = dataclasses.replace(one, tag=other_tag(fake.tag, name="v9.2.0"))
    members = members_for([one, two])
    assert {name for name in members if name.endswith("cuda/lms/__init__.py")} == {
        "torch_lms/runtime/cuda/lms/__init__.py"
    }
    assert f"{RELEASE}/release.json" in members
    assert "torch_lms/releases/9.2.0/release.json" in members
    other = dataclasses.replace(two, modules={"torch/cuda/lms/__init__.py": b"y"})
    with pytest.raises(AddonTagError, match=f"v{VERSION} and v9.2.0 need different Python files"):
        members_for([one, other])


def test_by_default_it_is_for_every_release_with_an_official_wheel() -> None:
    registry = load_registry()
    tags = suitable(registry, "x86_64")
    assert [tag.name for tag in tags] == [
        tag.name for tag in registry if "graft" in tag.strategies and tag.name.startswith("v2.")
    ]
    arm = suitable(registry, "aarch64")
    assert {tag.name for tag in arm} < {tag.name for tag in tags}
    assert registry.default in arm
    assert suitable(registry, "ppc64le") == []


def test_the_command(
    fake: FakeTorch,
    offline: None,
    shared_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(addon_command, "patches_dir", lambda: fake.patches)
    monkeypatch.setattr(addon_command, "default_cache", lambda: shared_cache)
    out = tmp_path / "dist"
    arguments = ["addon", "--tag", VERSION, "--tag", f"v{VERSION}", "--out", str(out)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{out / NAME}\n"
    assert f"LMS for PyTorch {VERSION}, " in result.stderr
    shutil.rmtree(out)
    result = CliRunner().invoke(main, ["addon", "--arch", "ppc64le", "--out", str(out)])
    assert result.exit_code == AddonTagError.exit_code
    assert "no release has an official CUDA wheel for ppc64le" in result.stderr
