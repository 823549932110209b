"""Write a grafted wheel. Members that do not change are copied without decompression."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from lmsbuild.tools import zipcopy
from lmsbuild.tools.atomic import draft
from lmsbuild.tools.report import Report, counter
from lmsbuild.wheel import integrity, provenance, record, sbom
from lmsbuild.wheel.base import LIBRARY_FOLDER, PROJECT, BaseWheel
from lmsbuild.wheel.provenance import Provenance
from lmsbuild.wheel.request import require_space
from lmsbuild.wheel.version import lms_version, mark_metadata

_SIGNATURES = ("RECORD.jws", "RECORD.p7s")  # signatures of the old RECORD, invalid with the new one


def write_wheel(
    base: BaseWheel,
    files: Mapping[str, bytes | None],
    libraries: Mapping[str, bytes],
    origin: Provenance,
    out: Path,
    report: Report,
) -> Path:
    """Write the grafted wheel, first under another name. The same inputs produce the same bytes.

    Raises NoSpaceError, OSError.
    """
    require_space(out, base.path.stat().st_size + sum(map(len, libraries.values())))
    version = lms_version(base.version)
    name, _, *rest = base.path.name.split("-")
    path = out / "-".join([name, version, *rest])
    with draft(path) as unfinished, unfinished.open("xb") as stream:
        _write(stream, base, version, files, libraries, origin, report)
        stream.flush()
        os.fsync(stream.fileno())
    return path


def _write(
    stream: IO[bytes],
    base: BaseWheel,
    version: str,
    files: Mapping[str, bytes | None],
    libraries: Mapping[str, bytes],
    origin: Provenance,
    report: Report,
) -> None:
    old, new = base.dist_info, f"{PROJECT}-{version}.dist-info"
    with (
        zipfile.ZipFile(base.path) as source,
        base.path.open("rb") as raw,
        zipcopy.ArchiveWriter(stream) as target,
    ):
        rows = {row.path: row for row in integrity.read_record(source)}
        metadata = source.getinfo(f"{old}/METADATA")
        marked = mark_metadata(source.read(metadata), base.path.name)
        replaced: dict[str, bytes | None] = {
            **files,
            f"{old}/METADATA": marked,
            f"{old}/RECORD": None,
            **{f"{old}/{name}": None for name in _SIGNATURES},
        }
        advance = counter("write", sum(i.compress_size for i in source.infolist()), report)
        written: list[record.Row] = []

        def put(name: str, data: bytes, mode: int = zipcopy.REGULAR_FILE) -> None:
            # The base's date, so that the result does not depend on the time of the build.
            target.add(name, data, when=metadata.date_time, mode=mode)
            written.append(record.row_of(name, data))

        def put_all(members: list[zipfile.ZipInfo]) -> None:
            for info in members:
                name = info.filename
                renamed = new + name[len(old) :] if name.startswith(f"{old}/") else name
                if name not in replaced:
                    target.copy(raw, info, renamed, advance)
                    if name in rows:
                        row = rows[name]
                        written.append(record.Row(path=renamed, hash=row.hash, size=row.size))
                elif (data := replaced[name]) is not None:
                    put(renamed, data, info.external_attr >> 16 or zipcopy.REGULAR_FILE)

        # dist-info goes last, as the wheel format recommends, and RECORD at its very end.
        members = source.infolist()
        put_all([info for info in members if not info.filename.startswith(f"{old}/")])
        present = {info.filename for info in members}
        for name in sorted(files.keys() - present):
            if (data := files[name]) is not None:
                put(name, data)
        for name, data in libraries.items():
            put(LIBRARY_FOLDER + name, data, zipcopy.SHARED_LIBRARY)
        put_all([info for info in members if info.filename.startswith(f"{old}/")])
        put(f"{new}/{provenance.FILE_NAME}", provenance.dump(origin))
        put(f"{new}/{sbom.FILE_NAME}", sbom.wheel_sbom(origin, marked, libraries))
        written.append(record.Row(path=f"{new}/RECORD"))
        target.add(
            f"{new}/RECORD", record.serialize(written).encode("utf-8"), when=metadata.date_time
        )
