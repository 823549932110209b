r"""A report's numbers for programs: sizes in bytes, times in seconds."""

from .advice import advice
from .report import COURSES
from .summary import headline


def data(report):
    r"""The numbers as a dictionary for JSON."""
    totals = report.totals
    largest = report.timeline.operators[report.largest]
    peak = report.timeline.operators[report.peak]
    found = {
        "headline": headline(report),
        "torch": report.source.torch,
        "gpu": report.source.gpu,
        "estimated": report.source.estimated,
        "gpu_memory": report.gpu_memory,
        "smallest_gpu_memory": report.smallest_gpu_memory,
        "link_out": report.out_rate,
        "link_in": report.in_rate,
        "host_memory": report.host_memory,
        "host_least_bytes": report.host_bytes[0],
        "host_most_bytes": report.host_bytes[1],
        "operators": totals.operators,
        "blocks": totals.blocks,
        "compute_seconds": totals.compute_seconds,
        "measured_seconds": report.measured.seconds if report.measured else None,
        "measured_stall_seconds": report.measured.stall_seconds if report.measured else None,
        "peak_bytes": totals.peak_bytes,
        "peak_operator": peak.name,
        "largest_operator": {"name": largest.name, "bytes": largest.needed_bytes},
        "fits": totals.fits,
        "bound_seconds": totals.bound_seconds,
        "roles": {role: dict(memory._asdict()) for role, memory in report.memory.items()},
        "swapped": dict(report.swapped),
        "points": [
            {
                "gpu_memory": point.gpu_memory,
                "planned_seconds": point.simulation.planned.seconds,
                "on_demand_seconds": point.simulation.on_demand.seconds,
                "bound_seconds": point.simulation.bound_seconds,
            }
            for point in report.points
            if point.simulation is not None
        ],
        "advice": advice(report),
    }
    for name, _ in COURSES:
        found[name] = dict(getattr(totals, name)._asdict())
        found[name]["host_peak_bytes"] = report.courses[name].host_peak_bytes
    return found
