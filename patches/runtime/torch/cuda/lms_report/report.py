r"""All that is said of an iteration, in whatever form."""

import collections

from . import host, planner
from .course import History
from .events import measured
from .phase import phases_of
from .role import ROLES, UNMANAGED, roles_of

COURSES = (("planned", "planned transfers"), ("on_demand", "transfers on demand"))
_POINTS = 14  # of the curve of times by memory
_FAR = 1.5  # times as much as is needed: a chart of both would show little of what is needed

Memory = collections.namedtuple("Memory", "at_peak most")
Memory.__doc__ = """Bytes of a role, with everything on the GPU.

Attributes:
    at_peak (int): at the operator at which most memory is in use.
    most (int): the most at any operator.
"""

Point = collections.namedtuple("Point", "gpu_memory simulation")
Point.__doc__ = """An iteration with an amount of GPU memory.

Attributes:
    gpu_memory (int): bytes.
    simulation (planner.Simulation): None if it is too little.
"""

Source = collections.namedtuple(
    "Source", "torch gpu gpu_bytes limit_bytes page_out_bytes page_in_bytes estimated"
)
Source.__doc__ = """Where an iteration was recorded.

Attributes:
    torch (str): version of PyTorch.
    gpu (str): name of the GPU.
    gpu_bytes (int): its memory.
    limit_bytes (int): the limit of LMS.
    page_out_bytes, page_in_bytes (int): what LMS copied meanwhile.
    estimated (bool): there was no GPU: tensors were fake, and times are estimates.
"""


class Report:
    r"""The last iteration of a recording, on a GPU with less memory.

    Args:
        library (ctypes.CDLL): a library with the planner.
        recording (planner.Recording): what was recorded.
        source (Source): where.
        gpu_memory (int): bytes that PyTorch may reserve.
        out_rate, in_rate (float): bytes per second to the host and to the GPU.
        link (str): what the link is called.
        counted (callable): is given a list and yields its items, to show progress.
        host_memory (int): bytes of host memory that LMS may pin; None if there is enough.
        planned_speedup (float): of planned transfers, as planner.Machine has it.

    Raises:
        planner.PlannerError: there is no complete iteration, or a memory is too little.
    """

    def __init__(
        self,
        library,
        recording,
        source,
        gpu_memory,
        out_rate,
        in_rate,
        link,
        counted=iter,
        host_memory=None,
        planned_speedup=1.0,
    ):
        self.source = source
        self.measured = None if source.estimated else measured(recording.events)
        self.gpu_memory = gpu_memory
        self.out_rate, self.in_rate, self.link = out_rate, in_rate, link
        self.host_memory = host_memory
        self._speedup = planned_speedup
        self._find = lambda machine: host.checked_timeline(library, recording, machine, host_memory)
        self._simulate = lambda machine: planner.simulate(library, recording, machine)
        self.machine = planner.machine(gpu_memory, out_rate, in_rate, planned_speedup)
        self.timeline = self._find(self.machine)
        self.totals = self.timeline.totals
        self.phases = phases_of([op.name for op in self.timeline.operators])
        self.roles = roles_of(self.timeline.blocks, self.timeline.accesses, self.phases)
        self.courses = collections.OrderedDict(
            (name, History(self.timeline, name)) for name, _ in COURSES
        )
        operators = self.timeline.operators
        self.peak = max(range(len(operators)), key=lambda i: operators[i].living_bytes)
        self.largest = max(range(len(operators)), key=lambda i: operators[i].needed_bytes)
        self.memory = self._memory(recording.unmanaged_bytes)
        points = counted(self._amounts())
        self.points = [Point(amount, self._at(amount)) for amount in points]
        self.faster_link = None
        if not self.totals.fits:
            self.faster_link = self._at(gpu_memory, 2)

    @property
    def smallest_gpu_memory(self):
        r"""int: bytes of GPU memory with which no operator is too large."""
        return self._enough_for(self.timeline.operators[self.largest].needed_bytes)

    @property
    def enough_memory(self):
        r"""Bytes of GPU memory with which nothing has to be paged out."""
        return self._enough_for(self.totals.peak_bytes)

    @property
    def host_bytes(self):
        r"""(int, int): bytes that LMS pins at least, and where the host has enough memory."""
        needed = host.needed(self.timeline)
        return host.least(needed), host.most(needed)

    @property
    def swapped(self):
        r"""OrderedDict of str to int: bytes that the plan copies to the host, by role."""
        found = collections.OrderedDict((role, 0) for role in ROLES)
        for movement in self.timeline.planned.movements:
            if movement.kind == planner.OUT:
                found[self.roles[movement.block]] += self.timeline.blocks[movement.block].bytes
        return found

    @property
    def scale(self):
        r"""int: bytes at the top of a chart of memory. A limit far above it is not drawn."""
        most = max([self.totals.peak_bytes] + [c.host_peak_bytes for c in self.courses.values()])
        return max(most, self.machine.limit) if self.machine.limit < _FAR * most else most

    def _at(self, gpu_memory, times=1):
        machine = planner.machine(
            gpu_memory, self.out_rate * times, self.in_rate * times, self._speedup
        )
        try:
            if self.host_memory is None:
                return self._simulate(machine)
            return self._find(machine).totals
        except planner.PlannerError:
            return None

    @staticmethod
    def _enough_for(count):
        # Rounded up, so that the part of it that LMS fills is not less.
        return int(count / planner.IN_USE) + 2

    def _amounts(self):
        """GPU memory from what the largest operator needs to what needs no LMS."""
        least, most = self.smallest_gpu_memory, self.enough_memory
        step = max(1, (most - least) // (_POINTS - 1))
        between = range(least, most, step)
        amounts = {*list(between)[: _POINTS - 1], most}
        if self.gpu_memory < _FAR * most:
            amounts.add(self.gpu_memory)
        return sorted(amounts)

    def _memory(self, unmanaged_bytes):
        size = len(self.timeline.operators)
        found = collections.OrderedDict()
        for role in ROLES:
            changes = [0] * (size + 1)
            for block, known in zip(self.timeline.blocks, self.roles):
                if known == role:
                    first, last = (0, size - 1) if block.allocated < 0 else block[1:]
                    changes[first] += block.bytes
                    changes[last + 1] -= block.bytes
            living, now = [], 0
            for change in changes[:size]:
                now += change
                living.append(now)
            found[role] = Memory(living[self.peak], max(living))
        found[UNMANAGED] = Memory(unmanaged_bytes, unmanaged_bytes)
        return found
