"""What the toolkit asks of an ELF shared library: who it is, what it needs, what it offers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from lmsbuild.architecture import architectures

_HIDDEN_VERSION = 0x8000  # bit of a .gnu.version entry: not the symbol's default version
_VERSION_INDEX = 0x7FFF
_SYMBOL_VERSION = re.compile(r"([A-Z]+)_(\d+(?:\.\d+)*)")


class NotElfError(ValueError):
    """The file is not an ELF shared library that this toolkit can read."""


@dataclass(frozen=True, kw_only=True)
class Symbol:
    """One dynamic symbol. ``version`` is "" when it has none; ``size`` is in bytes."""

    name: str
    version: str = ""
    default_version: bool = True
    defined: bool = True
    weak: bool = False
    kind: str = "function"  # "function", "object" or "tls"
    size: int = 0


@dataclass(frozen=True, kw_only=True)
class Library:
    """The dynamic section and symbols of a shared library.

    ``rpath`` is DT_RPATH or DT_RUNPATH; ``runpath`` says that it is the latter.
    ``needed_versions`` maps the soname of a library to the symbol versions wanted of it.
    """

    machine: str
    soname: str
    needed: tuple[str, ...]
    rpath: str
    symbols: tuple[Symbol, ...]
    needed_versions: Mapping[str, frozenset[str]]
    runpath: bool = False

    @property
    def exported(self) -> frozenset[str]:
        """Names of the defined dynamic symbols."""
        return frozenset(s.name for s in self.symbols if s.defined)

    @property
    def undefined(self) -> frozenset[str]:
        """Names of the symbols that other libraries must define."""
        return frozenset(s.name for s in self.symbols if not s.defined)


def split_version(version: str) -> tuple[str, tuple[int, ...]] | None:
    """GLIBC_2.17 as ("GLIBC", (2, 17)); None for versions without a number."""
    match = _SYMBOL_VERSION.fullmatch(version)
    if not match:
        return None
    return match[1], tuple(int(part) for part in match[2].split("."))


def within(version: str, limits: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a symbol version is allowed by a policy's newest version per family.

    Versions of a family the policy does not name, or without a number (GLIBC_PRIVATE), are not.
    """
    split = split_version(version)
    return split is not None and split[0] in limits and split[1] <= limits[split[0]]


def read(path: Path, *, symbols: bool = True) -> Library:
    """Read a shared library from a file; large ones fast without ``symbols``.

    Raises NotElfError, OSError.
    """
    with path.open("rb") as stream:
        return read_stream(stream, symbols=symbols)


def read_stream(stream: BinaryIO, *, symbols: bool = True) -> Library:
    """Read a shared library from a seekable stream. Raises NotElfError."""
    try:
        return _read(ELFFile(stream), symbols)
    except (ELFError, AttributeError, UnicodeDecodeError) as error:
        raise NotElfError(f"not a readable ELF shared library: {error}") from error


def _read(elf: Any, symbols: bool) -> Library:
    dynamic = elf.get_section_by_name(".dynamic")
    if dynamic is None:
        raise NotElfError("not an ELF shared library: it has no dynamic section")
    soname, rpath, runpath, needed = "", "", False, []
    for tag in dynamic.iter_tags():
        if tag.entry.d_tag == "DT_NEEDED":
            needed.append(tag.needed)
        elif tag.entry.d_tag == "DT_SONAME":
            soname = tag.soname
        elif tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
            rpath = getattr(tag, tag.entry.d_tag[3:].lower())
            runpath = tag.entry.d_tag == "DT_RUNPATH"
    needs = _needed_versions(elf)
    return Library(
        machine=_machine(elf),
        soname=soname,
        needed=tuple(needed),
        rpath=rpath,
        symbols=tuple(_symbols(elf)) if symbols else (),
        needed_versions={name: frozenset(versions.values()) for name, versions in needs.items()},
        runpath=runpath,
    )


def _machine(elf: Any) -> str:
    """The name that `uname -m` gives; e_machine's own for what is no architecture of ours."""
    known = {found.elf_machine: name for name, found in architectures().items()}
    machine = str(elf["e_machine"])
    # Power has both byte orders behind one number.
    return known.get(machine, machine) if elf.little_endian else machine


def _needed_versions(elf: Any) -> dict[str, dict[int, str]]:
    """Per library the wanted versions by their index in .gnu.version."""
    section = elf.get_section_by_name(".gnu.version_r")
    found: dict[str, dict[int, str]] = {}
    if section is not None:
        for need, entries in section.iter_versions():
            found.setdefault(need.name, {}).update(
                {entry["vna_other"] & _VERSION_INDEX: entry.name for entry in entries}
            )
    return found


def _symbols(elf: Any) -> list[Symbol]:
    table = elf.get_section_by_name(".dynsym")
    if table is None:
        return []
    indices = elf.get_section_by_name(".gnu.version")
    names = _version_names(elf)
    kinds = {"STT_OBJECT": "object", "STT_COMMON": "object", "STT_TLS": "tls"}
    symbols = []
    for number, entry in enumerate(table.iter_symbols()):
        info = entry["st_info"]
        # Versions themselves appear as absolute symbols; sections and files are not linkable.
        if not entry.name or entry["st_shndx"] == "SHN_ABS" or info["bind"] == "STB_LOCAL":
            continue
        index = indices.get_symbol(number)["ndx"] if indices is not None else 1
        versioned = isinstance(index, int)
        symbols.append(
            Symbol(
                name=entry.name,
                version=names.get(index & _VERSION_INDEX, "") if versioned else "",
                default_version=not (versioned and index & _HIDDEN_VERSION),
                defined=entry["st_shndx"] != "SHN_UNDEF",
                weak=info["bind"] == "STB_WEAK",
                kind=kinds.get(info["type"], "function"),
                size=int(entry["st_size"]),
            )
        )
    return symbols


def _version_names(elf: Any) -> dict[int, str]:
    names: dict[int, str] = {}
    for versions in _needed_versions(elf).values():
        names.update(versions)
    section = elf.get_section_by_name(".gnu.version_d")
    if section is not None:
        for definition, entries in section.iter_versions():
            # The first auxiliary entry is the version's own name, the rest are its parents;
            # the base definition (flag 1) names the library, not a version.
            if not definition["vd_flags"] & 1:
                names[definition["vd_ndx"] & _VERSION_INDEX] = next(iter(entries)).name
    return names
