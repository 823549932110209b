"""The files of a conda package, in the layout of an installed environment."""

from __future__ import annotations

import configparser
import stat
import zipfile
from collections.abc import Callable
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from lmsbuild.conda.libraries import is_library_requirement
from lmsbuild.errors import CondaError, DamagedWheelError
from lmsbuild.tools import zipcopy
from lmsbuild.wheel import integrity, markers, record
from lmsbuild.wheel.base import BaseWheel

INSTALLER = b"conda"  # as conda-build writes it

# Where a package has what installers put into the environment's site-packages and bin. They then
# also compile the Python files, and remove what they compiled, or what Python did (CEP 20).
SITE_PACKAGES, SCRIPTS = FOLDERS = ("site-packages", "python-scripts")

# Files that are written anew, or are invalid with a new RECORD.
_DROPPED = ("RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER", "REQUESTED", "direct_url.json")

# Finds the interpreter beside itself, so that no path has to be replaced at installation.
_SCRIPT = """\
#!/bin/sh
'''exec' "$(dirname -- "$(readlink -f -- "$0")")/python" "$0" "$@"
' '''
import sys

from {module} import {first}

if __name__ == "__main__":
    sys.exit({name}())
"""


def stage(wheel: BaseWheel, into: Path, advance: Callable[[int], None] | None = None) -> None:
    """Unpack a wheel into the new folder ``into``, in the layout of a conda package for Python.

    The files are those of the wheel, except for three in dist-info: INSTALLER contains "conda",
    METADATA does not require NVIDIA's wheels (pip would install them in addition to conda's
    libraries), and RECORD is updated. Scripts are written, too. Modes are 0755 or 0644.
    ``advance`` is called with the number of bytes that were unpacked.

    Raises:
        CondaError: the wheel has files for folders other than site-packages.
        DamagedWheelError, UnsafeMemberError: as integrity.open_wheel.
    """
    site = into / SITE_PACKAGES
    with integrity.open_wheel(wheel.path) as packed:
        rows = {row.path: row for row in integrity.read_record(packed)}
        written = _unpack(packed, wheel, site, rows, advance)
        metadata = integrity.read_text(packed, f"{wheel.dist_info}/METADATA")
        entry_points = f"{wheel.dist_info}/entry_points.txt"
        scripts = (
            console_scripts(integrity.read_text(packed, entry_points), wheel.path.name)
            if entry_points in packed.NameToInfo
            else {}
        )

    def put(path: str, data: bytes) -> None:
        (site / path).write_bytes(data)
        (site / path).chmod(0o644)
        written.append(record.row_of(path, data))

    put(f"{wheel.dist_info}/METADATA", without_libraries(metadata).encode("utf-8"))
    put(f"{wheel.dist_info}/INSTALLER", INSTALLER)
    (into / SCRIPTS).mkdir()  # the recipes copy it, even if it is empty
    for name, text in scripts.items():
        (into / SCRIPTS / name).write_text(text, encoding="utf-8")
        (into / SCRIPTS / name).chmod(0o755)
        written.append(record.row_of(f"../../../bin/{name}", text.encode("utf-8")))
    written.append(record.Row(path=f"{wheel.dist_info}/RECORD"))
    rows_text = record.serialize(sorted(written, key=lambda row: row.path))
    (site / wheel.dist_info / "RECORD").write_text(rows_text, encoding="utf-8")
    (site / wheel.dist_info / "RECORD").chmod(0o644)


def requirements_of(wheel: BaseWheel) -> tuple[dict[str, str], list[Requirement]]:
    """The fields and the requirements in the METADATA of a wheel.

    The fields are License, License-Expression, Summary and Home-page. The requirements are those
    for the wheel's own platform and Python, without extras.

    Raises:
        DamagedWheelError: a requirement cannot be parsed.
    """
    with integrity.open_wheel(wheel.path) as packed:
        header = HeaderParser().parsestr(integrity.read_text(packed, f"{wheel.dist_info}/METADATA"))
    environment = markers.environment(wheel.python, wheel.architecture)
    found = []
    for line in header.get_all("Requires-Dist") or []:
        try:
            requirement = Requirement(line)
        except InvalidRequirement as error:
            raise DamagedWheelError(
                f"{wheel.path.name}: METADATA requires {line!r}: {error}"
            ) from error
        if requirement.marker is None or requirement.marker.evaluate(environment):
            found.append(requirement)
    fields = ("License", "License-Expression", "Summary", "Home-page")
    return {field: header[field] for field in fields if header[field]}, found


def licenses(staged: Path, dist_info: str) -> dict[str, Path]:
    """The files that METADATA names as licences, by the names that it gives them."""
    folder = staged / SITE_PACKAGES / dist_info
    header = HeaderParser().parsestr((folder / "METADATA").read_text(encoding="utf-8"))
    found: dict[str, Path] = {}
    for name in header.get_all("License-File") or []:
        # Before PEP 639 they were in dist-info itself.
        for path in (folder / "licenses" / name, folder / name):
            if not zipcopy.unsafe_name(name) and path.is_file():
                found.setdefault(name, path)
    return found


def without_libraries(metadata: str) -> str:
    """METADATA without the requirements that are CUDA libraries, which are conda packages here."""
    # Only the header, which ends at the first empty line: the description is free text.
    header, separator, description = metadata.partition("\n\n")
    lines = [line for line in header.split("\n") if not _requires_library(line)]
    return "\n".join(lines) + separator + description


def _requires_library(line: str) -> bool:
    key, _, value = line.partition(":")
    if key.lower() != "requires-dist":
        return False
    try:
        return is_library_requirement(Requirement(value).name)
    except InvalidRequirement:
        return False  # requirements_of says so


def console_scripts(text: str, wheel: str) -> dict[str, str]:
    """The text of each script in entry_points.txt, by name. Raises DamagedWheelError."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    try:
        parser.read_string(text)
        points = dict(parser["console_scripts"]) if "console_scripts" in parser else {}
        scripts = {}
        for name, reference in points.items():
            module, _, attribute = reference.partition("[")[0].strip().partition(":")
            if not attribute or zipcopy.unsafe_name(name) or "/" in name:
                raise DamagedWheelError(f"{wheel}: entry_points.txt has an invalid entry {name!r}")
            first = attribute.partition(".")[0]
            scripts[name] = _SCRIPT.format(module=module.strip(), first=first, name=attribute)
    except configparser.Error as error:
        raise DamagedWheelError(f"{wheel}: entry_points.txt cannot be read ({error})") from error
    return scripts


def _unpack(
    packed: zipfile.ZipFile,
    wheel: BaseWheel,
    site: Path,
    rows: dict[str, record.Row],
    advance: Callable[[int], None] | None,
) -> list[record.Row]:
    """Unpack the files that are not written anew. Returns their rows for RECORD."""
    written = []
    anew = {f"{wheel.dist_info}/{name}" for name in (*_DROPPED, "METADATA")}
    data = wheel.dist_info.removesuffix(".dist-info") + ".data/"
    for info in packed.infolist():
        name = info.filename
        if name.startswith(data):
            raise CondaError(
                f"{wheel.path.name} has {name}, which is installed outside of site-packages; "
                "use a wheel without a .data folder"
            )
        if info.is_dir() or name in anew:
            continue
        path = zipcopy.extract(packed, info, site)
        # The umask must not make a difference.
        executable = info.external_attr >> 16 & stat.S_IXUSR
        path.chmod(0o755 if executable else 0o644)
        if name in rows:
            written.append(record.Row(path=name, hash=rows[name].hash, size=rows[name].size))
        if advance:
            advance(info.file_size)
    return written
