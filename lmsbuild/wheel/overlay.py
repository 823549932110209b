"""LMS for an installed torch, without changing the installation.

The overlay is a folder for PYTHONPATH. Its ``torch`` package consists of symbolic links into the
installation, except where LMS differs. A folder with such a difference is a real folder of
links, every other one is a single link.

The loader takes $ORIGIN from the path by which it opens a library, which is the path of the link.
So libtorch_lms.so finds the other libraries in the overlay's torch/lib. Upstream's libraries look
for some libraries outside the torch package ($ORIGIN/../../nvidia). These are linked next to it. If
a library is found by both paths, it is the same file for the loader, which loads it once.
"""

from __future__ import annotations

import dataclasses
import sys
from email.parser import HeaderParser
from pathlib import Path

from packaging.version import InvalidVersion, Version

from lmsbuild.errors import OverlayError, TargetExistsError
from lmsbuild.native import compile
from lmsbuild.native.toolchain import find_compiler
from lmsbuild.registry import Registry, Tag
from lmsbuild.tools import elf
from lmsbuild.tools.atomic import folder_beside
from lmsbuild.tools.download import Target
from lmsbuild.tools.report import Report
from lmsbuild.wheel import provenance, runtime_library
from lmsbuild.wheel.base import LIBRARY_FOLDER, CpuOnlyWheelError
from lmsbuild.wheel.builder import Origin, build
from lmsbuild.wheel.plan import LibraryPlan
from lmsbuild.wheel.provenance import Provenance
from lmsbuild.wheel.version import assigned, mark_metadata

# Files of the installation's dist-info that would be wrong here: installer, location of the files.
_NOT_COPIED = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Installation:
    """An installed torch: its package folder, and what torch/version.py says."""

    torch: Path
    version: Version
    cuda: str


def find_installation(path: Path) -> Installation:
    """The torch at ``path``, which is its package folder or the folder that contains it.

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
    try:
        version = Version(assigned(text, "__version__") or "")
    except InvalidVersion as error:
        raise OverlayError(f"{torch}/version.py names no version; reinstall torch") from error
    return Installation(torch=torch.absolute(), version=version, cuda=assigned(text, "cuda") or "")


def tag_for(installation: Installation, registry: Registry) -> Tag:
    """The tag of an installed torch, with the C++ ABI that this build has.

    Raises UnknownTagError, OverlayError.
    """
    tag = registry.get(installation.version.public)
    if "graft" not in tag.strategies:
        raise OverlayError(
            f"{tag.name} has to be built from source to get LMS;"
            f" `lmsbuild wheel {tag.name} --strategy source --dry-run` shows how"
        )
    if installation.cuda.split(".")[0] != tag.cuda.split(".")[0]:
        raise OverlayError(
            f"{installation.torch} is built for CUDA {installation.cuda or 'none'},"
            f" {tag.name} is supported with CUDA {tag.cuda};"
            f" install a build for CUDA {tag.cuda.split('.')[0]}"
        )
    abi = compile.cxx11_abi(installation.torch)
    if abi == tag.cxx11_abi:
        return tag
    # Not the official build. Only the official build's compiler mangles names differently.
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
    """Make the overlay folder. If this fails, no file is left there.

    Raises:
        TargetExistsError: ``folder`` exists and is not empty.
        HookError, CompileError, MissingCompilerError and others, as for a wheel.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TargetExistsError(f"{folder} exists already; remove it or name another folder")
    root = installation.torch.parent
    machine = elf.read(installation.torch / "lib" / "libc10.so").machine
    compiler = find_compiler(machine)

    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder_beside(folder) as work:
        base = _InstalledBase(
            installation=installation, machine=machine, folder=work / "objects", cache=cache
        )
        parts = build(base, tag, compiler, patches=patches, cache=cache, report=report)
        overlay = work / "overlay"
        libraries = {LIBRARY_FOLDER + name: data for name, data in parts.libraries.items()}
        files = {**parts.files, **libraries}
        _link_tree(root, overlay, files)
        for path in libraries:
            (overlay / path).chmod(0o755)
        _link_neighbours(installation, overlay)
        _write_dist_info(installation, parts.provenance, overlay)
        if folder.exists():
            folder.rmdir()
        overlay.rename(folder)
    return folder


@dataclasses.dataclass(frozen=True, kw_only=True)
class _InstalledBase:
    """An installed torch as a base; see builder.Base."""

    installation: Installation
    machine: str
    folder: Path  # to compile in
    cache: Path

    portable = False

    @property
    def target(self) -> Target:
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        return Target(python=python, architecture=self.machine)

    @property
    def origin(self) -> Origin:
        return Origin(base=str(self.installation.torch))

    def read(self, path: str) -> bytes | None:
        file = self.installation.torch.parent / path
        return file.read_bytes() if file.is_file() else None

    def adapt(self, tag: Tag) -> Tag:
        return tag

    def libraries(self, plan: LibraryPlan, report: Report) -> dict[str, bytes]:
        built = runtime_library.build(
            plan, self.installation.torch, self.folder, self.cache, report
        )
        return {path.name: path.read_bytes() for path in built}


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
    """Link the packages next to torch that its libraries refer to by relative paths."""
    lib = installation.torch / "lib"
    paths = elf.read(lib / "libc10_cuda.so").rpath.split(":")
    names = {path.split("/")[3] for path in paths if path.startswith("$ORIGIN/../../")}
    for name in sorted(names - {"", "..", "torch"}):
        if (installation.torch.parent / name).exists():
            (overlay / name).symlink_to(installation.torch.parent / name)


def _write_dist_info(installation: Installation, made: Provenance, overlay: Path) -> None:
    """Write dist-info, so that importlib.metadata and pip see the version with LMS's mark."""
    old = _dist_info(installation)
    metadata = (
        (old / "METADATA").read_bytes()
        if old
        else f"Metadata-Version: 2.1\nName: torch\nVersion: {installation.version}\n".encode()
    )
    marked = mark_metadata(metadata, str(installation.torch))
    version = HeaderParser().parsestr(marked.decode("utf-8"))["Version"]
    new = overlay / f"torch-{version}.dist-info"
    new.mkdir()
    if old:
        for entry in sorted(old.iterdir()):
            if entry.is_file() and entry.name not in _NOT_COPIED:
                (new / entry.name).write_bytes(entry.read_bytes())
    (new / "METADATA").write_bytes(marked)
    (new / "INSTALLER").write_text("lmsbuild\n", encoding="utf-8")
    (new / provenance.FILE_NAME).write_bytes(provenance.dump(made))


def _dist_info(installation: Installation) -> Path | None:
    found = sorted(
        path
        for path in installation.torch.parent.glob("torch-*.dist-info")
        if (path / "METADATA").is_file()
    )
    return found[0] if found else None
