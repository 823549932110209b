"""The compiled runtime of a wheel: taken from the cache, or built."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from lmsbuild import archive, compile, integrity, linkstub, record
from lmsbuild.basewheel import BaseWheel
from lmsbuild.cache import scratch, sha256_of_files, write_atomically
from lmsbuild.compile import LIBRARY
from lmsbuild.fetch import Fetched
from lmsbuild.registry import Tag
from lmsbuild.runtime import runtime_files
from lmsbuild.toolchain import Compiler

Report = Callable[[str, int, "int | None"], None]

_HEADERS = "torch/include/"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What decides the library's bytes, beside the torch that it is compiled against.

    Attributes:
        headers: unpacked CUDA header packages by requirement.
        policy: the systems that it shall run on; None for just this one.
    """

    tag: Tag
    compiler: Compiler
    headers: dict[str, Fetched]
    patches: Path
    policy: linkstub.Policy | None


def library_for(
    recipe: Recipe, base: BaseWheel, identity: str, cache: Path, report: Report
) -> bytes:
    """Content of libtorch_lms.so for a wheel, from the cache when it was built before.

    ``identity`` is the same for bases that the same library fits: the wheel's hash, or what
    release_identity() says. Stages "unpack" (bytes) and "compile" (files) are reported. Raises as
    build_library.
    """
    return kept_or_built(
        recipe, lambda folder: unpack_torch(base, folder, report), identity, cache, report
    )


def kept_or_built(
    recipe: Recipe, unpack: Callable[[Path], Path], identity: str, cache: Path, report: Report
) -> bytes:
    """As library_for, for any base: ``unpack`` puts it into a folder and returns its torch."""
    folder = cache / "libraries" / _key(recipe, identity)
    kept = _kept(folder)
    if kept is not None:
        return kept
    with scratch(cache) as name:
        torch = unpack(Path(name))
        data = build(recipe, torch, Path(name) / "objects", cache, report).read_bytes()
    write_atomically(folder / LIBRARY, data)
    # The note comes last: a library without one is built again.
    write_atomically(folder / "sha256", hashlib.sha256(data).hexdigest().encode())
    return data


def build(recipe: Recipe, torch: Path, folder: Path, cache: Path, report: Report) -> Path:
    """Compile in ``folder`` against an unpacked or installed torch package."""
    inputs = compile.Inputs(
        torch=torch,
        runtime=recipe.patches / "runtime",
        cuda=tuple(found.path for found in recipe.headers.values()),
    )
    return compile.build_library(
        recipe.tag,
        recipe.compiler,
        inputs,
        folder,
        policy=recipe.policy,
        log=cache / "logs" / f"compile-{recipe.tag.name}.log",
        progress=lambda done, total: report("compile", done, total),
    )


def unpack_torch(base: BaseWheel, folder: Path, report: Report) -> Path:
    """Unpack what the compiler and linker need of a wheel; returns its torch folder."""
    wanted = {f"torch/lib/{name}" for name in compile.TORCH_LIBRARIES}
    with integrity.open_wheel(base.path) as wheel:
        members = [
            info
            for info in wheel.infolist()
            if not info.is_dir() and (info.filename in wanted or info.filename.startswith(_HEADERS))
        ]
        total = sum(info.file_size for info in members)
        done = 0
        for info in members:
            archive.extract(wheel, info, folder)
            done += info.file_size
            report("unpack", done, total)
    return folder / "torch"


def release_identity(tag: Tag, architecture: str, rows: Iterable[record.Row]) -> str:
    """What the official wheels of one release and architecture have in common.

    The library has no Python in it: their headers are the same, and the libraries that it links to
    have the same interface. ``rows`` are a wheel's RECORD.
    """
    headers = sorted(f"{row.path} {row.hash}" for row in rows if row.path.startswith(_HEADERS))
    facts = [tag.git_commit, tag.cuda, architecture, *headers]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def _kept(folder: Path) -> bytes | None:
    try:
        data = (folder / LIBRARY).read_bytes()
        told = (folder / "sha256").read_text(encoding="ascii")
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest() == told else None


def _key(recipe: Recipe, identity: str) -> str:
    shim = linkstub.shim_dir()
    # The modules that decide how to build count as inputs too.
    modules = {
        Path(module.__file__ or "").name: Path(module.__file__ or "")
        for module in (compile, linkstub)
    }
    facts = {
        "base": identity,
        "flags": compile.flags(recipe.tag),
        "policy": recipe.policy and recipe.policy.name,
        "compiler": [recipe.compiler.command, recipe.compiler.version, recipe.compiler.machine],
        "headers": {name: found.sha256 for name, found in recipe.headers.items()},
        "runtime": sha256_of_files(runtime_files(recipe.patches)),
        "shim": sha256_of_files(
            {str(path.relative_to(shim)): path for path in shim.rglob("*") if path.is_file()}
        ),
        "toolkit": sha256_of_files(modules),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
