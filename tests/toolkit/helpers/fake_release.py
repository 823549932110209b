"""Two releases of a torch of a few kilobytes, to port from one to the other."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from lmsbuild import resources
from lmsbuild.registry import load_registry
from toolkit.helpers.fake_torch import (
    COMMIT,
    CP,
    CUDA_INIT,
    MACHINE,
    PYTHON,
    FakeTorch,
    Wheel,
    members_of,
)
from toolkit.helpers.fake_upstream import commit, git

OLD, NEW = "9.1.0", "9.2.0"
NEW_COMMIT = "89abcdef0123456789abcdef0123456789abcdef"
INIT = "torch/cuda/__init__.py"
HEADER = "torch/include/c10/cuda/CUDACachingAllocator.h"
ALLOCATOR = """\
namespace c10::cuda::CUDACachingAllocator {
class C10_CUDA_API CUDAAllocator : public DeviceAllocator {
 public:
  virtual void* raw_alloc(size_t nbytes) = 0;
  virtual void init(int device_count) = 0; // once
};
inline CUDAAllocator* get() { return allocator.load(); }
}
"""
NEW_ALLOCATOR = ALLOCATOR.replace("nbytes)", "nbytes, int stream)").replace(
    "  virtual void init", "  virtual bool novelty() {\n    return true;\n  }\n  virtual void init"
)
HEADERS = {
    "torch/include/torch/csrc/api/include/torch/all.h": b"#if __cplusplus < 201703L\n#endif\n",
    HEADER: ALLOCATOR.encode(),
}
REQUIREMENT = "Requires-Dist: nvidia-cuda-runtime==13.0.96\n"


@dataclass(frozen=True)
class Releases:
    """The two wheels, and patches for the old one."""

    old: Path
    new: Path
    patches: Path

    def change_new(self, changes: dict[str, bytes | None]) -> None:
        """Other members in the new release's wheel, with a true RECORD."""
        members = members_of(self.new)
        info = next(name.split("/")[0] for name in members if name.endswith("/RECORD"))
        members.pop(f"{info}/RECORD")
        for name, data in changes.items():
            members[name] = data or b""
        Wheel(members, info).write(self.new)


def _wheel(fake: FakeTorch, version: str, folder: Path, changes: dict[str, bytes]) -> Path:
    path = folder / f"torch-{version}-{CP}-{CP}-manylinux_2_28_{MACHINE}.whl"
    members = {
        name.replace(OLD, version): data.replace(OLD.encode(), version.encode())
        for name, data in members_of(fake.base).items()
        if not name.endswith("/RECORD") and not name.endswith(".so")
    }
    members |= {n: d for n, d in members_of(fake.base).items() if n.endswith(".so")}
    info = f"torch-{version}.dist-info"
    metadata = members[f"{info}/METADATA"].decode()
    classifiers = f"Classifier: Programming Language :: Python :: {PYTHON}\n"
    members[f"{info}/METADATA"] = metadata.replace(
        "Requires-Dist: filelock\n", f"{classifiers}Requires-Dist: filelock\n{REQUIREMENT}"
    ).encode()
    return Wheel({**members, **HEADERS, **changes}, info).write(path)


@pytest.fixture
def releases(
    fake: FakeTorch, tmp_path: Path, offline: None, monkeypatch: pytest.MonkeyPatch
) -> Releases:
    """pip finds both wheels and the header packages; commands use the patches made here."""
    links = tmp_path / "links"
    links.mkdir()
    version = members_of(fake.base)["torch/version.py"].replace(OLD.encode(), NEW.encode())
    more = "def current_device():\n    return 0\n\n\n"
    new = _wheel(
        fake,
        NEW,
        links,
        {
            "torch/version.py": version.replace(COMMIT.encode(), NEW_COMMIT.encode()),
            INIT: (more + CUDA_INIT).encode(),
            HEADER: NEW_ALLOCATOR.encode(),
        },
    )
    old = _wheel(fake, OLD, links, {})
    cuda = next(fake.links.glob("fake_cuda*"))
    for name, number in (("nvidia_cuda_runtime", "13.0.96"), ("nvidia_cuda_crt", "13.0.88")):
        path = links / f"{name}-{number}-py3-none-manylinux_2_17_{MACHINE}.whl"
        members = {
            member.replace("fake_cuda_headers-1.0", f"{name}-{number}"): data
            for member, data in members_of(cuda).items()
            if not member.endswith("/RECORD")
        }
        info = f"{name}-{number}.dist-info"
        members[f"{info}/METADATA"] = (
            f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {number}\n".encode()
        )
        if name == "nvidia_cuda_crt":
            members = {n: d for n, d in members.items() if not n.startswith("nvidia/cu13/lib")}
        Wheel(members, info).write(path)
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    patches = _patches(fake, tmp_path / "package" / "patches", tmp_path)
    monkeypatch.setattr(resources, "_PACKAGE", Path(resources.__file__).parent)
    return Releases(old=old, new=new, patches=patches)


def _patches(fake: FakeTorch, folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(fake.patches, folder)
    shutil.copy(resources.patches_dir() / "tags.schema.json", folder)
    text = (folder / "tags.toml").read_text()
    (folder / "tags.toml").write_text(
        text.replace('"fake-cuda-headers==1.0"', '"nvidia-cuda-runtime==13.0.96"')
    )
    author = tmp_path / "author"
    (author / "torch/cuda").mkdir(parents=True)
    (author / INIT).write_text(CUDA_INIT)
    git(author, "init", "--quiet", "--initial-branch=main")
    commit(author, "base")
    (author / INIT).write_text(CUDA_INIT + "from .lms import *  # noqa: F403\n")
    commit(author, "offer LMS\n\nWhy.")
    hooks = folder / f"v{OLD}"
    for path in hooks.glob("*.patch"):
        path.unlink()
    git(
        author,
        "format-patch",
        "--quiet",
        "--zero-commit",
        "-U1",
        "-1",
        f"--output-directory={hooks}",
    )
    assert load_registry(folder)
    return folder
