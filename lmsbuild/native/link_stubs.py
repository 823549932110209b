"""Link-time stand-ins for the C and C++ libraries of an older system.

A library linked against this machine's libc and libstdc++ asks for their newest symbol versions
and does not load on older systems. A stub has the real library's soname and, of each symbol, the
newest version that a manylinux policy allows. Linked against stubs, a library either meets the
policy or fails to link with the name of the symbol that is too new. Stubs hold no code and are
never loaded.

The headers of a new compiler make code use new symbols. The folder ``data/shim`` prevents this
where a macro controls it, and ``compat.cpp`` defines the other symbols.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from lmsbuild.architecture import architecture
from lmsbuild.errors import CompileError
from lmsbuild.native.manylinux import LIBRARIES, Limits, ManylinuxPolicy
from lmsbuild.native.toolchain import run
from lmsbuild.resources import data_file
from lmsbuild.tools import elf

# Static parts that come with the real libraries: the compiler's helpers and glibc's.
_ARCHIVES = ("libgcc.a", "libc_nonshared.a")


def version_script(path: Path) -> tuple[str, ...]:
    """Arguments for a compiler. -Wl would split the path at a comma."""
    return "-Xlinker", "--version-script", "-Xlinker", str(path)


def shim_dir() -> Path:
    """Folder of headers that are searched before the system's."""
    return data_file("shim/compat.cpp").parent


def link_arguments(
    compiler: Sequence[str], machine: str, policy: ManylinuxPolicy, folder: Path
) -> list[str]:
    """Make stubs in ``folder`` and return what replaces the driver's default libraries.

    ``compiler`` is the C++ compiler's command, ``machine`` the architecture it compiles for.
    Raises CompileError when the compiler has no shared C or C++ library.
    """
    folder.mkdir(parents=True, exist_ok=True)
    arguments = ["-nodefaultlibs"]
    for name in (*LIBRARIES, architecture(machine).loader):
        real = _find(compiler, name)
        if real is None:
            if name in LIBRARIES:
                raise CompileError(
                    f"{compiler[0]} finds no {name}; install the C++ compiler's shared libraries"
                )
            continue
        stub = folder / name
        found = elf.read(real)
        _assemble(compiler, found.soname, newest_allowed(found.symbols, policy.limits), stub)
        arguments.append(str(stub))
    arguments += [str(path) for path in (_find(compiler, name) for name in _ARCHIVES) if path]
    return arguments


def for_machine(compiler: Sequence[str], machine: str, library: Path, folder: Path) -> Path:
    """The library to link to instead of ``library``: itself, if it is for the machine.

    Otherwise a stub in ``folder`` with the same soname, symbols and versions. Raises CompileError.
    """
    real = elf.read(library)
    if real.machine == machine:
        return library
    folder.mkdir(parents=True, exist_ok=True)
    stub = folder / library.name
    symbols = [symbol for symbol in real.symbols if symbol.defined and symbol.default_version]
    _assemble(compiler, real.soname, symbols, stub)
    return stub


def newest_allowed(symbols: Iterable[elf.Symbol], limits: Limits) -> list[elf.Symbol]:
    """The newest allowed version of each defined symbol, sorted by name.

    Symbols without a version are included. So are symbols whose newest allowed version is not the
    default version of this machine's library.
    """
    best: dict[str, tuple[tuple[int, ...], elf.Symbol]] = {}
    for symbol in symbols:
        if not symbol.defined:
            continue
        rank: tuple[int, ...] = ()
        if symbol.version:
            split = elf.split_version(symbol.version)
            if split is None or not elf.within(symbol.version, limits):
                continue
            rank = split[1]
        if symbol.name not in best or rank > best[symbol.name][0]:
            best[symbol.name] = (rank, symbol)
    return [best[name][1] for name in sorted(best)]


def _find(compiler: Sequence[str], name: str) -> Path | None:
    shown = subprocess.run(
        [*compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()
    # If the compiler does not find the file, it prints the name without a folder.
    return Path(shown) if "/" in shown and Path(shown).exists() else None


def _assemble(
    compiler: Sequence[str], soname: str, symbols: Sequence[elf.Symbol], out: Path
) -> None:
    source, script = out.with_suffix(".S"), out.with_suffix(".map")
    source.write_text(_assembly(symbols), encoding="utf-8")
    script.write_text(_version_script(symbols), encoding="utf-8")
    command = [
        *compiler,
        "-shared",
        "-nostdlib",
        "-fPIC",
        "-o",
        str(out),
        str(source),
        f"-Wl,-soname,{soname}",
        *version_script(script),
    ]
    result = run(command)
    if result.returncode:
        raise CompileError(
            f"{compiler[0]} cannot assemble a link stub of {soname}",
            detail=result.stderr,
        )


_SECTIONS = {"function": ".text", "object": ".bss", "tls": '.section .tbss,"awT",%nobits'}
_TYPES = {"function": "%function", "object": "%object", "tls": "%tls_object"}


def _assembly(symbols: Sequence[elf.Symbol]) -> str:
    lines = []
    for number, symbol in enumerate(symbols):
        # A versioned symbol has a label of its own, and .symver gives it the name.
        label = f"lms_stub_{number}" if symbol.version else symbol.name
        size = max(symbol.size, 1) if symbol.kind != "function" else 1
        lines += [
            _SECTIONS[symbol.kind],
            f".globl {label}",
            f".type {label},{_TYPES[symbol.kind]}",
            f"{label}: .zero {size}",
            f".size {label},{size}",
        ]
        if symbol.version:
            lines.append(f".symver {label},{symbol.name}@@{symbol.version}")
    lines.append('.section .note.GNU-stack,"",%progbits')
    return "\n".join(lines) + "\n"


def _version_script(symbols: Sequence[elf.Symbol]) -> str:
    versions = sorted({symbol.version for symbol in symbols if symbol.version})
    if not versions:
        return "{ global: *; };\n"
    # The labels must not be exported. There cannot be an anonymous version beside named ones, so
    # they are local symbols of a version of their own.
    return "".join(f"{v} {{ }};\n" for v in versions) + "LMS_STUB { local: *; };\n"
