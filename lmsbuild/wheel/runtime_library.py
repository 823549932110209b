"""The compiled runtime of a wheel, which is one library or two, from the cache or a new build."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path

from lmsbuild import console
from lmsbuild.native import compile, link_stubs, manylinux
from lmsbuild.native.compile import LIBRARY
from lmsbuild.patchset.runtime import lay_out, runtime_files
from lmsbuild.registry import Tag
from lmsbuild.tools import atomic, zipcopy
from lmsbuild.tools.cache import scratch, sha256_of_files
from lmsbuild.tools.report import Report
from lmsbuild.wheel import integrity, record
from lmsbuild.wheel.base import BaseWheel
from lmsbuild.wheel.plan import LibraryPlan

_HEADERS = "torch/include/"
_NOTE = "sha256"  # of each library, beside them


def library_for(
    plan: LibraryPlan, base: BaseWheel, identity: str, cache: Path, report: Report
) -> dict[str, bytes]:
    """libtorch_lms.so for a wheel, and its other files, from the cache if it was built before.

    ``identity`` is the same for bases that can use the same library. It is the wheel's hash, or
    the result of release_identity(). Stages "unpack" (bytes) and "compile" (files) are reported.
    Raises as build_library.
    """
    return kept_or_built(
        plan, lambda folder: unpack_torch(base, folder, report), identity, cache, report
    )


def kept_or_built(
    plan: LibraryPlan, unpack: Callable[[Path], Path], identity: str, cache: Path, report: Report
) -> dict[str, bytes]:
    """As library_for, for any base. ``unpack`` unpacks it into a folder and returns its torch."""
    folder = cache / "libraries" / _key(plan, identity)
    kept = _kept(folder)
    if kept is not None:
        console.detail(f"the runtime was compiled before: {folder}")
        return kept
    with scratch(cache) as name:
        torch = unpack(Path(name))
        built = build(plan, torch, Path(name) / "objects", cache, report)
        libraries = {path.name: path.read_bytes() for path in built}
    folder.mkdir(parents=True, exist_ok=True)
    for path, data in libraries.items():
        atomic.write_bytes(folder / path, data)
    # The note is written last, because libraries without it are built again.
    atomic.write_bytes(folder / _NOTE, json.dumps(_digests(libraries)).encode())
    return libraries


def build(
    plan: LibraryPlan, torch: Path, folder: Path, cache: Path, report: Report
) -> tuple[Path, ...]:
    """Compile in ``folder`` against an unpacked or installed torch package."""
    inputs = compile.Inputs(
        torch=torch,
        runtime=lay_out(plan.patches, plan.tag.variant, folder / "runtime"),
        cuda=tuple(found.path for found in plan.headers.values()),
    )
    log = cache / "logs" / f"compile-{plan.tag.name}.log"
    library = compile.build_library(
        plan.tag,
        plan.compiler,
        inputs,
        folder,
        policy=plan.policy,
        log=log,
        progress=lambda done, total: report("compile", done, total),
    )
    seam = compile.build_seam(plan.tag, plan.compiler, inputs, folder, policy=plan.policy, log=log)
    return (library, seam) if seam else (library,)


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
            zipcopy.extract(wheel, info, folder)
            done += info.file_size
            report("unpack", done, total)
    return folder / "torch"


def release_identity(tag: Tag, architecture: str, rows: Iterable[record.Row]) -> str:
    """What the official wheels of one release and architecture have in common.

    The library does not depend on the version of Python: the wheels' headers are the same, and the
    libraries that it links to have the same interface. ``rows`` are a wheel's RECORD.
    """
    headers = sorted(f"{row.path} {row.hash}" for row in rows if row.path.startswith(_HEADERS))
    facts = [tag.git_commit, tag.cuda, architecture, *headers]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def _kept(folder: Path) -> dict[str, bytes] | None:
    try:
        told = json.loads((folder / _NOTE).read_text(encoding="ascii"))
        libraries = {name: (folder / name).read_bytes() for name in told}
    except (OSError, ValueError, TypeError):
        return None
    return libraries if LIBRARY in libraries and _digests(libraries) == told else None


def _digests(libraries: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in libraries.items()}


def _key(plan: LibraryPlan, identity: str) -> str:
    shim = link_stubs.shim_dir()
    # The modules that decide how to build count as inputs too.
    modules = {
        Path(module.__file__ or "").name: Path(module.__file__ or "")
        for module in (compile, link_stubs, manylinux)
    }
    facts = {
        "base": identity,
        "flags": compile.flags(plan.tag),
        "policy": plan.policy and plan.policy.name,
        "compiler": [plan.compiler.command, plan.compiler.version, plan.compiler.machine],
        "headers": {name: found.sha256 for name, found in plan.headers.items()},
        "runtime": sha256_of_files(runtime_files(plan.patches, plan.tag.variant)),
        "shim": sha256_of_files(
            {str(path.relative_to(shim)): path for path in shim.rglob("*") if path.is_file()}
        ),
        "toolkit": sha256_of_files(modules),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
