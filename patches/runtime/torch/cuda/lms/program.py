"""A program that is run as Python itself runs one: a script, a module, a folder or a zip file."""

# This file runs on every Python that a supported PyTorch runs on: see torch.cuda.lms. It does not
# import torch.

import importlib.machinery
import importlib.util
import os
import pkgutil
import sys


class NotFound(Exception):
    """There is no such program; the message says so as Python does."""


class Program:
    """What the module ``__main__`` is to run.

    Attributes:
        code: its code object.
        file (str): the value of ``__file__``.
        loader: the value of ``__loader__``.
        spec: the value of ``__spec__``; ``None`` for a script.
        folder (str or None): what Python puts at the beginning of ``sys.path``; ``None`` for a
            module, where that is the current folder.
    """

    def __init__(self, code, file, loader, spec, folder):
        self.code = code
        self.file = file
        self.loader = loader
        self.spec = spec
        self.folder = folder


def module(name):
    """The program of ``python -m name``. Raises NotFound, and what its package raises."""
    try:
        spec = importlib.util.find_spec(name)
    except ImportError as error:
        # Not of what its package needs.
        if not error.name or not (name + ".").startswith(error.name + "."):
            raise
        raise NotFound("No module named {}".format(name)) from error
    if spec is not None and spec.submodule_search_locations is not None:
        name += ".__main__"
        spec = importlib.util.find_spec(name)
    return _of_spec(spec, name, None)


def file(path):
    """The program of ``python path``. Raises NotFound, OSError, SyntaxError."""
    if pkgutil.get_importer(path) is not None:
        finder = importlib.machinery.PathFinder
        return _of_spec(finder.find_spec("__main__", [path]), "__main__ in " + path, path)
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    code = loader.source_to_code(loader.get_data(path), path)
    return Program(code, path, loader, None, os.path.dirname(os.path.realpath(path)))


def _of_spec(spec, name, folder):
    code = spec.loader.get_code(spec.name) if spec is not None and spec.loader else None
    if code is None:
        raise NotFound("No module named {}".format(name))
    return Program(code, spec.origin, spec.loader, spec, folder)


def run(program, arguments):
    """Runs a program in this process; ``arguments`` is what becomes ``sys.argv``.

    The module ``__main__`` stays the same object, so that what knows it already, such as
    multiprocessing, finds the program's classes in it.
    """
    sys.argv[:] = arguments
    # Python has put the current folder there, unless it was told not to.
    if program.folder is not None:
        if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
            del sys.path[0]
            sys.path.insert(0, program.folder)
        elif program.spec is not None:
            sys.path.insert(0, program.folder)
    names = vars(sys.modules["__main__"])
    names.clear()
    names.update(
        __name__="__main__",
        __doc__=None,
        __file__=program.file,
        __cached__=getattr(program.spec, "cached", None),
        __loader__=program.loader,
        __package__=getattr(program.spec, "parent", None),
        __spec__=program.spec,
    )
    exec(program.code, names)
