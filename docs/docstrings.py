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

LMS = Path(__file__).resolve().parent.parent / "patches/runtime/torch/cuda/lms"
SOURCE = LMS / "__init__.py"
# What PyTorch's own files call says so.
INTERNAL = "For PyTorch's own files."
Member = ast.FunctionDef | ast.ClassDef


def parse() -> tuple[dict[str, Member], list[str]]:
    """The public functions by name, and the names of those that torch.cuda has, too."""
    body = statements(SOURCE)
    exported: list[str] = []
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            exported = ast.literal_eval(node.value)
    return members(body), exported


def statements(source: Path) -> list[ast.stmt]:
    return ast.parse(source.read_text(encoding="utf-8")).body


def members(body: list[ast.stmt]) -> dict[str, Member]:
    """The public functions and classes of a file by name."""
    return {node.name: node for node in body if isinstance(node, Member) and is_public(node)}


def is_public(member: Member) -> bool:
    docstring = " ".join((ast.get_docstring(member) or "").split())
    return not member.name.startswith("_") and INTERNAL not in docstring


def signature(member: Member) -> str:
    """The arguments; of a class, those of its constructor."""
    if isinstance(member, ast.FunctionDef):
        return ast.unparse(member.args)
    for node in member.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            return ast.unparse(node.args).removeprefix("self").removeprefix(", ")
    return ""


def source_of(module: str) -> Path:
    """The file of a module below torch.cuda.lms."""
    path = LMS.joinpath(*module.split(".")[3:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


class Functions(SphinxDirective):
    """`.. functions:: torch.cuda` has those of `__all__`, and `torch.cuda.lms` the others.

    A module below torch.cuda.lms has those of its file.
    """

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module = self.arguments[0]
        source = source_of(module)
        if source == SOURCE:
            found, exported = parse()
            here = [
                m for name, m in found.items() if (name in exported) == (module == "torch.cuda")
            ]
        else:
            here = list(members(statements(source)).values())
        self.env.note_dependency(str(source))
        lines = StringList()
        for member in here:
            for line in self._describe(module, member, source):
                lines.append(line, str(source), member.lineno)
        parent = nodes.container()
        self.state.nested_parse(lines, 0, parent)
        return parent.children

    def _describe(self, module: str, member: Member, source: Path) -> Iterator[str]:
        docstring = ast.get_docstring(member)
        if docstring is None:
            raise ExtensionError(f"{source}: {member.name}() has no docstring")
        kind = "function" if isinstance(member, ast.FunctionDef) else "class"
        yield f".. py:{kind}:: {member.name}({signature(member)})"
        yield f"   :module: {module}"
        yield ""
        for line in GoogleDocstring(docstring, self.config).lines():
            yield f"   {line}"
        yield ""


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_directive("functions", Functions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
