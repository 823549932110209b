r"""A report as a trace file for Perfetto and chrome://tracing.

The format is the JSON one of Chrome's trace viewer, which torch.profiler writes, too:
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from .phase import short
from .planner import OUT
from .report import COURSES
from .unit import size

# Beyond the processes that torch.profiler names, so that both fit into one file.
_FIRST_PROCESS = 900000001
_COMPUTE, _OUT, _IN = 1, 2, 3
_CAUSES = {"arrival": "waits for a tensor", "memory": "waits for memory"}


def trace(report):
    r"""The trace as a dictionary: an iteration with everything on the GPU, with planned
    transfers, and with transfers on demand. Each is a process, with threads for computation and
    for the link's two directions, and with counters of memory."""
    events = []
    ends, now = [], 0.0
    for operator in report.timeline.operators:
        ends.append(now)
        now += operator.seconds
    events += _process(0, "LMS: everything on the GPU", {_COMPUTE: "operators"})
    events += _operators(report, 0, ends)
    events += _counter(
        0, "GPU memory", zip(ends, (op.living_bytes for op in report.timeline.operators))
    )
    for number, (name, title) in enumerate(COURSES, 1):
        course = report.courses[name]
        threads = {_COMPUTE: "operators", _OUT: "copies to the host", _IN: "copies to the GPU"}
        events += _process(number, "LMS: {} (predicted)".format(title), threads)
        events += _operators(report, number, [start.seconds for start in course.starts])
        events += _stalls(number, course.starts)
        events += _transfers(report, number, course)
        events += _counter(number, "GPU memory", course.gpu)
        events += _counter(number, "host memory", course.host)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "torch": report.source.torch,
            "gpu": report.source.gpu,
            "gpu_memory": report.gpu_memory,
            "out_rate": report.out_rate,
            "in_rate": report.in_rate,
        },
    }


def _event(number, kind, name, seconds, **values):
    microseconds = round(seconds * 1e6, 3)
    return dict(ph=kind, pid=_FIRST_PROCESS + number, name=name, ts=microseconds, **values)


def _process(number, title, threads):
    yield _event(number, "M", "process_name", 0, args={"name": title})
    yield _event(number, "M", "process_sort_index", 0, args={"sort_index": number})
    for thread, name in sorted(threads.items()):
        yield _event(number, "M", "thread_name", 0, tid=thread, args={"name": name})
        yield _event(number, "M", "thread_sort_index", 0, tid=thread, args={"sort_index": thread})


def _operators(report, number, starts):
    for place, (begin, operator) in enumerate(zip(starts, report.timeline.operators)):
        yield _event(
            number,
            "X",
            short(operator.name),
            begin,
            dur=round(operator.seconds * 1e6, 3),
            tid=_COMPUTE,
            cat=report.phases[place],
            args={"operator": place, "uses": size(operator.needed_bytes)},
        )


def _stalls(number, starts):
    for start in starts:
        if start.stall_seconds > 0:
            yield _event(
                number,
                "X",
                _CAUSES[start.cause],
                start.seconds - start.stall_seconds,
                dur=round(start.stall_seconds * 1e6, 3),
                tid=_COMPUTE,
                cat="stall",
            )


def _transfers(report, number, course):
    for transfer in course.transfers:
        block = report.timeline.blocks[transfer.block]
        yield _event(
            number,
            "X",
            report.roles[transfer.block],
            transfer.begin,
            dur=round((transfer.end - transfer.begin) * 1e6, 3),
            tid=_OUT if transfer.kind == OUT else _IN,
            cat="transfer",
            args={"tensor": transfer.block, "bytes": block.bytes},
        )


def _counter(number, name, curve):
    for seconds, count in curve:
        yield _event(number, "C", name, seconds, args={"bytes": count})
