r"""Recordings of what operators use, for planning and simulating Large Model Support.

This is the part of ``torch.cuda.lms`` that writes a trace to a file.
"""

# As lms.py, this file runs on every Python that a supported PyTorch runs on.

import ctypes
import gzip
import json
import os
import sys
import tempfile

import torch

VERSION = 1

# In the order of TraceEvent::Kind, in record/trace.h.
KINDS = (
    "operator",
    "allocated",
    "known",
    "read",
    "written",
    "freed",
    "step",
    "mark",
    "stalled",
    "resumed",
)


class _Event(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_uint64),
        ("block", ctypes.c_uint32),
        ("name", ctypes.c_uint16),
        ("kind", ctypes.c_uint8),
        ("unused", ctypes.c_uint8),
    )


def read(library, check, device):
    r"""Returns the last recording of a device: (names, events).

    Each event is [kind, block, value] and, for an operator, the index of its name.
    """
    pointer, events, names = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    check(
        library.lms_trace(device, ctypes.byref(pointer), ctypes.byref(events), ctypes.byref(names))
    )
    found = []
    if events.value:
        for event in (_Event * events.value).from_address(pointer.value):
            kind = KINDS[event.kind]
            row = [kind, event.block, event.value]
            if kind == "operator":
                row.append(event.name)
            found.append(row)
    return names_of(library, device, names.value), found


def names_of(library, device, count):
    r"""Returns the names of operators in the last recording of a device."""
    return [
        library.lms_trace_name(device, index).decode("utf-8", "replace") for index in range(count)
    ]


def after_optimizers(step):
    r"""Calls ``step`` after each step of an optimizer, where PyTorch can say when that is (2.1).

    Returns:
        a handle with ``remove()``, or None.
    """
    # torch.optim has deleted its attribute of this name.
    module = sys.modules[torch.optim.Optimizer.__module__]
    register = getattr(module, "register_optimizer_step_post_hook", None)
    return register(lambda *_: step()) if register else None


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
