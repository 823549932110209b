"""LMS for a torch that is installed where nobody may write.

The overlay is a folder for PYTHONPATH. Its ``torch`` package consists of symbolic links into the
installation, except where LMS differs. A folder with such a difference is a real folder of
links, every other one is a single link.

The loader takes $ORIGIN from the path that it opens a library by, which is the link's: so
libtorch_lms.so finds its neighbours in the overlay's torch/lib. What upstream's libraries look
for outside the torch package ($ORIGIN/../../nvidia) is linked beside it. A library that is
reached by both paths is one file to the loader, and loaded once.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from email.parser import HeaderParser
from pathlib import Path

from packaging.version import InvalidVersion, Version

import lmsbuild
from lmsbuild.errors import OverlayError, TargetExistsError
from lmsbuild.native import compile
from lmsbuild.native.toolchain import find_compiler
from lmsbuild.registry import Registry, Tag
from lmsbuild.tools import elf
from lmsbuild.tools.atomic import folder_beside
from lmsbuild.tools.download import Target
from lmsbuild.wheel import provenance, runtime_library
from lmsbuild.wheel.base import LIBRARY_FOLDER, CpuOnlyWheelError
from lmsbuild.wheel.graft import Report, fetch_headers
from lmsbuild.wheel.patch_python import PythonPatch, lms_version, patch_python
from lmsbuild.wheel.provenance import Provenance

# Of the installation's dist-info: who installed it and where its files lie is not true here.
_NOT_COPIED = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Installation:
    """An installed torch: its package folder, and what torch/version.py says."""

    torch: Path
    version: Version
    cuda: str


def find_installation(path: Path) -> Installation:
    """The torch at ``path``, which is its package folder or the folder that it lies in.

    Raises OverlayError, CpuOnlyWheelError.
    """
    torch = next((p for p in (path, path / "torch") if (p / "version.py").is_file()), None)
    if torch is None:
        raise OverlayError(
            f"{path} is no installed torch; give its package folder, …/site-packages/torch"
        )
    if (torch / "lib" / compile.LIBRARY).exists():
        raise OverlayError(f"{torch} has LMS already; no overlay is needed")
    if not (torch / "lib" / "libtorch_cuda.so").exists():
        raise CpuOnlyWheelError(
            f"{torch} is a CPU-only torch (no libtorch_cuda.so); LMS needs one with CUDA"
        )
    text = (torch / "version.py").read_text(encoding="utf-8")
    values = dict(re.findall(r"^(\w+)\s*(?::[^=]+)?=\s*['\"]([^'\"]*)['\"]", text, re.MULTILINE))
    try:
        version = Version(values.get("__version__", ""))
    except InvalidVersion as error:
        raise OverlayError(f"{torch}/version.py names no version; reinstall torch") from error
    return Installation(torch=torch.absolute(), version=version, cuda=values.get("cuda", ""))


def tag_for(installation: Installation, registry: Registry) -> Tag:
    """The tag of an installed torch, with the C++ ABI that this build has.

    Raises UnknownTagError, OverlayError.
    """
    tag = registry.get(installation.version.public)
    if "graft" not in tag.strategies:
        raise OverlayError(
            f"{tag.name} can only get LMS where it is built from source;"
            f" run `lmsbuild wheel {tag.name}` to be told how"
        )
    if installation.cuda.split(".")[0] != tag.cuda.split(".")[0]:
        raise OverlayError(
            f"{installation.torch} is built for CUDA {installation.cuda or 'none'},"
            f" {tag.name} is supported with CUDA {tag.cuda}"
        )
    abi = compile.cxx11_abi(installation.torch)
    if abi == tag.cxx11_abi:
        return tag
    # Not the official build. The quirk of name mangling belongs to the official one's compiler.
    return dataclasses.replace(tag, cxx11_abi=abi, abi_version=None)


def build_overlay(
    installation: Installation,
    tag: Tag,
    folder: Path,
    *,
    patches: Path,
    cache: Path,
    report: Report,
) -> Path:
    """Make the overlay folder; on failure nothing is left there.

    Raises:
        TargetExistsError: ``folder`` exists and is not empty.
        HookError, CompileError, MissingCompilerError and others, as for a wheel.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TargetExistsError(f"{folder} exists already; remove it or name another folder")
    root = installation.torch.parent
    machine = elf.read(installation.torch / "lib" / "libc10.so").machine
    compiler = find_compiler(machine)

    def read(path: str) -> bytes | None:
        file = root / path
        return file.read_bytes() if file.is_file() else None

    patched = patch_python(tag, patches, read)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    headers = fetch_headers(tag, Target(python=python, architecture=machine), cache, report)
    recipe = runtime_library.Recipe(
        tag=tag, compiler=compiler, headers=headers, patches=patches, policy=None
    )
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder_beside(folder) as work:
        built = runtime_library.build(recipe, installation.torch, work / "objects", cache, report)
        overlay = work / "overlay"
        libraries = {LIBRARY_FOLDER + path.name: path.read_bytes() for path in built}
        files = {**patched.files, **libraries}
        _link_tree(root, overlay, files)
        for path in libraries:
            (overlay / path).chmod(0o755)
        _link_neighbours(installation, overlay)
        _write_dist_info(installation, tag, patched, recipe, overlay)
        if folder.exists():
            folder.rmdir()
        overlay.rename(folder)
    return folder


def _link_tree(root: Path, overlay: Path, files: dict[str, bytes | None]) -> None:
    """Fill ``overlay`` with ``files`` and links to everything beside them in ``root``."""
    real_folders = {parent for name in files for parent in Path(name).parents} - {Path()}
    for folder in sorted(real_folders):
        (overlay / folder).mkdir(parents=True, exist_ok=True)
        if not (root / folder).is_dir():
            continue
        for entry in sorted((root / folder).iterdir()):
            path = folder / entry.name
            if path in real_folders or path.as_posix() in files or entry.name == "__pycache__":
                continue
            (overlay / path).symlink_to(entry)
    for name, content in files.items():
        if content is not None:
            (overlay / name).write_bytes(content)


def _link_neighbours(installation: Installation, overlay: Path) -> None:
    """Link the packages beside torch that its libraries name relative to themselves."""
    lib = installation.torch / "lib"
    paths = elf.read(lib / "libc10_cuda.so").rpath.split(":")
    names = {path.split("/")[3] for path in paths if path.startswith("$ORIGIN/../../")}
    for name in sorted(names - {"", "..", "torch"}):
        if (installation.torch.parent / name).exists():
            (overlay / name).symlink_to(installation.torch.parent / name)


def _write_dist_info(
    installation: Installation,
    tag: Tag,
    patched: PythonPatch,
    recipe: runtime_library.Recipe,
    overlay: Path,
) -> None:
    """So that importlib.metadata and pip see the version with LMS's mark."""
    old = _dist_info(installation)
    metadata = (
        (old / "METADATA").read_text(encoding="utf-8")
        if old
        else f"Metadata-Version: 2.1\nName: torch\nVersion: {installation.version}\n"
    )
    version = Version(HeaderParser().parsestr(metadata)["Version"])
    new = overlay / f"torch-{lms_version(version)}.dist-info"
    new.mkdir()
    if old:
        for entry in sorted(old.iterdir()):
            if entry.is_file() and entry.name not in _NOT_COPIED:
                (new / entry.name).write_bytes(entry.read_bytes())
    header, separator, rest = metadata.partition("\n\n")
    header = re.sub(r"^Version:.*$", f"Version: {lms_version(version)}", header, flags=re.MULTILINE)
    (new / "METADATA").write_text(header + separator + rest, encoding="utf-8")
    (new / "INSTALLER").write_text("lmsbuild\n", encoding="utf-8")
    origin = Provenance(
        tag=tag.name,
        base=str(installation.torch),
        base_sha256="",
        base_index_sha256=None,
        base_binaries={},
        runtime_sha256=patched.runtime_sha256,
        hooks_sha256=patched.hooks_sha256,
        hooks=patched.hooks,
        skipped=patched.skipped,
        compiler=recipe.compiler.version,
        flags=tuple(compile.flags(tag)),
        header_packages={name: found.sha256 for name, found in recipe.headers.items()},
        manylinux="",
        pythons=(),
        lmsbuild=lmsbuild.__version__,
        commit=provenance.toolkit_commit(),
    )
    (new / provenance.FILE_NAME).write_bytes(provenance.dump(origin))


def _dist_info(installation: Installation) -> Path | None:
    found = sorted(
        path
        for path in installation.torch.parent.glob("torch-*.dist-info")
        if (path / "METADATA").is_file()
    )
    return found[0] if found else None
