"""Compares the functions of imported modules with those of other files.

python ci/same_code.py FOLDER

Each file in FOLDER, such as torch/cuda/memory.py, is compiled. Its functions and methods have to
have the same code in the module of that name, and a wrapper if their decorator is LMS's. The exit
code is 1 if one differs. It runs on a simulated GPU.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "simcuda"))

import simcuda


def main(folder: Path) -> int:
    simcuda.start(devices=1, mib=64)
    compared = wrapped = 0
    different = []
    for path in sorted(folder.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        module = importlib.import_module(name)
        alone = dict(
            functions(compile(alone_in(ast.parse(source)), str(path), "exec", dont_inherit=True))
        )
        for place, code in functions(compile(source, str(path), "exec", dont_inherit=True)):
            found = at(module, place)
            if found is not None:
                compared += 1
                # The compiler calls methods of names that the same file imports in another way.
                if content(found.__code__) not in (content(code), content(alone[place])):
                    different.append(f"{name}: {'.'.join(place)}")
        for place in decorated(ast.parse(source)):
            wrapped += 1
            if not hasattr(inspect.getattr_static(owner(module, place), place[-1]), "__wrapped__"):
                different.append(f"{name}: {'.'.join(place)} has no wrapper")
    for line in different:
        print(f"not what the hooks make of it: {line}")
    print(f"{compared} functions and {wrapped} wrappers compared, {len(different)} differ")
    return bool(different or not compared or not wrapped)


def functions(
    code: CodeType, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], CodeType]]:
    """The functions of a module and the methods of its classes, by path."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = (*path, constant.co_name)
            if constant.co_flags & inspect.CO_OPTIMIZED:
                yield inner, constant
            else:
                yield from functions(constant, inner)


def alone_in(tree: ast.Module) -> ast.Module:
    """The tree without the imports of the module."""
    imports = (ast.Import, ast.ImportFrom)
    future = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    return ast.Module(
        body=[*future, *(node for node in tree.body if not isinstance(node, imports))],
        type_ignores=[],
    )


def decorated(
    tree: ast.Module | ast.ClassDef, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """The functions and methods with a decorator of LMS's, by path."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from decorated(node, (*path, node.name))
        elif isinstance(node, ast.FunctionDef) and any(
            "lms" in ast.unparse(decorator) for decorator in node.decorator_list
        ):
            yield (*path, node.name)


def owner(module: object, path: tuple[str, ...]) -> object:
    for name in path[:-1]:
        module = getattr(module, name, None)
    return module


def at(module: object, path: tuple[str, ...]) -> object:
    """The function at a path, without its wrappers; None if there is no plain one."""
    place = owner(module, path)
    found = inspect.getattr_static(place, path[-1], None) if place is not None else None
    found = inspect.unwrap(getattr(found, "__func__", found)) if found is not None else None
    if inspect.isfunction(found) and found.__code__.co_name == path[-1]:
        return found
    return None


def content(code: CodeType) -> tuple[object, ...]:
    """What code does, without where it is."""
    constants = tuple(
        content(c) if isinstance(c, CodeType) else c if isinstance(c, frozenset) else repr(c)
        for c in code.co_consts
    )
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
