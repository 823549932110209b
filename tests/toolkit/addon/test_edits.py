"""A module that gets the edits of a hook does what the patched file does."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lmsbuild.addon.edits import derive
from lmsbuild.errors import AddonHookError
from lmsbuild.resources import data_folder

OLD = """\
from __future__ import annotations

import math

__all__ = ["area"]


def area(radius: Unknown = 1.0):
    square = radius * radius

    return math.pi * square


class Shape:
    def __init__(self, scale):
        self.__scale = scale

    def size(self, value):
        return (
            self.__scale
            * value
        )

    def fail(self):
        text = "first"
        raise ValueError(text)


def helper():
    return "old"
"""


def load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


edits = load(data_folder("torch_lms") / "edits.py", "addon_edits")


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    (tmp_path / "shapes.py").write_text(OLD)
    yield load(tmp_path / "shapes.py", "addon_shapes")
    sys.modules.pop("addon_shapes")


def edit(module: ModuleType, new: str) -> list[dict[str, Any]]:
    """Make the module what its file would be if it had the text ``new``."""
    derived = derive("shapes.py", OLD.encode(), new.encode())
    for make in edits.prepare(module, derived):
        make()
    return derived


def test_a_function_is_changed_in_place(module: ModuleType) -> None:
    area = module.area
    edit(module, OLD.replace("    square = radius * radius\n", "    square = radius ** 2 + 3\n"))
    assert module.area is area
    assert area(0) == pytest.approx(3 * 3.14159265)
    assert area.__annotations__ == {"radius": "Unknown"}


def test_a_method_keeps_the_names_of_its_class(module: ModuleType) -> None:
    shape = module.Shape(3)
    edit(module, OLD.replace("            * value\n", "            * value\n            + 1\n"))
    assert shape.size(5) == 16
    assert module.Shape.size.__qualname__ == "Shape.size"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('        text = "first"\n', '        text = "first"\n        text += "."\n'),
        (
            '        text = "first"\n',
            '        text = "more"\n        text += "."\n        text *= 2\n',
        ),
        ("    def fail(self):\n", "    def fail(self):\n        self.size(1)\n"),
    ],
)
def test_tracebacks_show_the_lines_of_the_file(module: ModuleType, old: str, new: str) -> None:
    edit(module, OLD.replace(old, new))
    with pytest.raises(ValueError, match=r"first|more") as raised:
        module.Shape(1).fail()
    last = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert (last.name, last.line) == ("fail", "raise ValueError(text)")


def test_an_added_line_stands_for_the_one_before_it(module: ModuleType) -> None:
    edit(module, OLD.replace('"first"\n', '"first"\n        text.missing()\n'))
    with pytest.raises(AttributeError) as raised:
        module.Shape(1).fail()
    assert traceback.extract_tb(raised.value.__traceback__)[-1].line == 'text = "first"'


def test_a_decorator_is_added(module: ModuleType) -> None:
    twice = (
        "\n\ndef twice(function):\n    return lambda *values: 2 * function(*values)\n\n\n"
        "class Shape:\n"
    )
    derived = edit(
        module,
        OLD.replace("\n\nclass Shape:\n", twice).replace(
            "    def size(", "    @twice\n    def size("
        ),
    )
    assert [next(iter(one)) for one in derived] == ["run", "decorate"]
    assert module.Shape(3).size(5) == 30


def test_the_outermost_decorator_comes_last(module: ModuleType) -> None:
    module.log = []  # type: ignore[attr-defined]
    module.a = lambda function: module.log.append("a") or function  # type: ignore[attr-defined]
    module.b = lambda function: module.log.append("b") or function  # type: ignore[attr-defined]
    edit(module, OLD.replace("def helper", "@a\n@b\ndef helper"))
    assert module.log == ["b", "a"]


def test_statements_are_run_at_the_end(module: ModuleType) -> None:
    derived = edit(
        module,
        OLD.replace("import math\n", "import math\nfrom math import tau\n")
        + "__all__ += ['tau']\n",
    )
    assert derived == [{"run": "from math import tau"}, {"run": "__all__ += ['tau']"}]
    assert (module.tau, module.__all__) == (2 * module.math.pi, ["area", "tau"])


def test_who_has_imported_a_name_gets_what_it_stands_for_now(module: ModuleType) -> None:
    user = ModuleType("addon_user")
    user.helper = module.helper  # type: ignore[attr-defined]
    user.other = module.helper  # type: ignore[attr-defined]
    sys.modules["addon_user"] = user
    try:
        edit(module, OLD + "helper = staticmethod(helper)\n")
    finally:
        sys.modules.pop("addon_user")
    assert user.helper is module.helper
    assert isinstance(user.helper, staticmethod)
    # Under another name it is another thing: torch._C._to_dlpack stays what it was.
    assert user.other is not user.helper


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("import math\n", ""),  # removed
        ('["area"]', '["area", "more"]'),  # a statement that has run
        ("radius: Unknown = 1.0", "radius: Unknown = 2.0"),
        ("class Shape:\n", "class Shape(dict):\n"),
        ("class Shape:\n", "class Shape:\n    count = 0\n\n"),  # instances may exist
        ("    def fail(self):\n", "    @property\n    def fail(self):\n        self.size(1)\n"),
    ],
)
def test_what_an_imported_module_cannot_get_is_an_error(old: str, new: str) -> None:
    with pytest.raises(AddonHookError, match=r"shapes\.py: line \d+ of the patched file"):
        derive("shapes.py", OLD.encode(), OLD.replace(old, new).encode())


def test_another_function_is_not_changed(module: ModuleType, tmp_path: Path) -> None:
    derived = derive("shapes.py", OLD.encode(), OLD.replace("square =", "square = 1 +").encode())
    (tmp_path / "other.py").write_text(OLD.replace("radius * radius", "radius + radius"))
    other = load(tmp_path / "other.py", "addon_other")
    with pytest.raises(edits.EditError, match="area of addon_other is not PyTorch's own"):
        edits.prepare(other, derived)


def test_lines_elsewhere_in_the_file_do_not_matter(tmp_path: Path) -> None:
    derived = derive("shapes.py", OLD.encode(), OLD.replace("* radius\n", "* 2\n").encode())
    (tmp_path / "other.py").write_text("# One line more.\n" + OLD)
    # It is a comment, so __future__ may follow.
    other = load(tmp_path / "other.py", "addon_other")
    for make in edits.prepare(other, derived):
        make()
    assert other.area(3) == pytest.approx(6 * 3.14159265)


def test_a_module_without_source_is_refused(module: ModuleType) -> None:
    derived = derive("shapes.py", OLD.encode(), OLD.replace("* radius\n", "* 2\n").encode())
    module.__loader__ = None  # type: ignore[assignment]
    with pytest.raises(edits.EditError, match="source of addon_shapes cannot be read"):
        edits.prepare(module, derived)


def test_nothing_is_made_before_all_of_it_can_be(module: ModuleType) -> None:
    wanted = [{"run": "done = True"}, {"decorate": "Shape.nothing", "with": "staticmethod"}]
    with pytest.raises(edits.EditError, match=r"addon_shapes has no Shape\.nothing"):
        edits.prepare(module, wanted)
    assert not hasattr(module, "done")
