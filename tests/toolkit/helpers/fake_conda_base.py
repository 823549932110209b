"""The fake torch as a conda package."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from backports import zstd

from lmsbuild.architecture import architecture
from toolkit.helpers.fake_torch import DIST_INFO, MACHINE, PYTHON, VERSION, FakeTorch

SITE = f"lib/python{PYTHON}/site-packages"
BUILD = "cuda130_0"
STEM = f"pytorch-{VERSION}-{BUILD}"
INDEX = {
    "name": "pytorch",
    "version": VERSION,
    "build": BUILD,
    "build_number": 0,
    "subdir": architecture(MACHINE).conda,
    "depends": ["python"],
}

Files = Mapping[str, bytes]


def files_of(fake: FakeTorch) -> dict[str, bytes]:
    """What the package installs."""
    record = f"{DIST_INFO}/RECORD"
    text = "".join(",".join(row) + "\n" for row in fake.wheel.true_rows()).encode()
    return {f"{SITE}/{name}": data for name, data in {**fake.wheel.members, record: text}.items()}


def write_package(
    path: Path, files: Files, index: Mapping[str, object] = INDEX, links: Mapping[str, str] = {}
) -> Path:
    """A conda package of the format that its name says."""
    rows = [
        {
            "_path": name,
            "path_type": "hardlink",
            "sha256": hashlib.sha256(data).hexdigest(),
            "size_in_bytes": len(data),
        }
        for name, data in files.items()
    ]
    rows += [{"_path": name, "path_type": "softlink"} for name in links]
    info = {
        "info/index.json": json.dumps(index).encode(),
        "info/files": "".join(f"{name}\n" for name in [*files, *links]).encode(),
        "info/paths.json": json.dumps({"paths": rows, "paths_version": 1}).encode(),
    }
    if path.name.endswith(".tar.bz2"):
        with tarfile.open(path, "w:bz2") as tar:
            _fill(tar, {**info, **files}, links)
        return path
    stem = path.name.removesuffix(".conda")
    with zipfile.ZipFile(path, "w") as package:
        package.writestr("metadata.json", '{"conda_pkg_format_version": 2}')
        for component, content in (("pkg", files), ("info", info)):
            plain = io.BytesIO()
            with tarfile.open(fileobj=plain, mode="w") as tar:
                _fill(tar, content, links if component == "pkg" else {})
            package.writestr(f"{component}-{stem}.tar.zst", zstd.compress(plain.getvalue()))
    return path


def _fill(tar: tarfile.TarFile, files: Files, links: Mapping[str, str]) -> None:
    for name, data in files.items():
        member = tarfile.TarInfo(name)
        member.size, member.mtime, member.mode = len(data), 1_700_000_000, 0o644
        tar.addfile(member, io.BytesIO(data))
    for name, target in links.items():
        member = tarfile.TarInfo(name)
        member.type, member.linkname = tarfile.SYMTYPE, target
        tar.addfile(member)


def read_package(path: Path) -> dict[str, bytes]:
    """Content of all files of a package."""
    if path.name.endswith(".tar.bz2"):
        with tarfile.open(path) as tar:
            return dict(_content(tar))
    found: dict[str, bytes] = {}
    with zipfile.ZipFile(path) as package:
        for name in package.namelist():
            if name.endswith(".tar.zst"):
                plain = zstd.decompress(package.read(name))
                with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
                    found |= dict(_content(tar))
    return found


def _content(tar: tarfile.TarFile) -> Iterable[tuple[str, bytes]]:
    for member in tar:
        packed = tar.extractfile(member) if member.isfile() else None
        if packed is not None:
            yield member.name, packed.read()
