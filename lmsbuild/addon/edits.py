"""The changes that a hook makes to a Python file, as edits of the module when it is imported.

data/torch_lms/edits.py makes them, and says what an edit is. What cannot be made once a module has
been imported is an error here, when the wheel is built.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

from lmsbuild.errors import AddonHookError

Edit = dict[str, Any]
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def derive(path: str, old: bytes, new: bytes) -> list[Edit]:
    """The edits that make the module of ``old`` do what that of ``new`` does, in order.

    Raises AddonHookError, which names the ``path``, for a change that is no edit.
    """
    before, after = (content.decode("utf-8") for content in (old, new))
    derivation = _Derivation(path, before, after)
    return list(derivation.statements(ast.parse(before).body, ast.parse(after).body, ()))


class _Derivation:
    def __init__(self, path: str, old: str, new: str) -> None:
        self._path = path
        self._old_lines = old.split("\n")
        self._new_lines = new.split("\n")

    def statements(
        self, old: Sequence[ast.stmt], new: Sequence[ast.stmt], classes: tuple[str, ...]
    ) -> Iterator[Edit]:
        """The edits of a module's or class's statements."""
        matcher = SequenceMatcher(None, _keys(old), _keys(new), autojunk=False)
        for kind, i, j, k, m in matcher.get_opcodes():
            if kind == "equal":
                for one, other in zip(old[i:j], new[k:m], strict=True):
                    if ast.dump(one) != ast.dump(other):
                        yield from self._statement(one, other, classes)
            elif kind == "insert" and not classes:
                for statement in new[k:m]:
                    yield {"run": ast.unparse(statement)}
            else:
                raise self._error((new[k:m] or old[i:j])[0])

    def _statement(self, old: ast.stmt, new: ast.stmt, classes: tuple[str, ...]) -> Iterator[Edit]:
        if isinstance(old, ast.ClassDef) and isinstance(new, ast.ClassDef):
            if _without_body(old) != _without_body(new):
                raise self._error(new)
            yield from self.statements(old.body, new.body, (*classes, new.name))
        elif isinstance(old, _Function) and isinstance(new, _Function):
            yield from self._function(old, new, classes)
        else:
            raise self._error(new)

    def _function(
        self,
        old: ast.FunctionDef | ast.AsyncFunctionDef,
        new: ast.FunctionDef | ast.AsyncFunctionDef,
        classes: tuple[str, ...],
    ) -> Iterator[Edit]:
        name = ".".join((*classes, new.name))
        count = len(new.decorator_list) - len(old.decorator_list)
        added, kept = new.decorator_list[: max(count, 0)], new.decorator_list[max(count, 0) :]
        if _dumps(kept) != _dumps(old.decorator_list) or _head(old) != _head(new):
            raise self._error(new)
        if _dumps(old.body) != _dumps(new.body):
            if old.decorator_list or added:
                raise self._error(new)  # the function is not what its name stands for
            yield self._change(name, old, new)
        for decorator in reversed(added):
            yield {"decorate": name, "with": ast.unparse(decorator)}

    def _change(self, name: str, old: ast.stmt, new: ast.stmt) -> Edit:
        before = self._old_lines[old.lineno - 1 : old.end_lineno]
        after = self._new_lines[new.lineno - 1 : new.end_lineno]
        matcher = SequenceMatcher(None, before, after, autojunk=False)
        text = "".join(line + "\n" for line in before)
        return {
            "change": name,
            "count": len(before),
            "sha256": hashlib.sha256(text.encode("utf-8")).hexdigest(),
            "lines": [
                [i, j, after[k:m]] for kind, i, j, k, m in matcher.get_opcodes() if kind != "equal"
            ],
        }

    def _error(self, node: ast.stmt) -> AddonHookError:
        return AddonHookError(
            f"{self._path}: line {node.lineno} of the patched file is a change that an imported "
            "module cannot get; let the hook add statements, decorators, or lines of functions"
        )


def _keys(statements: Sequence[ast.stmt]) -> list[str]:
    """What makes a statement the same one before and after: a name, or all of it."""
    return [
        f"{type(node).__name__} {node.name}"
        if isinstance(node, (*_Function, ast.ClassDef))
        else ast.dump(node)
        for node in statements
    ]


def _dumps(nodes: Sequence[ast.AST]) -> list[str]:
    return [ast.dump(node) for node in nodes]


def _without_body(node: ast.ClassDef) -> str:
    return ast.dump(
        ast.ClassDef(
            name=node.name,
            bases=node.bases,
            keywords=node.keywords,
            body=[],
            decorator_list=node.decorator_list,
        )
    )


def _head(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[object]:
    returns = ast.dump(node.returns) if node.returns else ""
    return [type(node), node.name, ast.dump(node.args), returns]
