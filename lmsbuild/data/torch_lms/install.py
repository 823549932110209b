"""Adds LMS to the PyTorch that is imported, if this package has a library for it."""

import functools
import importlib
import json
import os
import sys
import warnings

import torch

from torch_lms import edits

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_RELEASES = os.path.join(_FOLDER, "releases")
_LIBRARY = "libtorch_lms.so"


class Unsupported(Exception):
    """This package has nothing for the PyTorch that is imported; the message says why."""


def install():
    """Adds torch.cuda.lms and its functions, and makes the changes of the release's hooks."""
    if hasattr(torch.cuda, "set_enabled_lms"):
        return  # it has LMS: it was built with it, or is a wheel with it
    with open(os.path.join(_FOLDER, "package.json"), encoding="utf-8") as file:
        package = json.load(file)
    # The new modules are imported from there, like PyTorch's own.
    for name in package["extends"]:
        path = os.path.join(_FOLDER, "runtime", *name.split(".")[1:])
        importlib.import_module(name).__path__.append(path)
    from torch.cuda import lms

    try:
        folder, release = _release()
        prepared = _prepare(release["modules"])
    except (Unsupported, edits.EditError) as error:
        lms._unsupported = str(error)
        for name in lms.__all__:
            setattr(torch.cuda, name, getattr(lms, name))
        torch.cuda.__all__ += lms.__all__
    else:
        lms._library_path = os.path.join(folder, _LIBRARY)
        for make in prepared:
            make()
        _edit_when_imported(release["modules"])
    try:
        lms._begin()
    except Warning as warning:
        # Where warnings are errors. The program imports torch, which is no use of LMS.
        print("torch-lms: {}".format(warning), file=sys.stderr)


def _release():
    """The folder of the running release, and what its release.json says."""
    version = str(torch.__version__)
    if torch.version.cuda is None:
        raise Unsupported("PyTorch {} is a build without CUDA".format(version))
    public = version.partition("+")[0]
    folder = os.path.join(_RELEASES, public)
    if not os.path.isdir(folder):
        known = sorted(os.listdir(_RELEASES), key=lambda name: [int(n) for n in name.split(".")])
        raise Unsupported(
            "torch-lms has no library for PyTorch {}. It has one for {}. Install one of these, or "
            "a newer torch-lms.".format(version, ", ".join(known))
        )
    with open(os.path.join(folder, "release.json"), encoding="utf-8") as file:
        release = json.load(file)
    if torch.version.cuda.partition(".")[0] != release["cuda"].partition(".")[0]:
        raise Unsupported(
            "PyTorch {} is built for CUDA {}, and torch-lms has a library for CUDA {}. Install a "
            "build of PyTorch {} for CUDA {}, such as that on PyPI.".format(
                version,
                torch.version.cuda,
                release["cuda"],
                public,
                release["cuda"].partition(".")[0],
            )
        )
    if torch.compiled_with_cxx11_abi() != bool(release["cxx11_abi"]):
        raise Unsupported(
            "PyTorch {} is built with another C++ ABI than the library of torch-lms. Install "
            "PyTorch {} from PyPI.".format(version, public)
        )
    return folder, release


def _prepare(modules):
    """Functions that make the edits of the modules that are imported already."""
    return [
        make
        for name, wanted in modules
        if name in sys.modules
        for make in edits.prepare(sys.modules[name], wanted)
    ]


def _edit_when_imported(modules):
    from torch.cuda.lms_launch import _Importer

    importer = _Importer()
    for name, wanted in modules:
        if name not in sys.modules:
            importer.when_imported(name, functools.partial(_edit, wanted))
    # torch.compile traces no code of PyTorch's own. This package is a part of it.
    importer.when_imported("torch._dynamo.trace_rules", lambda rules: rules.add("torch_lms"))
    sys.meta_path.insert(0, importer)


def _edit(wanted, module):
    try:
        prepared = edits.prepare(module, wanted)
    except edits.EditError as error:
        warnings.warn(
            "torch-lms: {}. Do not use this module while LMS is on.".format(error), stacklevel=2
        )
        return
    for make in prepared:
        make()
