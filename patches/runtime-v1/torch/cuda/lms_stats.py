r"""Memory statistics of ``torch.cuda`` that later releases have, and that the first LMS had.

For PyTorch 1.1 to 1.3, which have no ``memory_stats`` of their own.
"""

import collections
import ctypes

import torch

from . import lms

__all__ = [
    "alloc_distribution",
    "max_memory_active",
    "memory_active",
    "memory_reclaimed",
    "memory_stats",
    "reset_alloc_distribution",
    "reset_max_memory_active",
    "reset_memory_reclaimed",
]


def memory_stats(device=None):
    r"""Returns statistics of a device's memory, under the names of later releases.

    Args:
        device (torch.device or int, optional): Default: the current device.

    Returns:
        dict: counts and bytes (int), sorted by name: LMS's statistics, and
        ``allocated_bytes.all`` and ``reserved_bytes.all`` of PyTorch, each with
        ``current`` and ``peak``. ``reset_max_memory_allocated`` and
        ``reset_max_memory_cached`` reset PyTorch's peaks, and
        ``torch.cuda.lms.reset_peak_stats`` resets those of LMS.
    """
    nested = {
        "allocated_bytes": {
            "all": {
                "current": torch.cuda.memory_allocated(device),
                "peak": torch.cuda.max_memory_allocated(device),
            }
        },
        "reserved_bytes": {
            "all": {
                "current": torch.cuda.memory_cached(device),
                "peak": torch.cuda.max_memory_cached(device),
            }
        },
    }
    return collections.OrderedDict(sorted(_flat(lms.add_stats(nested, device))))


def _flat(nested, prefix=""):
    for name, value in nested.items():
        if isinstance(value, dict):
            yield from _flat(value, prefix + name + ".")
        else:
            yield prefix + name, value


def memory_active(device=None):
    r"""Returns how much GPU memory LMS could not page out now.

    Args:
        device (torch.device or int, optional): Default: the current device.

    Returns:
        int: bytes; while LMS is off, everything that is allocated.
    """
    return _active(device)[0]


def max_memory_active(device=None):
    r"""Returns the peak of ``memory_active`` since the start of the program, or the last reset.

    Args:
        device (torch.device or int, optional): Default: the current device.

    Returns:
        int: bytes.
    """
    return _active(device)[1]


def reset_max_memory_active(device=None):
    r"""Resets ``max_memory_active`` to the current value of ``memory_active``.

    Args:
        device (torch.device or int, optional): Default: the current device.
    """
    _call("reset_active", device)


def memory_reclaimed(device=None):
    r"""Returns how many bytes of GPU memory LMS has copied to the host.

    Args:
        device (torch.device or int, optional): Default: the current device.

    Returns:
        int: bytes of all page-outs; the same as ``reclaimed_bytes`` of ``memory_stats``.
    """
    return lms._values(device)["reclaimed_bytes"]


def reset_memory_reclaimed(device=None):
    r"""Resets ``memory_reclaimed`` to 0.

    Args:
        device (torch.device or int, optional): Default: the current device.
    """
    _call("reset_reclaimed", device)


# The names of the first LMS, and those of memory_stats().
_SOURCES = (
    ("freelist", "freelist"),
    ("cudamalloc", "cudamalloc"),
    ("reclaim_one", "reclaim_one"),
    ("reclaim_fragments", "reclaim_fragments"),
    ("cudamalloc_over_limit", None),
    ("reclaim_all", "reclaim_all"),
    ("cudamalloc_purge", "cudamalloc_retry"),
)


def alloc_distribution(device=None):
    r"""Returns where the memory of new tensors came from, while LMS was on.

    Args:
        device (torch.device or int, optional): Default: the current device.

    Returns:
        dict: counts of tensors that LMS manages: ``freelist`` (from PyTorch's cache),
        ``cudamalloc`` (new memory of the device), ``reclaim_one`` (after one
        page-out), ``reclaim_fragments`` (after several), ``reclaim_all`` (after
        everything idle was paged out), ``cudamalloc_purge`` (after the cache was
        emptied). ``cudamalloc_over_limit`` is always 0: ``cudamalloc`` includes
        these.
    """
    values = lms._values(device)
    return {
        name: values["alloc_distribution." + source] if source else 0 for name, source in _SOURCES
    }


def reset_alloc_distribution(device=None):
    r"""Resets the counts of ``alloc_distribution`` to 0.

    Args:
        device (torch.device or int, optional): Default: the current device.
    """
    _call("reset_alloc_distribution", device)


def _active(device):
    values = (ctypes.c_int64 * 2)()
    _call("active", device, values)
    return values[0], values[1]


def _call(name, device, *arguments):
    index = lms._index(device)
    library = lms._load()
    if library is None:
        torch.cuda.init()  # raises an error that says why there is none
    if not 0 <= index < torch.cuda.device_count():
        raise AssertionError("Invalid device id")
    lms._check(getattr(library, "lms_" + name)(index, *arguments))
