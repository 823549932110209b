"""Changes modules that are imported, as LMS's hooks change their files.

An edit is a dictionary. lmsbuild makes it from the hook:

- ``{"run": SOURCE}`` runs a statement that the hook adds at the end of the module;
- ``{"decorate": NAME, "with": EXPRESSION}`` adds a decorator to a function or method;
- ``{"change": NAME, "sha256": HASH, "count": N, "lines": [[FIRST, LAST, [LINE, ...]], ...]}``
  changes lines of a function. N lines with this hash are its source. The lines from FIRST on, and
  before LAST, are replaced; both count from 0 at the function's own first line.

A function that is changed stays the same object, so whoever has imported it has the change. Its
code keeps the line numbers of the file.
"""

import __future__

import ast
import functools
import hashlib
import sys
import types

_FUTURES = functools.reduce(
    lambda flags, name: flags | getattr(__future__, name).compiler_flag,
    __future__.all_feature_names,
    0,
)


class EditError(Exception):
    """The module is not the one that the hook was made for."""


def prepare(module, edits):
    """Checks edits and returns functions without arguments that make them, in order.

    Raises EditError.
    """
    source = _source(module) if any("change" in edit for edit in edits) else []
    return [_prepare(module, edit, source) for edit in edits]


def _prepare(module, edit, source):
    if "run" in edit:
        code = compile(edit["run"], "<torch_lms: {}>".format(module.__name__), "exec")
        return functools.partial(_run, module, code)
    if "decorate" in edit:
        owner, name = _place(module, edit["decorate"])
        return functools.partial(_decorate, module, owner, name, edit["with"])
    owner, name = _place(module, edit["change"])
    function = vars(owner)[name]
    if not isinstance(function, types.FunctionType):
        raise EditError("{} of {} is no plain function".format(edit["change"], module.__name__))
    code = _changed(module, function.__code__, edit, source)
    return functools.partial(setattr, function, "__code__", code)


def _place(module, path):
    """The module or class that a function is in, and the function's name there."""
    owner, names = module, path.split(".")
    for name in names[:-1]:
        owner = vars(owner).get(name)
        if not isinstance(owner, type):
            raise EditError("{} has no class {}".format(module.__name__, name))
    if names[-1] not in vars(owner):
        raise EditError("{} has no {}".format(module.__name__, path))
    return owner, names[-1]


def _run(module, code):
    before = dict(vars(module))
    exec(code, vars(module))
    for name, old in before.items():
        _rebind(name, old, vars(module).get(name))


def _decorate(module, owner, name, expression):
    old = vars(owner)[name]
    new = eval(expression, vars(module))(old)
    setattr(owner, name, new)
    if owner is module:
        _rebind(name, old, new)


def _rebind(name, old, new):
    """Replaces an object in the modules that have imported it by name already."""
    if new is old or not callable(old):
        return
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType) and vars(module).get(name) is old:
            setattr(module, name, new)


def _changed(module, code, edit, source):
    """The code of a function, changed as the edit says."""
    path, first, count = edit["change"], code.co_firstlineno, edit["count"]
    source = source[first - 1 : first - 1 + count]
    if hashlib.sha256("".join(source).encode("utf-8")).hexdigest() != edit["sha256"]:
        raise EditError("{} of {} is not PyTorch's own".format(path, module.__name__))
    *classes, name = path.split(".")
    lines = ["    " * depth + "class {}:\n".format(c) for depth, c in enumerate(classes)]
    # The line in the file that each of these lines stands for.
    numbers = [first] * len(lines)
    at = 0
    for start, end, new in edit["lines"]:
        lines += source[at:start] + [line + "\n" for line in new]
        numbers += range(first + at, first + start)
        # An added line stands for the one before it.
        numbers += [first + max(0, min(start + i, end - 1, count - 1)) for i in range(len(new))]
        at = end
    lines += source[at:]
    numbers += range(first + at, first + count)
    tree = ast.parse("".join(lines), module.__name__)
    for node in ast.walk(tree):
        for attribute in ("lineno", "end_lineno"):
            if hasattr(node, attribute):
                setattr(node, attribute, numbers[getattr(node, attribute) - 1])
    flags = code.co_flags & _FUTURES
    new = compile(tree, code.co_filename, "exec", flags=flags, dont_inherit=True)
    for part in (*classes, name):
        new = next(c for c in new.co_consts if isinstance(c, types.CodeType) and c.co_name == part)
    if new.co_freevars != code.co_freevars:
        raise EditError("{} of {} has other variables".format(path, module.__name__))
    return new


def _source(module):
    """The lines of a module's file."""
    get_source = getattr(getattr(module, "__loader__", None), "get_source", None)
    try:
        text = get_source(module.__name__) if get_source else None
    except (ImportError, OSError):
        text = None
    if text is None:
        raise EditError("the source of {} cannot be read".format(module.__name__))
    return [line + "\n" for line in text.split("\n")]
