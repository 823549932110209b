"""Write a grafted conda package: the base with new files, hashes and a new build string."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from lmsbuild.conda import base as condabase
from lmsbuild.conda.base import FILES, INDEX, PATHS, CondaBase
from lmsbuild.tools.atomic import draft
from lmsbuild.tools.report import Report, counter
from lmsbuild.wheel import provenance
from lmsbuild.wheel.integrity import is_binary
from lmsbuild.wheel.provenance import Provenance
from lmsbuild.wheel.request import require_space
from lmsbuild.wheel.version import LOCAL_VERSION

_PROVENANCE = f"info/{provenance.FILE_NAME}"
_DATE = (1980, 1, 1, 0, 0, 0)  # the oldest date of the zip format
# put(tar, component): writes the members below info/ (True), the others (False), or all (None)
Put = Callable[[tarfile.TarFile, "bool | None"], None]

_COMPRESSION = 9  # level of zstd; higher levels take minutes, and save little


def build_string(index: Mapping[str, Any]) -> str:
    """The build string of a grafted package: "py312_0" becomes "py312_lms1_0".

    The number stays at its end, where conda-forge's packages of PyTorch look for each other's.
    """
    build = str(index["build"])
    number = re.search(r"(_\d+)?$", build)
    assert number is not None, "it matches nothing, too"
    return f"{build[: number.start()]}_{LOCAL_VERSION}{number[0]}"


def write_package(
    base: CondaBase,
    changes: Mapping[str, bytes | None],
    origin: Provenance,
    out: Path,
    report: Report,
) -> Path:
    """Write the grafted package to a temporary file, and rename it.

    ``changes`` are the new contents of files by path; None removes a file. The same inputs give the
    same bytes. Raises NoSpaceError, OSError.
    """
    size = base.path.stat().st_size + sum(len(data) for data in changes.values() if data)
    require_space(out, size)
    index = {**base.index, "build": build_string(base.index)}
    stem = f"{index['name']}-{index['version']}-{index['build']}"
    suffix = condabase.suffix(base.path)
    path = out / f"{stem}{suffix}"
    everything = {**changes, **_info(base, changes, index, origin)}
    advance = counter("write", sum(member.size for member in base.members), report)
    with draft(path) as unfinished, unfinished.open("xb") as stream:
        pack = _conda if suffix == ".conda" else _tar_bz2
        pack(stream, stem, lambda tar, info: _put(base, everything, tar, info, advance))
        stream.flush()
        os.fsync(stream.fileno())
    return path


def _info(
    base: CondaBase,
    changes: Mapping[str, bytes | None],
    index: Mapping[str, Any],
    origin: Provenance,
) -> dict[str, bytes | None]:
    """The files below info/ that describe the package's content."""
    document = json.loads((base.folder / PATHS).read_bytes())
    rows = {row["_path"]: row for row in document["paths"]}
    for name, data in changes.items():
        if data is None:
            rows.pop(name, None)
        else:
            row = rows.setdefault(name, {"_path": name, "path_type": "hardlink"})
            row |= {"sha256": hashlib.sha256(data).hexdigest(), "size_in_bytes": len(data)}
    document["paths"] = [rows[name] for name in sorted(rows)]
    return {
        INDEX: (json.dumps(index, indent=2, sort_keys=True) + "\n").encode(),
        PATHS: (json.dumps(document, indent=2, sort_keys=True) + "\n").encode(),
        FILES: "".join(f"{name}\n" for name in sorted(rows)).encode(),
        _PROVENANCE: provenance.dump(origin),
    }


def _put(
    base: CondaBase,
    changes: Mapping[str, bytes | None],
    tar: tarfile.TarFile,
    component: bool | None,
    advance: condabase.Advance,
) -> None:
    """Write the members below info/ (True), the others (False), or all (None)."""

    def belongs(name: str) -> bool:
        return component is None or name.startswith("info/") == component

    present = {member.name for member in base.members}
    for member in base.members:
        if not belongs(member.name):
            continue
        data = changes.get(member.name)
        if member.name in changes:
            if data is not None:
                _add(tar, member, data)
        elif member.isfile():
            with (base.folder / member.name).open("rb") as stream:
                tar.addfile(member, stream)
        else:
            tar.addfile(member)
        advance(member.size)
    like = next(member for member in base.members if member.name == INDEX)
    for name in sorted(changes.keys() - present):
        data = changes[name]
        if data is not None and belongs(name):
            fresh = tarfile.TarInfo(name)
            fresh.mtime = like.mtime
            fresh.mode = 0o755 if is_binary(name) else 0o644
            _add(tar, fresh, data)


def _add(tar: tarfile.TarFile, member: tarfile.TarInfo, data: bytes) -> None:
    # A new TarInfo, because the member can be a hard link.
    changed = tarfile.TarInfo(member.name)
    changed.mtime, changed.mode = member.mtime, member.mode
    changed.size = len(data)
    tar.addfile(changed, io.BytesIO(data))


def _conda(stream: IO[bytes], stem: str, put: Put) -> None:
    with zipfile.ZipFile(stream, "w") as package:
        format_ = json.dumps({"conda_pkg_format_version": 2})
        package.writestr(zipfile.ZipInfo("metadata.json", _DATE), format_)
        for component, info in (("pkg", False), ("info", True)):
            name = zipfile.ZipInfo(f"{component}-{stem}.tar.zst", _DATE)
            with (
                package.open(name, "w", force_zip64=True) as raw,
                _zstandard(raw) as packed,
                tarfile.open(fileobj=packed, mode="w|") as tar,
            ):
                put(tar, info)


def _tar_bz2(stream: IO[bytes], stem: str, put: Put) -> None:
    with tarfile.open(fileobj=stream, mode="w|bz2") as tar:
        put(tar, None)


@contextmanager
def _zstandard(raw: IO[bytes]) -> Iterator[IO[bytes]]:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    with zstd.open(raw, "wb", level=_COMPRESSION) as packed:
        yield cast("IO[bytes]", packed)
