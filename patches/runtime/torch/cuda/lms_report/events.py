r"""The events of a recording: TraceEvent, in record/trace.h of the runtime."""

import collections
import struct

# Of the files that hold events.
FORMAT = "lms-trace"
VERSION = 1

# In the order of TraceEvent::Kind.
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
EVENT = struct.Struct("=QIHBB")  # value, block, name, kind, unused

Measured = collections.namedtuple("Measured", "seconds stall_seconds")
Measured.__doc__ = """How long the GPU took for the last iteration of a recording.

Attributes:
    seconds (float): its time.
    stall_seconds (float): the part of it in which no operator ran, because of transfers.
"""

_STEP, _MARK, _STALLED, _RESUMED = (
    KINDS.index(kind) for kind in ("step", "mark", "stalled", "resumed")
)


def measured(data):
    r"""What the marks of a recording say of its last iteration.

    Args:
        data (bytes): packed events.

    Returns:
        Measured: None if there is no complete iteration, or no time.
    """
    now, waited, stall = 0, 0, 0
    begun = {}  # by optimizer: now and stall at its last step
    found = {}  # by optimizer: steps after the first one, and the iteration between the last two
    for value, optimizer, _, kind, _ in EVENT.iter_unpack(data):
        if kind == _STEP:
            if optimizer in begun:
                begin, stalled = begun[optimizer]
                count = found.pop(optimizer, (0, None))[0]  # so that the last one is the last
                iteration = Measured((now - begin) * 1e-9, (stall - stalled) * 1e-9)
                found[optimizer] = (count + 1, iteration)
            begun[optimizer] = (now, stall)
        elif kind in (_MARK, _STALLED, _RESUMED):
            # Work of different streams may end in another order than the host issued it.
            now = max(now, value)
            if kind == _STALLED:
                waited = now
            elif kind == _RESUMED:
                stall += now - waited
    if not found:
        return None
    # As between_the_last_steps() in record/iteration.cpp.
    own = found.get(0)
    _, last = own or min(reversed(list(found.values())), key=lambda of: of[0])
    return last if last.seconds > 0 else None
