r"""The planner's C interface: record/simulation.h and record/timeline.h of the runtime."""

import collections
import ctypes

from .events import EVENT
from .phase import uses_all_of
from .unit import size

Recording = collections.namedtuple("Recording", "events names unmanaged_bytes")
Recording.__doc__ = """Events of a GPU, as the runtime keeps them.

Attributes:
    events (bytes): packed; see events.py.
    names (list of str): names of operators.
    unmanaged_bytes (int): memory in use that LMS does not manage.
"""

Machine = collections.namedtuple("Machine", "limit out_rate in_rate overhead planned_speedup")
Machine.__doc__ = """What an iteration runs on.

Attributes:
    limit (int): bytes of GPU memory that may be in use.
    out_rate (float): bytes per second to the host.
    in_rate (float): bytes per second to the GPU.
    overhead (float): seconds that each transfer takes besides.
    planned_speedup (float): so many times as fast are planned transfers, which are compressed, as
        those on demand, which are not; 1 without compression.
"""
# The part of the GPU's memory that LMS fills: the rest is for fragmentation.
IN_USE = 0.95


def machine(gpu_memory, out_rate, in_rate, planned_speedup=1.0):
    r"""A GPU on which PyTorch may reserve ``gpu_memory`` bytes."""
    limit = int(IN_USE * gpu_memory)
    return Machine(limit, out_rate, in_rate, overhead=10e-6, planned_speedup=planned_speedup)


class PlannerError(Exception):
    r"""The iteration cannot be simulated; the message says why."""


class _Machine(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_double) for name in Machine._fields)


class _Prediction(ctypes.Structure):
    _fields_ = (
        ("seconds", ctypes.c_double),
        ("stall_seconds", ctypes.c_double),
        ("bytes_out", ctypes.c_int64),
        ("bytes_in", ctypes.c_int64),
        ("peak_bytes", ctypes.c_int64),
    )


class _Simulation(ctypes.Structure):
    _fields_ = (
        ("operators", ctypes.c_int64),
        ("blocks", ctypes.c_int64),
        ("compute_seconds", ctypes.c_double),
        ("peak_bytes", ctypes.c_int64),
        ("fits", ctypes.c_int64),
        ("planned", _Prediction),
        ("on_demand", _Prediction),
        ("bound_seconds", ctypes.c_double),
    )


class _Operator(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("seconds", ctypes.c_double),
        ("living_bytes", ctypes.c_int64),
        ("needed_bytes", ctypes.c_int64),
    )


class _Block(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int64) for name in ("bytes", "allocated", "freed"))


class _Access(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int64) for name in ("place", "block", "writes"))


class _Start(ctypes.Structure):
    _fields_ = (
        ("seconds", ctypes.c_double),
        ("stall_seconds", ctypes.c_double),
        ("cause", ctypes.c_int64),
        ("used_bytes", ctypes.c_int64),
    )


class _Movement(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int64),
        ("block", ctypes.c_int64),
        ("place", ctypes.c_int64),
        ("begin_seconds", ctypes.c_double),
        ("end_seconds", ctypes.c_double),
    )


class _Course(ctypes.Structure):
    _fields_ = (
        ("starts", ctypes.POINTER(_Start)),
        ("movements", ctypes.POINTER(_Movement)),
        ("movement_count", ctypes.c_size_t),
    )


class _Timeline(ctypes.Structure):
    _fields_ = (
        ("totals", _Simulation),
        ("operators", ctypes.POINTER(_Operator)),
        ("blocks", ctypes.POINTER(_Block)),
        ("accesses", ctypes.POINTER(_Access)),
        ("access_count", ctypes.c_size_t),
        ("planned", _Course),
        ("on_demand", _Course),
    )


Prediction = collections.namedtuple("Prediction", [name for name, _ in _Prediction._fields_])
Prediction.__doc__ = """What an iteration takes.

Attributes:
    seconds (float): its time.
    stall_seconds (float): the part of it in which no operator runs.
    bytes_out (int): bytes copied to the host.
    bytes_in (int): bytes copied to the GPU.
    peak_bytes (int): the most GPU memory in use.
"""

Simulation = collections.namedtuple("Simulation", [name for name, _ in _Simulation._fields_])
Simulation.__doc__ = """The last iteration of a recording, on a machine.

Attributes:
    operators (int): how many it has.
    blocks (int): how many storages they use.
    compute_seconds (float): its time with everything on the GPU.
    peak_bytes (int): GPU memory that it needs for that.
    fits (bool): it is within the limit, so LMS is not necessary.
    planned (Prediction): with planned transfers.
    on_demand (Prediction): with transfers when they are needed.
    bound_seconds (float): no plan is faster.
"""

Operator = collections.namedtuple("Operator", "name seconds living_bytes needed_bytes")
Operator.__doc__ = """An operator or an autograd node.

Attributes:
    name (str): its name.
    seconds (float): its time with everything on the GPU.
    living_bytes (int): bytes in use while it runs, with everything on the GPU.
    needed_bytes (int): the bytes among them that it uses itself, and the unmanaged ones.
"""

Block = collections.namedtuple("Block", "bytes allocated freed")
Block.__doc__ = """A storage.

Attributes:
    bytes (int): its size.
    allocated (int): the operator before which it is allocated; -1 if it lives across iterations.
    freed (int): the operator after which it is freed; -1 if it lives across iterations.
"""

Access = collections.namedtuple("Access", "place block writes")
Access.__doc__ = """An operator uses a block.

Attributes:
    place (int): the operator's.
    block (int): the block's index.
    writes (bool): it may write the block.
"""

Start = collections.namedtuple("Start", "seconds stall_seconds cause used_bytes")
Start.__doc__ = """When an operator starts.

Attributes:
    seconds (float): from the iteration's beginning.
    stall_seconds (float): that it waited.
    cause (str): of the stall: "", "arrival" (of a block) or "memory" (that becomes free).
    used_bytes (int): GPU memory that is in use or promised.
"""
CAUSES = ("", "arrival", "memory")

Movement = collections.namedtuple("Movement", "kind block place begin end")
Movement.__doc__ = """Something that happens to a block.

Attributes:
    kind (str): OUT, a copy to the host; IN, a copy to the GPU; DROP, its memory on the GPU is free
        for others.
    block (int): the block's index.
    place (int): of the operator at which it was issued.
    begin (float): seconds from the iteration's beginning; may be after its end.
    end (float): the same.
"""
OUT, IN, DROP = "out", "in", "drop"
KINDS = (OUT, IN, DROP)

Course = collections.namedtuple("Course", "starts movements")
Course.__doc__ = """How an iteration goes.

Attributes:
    starts (list of Start): of each operator.
    movements (list of Movement): in the order of their issue, after a DROP for each block that is
        never on the GPU.
"""

Timeline = collections.namedtuple("Timeline", "totals operators blocks accesses planned on_demand")
Timeline.__doc__ = """What happens in an iteration.

Attributes:
    totals (Simulation): as simulate() returns it.
    operators (list of Operator): in the order of their issue.
    blocks (list of Block): what they use, and what else lives.
    accesses (list of Access): in the order of operators.
    planned (Course): with planned transfers.
    on_demand (Course): with transfers when they are needed.
"""


def simulate(library, recording, machine):
    r"""Predicts the last iteration of a recording.

    Args:
        library (ctypes.CDLL): a library with the planner.
        recording (Recording): with at least two steps.
        machine (Machine): what to simulate.

    Returns:
        Simulation: the prediction.

    Raises:
        PlannerError: there is no complete iteration, or an operator needs more than the limit.
    """
    found = _Simulation()
    _call(library.lms_simulate, recording, machine, found)
    return _simulation(found)


def timeline(library, recording, machine):
    r"""As ``simulate``, with what happens when.

    Returns:
        Timeline: the prediction, copied out of the library.

    Raises:
        PlannerError: as ``simulate``.
    """
    found = _Timeline()
    _call(library.lms_simulate_timeline, recording, machine, found)
    totals = _simulation(found.totals)
    return Timeline(
        totals=totals,
        operators=[
            Operator(_text(op.name), op.seconds, op.living_bytes, op.needed_bytes)
            for op in found.operators[: totals.operators]
        ],
        blocks=[
            Block(block.bytes, block.allocated, block.freed)
            for block in found.blocks[: totals.blocks]
        ],
        accesses=[
            Access(access.place, access.block, bool(access.writes))
            for access in found.accesses[: found.access_count]
        ],
        planned=_course(found.planned, totals.operators),
        on_demand=_course(found.on_demand, totals.operators),
    )


def _call(function, recording, machine, result):
    given = _Machine(*machine)
    names = (ctypes.c_char_p * len(recording.names))(*(name.encode() for name in recording.names))
    why = ctypes.c_char_p()
    function.restype = ctypes.c_int
    failed = function(
        recording.events,
        ctypes.c_size_t(len(recording.events) // EVENT.size),
        names,
        ctypes.c_size_t(len(names)),
        ctypes.c_int64(recording.unmanaged_bytes),
        ctypes.byref(given),
        ctypes.byref(result),
        ctypes.byref(why),
    )
    if failed:
        problem = _text(why.value)
        what = uses_all_of(problem)
        if "alone needs" in problem and recording.unmanaged_bytes > machine.limit:
            # The operator is any of them.
            problem = (
                "what LMS does not move needs {}, and the limit is {}; record with a lower "
                "set_size_lms(), or --smallest of lmsbuild trace".format(
                    size(recording.unmanaged_bytes), size(machine.limit)
                )
            )
        elif "alone needs" in problem and what:
            problem += "; pass foreach=False to {}, which then uses less at once".format(what)
        raise PlannerError(problem)


def _text(value):
    return (value or b"").decode("utf-8", "replace")


def _prediction(found):
    return Prediction(*(getattr(found, name) for name in Prediction._fields))


def _simulation(found):
    values = {name: getattr(found, name) for name in Simulation._fields}
    values["fits"] = bool(found.fits)
    values["planned"] = _prediction(found.planned)
    values["on_demand"] = _prediction(found.on_demand)
    return Simulation(**values)


def _course(found, operators):
    return Course(
        starts=[
            Start(start.seconds, start.stall_seconds, CAUSES[start.cause], start.used_bytes)
            for start in found.starts[:operators]
        ],
        movements=[
            Movement(KINDS[m.kind], m.block, m.place, m.begin_seconds, m.end_seconds)
            for m in found.movements[: found.movement_count]
        ],
    )
