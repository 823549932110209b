"""The docstrings that the Python API is made of: arguments, results and errors."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))

from docstrings import parse

FUNCTIONS, EXPORTED = parse()


def section(function: ast.FunctionDef, name: str) -> str:
    """A part of the docstring, such as what is below "Args:"; empty if there is none."""
    text = ast.get_docstring(function) or ""
    found = re.search(rf"^{name}:\n((?:(?: .*)?\n)+)", text + "\n", re.MULTILINE)
    return found[1] if found else ""


def wrong(function: ast.FunctionDef) -> Iterator[str]:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for argument in [*named, *filter(None, (arguments.vararg, arguments.kwarg))]:
        if not re.search(rf"^    {argument.arg} \(", section(function, "Args"), re.MULTILINE):
            yield f"{function.name}: Args lacks {argument.arg} and its type"
    statements = list(ast.walk(function))
    for statement in statements:
        if isinstance(statement, ast.Raise) and isinstance(statement.exc, ast.Call):
            error = ast.unparse(statement.exc.func)
            if error not in section(function, "Raises"):
                yield f"{function.name}: Raises lacks {error}"
    returns = any(isinstance(found, ast.Return) and found.value for found in statements)
    if returns and not section(function, "Returns"):
        yield f"{function.name}: there is no Returns"


def test_all_are_found() -> None:
    assert len(EXPORTED) == 9
    assert set(EXPORTED) < set(FUNCTIONS)
    assert {"record", "stats", "wrap"} < set(FUNCTIONS)
    assert not {"add_stats", "region", "takes_address", "_load"} & set(FUNCTIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_results_and_errors_are_described(name: str) -> None:
    assert list(wrong(FUNCTIONS[name])) == []


@pytest.mark.parametrize(
    ("docstring", "found"),
    [
        ("It.\n\nArgs:\n    size (int): bytes.\n\nReturns:\n    int: bytes.\n\nRaises:\n"
         "    ValueError: if it is odd.", []),
        ("It.\n\nReturns:\n    int: bytes.\n\nRaises:\n    ValueError: if it is odd.",
         ["Args lacks size and its type"]),
        ("It.\n\nArgs:\n    size: bytes.\n\nRaises:\n    TypeError: if it is odd.",
         ["Args lacks size and its type", "Raises lacks ValueError", "there is no Returns"]),
    ],
)  # fmt: skip
def test_what_is_missing_is_found(docstring: str, found: list[str]) -> None:
    body = "    if size % 2:\n        raise ValueError(size)\n    return size"
    source = f"def f(size):\n    {docstring!r}\n{body}"
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    assert list(wrong(function)) == [f"f: {text}" for text in found]
