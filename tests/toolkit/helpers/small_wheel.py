"""Wheels of a few hundred bytes, with any metadata."""

from __future__ import annotations

import zipfile
from pathlib import Path

from lmsbuild.wheel import record


def write(
    folder: Path,
    name: str = "thing",
    version: str = "1.0",
    *,
    content: str = "",
    tags: str = "py3-none-any",
    headers: str = "",
) -> Path:
    """A wheel with one module. ``headers`` are more lines of METADATA."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{headers}\nText.\n"
    members = {
        f"{name}.py": f"version = {version!r}\n{content}",
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: {tags}\n",
    }
    rows = [record.row_of(path, text.encode()) for path, text in members.items()]
    rows.append(record.Row(path=f"{info}/RECORD"))
    path = folder / f"{name}-{version}-{tags}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in (members | {f"{info}/RECORD": record.serialize(rows)}).items():
            archive.writestr(zipfile.ZipInfo(member, (2026, 1, 1, 0, 0, 0)), text)
    return path
