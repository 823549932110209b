"""The planner of the runtime, compiled by g++ and called through ctypes."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
# ci/mutants.py sets this to its copy, which contains a bug.
RUNTIME = Path(os.environ.get("LMS_RUNTIME", HERE.parent.parent / "patches" / "runtime"))
SOURCES = RUNTIME / "torch/csrc/cuda/lms/plan"
# What makes plans with places of recordings.
FOLLOW = [
    SOURCES.parent / name
    for name in (
        "follow/lives.cpp",
        "follow/places.cpp",
        "follow/planning.cpp",
        "record/iteration.cpp",
    )
]
NONE = -1
_COPY_AFTER = -2
FAULTS = ("none", "malformed", "limit", "absent", "present", "untrue")
CAUSES = ("none", "arrival", "memory")

_INT64 = ctypes.c_int64
_INT64S = ctypes.POINTER(ctypes.c_int64)
_DOUBLES = ctypes.POINTER(ctypes.c_double)
_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "lms_trace": (
        ctypes.c_void_p,
        [
            ctypes.c_int64,
            _DOUBLES,
            ctypes.c_int64,
            _INT64S,
            ctypes.c_int64,
            _INT64S,
            _DOUBLES,
            ctypes.c_int64,
        ],
    ),
    "lms_trace_delete": (None, [ctypes.c_void_p]),
    "lms_plan": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int64, _DOUBLES]),
    "lms_plan_with_compression": (
        ctypes.c_void_p,
        [ctypes.c_void_p, ctypes.c_int64, _DOUBLES],
    ),
    "lms_copy_plainly": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int64, _DOUBLES]),
    "lms_replay": (
        ctypes.c_void_p,
        [
            ctypes.c_void_p,
            ctypes.c_int64,
            _DOUBLES,
            ctypes.c_int64,
            _INT64S,
            ctypes.c_double,
            ctypes.c_int64,
            _INT64S,
        ],
    ),
    "lms_on_demand": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int64, _DOUBLES]),
    "lms_result_delete": (None, [ctypes.c_void_p]),
    "lms_problem": (ctypes.c_char_p, [ctypes.c_void_p]),
    "lms_numbers": (None, [ctypes.c_void_p, _INT64S]),
    "lms_seconds": (None, [ctypes.c_void_p, _DOUBLES]),
    "lms_moves": (None, [ctypes.c_void_p, _INT64S]),
    "lms_operators": (None, [ctypes.c_void_p, _DOUBLES, _DOUBLES, _INT64S, _INT64S]),
    "lms_time": (ctypes.c_double, [ctypes.c_void_p, ctypes.c_int64, _DOUBLES, ctypes.c_int64]),
    "lms_search": (
        ctypes.c_int64,
        [ctypes.c_void_p, ctypes.c_int64, _DOUBLES, ctypes.c_double, _DOUBLES, _INT64S],
    ),
}


@dataclass(frozen=True)
class Block:
    """Attributes: bytes; the operators before and after which it lives, for a temporary one.

    share: what its transfers move of what a copy does.
    """

    bytes: int
    allocated: int = NONE
    freed: int = NONE
    share: float = 1.0

    @property
    def persistent(self) -> bool:
        return self.allocated == NONE


@dataclass
class Trace:
    """Attributes: seconds of each operator; (operator, block, writes) of each access."""

    seconds: list[float]
    accesses: list[tuple[int, int, bool]]
    blocks: list[Block]
    unmanaged: int = 0


@dataclass(frozen=True)
class Machine:
    """Attributes: bytes of the limit; bytes per second; seconds that a transfer takes besides.

    out_pace, in_pace: what compressed bytes reach of the rates.
    """

    limit: int
    out_rate: float = 1.0
    in_rate: float = 1.0
    overhead: float = 0.0
    out_pace: float = 1.0
    in_pace: float = 1.0


@dataclass(frozen=True)
class Move:
    block: int
    copy_after: int
    copies: bool
    drop_before: int
    fetch_before: int
    needed_at: int
    packs: bool = True
    last_use: int = _COPY_AFTER

    def __post_init__(self) -> None:
        if self.last_use == _COPY_AFTER:
            object.__setattr__(self, "last_use", self.copy_after)


@dataclass
class Result:
    problem: str
    fault: str
    fits: bool
    infeasible: int
    infeasible_bytes: int
    moves: list[Move]
    bytes_out: int
    bytes_in: int
    peak_bytes: int
    seconds: float
    stall_seconds: float
    bound_in: int
    bound_out: int
    excess_bytes: int
    bound_seconds: float
    one_hill_seconds: float
    compressed: bool = True
    starts: list[float] = field(default_factory=list)
    stalls: list[float] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    curve: list[int] = field(default_factory=list)

    @property
    def bytes_moved(self) -> int:
        return self.bytes_in + self.bytes_out


def compile_planner(
    folder: Path, *options: str, source: str = "plan.cpp", others: Sequence[Path] = ()
) -> Path:
    """Compiles the planner and the C interface ``source`` into a library in the folder."""
    library = folder / "libplan.so"
    command = [
        os.environ.get("CXX", "g++"),
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fPIC",
        "-shared",
        *(options or ("-O1",)),
        f"-I{RUNTIME}",
        *sorted(str(source) for source in SOURCES.glob("*.cpp")),
        *map(str, others),
        str(HERE / source),
        "-o",
        str(library),
    ]
    subprocess.run(command, check=True)
    return library


class Planner:
    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._library, name)
            function.restype = result
            function.argtypes = arguments

    def plan(self, trace: Trace, machine: Machine) -> Result:
        with _Handle(self._library, trace) as handle:
            return self._read(self._library.lms_plan(handle, *_machine(machine)), trace)

    def plan_with_compression(self, trace: Trace, machine: Machine) -> Result:
        with _Handle(self._library, trace) as handle:
            made = self._library.lms_plan_with_compression(handle, *_machine(machine))
            return self._read(made, trace)

    def copy_plainly(self, trace: Trace, machine: Machine) -> Result:
        """Such a plan, in which only what has to be compressed is."""
        with _Handle(self._library, trace) as handle:
            made = self._library.lms_copy_plainly(handle, *_machine(machine))
            return self._read(made, trace)

    def replay(
        self,
        trace: Trace,
        machine: Machine,
        moves: Sequence[Move],
        *,
        earlier: float = 0,
        handovers: Sequence[tuple[int, int, int]] = (),
    ) -> Result:
        """Plays moves.

        earlier: the part of the operators since the last use by which drops come earlier.
        handovers: the move that gives memory up; the one that fetches into it, or NONE; the
        operator that allocates it otherwise.
        """
        rows = [
            (
                m.block,
                m.copy_after,
                m.copies,
                m.drop_before,
                m.fetch_before,
                m.needed_at,
                m.last_use,
            )
            for m in moves
        ]
        with _Handle(self._library, trace) as handle:
            result = self._library.lms_replay(
                handle,
                *_machine(machine),
                len(rows),
                _int64s(v for row in rows for v in row),
                earlier,
                len(handovers),
                _int64s(v for handover in handovers for v in handover),
            )
            return self._read(result, trace)

    def on_demand(self, trace: Trace, machine: Machine) -> Result:
        with _Handle(self._library, trace) as handle:
            return self._read(self._library.lms_on_demand(handle, *_machine(machine)), trace)

    def time(self, trace: Trace, machine: Machine, runs: int = 5) -> float:
        """Seconds that planning takes: the best of some runs."""
        with _Handle(self._library, trace) as handle:
            return float(self._library.lms_time(handle, *_machine(machine), runs))

    def search(self, trace: Trace, machine: Machine, choices: float) -> tuple[float, int] | None:
        """The least seconds and the fewest bytes of all plans, each on its own.

        None if there are more choices than these, or if no plan keeps the limit.
        """
        seconds, moved = ctypes.c_double(), ctypes.c_int64()
        with _Handle(self._library, trace) as handle:
            found = self._library.lms_search(
                handle, *_machine(machine), choices, ctypes.byref(seconds), ctypes.byref(moved)
            )
        return (seconds.value, moved.value) if found else None

    def _read(self, handle: int, trace: Trace) -> Result:
        library = self._library
        numbers = (ctypes.c_int64 * 12)()
        seconds = (ctypes.c_double * 4)()
        library.lms_numbers(handle, numbers)
        library.lms_seconds(handle, seconds)
        rows = (ctypes.c_int64 * (8 * numbers[3]))()
        library.lms_moves(handle, rows)
        size = len(trace.seconds)
        starts, stalls = (ctypes.c_double * size)(), (ctypes.c_double * size)()
        causes, curve = (ctypes.c_int64 * size)(), (ctypes.c_int64 * size)()
        library.lms_operators(handle, starts, stalls, causes, curve)
        result = Result(
            problem=library.lms_problem(handle).decode(),
            fault=FAULTS[numbers[4]],
            fits=bool(numbers[0]),
            infeasible=numbers[1],
            infeasible_bytes=numbers[2],
            moves=[
                Move(*row[:2], bool(row[2]), *row[3:6], bool(row[6]), row[7])
                for row in (rows[i : i + 8] for i in range(0, len(rows), 8))
            ],
            bytes_out=numbers[5],
            bytes_in=numbers[6],
            peak_bytes=numbers[7],
            seconds=seconds[0],
            stall_seconds=seconds[1],
            bound_in=numbers[8],
            bound_out=numbers[9],
            excess_bytes=numbers[10],
            bound_seconds=seconds[2],
            one_hill_seconds=seconds[3],
            compressed=bool(numbers[11]),
            starts=list(starts),
            stalls=list(stalls),
            causes=[CAUSES[cause] for cause in causes],
            curve=list(curve),
        )
        library.lms_result_delete(handle)
        return result


class _Handle:
    """A trace of the library, for as long as a with statement runs."""

    def __init__(self, library: ctypes.CDLL, trace: Trace) -> None:
        self._library = library
        self._handle = library.lms_trace(
            len(trace.seconds),
            (ctypes.c_double * len(trace.seconds))(*trace.seconds),
            len(trace.accesses),
            _int64s(value for access in trace.accesses for value in access),
            len(trace.blocks),
            _int64s(v for b in trace.blocks for v in (b.bytes, b.allocated, b.freed)),
            (ctypes.c_double * len(trace.blocks))(*[b.share for b in trace.blocks]),
            trace.unmanaged,
        )

    def __enter__(self) -> int:
        return int(self._handle)

    def __exit__(self, *_: object) -> None:
        self._library.lms_trace_delete(self._handle)


def _int64s(values: object) -> object:
    numbers = [int(value) for value in values]  # type: ignore[attr-defined]
    return (ctypes.c_int64 * len(numbers))(*numbers)


def _machine(machine: Machine) -> tuple[int, object]:
    rates = (ctypes.c_double * 5)(
        machine.out_rate, machine.in_rate, machine.overhead, machine.out_pace, machine.in_pace
    )
    return machine.limit, rates
