"""Checks that no file of the runtime includes one of a layer above its own.

    python ci/layers.py

The layers are the folders of torch/csrc/cuda/lms, in the order of patches/layers.toml. Circles of
includes, includes of what is not there and folders without a place in the order are wrong too. Each
variant of the runtime is looked at as the tree that it makes.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from lmsbuild._compat import tomllib
from lmsbuild.patchset.runtime import runtime_files
from lmsbuild.registry import load_registry

PATCHES = Path(__file__).resolve().parent.parent / "patches"
SOURCES = "torch/csrc/cuda/lms/"
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:<([^>\n]+)>|"([^"\n]+)")', re.MULTILINE)


def order() -> list[str]:
    """The layers, from the bottom."""
    document = tomllib.loads((PATCHES / "layers.toml").read_text("utf-8"))
    return [layer["folder"] for layer in document["layer"]]


def trees() -> dict[str, dict[str, str]]:
    """The C++ of each variant of the runtime: texts by their paths below torch/csrc/cuda/lms."""
    variants = dict.fromkeys(["runtime", *(tag.variant or "runtime" for tag in load_registry())])
    return {
        variant: {
            name.removeprefix(SOURCES): path.read_text("utf-8")
            for name, path in runtime_files(
                PATCHES, None if variant == "runtime" else variant
            ).items()
            if name.startswith(SOURCES) and path.suffix in (".h", ".cpp")
        }
        for variant in variants
    }


def check(files: Mapping[str, str], layers: Sequence[str]) -> list[str]:
    """The mistakes, one line each, sorted.

    ``files`` has the texts by path, the layer's folder first; those in no folder are above all.
    """
    includes = {path: list(_included(path, text)) for path, text in sorted(files.items())}
    wrong = {
        f"folder {folder} is not in layers.toml"
        for folder in map(_layer, files)
        if folder and folder not in layers
    }
    for path, targets in includes.items():
        for target in targets:
            if target not in files:
                wrong.add(f"{path} includes {target}, which is not there")
            elif _height(target, layers) > _height(path, layers):
                wrong.add(f"{path} includes {target}")
    return sorted(wrong | {f"circle: {' '.join(circle)}" for circle in circles(includes)})


def check_all() -> set[str]:
    """The mistakes in the project's runtime. Those of one variant begin with its name."""
    found = {name: check(files, order()) for name, files in trees().items()}
    shared = set(found["runtime"])
    return shared | {
        f"{name}: {line}" for name, lines in found.items() for line in lines if line not in shared
    }


def _layer(path: str) -> str:
    """The first folder of a path, or "" if there is none."""
    return path.partition("/")[0] if "/" in path else ""


def _height(path: str, layers: Sequence[str]) -> int:
    layer = _layer(path)
    return layers.index(layer) if layer in layers else len(layers)


def _included(path: str, text: str) -> Iterator[str]:
    for found in _INCLUDE.finditer(text):
        if found[2]:
            yield posixpath.normpath(posixpath.join(posixpath.dirname(path), found[2]))
        elif found[1].startswith(SOURCES):
            yield found[1].removeprefix(SOURCES)


def circles(graph: Mapping[str, Collection[str]]) -> set[tuple[str, ...]]:
    """One circle for each group of files that include each other, from the group's first file."""
    found: set[tuple[str, ...]] = set()
    placed: set[str] = set()
    for start in sorted(graph):
        if start not in placed and (way := _way_back(start, graph)):
            found.add(way)
            placed.update(way)
    return found


def _way_back(start: str, graph: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """The shortest path from a file to itself. Empty if there is none."""
    ways, seen = [(start,)], {start}
    for way in ways:
        for target in sorted(graph.get(way[-1], ())):
            if target == start:
                return (*way, start)
            if target not in seen:
                seen.add(target)
                ways.append((*way, target))
    return ()


if __name__ == "__main__":
    lines = sorted(check_all())
    print("\n".join(lines))
    sys.exit(bool(lines))
