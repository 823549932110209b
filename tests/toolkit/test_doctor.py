"""`lmsbuild doctor`: whether LMS is usable in a torch, and why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lmsbuild.cli.main import main
from lmsbuild.doctor import Finding, Host, ask, examine, find_python, read_host
from lmsbuild.errors import UnusableError, WrongPythonError
from lmsbuild.registry import load_registry
from toolkit.helpers.fake_torch import shared_library

GIB = 1 << 30
TAG = load_registry().default
HOST = Host(available=64 * GIB, allowed=None, lockable=8 << 20)

TORCH = """\
from . import cuda, version
__version__ = "{version}"
def arange(*values, **more): return Tensor()
class Tensor:
    def add_(self, value): pass
    def cpu(self): return self
int32 = None
def equal(a, b): return {equal}
"""
CUDA = """\
from . import lms
from .lms import *
def device_count(): return {devices}
def get_allocator_backend(): return {backend!r}
def mem_get_info(index): return (30 << 30, 80 << 30)
def get_device_name(index): return "Fake GPU"
def init(): raise RuntimeError("Found no NVIDIA driver\\non your system")
"""
LMS = """\
_ABI_VERSION = 2
__all__ = ["set_enabled_lms", "get_enabled_lms", "get_limit_lms", "get_size_lms",
           "set_size_lms", "get_host_limit_lms", "reclaim_inactive"]
def set_enabled_lms(enable): pass
def get_enabled_lms(): return False
def get_limit_lms(): return 0
def get_size_lms(): return 1 << 20
def set_size_lms(size): pass
def get_host_limit_lms(): return 0
def reclaim_inactive(): return 0
def is_resident(tensor): return {resident}
"""


def fake_torch(
    folder: Path,
    *,
    version: str = f"{TAG.version}+cu130.lms1",
    cuda: str | None = "13.0",
    equal: bool = True,
    devices: int = 1,
    backend: str = "native",
    resident: bool = False,
    abi: int | None = 2,
    lms: bool = True,
    provenance: bool = True,
) -> Path:
    """A folder for PYTHONPATH with a torch in it."""
    files = {
        "torch/__init__.py": TORCH.format(version=version, equal=equal),
        "torch/version.py": f"cuda = {cuda!r}\n",
        "torch/cuda/__init__.py": CUDA.format(devices=devices, backend=backend),
        "torch/cuda/lms/__init__.py": LMS.format(resident=resident),
        f"torch-{version}.dist-info/METADATA": f"Name: torch\nVersion: {version}\n",
    }
    if provenance:
        files[f"torch-{version}.dist-info/lms.json"] = json.dumps(
            {"tag": TAG.name, "base": "torch.whl", "lmsbuild": "0.1.0", "commit": "abc"}
        )
    if not lms:
        del files["torch/cuda/lms/__init__.py"]
        text = files["torch/cuda/__init__.py"]
        files["torch/cuda/__init__.py"] = "\n".join(text.splitlines()[2:])
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if abi is not None:
        source = f'extern "C" int lms_abi_version() {{ return {abi}; }}'
        shared_library(folder / "torch/lib/libtorch_lms.so", source)
    return folder


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def tell(**options: Any) -> dict[str, Any]:
        monkeypatch.setenv("PYTHONPATH", str(fake_torch(tmp_path / "site", **options)))
        return ask(sys.executable)

    return tell


def report(told: dict[str, Any], host: Host = HOST, **environment: str) -> tuple[Finding, ...]:
    return examine(told, load_registry(), host, environment)


def wrong(told: dict[str, Any]) -> list[str]:
    return [f"{finding.topic}: {finding.text}" for finding in report(told) if finding.wrong]


def text(findings: tuple[Finding, ...]) -> str:
    return "\n".join(f"{finding.topic}: {finding.text}" for finding in findings)


def test_all_is_well(told: Any, tmp_path: Path) -> None:
    found = told()
    assert wrong(found) == []
    words = text(report(found))
    assert f"torch: {TAG.version}+cu130.lms1, CUDA 13.0, {tmp_path / 'site' / 'torch'}" in words
    assert "library: interface version 2, " in words
    assert f"made from: torch.whl ({TAG.name}) by lmsbuild 0.1.0, commit abc" in words
    assert "GPU 0: Fake GPU, 30.0 GiB of 80.0 GiB free" in words
    assert "allocator: native" in words
    assert "LMS off, limit automatic, smallest storage 1.0 MiB, host limit none" in words
    assert "trial: 4 MiB went to the host and came back unchanged" in words


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"lms": False, "abi": None, "version": TAG.version}, f"lmsbuild wheel {TAG.name}"),
        (
            {"lms": False, "abi": None, "version": f"{TAG.version}7"},
            "this torch has none; there are no patches for",
        ),
        (
            {"lms": False, "abi": None, "version": TAG.version, "cuda": "9.0"},
            f"install its build for CUDA {TAG.cuda.partition('.')[0]}, or build one",
        ),
        ({"abi": None}, "library: does not load: there is no "),
        ({"abi": 1}, "has interface version 1, and torch.cuda.lms needs 2"),
        ({"devices": 0}, "GPU: none that can be used (RuntimeError: Found no NVIDIA driver on"),
        ({"backend": "cudaMallocAsync"}, "allocator: cudaMallocAsync, and LMS works with"),
        ({"resident": True}, "trial: failed: a tensor that no operator uses stayed on the GPU"),
        ({"equal": False}, "trial: failed: a tensor came back with other values"),
    ],
)
def test_what_is_wrong(told: Any, options: dict[str, Any], expected: str) -> None:
    first, *more = wrong(told(**options))
    assert expected in first
    assert more == []


def test_ways_to_add_lms(told: Any) -> None:
    found = told(lms=False, abi=None, version=TAG.version)
    (line,) = wrong({**found, "machine": TAG.architectures[0]})
    assert f"with `lmsbuild overlay` or torch-lms (`lmsbuild addon --tag {TAG.name}`), or" in line
    (line,) = wrong({**found, "machine": "riscv64"})
    assert "with `lmsbuild overlay`, or" in line
    old = next(tag for tag in load_registry() if tag.variant and "graft" in tag.strategies)
    torch = {"version": old.version, "cuda": old.cuda, "path": ""}
    (line,) = wrong({**found, "machine": old.architectures[0], "torch": torch})
    assert "with `lmsbuild overlay`, or" in line


def test_a_build_without_cuda(told: Any, tmp_path: Path) -> None:
    site = tmp_path / "site"
    found = told(lms=False, abi=None, version=f"{TAG.version}+cpu", cuda=None)
    # It has the function, but not what the function asks.
    with (site / "torch/cuda/__init__.py").open("a") as file:
        file.write("\ndef get_allocator_backend(): raise AttributeError('_cuda_getAllocator')\n")
    found = ask(sys.executable)
    assert found["cuda_error"] == ""
    lms, gpu = wrong(found)
    assert lms == "LMS: this torch is built without CUDA: install the CUDA build of this release"
    assert gpu == "GPU: none that can be used, because this torch is built without CUDA"


def test_in_the_folder_of_an_overlay(told: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "site").mkdir()
    monkeypatch.chdir(tmp_path / "site")
    assert wrong(told()) == []


def test_a_library_that_is_a_part_of_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """PyTorch 1.1 to 1.5."""
    library = fake_torch(tmp_path) / "torch/lib/libtorch_lms.so"
    library.rename(library.with_name("libc10_cuda.so"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert wrong(ask(sys.executable)) == []


def test_the_library_of_the_add_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    site = fake_torch(tmp_path, version=f"{TAG.version}+cu130", provenance=False)
    release = site / "torch_lms/releases" / TAG.version
    release.mkdir(parents=True)
    library = (site / "torch/lib/libtorch_lms.so").rename(release / "libtorch_lms.so")
    (release / "lms.json").write_text('{"tag": "v0", "base": "the.whl"}')
    with (site / "torch/cuda/lms/__init__.py").open("a") as file:
        file.write(f"_library_path = {str(library)!r}\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    found = ask(sys.executable)
    assert wrong(found) == []
    assert f"library: interface version 2, {library}" in text(report(found))
    assert "made from: the.whl (v0)" in text(report(found))


def test_a_torch_that_the_add_on_does_not_know(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site = fake_torch(tmp_path, abi=None)
    with (site / "torch/cuda/lms/__init__.py").open("a") as file:
        file.write("_unsupported = 'PyTorch 9 is new'\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    assert wrong(ask(sys.executable)) == ["LMS: has no effect: PyTorch 9 is new"]


def test_no_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (line,) = wrong(ask(sys.executable))
    assert line.startswith("torch: cannot be imported (ImportError: libcudart.so.13: cannot open)")


def test_a_folder_called_torch_where_one_stands_is_not_it(
    told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    assert wrong(told()) == []


@pytest.mark.parametrize("name", ["json", "os", "platform", "ctypes"])
def test_no_module_of_the_current_folder_is_run(
    told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / f"{name}.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    assert wrong(told()) == []


def test_unknown_origin(told: Any) -> None:
    assert "made from: unknown" in text(report(told(provenance=False)))


def test_variables_that_matter_are_shown(told: Any) -> None:
    words = text(report(told(), PYTORCH_ALLOC_CONF="expandable_segments:True", HOME="/x"))
    assert "environment: PYTORCH_ALLOC_CONF=expandable_segments:True" in words
    assert "HOME" not in words
    words = text(report(told(), PYTORCH_LMS="1", PYTORCH_LMS_LIMIT="12G"))
    assert "environment: PYTORCH_LMS=1" in words
    assert "environment: PYTORCH_LMS_LIMIT=12G" in words


def test_little_host_memory_is_told(told: Any) -> None:
    found = told()
    assert "has to fit into" in text(report(found))  # 64 GiB, and the GPU has 80
    plenty = replace(HOST, available=200 * GIB)
    assert "has to fit into" not in text(report(found, plenty))
    contained = replace(plenty, allowed=10 * GIB)
    assert "has to fit into 10.0 GiB" in text(report(found, contained))


def read(root: Path, files: dict[str, str]) -> Host:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return read_host(root)


def test_the_hosts_memory_is_read(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal: 64 kB\nMemFree: 1 kB\nMemAvailable:    48 kB\n",
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/memory.max": "6400\n",
        "sys/fs/cgroup/a/memory.current": "400\n",
        "sys/fs/cgroup/a/b/memory.max": "max\n",
    }
    host = read(tmp_path, files)
    assert (host.available, host.allowed, host.left) == (47 << 10, 5900, 5900)
    empty = read_host(tmp_path / "nothing")
    assert (empty.available, empty.allowed, empty.left) == (None, None, None)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        # What only caches files does not count, neither in the group nor in one above it.
        (
            {
                "memory.max": "6400\n",
                "memory.current": "6400\n",
                "memory.stat": "anon 1000\ninactive_file 3000\nactive_file 2000\nfile 5400\n",
                "a/memory.max": "max\n",
            },
            6400 - 1400 - 100,
        ),
        ({"memory.stat": "inactive_file 9\n", "a/memory.max": "640\n"}, 630),
        ({"a/memory.max": "6400\n", "a/memory.current": "6350\n"}, 0),
        ({"a/memory.max": "max\n", "a/memory.high": "3200\n", "a/memory.current": "1000"}, 2150),
        ({"a/memory.max": "640\n", "a/memory.high": "3200\n"}, 630),
        ({"a/memory.max": "max\n", "memory.max": "max\n"}, None),
    ],
)
def test_the_rest_of_a_cgroup(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    placed = {f"sys/fs/cgroup/{name}": content for name, content in files.items()}
    host = read(tmp_path, {"proc/self/cgroup": "0::/a\n", **placed})
    assert host.allowed == expected


def test_the_rest_of_a_cgroup_of_version_1(tmp_path: Path) -> None:
    groups = "5:cpu,cpuacct:/other\n4:devices,memory:/a/b\n0::/a/b\n"
    none = f"{(1 << 63) - 4096}\n"
    files = {
        "proc/self/cgroup": groups,
        "sys/fs/cgroup/memory/memory.limit_in_bytes": none,
        "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "6400\n",
        "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "6400\n",
        "sys/fs/cgroup/memory/a/memory.stat": "active_file 9\ntotal_active_file 5000\n",
        "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": none,
    }
    assert read(tmp_path, files).allowed == 6400 - 1400 - 100
    files["sys/fs/cgroup/memory/a/memory.limit_in_bytes"] = none
    assert read(tmp_path, files).allowed is None
    assert read(tmp_path, files | {"proc/self/cgroup": "nonsense\n"}).allowed is None


@pytest.mark.parametrize("body", ["import os; os._exit(7)", "print('{'); import os; os._exit(0)"])
def test_an_interpreter_that_crashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    (tmp_path / "torch.py").write_text(body)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(WrongPythonError, match="try it by hand"):
        ask(sys.executable)


def test_no_such_interpreter() -> None:
    with pytest.raises(WrongPythonError, match="name one with --python"):
        find_python("/no/such/python")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(fake_torch(tmp_path / "a path with spaces")))
    good = CliRunner().invoke(main, ["doctor", "--python", sys.executable])
    assert good.exit_code == 0, good.output
    assert "torch.cuda.lms.explain()" in good.stdout
    for answer in ("LMS is off", "no pressure", "small", "held", "graphs", "host memory is"):
        assert answer in good.stdout
    monkeypatch.setenv("PYTHONPATH", str(fake_torch(tmp_path / "b", devices=0)))
    bad = CliRunner().invoke(main, ["doctor", "--python", sys.executable])
    assert bad.exit_code == UnusableError.exit_code
    assert "NO  GPU: none that can be used" in bad.stdout
    (line,) = bad.stderr.splitlines()
    assert line.startswith("lmsbuild: error: LMS cannot be used: GPU")


@pytest.mark.parametrize("devices", [0, 1])
def test_the_command_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: int) -> None:
    monkeypatch.setenv("PYTHONPATH", str(fake_torch(tmp_path, devices=devices)))
    result = CliRunner().invoke(main, ["doctor", "--python", sys.executable, "--json"])
    assert result.exit_code == (0 if devices else UnusableError.exit_code)
    document = json.loads(result.stdout)
    assert document["usable"] == bool(devices)
    wrong = [finding["topic"] for finding in document["findings"] if finding["wrong"]]
    assert wrong == ([] if devices else ["GPU"])


def test_the_default_is_the_python_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert find_python(None) == str(program)
    assert subprocess.run([program], check=False).returncode == 0
