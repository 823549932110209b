r"""What ``torch.cuda`` tells of its memory in later releases, and told with the first LMS.

For PyTorch 1.1 to 1.3, which have no ``memory_stats`` themselves.
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
    r"""Statistics of the memory of a device, under the names of later releases.

    Args:
        device (torch.device or int): the current one by default.

    Returns:
        dict: LMS's counts and bytes, and of PyTorch's ``allocated_bytes.all`` and
        ``reserved_bytes.all`` the ``current`` and ``peak`` ones, by name, sorted.
        The peaks of PyTorch's are reset by ``reset_max_memory_allocated`` and
        ``reset_max_memory_cached``, LMS's by ``torch.cuda.lms.reset_peak_stats``.
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
    r"""GPU memory that LMS could not page out now.

    Args:
        device (torch.device or int): the current one by default.

    Returns:
        int: bytes. All that is allocated, while LMS is off.
    """
    return _active(device)[0]


def max_memory_active(device=None):
    r"""The most of ``memory_active`` since the start of the program, or since its reset.

    Args:
        device (torch.device or int): the current one by default.

    Returns:
        int: bytes.
    """
    return _active(device)[1]


def reset_max_memory_active(device=None):
    r"""Starts ``max_memory_active`` again at what is active now.

    Args:
        device (torch.device or int): the current one by default.
    """
    _call("reset_active", device)


def memory_reclaimed(device=None):
    r"""GPU memory that LMS has copied to the host.

    Args:
        device (torch.device or int): the current one by default.

    Returns:
        int: bytes, of all page-outs; ``reclaimed_bytes`` of ``memory_stats``.
    """
    return lms._values(device)["reclaimed_bytes"]


def reset_memory_reclaimed(device=None):
    r"""Sets ``memory_reclaimed`` to 0.

    Args:
        device (torch.device or int): the current one by default.
    """
    _call("reset_reclaimed", device)


# The first LMS's names, and what memory_stats() calls the same.
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
    r"""How the memory of new tensors was come by, while LMS was on.

    Args:
        device (torch.device or int): the current one by default.

    Returns:
        dict: counts of tensors that LMS manages: ``freelist`` (PyTorch's cache),
        ``cudamalloc``, ``reclaim_one`` (one page-out), ``reclaim_fragments``
        (several), ``reclaim_all``, ``cudamalloc_purge`` (the cache was emptied).
        ``cudamalloc_over_limit`` is always 0: ``cudamalloc`` has these, too.
    """
    values = lms._values(device)
    return {
        name: values["alloc_distribution." + source] if source else 0 for name, source in _SOURCES
    }


def reset_alloc_distribution(device=None):
    r"""Sets the counts of ``alloc_distribution`` to 0.

    Args:
        device (torch.device or int): the current one by default.
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
        torch.cuda.init()  # says why there is none
    if not 0 <= index < torch.cuda.device_count():
        raise AssertionError("Invalid device id")
    lms._check(getattr(library, "lms_" + name)(index, *arguments))
