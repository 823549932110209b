"""A build from source, for real, in a container: of a stand-in for PyTorch."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from toolkit.helpers import fake_source_build
from toolkit.helpers.fake_upstream import Upstream, commit
from toolkit.helpers.fake_upstream import upstream as upstream

# An engine's runtime may refuse a machine that has both kinds of control groups; in a mount
# namespace of its own, the test takes the newer kind away.
ALONE = (
    "mount --make-rprivate / && "
    "{ ! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified; } && "
)

pytestmark = pytest.mark.network


def no_engine() -> str:
    """Why no container can run here; empty when one can."""
    if os.geteuid() != 0:
        return "only root may make the mount namespace that the container engine runs in"
    if importlib.util.find_spec("cibuildwheel") is None:
        return "there is no cibuildwheel, which needs Python 3.11"
    for program in ("podman", "unshare", "g++"):
        if shutil.which(program) is None:
            return f"there is no {program}"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"{ALONE} podman info"], capture_output=True, text=True
    )
    return "" if done.returncode == 0 else f"podman does not work here: {done.stderr.strip()}"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a container storage of its own."""
    if reason := no_engine():
        pytest.skip(reason)
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
    )
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(folder / "storage.conf"))
    return folder


def test_a_wheel_from_a_container(upstream: Upstream, work: Path, tmp_path: Path) -> None:
    fake_source_build.add_build(upstream.checkout)
    commit(upstream.checkout, "upstream: a build")
    out = tmp_path / "out"
    program = fake_source_build.__file__
    script = [sys.executable, program, upstream.checkout, upstream.patches, out, work]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f'{ALONE} exec "$@"', "sh", *map(str, script)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = out.iterdir()
    tag = f"cp{fake_source_build.PYTHON.replace('.', '')}"
    assert wheel.name.startswith(f"torch-{upstream.tag.version}+lms1-{tag}-{tag}-manylinux")
    assert done.stdout.splitlines()[-1] == str(wheel)
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    assert members["torch/lib/libtorch_lms.so"].startswith(b"\x7fELF")
    assert b"from .lms import *" in members["torch/cuda/__init__.py"]
    assert "torch/cuda/lms.py" in members
