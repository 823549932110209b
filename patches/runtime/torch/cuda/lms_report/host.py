r"""What is pinned of the host's memory, as host/arena.h of the runtime does it."""

from .course import History
from .planner import PlannerError, timeline
from .unit import size

_HUGE_PAGE = 2 << 20  # bytes: slabs are whole ones
_SMALLEST_SLAB = 8 << 20
_LARGEST_SLAB = 512 << 20
_PART = 20  # a slab is this part of what is pinned
_AHEAD = 2  # slabs that are pinned before they are needed
_COURSES = ("planned", "on_demand")


def least(needed):
    r"""Bytes that are pinned at least for buffers of so many bytes."""
    return -(-needed // _HUGE_PAGE) * _HUGE_PAGE


def most(needed):
    r"""Bytes that are pinned for them where the host has enough memory."""
    if needed == 0:
        return 0
    slab = min(max(_SMALLEST_SLAB, least(needed // _PART)), _LARGEST_SLAB)
    return least(needed) + _AHEAD * slab


def needed(found):
    r"""Bytes of buffers at the same time, with the transfers that need more of them.

    An iteration is paged on demand until it has a plan, so both have to fit.

    Args:
        found (planner.Timeline): an iteration.
    """
    if found.totals.fits:
        return 0
    return max(History(found, name).host_peak_bytes for name in _COURSES)


def checked_timeline(library, recording, machine, host_memory):
    r"""As ``planner.timeline``, with an amount of host memory.

    Args:
        host_memory (int): bytes that LMS may pin; None if there is enough.

    Raises:
        PlannerError: as ``planner.timeline``, or the host memory is too little.
    """
    found = timeline(library, recording, machine)
    if host_memory is not None:
        count = least(needed(found))
        if count > host_memory:
            raise PlannerError(
                "does not fit: what is swapped needs {} of host memory, and {} are there; use more "
                "host memory, more GPU memory, or smaller batches".format(
                    size(count), size(host_memory)
                )
            )
    return found
