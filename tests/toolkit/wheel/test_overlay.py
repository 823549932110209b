"""The overlay: LMS for an installation that is not touched."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

import lmsbuild.cli.commands.overlay as overlay_command
from lmsbuild.cli.main import main
from lmsbuild.errors import CompileError, OverlayError, TargetExistsError, UnportedTagError
from lmsbuild.registry import load_registry
from lmsbuild.tools import elf, zipcopy
from lmsbuild.wheel.base import CpuOnlyWheelError
from lmsbuild.wheel.overlay import build_overlay, find_installation, tag_for
from toolkit.helpers.fake_torch import (
    COMMIT,
    CUDA_WHEEL_NAME,
    DIST_INFO,
    VERSION,
    FakeTorch,
    members_of,
)
from toolkit.helpers.fake_torch import fake as fake
from toolkit.helpers.fake_torch import offline as offline
from toolkit.helpers.fake_torch import shared_cache as shared_cache


@pytest.fixture
def site(fake: FakeTorch, tmp_path: Path) -> Path:
    """An installed torch, with neighbours."""
    folder = tmp_path / "site"
    with zipfile.ZipFile(fake.base) as wheel:
        for info in wheel.infolist():
            zipcopy.extract(wheel, info, folder)
    (folder / "nvidia" / "cu13" / "lib").mkdir(parents=True)
    (folder / DIST_INFO / "INSTALLER").write_text("module system\n")
    return folder


def state(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def make(fake: FakeTorch, site: Path, folder: Path, cache: Path) -> Path:
    installation = find_installation(site)
    tag = tag_for(installation, load_registry(fake.patches))
    return build_overlay(
        installation, tag, folder, patches=fake.patches, cache=cache, report=lambda *_: None
    )


@pytest.fixture
def overlay(fake: FakeTorch, offline: None, site: Path, shared_cache: Path, tmp_path: Path) -> Path:
    return make(fake, site, tmp_path / "overlay", shared_cache)


def python(code: str, *path: Path) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_the_installation_is_not_touched(
    fake: FakeTorch, offline: None, site: Path, shared_cache: Path, tmp_path: Path
) -> None:
    before = state(site)
    make(fake, site, tmp_path / "overlay", shared_cache)
    assert state(site) == before


def test_python_sees_torch_with_lms(overlay: Path, site: Path) -> None:
    code = (
        "import torch, torch.cuda.lms, importlib.metadata as m\n"
        "print(torch.__version__, m.version('torch'), torch.cuda.lms.set_enabled_lms(1))\n"
        "print(*[p.value for p in m.entry_points(group='console_scripts') "
        "if p.name == 'torchrun'])\n"
    )
    shown = python(code, overlay, site).splitlines()
    assert shown == [f"{VERSION}+cu130.lms1 {VERSION}+lms1 (1,)", "torch:main"]
    plain = "import torch; print(torch.__version__)"
    assert python(plain, site) == f"{VERSION}+cu130\n"


def test_libraries_are_found_and_loaded_once(fake: FakeTorch, overlay: Path, site: Path) -> None:
    code = (
        "import ctypes, torch, pathlib\n"
        "lib = pathlib.Path(torch.__file__).parent / 'lib'\n"
        f"ctypes.CDLL({str(site / 'torch/lib/libc10.so')!r}, ctypes.RTLD_GLOBAL)\n"
        "ctypes.CDLL(str(lib / 'libc10_cuda.so'), ctypes.RTLD_GLOBAL)\n"
        f"ctypes.CDLL({str(site.parent / 'cudart')!r})\n"
        "print(ctypes.CDLL(str(lib / 'libtorch_lms.so')).lms_abi_version() > 0)\n"
        "maps = [l.split()[-1] for l in open('/proc/self/maps') if l.rstrip().endswith('.so')]\n"
        "print(len({m for m in maps if 'libc10.so' in m}))\n"
    )
    (site.parent / "cudart").write_bytes(
        members_of(fake.links / CUDA_WHEEL_NAME)["nvidia/cu13/lib/libcudart.so.13"]
    )
    assert python(code, overlay, site).splitlines() == ["True", "1"]


def test_only_what_differs_is_real(overlay: Path, site: Path) -> None:
    real = sorted(
        str(path.relative_to(overlay))
        for path in overlay.rglob("*")
        if path.is_file() and not path.is_symlink() and "dist-info" not in str(path)
    )
    assert real == [
        "torch/cuda/__init__.py",
        "torch/cuda/lms/__init__.py",
        "torch/lib/libtorch_lms.so",
        "torch/version.py",
    ]
    assert (overlay / "torch/nn").is_symlink()
    assert (overlay / "torch/lib/libc10.so").resolve() == site / "torch/lib/libc10.so"


def test_neighbours_named_by_the_libraries_are_linked(overlay: Path, site: Path) -> None:
    assert (overlay / "nvidia").resolve() == site / "nvidia"
    assert not (overlay / "outside").exists()  # named too, and not installed
    library = elf.read(overlay / "torch/lib/libtorch_lms.so")
    assert library.rpath.startswith("$ORIGIN/../../nvidia/cu13/lib:")


def test_dist_info_is_the_overlays_own(overlay: Path) -> None:
    (info,) = overlay.glob("*.dist-info")
    assert info.name == f"torch-{VERSION}+lms1.dist-info"
    assert (info / "INSTALLER").read_text() == "lmsbuild\n"
    assert not (info / "RECORD").exists()
    assert (info / "entry_points.txt").is_file()
    assert (info / "lms.json").is_file()


def test_an_installation_without_dist_info(
    fake: FakeTorch, offline: None, site: Path, shared_cache: Path, tmp_path: Path
) -> None:
    for file in (site / DIST_INFO).iterdir():
        file.unlink()
    (site / DIST_INFO).rmdir()
    overlay = make(fake, site, tmp_path / "overlay", shared_cache)
    code = "import importlib.metadata as m; print(m.version('torch'))"
    assert python(code, overlay, site) == f"{VERSION}+cu130.lms1\n"


def test_an_empty_folder_may_be_there(
    fake: FakeTorch, offline: None, site: Path, shared_cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "overlay").mkdir()
    assert (make(fake, site, tmp_path / "overlay", shared_cache) / "torch").is_dir()


# What can go wrong ---------------------------------------------------------------------------


def test_a_full_folder_is_kept(
    fake: FakeTorch, offline: None, overlay: Path, site: Path, shared_cache: Path
) -> None:
    with pytest.raises(TargetExistsError, match="exists already"):
        make(fake, site, overlay, shared_cache)
    assert (overlay / "torch/version.py").is_file()


def test_a_failure_leaves_nothing(
    fake: FakeTorch, offline: None, site: Path, shared_cache: Path, tmp_path: Path
) -> None:
    header = site / "torch/include/c10/util/Exception.h"
    header.write_text("#error broken\n")
    with pytest.raises(CompileError):
        make(fake, site, tmp_path / "new" / "overlay", shared_cache)
    assert list((tmp_path / "new").iterdir()) == []


def test_folders_that_are_no_installation(site: Path, tmp_path: Path) -> None:
    with pytest.raises(OverlayError, match="no installed torch"):
        find_installation(tmp_path / "nowhere")
    (site / "torch/lib/libtorch_cuda.so").unlink()
    with pytest.raises(CpuOnlyWheelError, match="CPU-only"):
        find_installation(site)


def test_an_installation_with_lms(overlay: Path) -> None:
    with pytest.raises(OverlayError, match="LMS already"):
        find_installation(overlay / "torch")


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        (f"'{VERSION}+cu130'", "'1.2.3'", UnportedTagError, "no patches for"),
        ("'13.0'", "'12.4'", OverlayError, r"CUDA 12\.4"),
        ("= '13.0'", "= None", OverlayError, "CUDA none"),
        (f"'{VERSION}+cu130'", "'what?'", OverlayError, "names no version"),
    ],
)
def test_other_builds(
    fake: FakeTorch, site: Path, old: str, new: str, error: type[Exception], message: str
) -> None:
    file = site / "torch/version.py"
    text = file.read_text()
    assert old in text
    assert COMMIT in text
    file.write_text(text.replace(old, new))

    def look() -> None:
        tag_for(find_installation(site), load_registry(fake.patches))

    with pytest.raises(error, match=message):
        look()


def test_a_release_that_can_only_be_built_from_source(fake: FakeTorch, site: Path) -> None:
    registry = load_registry(fake.patches)
    tag = dataclasses.replace(fake.tag, strategies=("source",))
    with pytest.raises(OverlayError, match="built from source"):
        tag_for(find_installation(site), dataclasses.replace(registry, tags=(tag,)))


def test_a_build_with_the_old_abi_is_compiled_for_it(fake: FakeTorch, site: Path) -> None:
    source = (
        "#include <string>\nnamespace c10 { struct Error { Error(std::string); };\n"
        "Error::Error(std::string) {} }\n"
    )
    subprocess.run(
        [
            "g++",
            "-shared",
            "-fPIC",
            "-D_GLIBCXX_USE_CXX11_ABI=0",
            "-x",
            "c++",
            "-",
            "-o",
            str(site / "torch/lib/libc10.so"),
        ],
        input=source,
        text=True,
        check=True,
    )
    assert tag_for(find_installation(site), load_registry(fake.patches)).cxx11_abi == 0


def test_the_command(
    fake: FakeTorch,
    offline: None,
    site: Path,
    shared_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overlay_command, "patches_dir", lambda: fake.patches)
    monkeypatch.setattr(overlay_command, "default_cache", lambda: shared_cache)
    folder = tmp_path / "overlay"
    result = CliRunner().invoke(main, ["overlay", str(folder), "--torch", str(site / "torch")])
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(folder)
    again = CliRunner().invoke(main, ["overlay", str(folder), "--torch", str(site)])
    assert again.exit_code == TargetExistsError.exit_code
