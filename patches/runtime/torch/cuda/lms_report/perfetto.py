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
    events += _slices(_operators(report, 0, ends))
    events += _counter(
        0, "GPU memory", zip(ends, (op.living_bytes for op in report.timeline.operators))
    )
    for number, (name, title) in enumerate(COURSES, 1):
        course = report.courses[name]
        threads = {_COMPUTE: "operators", _OUT: "copies to the host", _IN: "copies to the GPU"}
        events += _process(number, "LMS: {} (predicted)".format(title), threads)
        operators = _operators(report, number, [start.seconds for start in course.starts])
        events += _slices(_in_order(operators, _stalls(number, course.starts)))
        for tid in (_OUT, _IN):
            events += _slices(_in_order(_transfers(report, number, course, tid)))
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


def _slices(slices):
    """Events with a begin and an end, in seconds, of one thread, in order.

    Perfetto's unit is the nanosecond. It drops a slice that begins before the last one has ended,
    so both are rounded, and not how long it takes.
    """
    slices = list(slices)
    ends = [round(begin * 1e9) for _, _, begin, _, _ in slices[1:]] + [None]
    for (number, name, begin, end, values), following in zip(slices, ends):
        first, last = round(begin * 1e9), round(end * 1e9)
        if following is not None:
            last = max(first, min(last, following))
        yield _event(number, "X", name, first * 1e-9, dur=(last - first) / 1e3, **values)


def _process(number, title, threads):
    yield _event(number, "M", "process_name", 0, args={"name": title})
    yield _event(number, "M", "process_sort_index", 0, args={"sort_index": number})
    for thread, name in sorted(threads.items()):
        yield _event(number, "M", "thread_name", 0, tid=thread, args={"name": name})
        yield _event(number, "M", "thread_sort_index", 0, tid=thread, args={"sort_index": thread})


def _operators(report, number, starts):
    for place, (begin, operator) in enumerate(zip(starts, report.timeline.operators)):
        values = {
            "tid": _COMPUTE,
            "cat": report.phases[place],
            "args": {"operator": place, "uses": size(operator.needed_bytes)},
        }
        yield number, short(operator.name), begin, begin + operator.seconds, values


def _stalls(number, starts):
    for start in starts:
        if start.stall_seconds > 0:
            begin = start.seconds - start.stall_seconds
            values = {"tid": _COMPUTE, "cat": "stall"}
            yield number, _CAUSES[start.cause], begin, start.seconds, values


def _transfers(report, number, course, tid):
    for transfer in course.transfers:
        if (_OUT if transfer.kind == OUT else _IN) == tid:
            values = {
                "tid": tid,
                "cat": "transfer",
                "args": {
                    "tensor": transfer.block,
                    "bytes": report.timeline.blocks[transfer.block].bytes,
                },
            }
            yield number, report.roles[transfer.block], transfer.begin, transfer.end, values


def _in_order(*groups):
    return sorted((item for group in groups for item in group), key=lambda item: item[2:4])


def _counter(number, name, curve):
    for seconds, count in curve:
        yield _event(number, "C", name, seconds, args={"bytes": count})
