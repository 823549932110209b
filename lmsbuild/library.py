"""The compiled runtime of a wheel: taken from the cache, or built."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lmsbuild import archive, compile, integrity, linkstub
from lmsbuild.basewheel import BaseWheel
from lmsbuild.cache import scratch, sha256_of_files, write_atomically
from lmsbuild.compile import LIBRARY
from lmsbuild.fetch import Fetched
from lmsbuild.registry import Tag
from lmsbuild.runtime import runtime_files
from lmsbuild.toolchain import Compiler

Report = Callable[[str, int, "int | None"], None]


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
    recipe: Recipe, base: BaseWheel, base_sha256: str, cache: Path, report: Report
) -> bytes:
    """Content of libtorch_lms.so for a wheel, from the cache when it was built before.

    Stages "unpack" (bytes) and "compile" (files) are reported. Raises as build_library.
    """
    folder = cache / "libraries" / _key(recipe, base_sha256)
    kept = _kept(folder)
    if kept is not None:
        return kept
    with scratch(cache) as name:
        torch = unpack_torch(base, Path(name), report)
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
            if not info.is_dir()
            and (info.filename in wanted or info.filename.startswith("torch/include/"))
        ]
        total = sum(info.file_size for info in members)
        done = 0
        for info in members:
            archive.extract(wheel, info, folder)
            done += info.file_size
            report("unpack", done, total)
    return folder / "torch"


def _kept(folder: Path) -> bytes | None:
    try:
        data = (folder / LIBRARY).read_bytes()
        told = (folder / "sha256").read_text(encoding="ascii")
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest() == told else None


def _key(recipe: Recipe, base_sha256: str) -> str:
    shim = linkstub.shim_dir()
    # The modules that decide how to build count as inputs too.
    modules = {
        Path(module.__file__ or "").name: Path(module.__file__ or "")
        for module in (compile, linkstub)
    }
    facts = {
        "base": base_sha256,
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
