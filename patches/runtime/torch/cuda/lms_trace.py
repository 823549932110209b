r"""Recordings of what operators use, for planning and simulating Large Model Support.

This is the part of ``torch.cuda.lms`` that writes a trace to a file.
"""

# As torch.cuda.lms, this file runs on every Python that a supported PyTorch runs on.

import ctypes
import gzip
import itertools
import json
import os
import sys
import tempfile
import weakref

import torch
from torch.cuda.lms_report.events import EVENT, KINDS


def packed(library, check, device):
    r"""Returns the last recording of a device: (names, packed events)."""
    pointer, events, names = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    check(
        library.lms_trace(device, ctypes.byref(pointer), ctypes.byref(events), ctypes.byref(names))
    )
    data = ctypes.string_at(pointer, events.value * EVENT.size) if events.value else b""
    texts = [
        library.lms_trace_name(device, index).decode("utf-8", "replace")
        for index in range(names.value)
    ]
    return texts, data


def smallest_block(data):
    r"""The size of the smallest block of a recording, in bytes; infinite if there is none."""
    codes = KINDS.index("allocated"), KINDS.index("known")
    return min((event[0] for event in EVENT.iter_unpack(data) if event[3] in codes), default=1e999)


def unpacked(data):
    r"""Returns events: each is [kind, block, value] and, for an operator, the index of its name."""
    found = []
    for value, block, name, code, _ in EVENT.iter_unpack(data):
        kind = KINDS[code]
        found.append([kind, block, value, name] if kind == "operator" else [kind, block, value])
    return found


def after_optimizers(step):
    r"""Calls ``step`` after each step of an optimizer, where PyTorch can say when that is (2.1).

    Its argument is the optimizer's number, from 1 on.

    Returns:
        a handle with ``remove()``, or None.
    """
    # torch.optim has deleted its attribute of this name.
    module = sys.modules[torch.optim.Optimizer.__module__]
    register = getattr(module, "register_optimizer_step_post_hook", None)
    return register(lambda optimizer, *_: step(number_of(optimizer))) if register else None


_numbers = {}  # of optimizers, by their id(): they need not have a hash
_next_number = itertools.count(1)


def number_of(optimizer):
    r"""Returns an optimizer's number, from 1 on."""
    key = id(optimizer)
    if key not in _numbers:
        weakref.finalize(optimizer, _numbers.pop, key, None).atexit = False
        _numbers[key] = next(_next_number)
    return _numbers[key]


def write(path, trace):
    r"""Writes a trace as JSON, compressed if the name ends with ``.gz``."""
    data = json.dumps(trace).encode("ascii")
    write_bytes(path, gzip.compress(data) if os.fspath(path).endswith(".gz") else data)


def write_bytes(path, data):
    r"""Writes a file; never half of it."""
    path = os.fspath(path)
    folder = os.path.dirname(os.path.abspath(path))
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".lms-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
