"""What make runs, and what continuous integration does before."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("target", ["wheel", "conda"])
def test_a_folder_with_a_space_is_one_folder(target: str) -> None:
    command = ["make", "--dry-run", "--no-print-directory", target, "OUT=a b"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = [shlex.split(line) for line in found.splitlines() if "bin/lmsbuild" in line]
    assert lines
    assert all("a b" in line or "a b/channel" in line for line in lines)
    assert not [word for line in lines for word in line if word in ("a", "b")]


def test_ci_tries_again_when_a_mirror_fails(tmp_path: Path) -> None:
    programs = {
        "apt-get": f'#!/bin/sh\necho "$*" >> {shlex.quote(str(tmp_path / "calls"))}\n',
        "id": "#!/bin/sh\necho 0\n",
        "make": "#!/bin/sh\n",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    subprocess.run([ROOT / ".ci/run"], env={**os.environ, "PATH": path}, check=True)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert {"update", "install"} <= {word for call in calls for word in call.split()}
    assert all("-o Acquire::Retries=3" in call for call in calls)
