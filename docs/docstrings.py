"""The directive `functions`: the functions of torch.cuda.lms, by their docstrings.

The file is parsed, and not imported, because that needs PyTorch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.ext.napoleon import GoogleDocstring
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

SOURCE = Path(__file__).resolve().parent.parent / "patches/runtime/torch/cuda/lms/__init__.py"
# What PyTorch's own files call says so.
INTERNAL = "For PyTorch's own files."


def parse() -> tuple[dict[str, ast.FunctionDef], list[str]]:
    """The public functions by name, and the names of those that torch.cuda has, too."""
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    exported: list[str] = []
    functions = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            exported = ast.literal_eval(node.value)
        elif isinstance(node, ast.FunctionDef) and is_public(node):
            functions[node.name] = node
    return functions, exported


def is_public(function: ast.FunctionDef) -> bool:
    docstring = " ".join((ast.get_docstring(function) or "").split())
    return not function.name.startswith("_") and INTERNAL not in docstring


class Functions(SphinxDirective):
    """`.. functions:: torch.cuda` has those of `__all__`, and `torch.cuda.lms` the others."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module = self.arguments[0]
        functions, exported = parse()
        self.env.note_dependency(str(SOURCE))
        lines = StringList()
        for name, function in functions.items():
            if (name in exported) == (module == "torch.cuda"):
                for line in self._describe(module, function):
                    lines.append(line, str(SOURCE), function.lineno)
        parent = nodes.container()
        self.state.nested_parse(lines, 0, parent)
        return parent.children

    def _describe(self, module: str, function: ast.FunctionDef) -> Iterator[str]:
        docstring = ast.get_docstring(function)
        if docstring is None:
            raise ExtensionError(f"{SOURCE}: {function.name}() has no docstring")
        yield f".. py:function:: {function.name}({ast.unparse(function.args)})"
        yield f"   :module: {module}"
        yield ""
        for line in GoogleDocstring(docstring, self.config).lines():
            yield f"   {line}"
        yield ""


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_directive("functions", Functions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
