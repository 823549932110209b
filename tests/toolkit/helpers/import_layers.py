"""What modules of a package import, and whether all of it is from below."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from lmsbuild._compat import tomllib
from toolkit.helpers.ci_script import load

DATA = Path(__file__).parents[1] / "import_layers.toml"

circles = load("layers").circles

Imports = Mapping[str, frozenset[str]]


def layers() -> dict[str, str]:
    """What each package is for, by its name, from the bottom."""
    return dict(tomllib.loads(DATA.read_text("utf-8")))


def imports_of(root: Path) -> Imports:
    """The modules of the package in ``root``, each with those of the package that it imports.

    Imports within functions count. What is imported by a name that is put together does not.
    """
    paths = {_name(path, root): path for path in sorted(root.rglob("*.py"))}
    # Programs that run in other interpreters: they import nothing from here.
    data = f"{root.name}.data."
    return {
        name: frozenset(_imported(name, path, paths.keys()))
        for name, path in paths.items()
        if not name.startswith(data)
    }


def wrong(imports: Imports, order: Sequence[str]) -> list[str]:
    """One line for each import from above, each circle and each package without a place.

    ``order`` has the packages from the bottom; the first is the root, for the modules in no
    package. The module __main__ is above all.
    """
    found = {
        f"{package} has no place in the order"
        for package in map(_package, imports)
        if package not in order and package != "__main__"
    }
    found |= {
        f"{name} imports {target} from above"
        for name, targets in imports.items()
        for target in targets
        if _height(target, order) > _height(name, order)
    }
    modules = {" ".join(way) for way in circles(imports)}
    packages: dict[str, set[str]] = {}
    for name, targets in imports.items():
        own = _package(name)
        packages.setdefault(own, set()).update({_package(target) for target in targets} - {own})
    between = {" ".join(way) for way in circles(packages)}
    return sorted(found | {f"circle: {way}" for way in modules | between})


def _name(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root.parent).with_suffix("").parts)


def _package(module: str) -> str:
    root, *parts = module.split(".")
    return "__main__" if parts == ["__main__"] else parts[0] if len(parts) > 1 else root


def _height(module: str, order: Sequence[str]) -> int:
    package = _package(module)
    return order.index(package) if package in order else len(order)


def _imported(name: str, path: Path, known: Collection[str]) -> Iterator[str]:
    """Modules that a module imports; "lmsbuild.tools.__init__" when it is the package itself."""

    def module(target: str) -> str | None:
        return next((found for found in (target, f"{target}.__init__") if found in known), None)

    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            targets = [module(alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = name.split(".")[: -node.level] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            targets = [module(f"{source}.{alias.name}") or module(source) for alias in node.names]
        else:
            continue
        yield from (target for target in targets if target)
