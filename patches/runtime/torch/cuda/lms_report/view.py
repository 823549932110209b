r"""A report as data for the page's script: plain numbers, times in milliseconds."""

from .phase import PHASES, short
from .planner import OUT
from .report import COURSES
from .role import ROLES


def view(report):
    r"""The data as a dictionary for JSON."""
    operators = report.timeline.operators
    names = sorted({short(op.name) for op in operators})
    index = {name: number for number, name in enumerate(names)}
    return {
        "names": names,
        "phases": PHASES,
        "roles": ROLES,
        "memory": [
            [role, memory.at_peak] for role, memory in report.memory.items() if memory.at_peak > 0
        ],
        "operators": {
            "name": [index[short(op.name)] for op in operators],
            "phase": [PHASES.index(phase) for phase in report.phases],
            "duration": [_ms(op.seconds) for op in operators],
            "living": [op.living_bytes for op in operators],
        },
        "blocks": {
            "bytes": [block.bytes for block in report.timeline.blocks],
            "role": [ROLES.index(role) for role in report.roles],
        },
        "courses": [_course(report, name, title) for name, title in COURSES],
        "limit": report.machine.limit,
        "gpuMemory": report.gpu_memory,
        "scale": report.scale,
        "points": [
            [
                point.gpu_memory,
                _ms(point.simulation.planned.seconds),
                _ms(point.simulation.on_demand.seconds),
                _ms(point.simulation.bound_seconds),
            ]
            for point in report.points
            if point.simulation is not None
        ],
    }


def _course(report, name, title):
    course = report.courses[name]
    return {
        "title": title,
        "end": _ms(course.prediction.seconds),
        "starts": [_ms(start.seconds) for start in course.starts],
        "stalls": [_ms(start.stall_seconds) for start in course.starts],
        "causes": [start.cause for start in course.starts],
        "used": [start.used_bytes for start in course.starts],
        "host": [[_ms(seconds), count] for seconds, count in course.host],
        "hostPeak": course.host_peak_bytes,
        "transfers": [
            [int(transfer.kind != OUT), transfer.block, _ms(transfer.begin), _ms(transfer.end)]
            for transfer in course.transfers
        ],
        "absences": [
            [absence.block, _ms(absence.begin), _ms(absence.end), absence.offset]
            for absence in course.absences
        ],
    }


def _ms(seconds):
    return round(seconds * 1e3, 4)
