"""The simulated device is built from a torch installation alone, and once."""

from __future__ import annotations

import ctypes
import importlib.util
import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from simcuda import build, process, stubs

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.fixture(scope="module")
def torch_dir() -> Path:
    """The `torch` folder of the Python whose torch is tested."""
    program = (
        "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    )
    command = [process.test_python(), "-c", program]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


def test_every_library_that_torch_needs_is_built(torch_dir: Path) -> None:
    needed = stubs.required(torch_dir)
    built = {path.name for path in build.build(torch_dir).iterdir()}
    assert set(needed) <= built
    assert {"libcuda.so.1", "libnvidia-ml.so.1"} <= built
    assert any(name.startswith("libcudart.so.") for name in built)
    assert any(name.startswith("libcublas.so.") for name in built)


def test_a_build_is_used_again(torch_dir: Path) -> None:
    first = build.build(torch_dir)
    times = {path: path.stat().st_mtime_ns for path in first.iterdir()}
    assert build.build(torch_dir) == first
    assert {path: path.stat().st_mtime_ns for path in first.iterdir()} == times


def install(site: Path, *, recorded: bool, digest: str = "sha256=abc") -> Path:
    """A torch that has the files that a build is identified by; returns its folder."""
    torch_dir = site / "torch"
    (torch_dir / "lib").mkdir(parents=True)
    (torch_dir / "version.py").write_text("cuda = '13.0'\n")
    rows = []
    for name in ("c10_cuda", "torch_cuda", "torch_cpu", "torch_python"):
        (torch_dir / f"lib/lib{name}.so").write_bytes(b"library")
        rows.append(f"torch/lib/lib{name}.so,{digest},7")
    if recorded:
        (site / "torch-1.dist-info").mkdir()
        (site / "torch-1.dist-info" / "RECORD").write_text("\n".join([*rows, "torch/a.py,,"]))
    return torch_dir


def test_environments_with_the_same_torch_share_a_build(tmp_path: Path) -> None:
    first = build._key(install(tmp_path / "a", recorded=True))
    assert build._key(install(tmp_path / "b", recorded=True)) == first
    assert build._key(install(tmp_path / "c", recorded=True, digest="sha256=def")) != first
    changed = install(tmp_path / "d", recorded=True)
    (changed / "lib/libtorch_cpu.so").write_bytes(b"larger library")
    assert build._key(changed) != first
    keys = [build._key(install(tmp_path / name, recorded=False)) for name in "ef"]
    assert len({first, *keys}) == 3


def test_a_compiler_of_several_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "one.cpp"
    source.write_text("int one() { return 1; }\n")
    monkeypatch.setenv("CXX", shlex.join(["env", *build._compiler("CXX")]))
    builder = SimpleNamespace(work=tmp_path)
    assert build._Builder.compile(builder, source, ["-O0"]).is_file()  # type: ignore[arg-type]


def test_python_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(build.BuildError, match="has no torch"):
        build.build()


def test_cpu_build_of_torch(tmp_path: Path) -> None:
    with pytest.raises(build.BuildError, match="not a CUDA build"):
        build.build(tmp_path)


def compile_library(source: str, folder: Path, options: Sequence[str] = ()) -> Path:
    (folder / "stub.c").write_text(source)
    library = folder / "stub.so"
    command = ["gcc", "-shared", "-fPIC", "-fno-builtin", *options, folder / "stub.c"]
    subprocess.run([*command, "-o", library], check=True)
    return library


def test_stubs_fail_and_name_their_version(tmp_path: Path) -> None:
    names = {"cublasCreate_v2", "cudnnGetVersion", "ncclGetErrorString"}
    library = stubs.Library("libcublas.so.13", "libcublas.so.13", names)
    script = tmp_path / "version.map"
    script.write_text(stubs.version_script(library))
    source = stubs.stub_source(library)
    path = compile_library(source, tmp_path, [f"-Wl,--version-script={script}"])
    loaded = ctypes.CDLL(str(path))
    loaded.ncclGetErrorString.restype = ctypes.c_char_p
    assert loaded.cublasCreate_v2() == 1
    assert loaded.cudnnGetVersion() > 90000
    assert loaded.ncclGetErrorString() == b"simulated device"
    symbols = subprocess.run(["nm", "-D", path], check=True, capture_output=True, text=True).stdout
    assert "cublasCreate_v2@@libcublas.so.13" in symbols


def test_scenario_errors_show_the_childs_output() -> None:
    program = "import os; print('last words', flush=True); os._exit(7)"
    with pytest.raises(process.ScenarioError, match=r"exit status: 7\nlast words"):
        process.run_sim(program, start=False)
    with pytest.raises(process.ScenarioError, match="ZeroDivisionError"):
        process.run_sim("1 / 0", start=False)
    with pytest.raises(process.ScenarioError, match="no answer in time"):
        process.run_sim("import time; time.sleep(60)", start=False, timeout=3)
