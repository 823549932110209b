r"""What a report says in words and numbers."""

import collections

from .advice import advice
from .phase import PHASES, short
from .report import COURSES
from .role import MEANINGS, ROLES
from .unit import factor, rate, share, size, time

Section = collections.namedtuple("Section", "title head rows")
Section.__doc__ = """A table.

Attributes:
    title (str): what it is about.
    head (list of str): the columns' names; empty if rows are a name and a value.
    rows (list of list of str): the first column is a name, the others are numbers.
"""

_STALLS = 6
_CAUSES = {
    "arrival": "waits for a tensor from the host",
    "memory": "waits for memory that is being copied to the host",
}


def headline(report):
    r"""The most important sentence."""
    totals = report.totals
    if totals.fits:
        return "LMS is not necessary: {} are needed, and {} are there.".format(
            size(totals.peak_bytes), size(report.machine.limit)
        )
    return (
        "With {} of GPU memory instead of the {} that it needs, an iteration takes {} with planned "
        "transfers: {} as long as with everything on the GPU.".format(
            size(report.gpu_memory),
            size(report.enough_memory),
            time(totals.planned.seconds),
            factor(totals.planned.seconds, totals.compute_seconds),
        )
    )


def sections(report):
    r"""The report as a list of Section."""
    found = [_recorded(report), _memory(report)]
    if not report.totals.fits:
        found += [_times(report), _swapped(report)]
        if report.totals.planned.stall_seconds > 0:
            found.append(_stalls(report))
    return [*found, Section("What would help", [], [[line] for line in advice(report)])]


def meanings(report):
    r"""(role, what it means) of the roles in the report."""
    return [(role, MEANINGS[role]) for role in ROLES if report.memory[role].most > 0]


def _recorded(report):
    source, totals = report.source, report.totals
    rows = [
        ["PyTorch", source.torch],
        ["GPU", "{}, {}".format(source.gpu, size(source.gpu_bytes))],
        ["operators in an iteration", "{:,}".format(totals.operators)],
        ["tensor storages", "{:,}".format(totals.blocks)],
        [
            "time of its operators" + (", estimated" if source.estimated else ""),
            time(totals.compute_seconds),
        ],
    ]
    if report.measured:
        rows.append(["measured time of the iteration", time(report.measured.seconds)])
        if report.measured.stall_seconds > 0:
            rows.append(["of it, waiting for transfers", time(report.measured.stall_seconds)])
    if source.page_out_bytes or source.page_in_bytes:
        moved = source.page_out_bytes + source.page_in_bytes
        rows.append(["copied by LMS while it was recorded", size(moved)])
    return Section("Recorded", [], rows)


def _memory(report):
    rows = [
        [role, size(memory.at_peak), size(memory.most)]
        for role, memory in report.memory.items()
        if memory.most > 0
    ]
    operators = report.timeline.operators
    rows.append(["all", size(report.totals.peak_bytes), ""])
    largest = operators[report.largest]
    title = "largest operator ({})".format(short(largest.name))
    rows.append([title, size(largest.needed_bytes), ""])
    at = "at the peak ({})".format(short(operators[report.peak].name))
    return Section("GPU memory with everything on the GPU", ["", at, "at most"], rows)


def _times(report):
    totals = report.totals

    def row(title, seconds, stalls=None):
        return [
            title,
            time(seconds),
            factor(seconds, totals.compute_seconds),
            "" if stalls is None else time(stalls),
        ]

    rows = [row("everything on the GPU", totals.compute_seconds)]
    for name, title in COURSES[::-1]:
        prediction = getattr(totals, name)
        rows.append(row(title, prediction.seconds, prediction.stall_seconds))
    rows.append(row("lower bound", totals.bound_seconds))
    title = "Predicted time of an iteration, with {}".format(size(report.gpu_memory))
    return Section(title, ["", "time", "", "waiting"], rows)


def _swapped(report):
    courses = [report.courses[name] for name, _ in COURSES]
    head = [""] + [title for _, title in COURSES]
    rows = [
        ["to the host"] + [size(course.prediction.bytes_out) for course in courses],
        ["to the GPU"] + [size(course.prediction.bytes_in) for course in courses],
        ["host memory, at least"] + [size(course.host_peak_bytes) for course in courses],
        ["host memory that LMS pins", "up to {}".format(size(report.host_bytes[1])), ""],
        ["peak of GPU memory"] + [size(course.prediction.peak_bytes) for course in courses],
    ]
    rows += [
        ["{} to the host".format(role), size(count), ""]
        for role, count in report.swapped.items()
        if count > 0
    ]
    title = "Swapped in an iteration, over {} ({} out, {} in)".format(
        report.link, rate(report.out_rate), rate(report.in_rate)
    )
    return Section(title, head, rows)


def _stalls(report):
    starts = report.courses["planned"].starts
    whole = report.totals.planned.stall_seconds
    rows = []
    for phase in PHASES:
        for cause, meaning in sorted(_CAUSES.items()):
            seconds = sum(
                start.stall_seconds
                for start, known in zip(starts, report.phases)
                if start.cause == cause and known == phase
            )
            if seconds > 0:
                rows.append(["{}: {}".format(phase, meaning), time(seconds), share(seconds, whole)])
    longest = sorted(range(len(starts)), key=lambda i: -starts[i].stall_seconds)[:_STALLS]
    for place in longest:
        start, operator = starts[place], report.timeline.operators[place]
        if start.stall_seconds > 0:
            title = "until {}, before operator {:,} ({})".format(
                time(start.seconds), place, short(operator.name)
            )
            seconds = start.stall_seconds
            rows.append([title, time(seconds), share(seconds, whole)])
    return Section("Where it waits, with planned transfers", ["", "time", "of it"], rows)
