"""The runtime's planner, compiled for this machine and called through its C interface."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmsbuild.errors import CompileError, TraceError
from lmsbuild.native.compile import RUNTIME_SOURCES
from lmsbuild.native.toolchain import Compiler, find_compiler, run
from lmsbuild.simulate import lms_report
from lmsbuild.simulate.trace import Trace
from lmsbuild.tools import atomic
from lmsbuild.tools.cache import scratch, sha256_of_files
from lmsbuild.tools.cache_content import in_use

# What of the runtime needs neither torch nor CUDA.
_PARTS = ("iteration", "forecast", "simulation", "timeline")
_SOURCES = ("plan/*.cpp", *(f"record/{name}.cpp" for name in _PARTS))
_HEADERS = (
    "plan/*.h",
    *(f"record/{name}.h" for name in _PARTS),
    "record/trace.h",
    "base/export.h",
)
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-DNDEBUG", "-fvisibility=hidden")
_LIBRARY = "liblmsplan.so"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What an iteration is simulated on.

    Attributes:
        limit: bytes of GPU memory that may be in use.
        out_rate: bytes per second from the GPU to the host.
        in_rate: bytes per second from the host to the GPU.
        overhead: seconds that each transfer takes besides.
        planned_speedup: so many times as fast are planned transfers, which are compressed.
    """

    limit: int
    out_rate: float
    in_rate: float
    overhead: float
    planned_speedup: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What an iteration takes.

    Attributes:
        seconds: its time.
        stall_seconds: the part of it in which no operator runs.
        bytes_out: bytes copied to the host.
        bytes_in: bytes copied to the GPU.
        peak_bytes: the most GPU memory in use.
    """

    seconds: float
    stall_seconds: float
    bytes_out: int
    bytes_in: int
    peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """The last iteration of a trace, with a limit.

    Attributes:
        operators: how many it has.
        blocks: how many storages they use.
        compute_seconds: its time with everything on the GPU.
        peak_bytes: GPU memory that it needs for that.
        fits: it is within the limit, so LMS is not necessary.
        planned: with planned transfers; None if everything fits.
        on_demand: with transfers when they are needed.
        bound_seconds: no plan is faster.
        host_least_bytes: host memory that LMS pins for what is swapped, at least: whole pages for
            each storage, and whole huge pages for all.
        host_most_bytes: what it pins where the host has enough memory.
    """

    operators: int
    blocks: int
    compute_seconds: float
    peak_bytes: int
    fits: bool
    planned: Prediction
    on_demand: Prediction
    bound_seconds: float
    host_least_bytes: int
    host_most_bytes: int


class Planner:
    """The compiled planner."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))

    def simulate(
        self, trace: Trace, machine: Machine, host_memory: int | None = None
    ) -> Simulation:
        """Predict the trace's last iteration.

        Args:
            trace: the trace.
            machine: what it runs on.
            host_memory: bytes that LMS may pin; None if there is enough.

        Raises:
            TraceError: it has no complete iteration, an operator needs more than the limit, or what
                is swapped needs more than the host memory.
        """
        host, planner = lms_report.module("host"), lms_report.module("planner")
        given = planner.Machine(**dataclasses.asdict(machine))
        try:
            timeline = host.checked_timeline(
                self.library, self.recording(trace), given, host_memory
            )
        except planner.PlannerError as error:
            raise TraceError(str(error)) from error
        found = timeline.totals._asdict()
        for course in ("planned", "on_demand"):
            found[course] = Prediction(**found[course]._asdict())
        needed = host.needed(timeline)
        return Simulation(
            host_least_bytes=host.least(needed), host_most_bytes=host.most(needed), **found
        )

    def timeline(self, trace: Trace, machine: Machine) -> Any:
        """The same with what happens when: a Timeline of the runtime's lms_report/planner.py."""
        return self._call("timeline", trace, machine)

    def recording(self, trace: Trace) -> Any:
        """A trace as a Recording of lms_report/planner.py."""
        planner = lms_report.module("planner")
        return planner.Recording(
            events=trace.events,
            names=trace.names,
            unmanaged_bytes=trace.unmanaged_bytes,
        )

    def _call(self, function: str, trace: Trace, machine: Machine) -> Any:
        planner = lms_report.module("planner")
        given = planner.Machine(**dataclasses.asdict(machine))
        try:
            return getattr(planner, function)(self.library, self.recording(trace), given)
        except planner.PlannerError as error:
            raise TraceError(str(error)) from error


def planner(patches: Path, cache: Path) -> Planner:
    """The planner from the cache, or compiled, which takes some seconds.

    Raises:
        CompileError: it does not compile.
        ToolMissingError: there is no C++ compiler.
    """
    runtime = patches / "runtime"
    root = runtime / RUNTIME_SOURCES
    files = {
        str(path.relative_to(runtime)): path
        for pattern in (*_SOURCES, *_HEADERS)
        for path in sorted(root.glob(pattern))
    }
    compiler = find_compiler(platform.machine())
    folder = cache / "libraries" / f"planner-{_key(files, compiler)}"
    library = folder / _LIBRARY
    with in_use(cache):
        if not library.exists():
            _compile(files, runtime, compiler, library, cache)
        return Planner(library)


def _compile(
    files: Mapping[str, Path], runtime: Path, compiler: Compiler, library: Path, cache: Path
) -> None:
    with scratch(cache) as work:
        built = Path(work) / _LIBRARY
        sources = [str(path) for path in files.values() if path.suffix == ".cpp"]
        command = [*compiler.command, *_FLAGS, "-I", str(runtime), *sources, "-o", str(built)]
        done = run(command)
        if done.returncode != 0:
            raise CompileError(
                f"the planner does not compile with {compiler.version}", detail=done.stderr
            )
        library.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_bytes(library, built.read_bytes())


def _key(files: Mapping[str, Path], compiler: Compiler) -> str:
    """Of what the library is made from and by."""
    made_by = (compiler.machine, *compiler.command, compiler.version, *_FLAGS)
    text = f"{sha256_of_files(files)} {' '.join(made_by)}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]
