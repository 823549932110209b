r"""``torch.cuda.memory_stats`` for PyTorch 1.3, which has none itself."""

import collections

import torch

from . import lms


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
