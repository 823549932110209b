"""Compiles the runtime of releases that are only built from source, without their source.

    python ci/headers.py [TAG ...]

Each C++ file of the runtime is read by `g++ -fsyntax-only`, with the options that its CMake file
has, against the headers of the official wheel, which get the hooks. `syntax.py` also compiles
upstream's own files, for which it needs the whole tree. The exit code is 1 if a file does not
compile.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from lmsbuild.errors import LmsbuildError
from lmsbuild.native.compile import RUNTIME_SOURCES
from lmsbuild.native.toolchain import find_compiler
from lmsbuild.patchset.runtime import lay_out
from lmsbuild.patchset.series import load_hooks
from lmsbuild.registry import Tag, load_registry
from lmsbuild.resources import patches_dir
from lmsbuild.wheel.patch_python import apply_hook

sys.path.insert(0, str(Path(__file__).parent))

import syntax


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tags", nargs="*", metavar="TAG")
    names = parser.parse_args(arguments).tags
    registry = load_registry()
    tags = [registry.get(name) for name in names] or [
        tag for tag in registry if "graft" not in tag.strategies
    ]
    failed = False
    for tag in tags:
        try:
            with syntax.official(tag, None) as against:
                failed = not report(tag, errors(tag, against, patches_dir())) or failed
        except LmsbuildError as error:
            print(f"{tag.name}: {error}", file=sys.stderr)
            failed = True
    return int(failed)


def errors(tag: Tag, against: syntax.Against, patches: Path) -> dict[str, tuple[str, ...]]:
    """The compiler's first errors for each C++ file of the runtime, by its path in the tree.

    Changes the headers of ``against``. Raises HookError for other headers, and SeriesError.
    """
    assert against.include is not None
    hook(tag, against.include, patches)
    with TemporaryDirectory() as folder:
        root = lay_out(patches, tag.variant, Path(folder))
        tree = syntax.Tree(root, tag, find_compiler(tag.architectures[0]), against)
        files = sorted((root / RUNTIME_SOURCES).rglob("*.cpp"))
        paths = [str(file.relative_to(root)) for file in files]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            found = pool.map(tree.compile_added, paths)
            return {path: one.errors for path, one in zip(paths, found, strict=True)}


def hook(tag: Tag, include: Path, patches: Path) -> None:
    """Apply the hooks to those headers that the wheel has."""
    for mail in load_hooks(tag, patches):
        for patch in mail.files:
            header = include / patch.path
            if header.is_file():
                header.write_bytes(apply_hook(tag, mail, patch, header.read_bytes()) or b"")


def report(tag: Tag, found: dict[str, tuple[str, ...]]) -> bool:
    """Prints what does not compile; returns whether all does."""
    broken = {path: text for path, text in found.items() if text}
    print(f"{tag.name}: {len(found) - len(broken)} of {len(found)} files compile", flush=True)
    for path, text in broken.items():
        print(f"{path}: {text[0]}", file=sys.stderr)
    return not broken


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
