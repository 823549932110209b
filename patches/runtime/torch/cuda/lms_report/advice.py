r"""What would make an iteration faster. Each sentence is the result of a simulation."""

from .phase import short, uses_all_of
from .unit import factor, size, time

_LITTLE = 1.05  # times as long as with enough memory


def advice(report):
    r"""Sentences, the most useful first."""
    totals = report.totals
    if totals.fits:
        return ["Nothing: LMS is not necessary.", *list(_of_the_largest_operator(report))]
    lines = list(_of_memory(report))
    if report.faster_link is not None:
        seconds = report.faster_link.planned.seconds
        if seconds < 0.98 * totals.planned.seconds:
            lines.append(
                "A link twice as fast: {} ({} as long as with everything on the GPU).".format(
                    time(seconds), factor(seconds, totals.compute_seconds)
                )
            )
    lines += _of_the_largest_operator(report)
    source = report.source
    if source.page_out_bytes or source.page_in_bytes:
        lines.append(
            "LMS copied tensors while this was recorded, so operators' times may include some "
            "waiting. A recording where everything fits predicts better."
        )
    return lines


def _of_memory(report):
    compute = report.totals.compute_seconds
    if report.totals.planned.seconds <= _LITTLE * compute:
        yield "Little can: the transfers cost less than 5 %."
        return
    more = [
        point
        for point in report.points
        if point.gpu_memory > report.gpu_memory and point.simulation is not None
    ]
    for point in more[:1]:
        seconds = point.simulation.planned.seconds
        if seconds < 0.98 * report.totals.planned.seconds:
            yield "More GPU memory, {}: {} ({}).".format(
                size(point.gpu_memory), time(seconds), factor(seconds, compute)
            )
    for point in more[1:]:
        if point.simulation.planned.seconds <= _LITTLE * compute:
            yield "From {} of GPU memory on, the transfers cost less than 5 %.".format(
                size(point.gpu_memory)
            )
            return


def _of_the_largest_operator(report):
    operators = report.timeline.operators
    largest = operators[report.largest]
    what = uses_all_of(largest.name)
    others = [op.needed_bytes for op in operators if not what or uses_all_of(op.name) != what]
    if what and others and max(others) < largest.needed_bytes:
        yield (
            "{} with foreach=False: the largest operator ({}) uses {} at once, and the "
            "largest other one {}.".format(
                "An optimizer" if what == "the optimizer" else what,
                short(largest.name),
                size(largest.needed_bytes),
                size(max(others)),
            )
        )
