"""Large Model Support in the traces of torch.profiler.

While a profiler runs, LMS's C++ code opens a range for each transfer, as
``torch.profiler.record_function`` does, and says in its name what is moved. The profiler has it on
the host and, with CUPTI, on the stream that copies. Here, a trace gets tracks made of these ranges.
"""

# This file runs on every Python that a supported PyTorch runs on: see torch.cuda.lms.

import gzip
import json
import os
import re
import warnings
import zlib

# What Mover::show() writes.
_NAME = re.compile(r"LMS (clean )?(page-out|page-in) on cuda:(\d+): (.*) \((\d+) bytes\)")
_THREADS = {"page-out": 1, "page-in": 2}
_CATEGORY = "lms"
# How the profiler names modules, and autograd nodes.
_MODULE = "nn.Module: "
_NODE = "autograd::engine::evaluate_function: "
# Beyond the processes that torch.profiler and torch.cuda.lms.plot() name; behind them, too.
_FIRST_PROCESS = 900001001


def trace_handler(dir_name, worker_name=None, use_gzip=False):
    r"""Writes traces as ``torch.profiler.tensorboard_trace_handler`` does, with LMS's transfers.

    ::

        with torch.profiler.profile(
            schedule=torch.profiler.schedule(wait=1, warmup=1, active=3),
            on_trace_ready=torch.cuda.lms.integrations.profiler.trace_handler("traces"),
        ) as prof:
            for batch in loader:
                train(batch)
                prof.step()

    A trace that :func:`add_transfers` cannot read stays as it is, with a warning.

    Args:
        dir_name (str): the folder; made if it is not there.
        worker_name (str, optional): the beginning of the files' names, unique for each
            worker. Default: the names of host and process.
        use_gzip (bool): whether to compress the files.

    Returns:
        callable: for ``on_trace_ready`` of ``torch.profiler.profile``.

    Raises:
        RuntimeError: by the handler, if the folder cannot be made.
    """
    import torch.profiler

    write = torch.profiler.tensorboard_trace_handler(dir_name, worker_name, use_gzip)

    def handler(prof):
        exporter = _Exporter(prof)
        write(exporter)
        for path in exporter.paths:
            try:
                add_transfers(path)
            except ValueError as error:
                warnings.warn("LMS: no transfers are added: {}".format(error), stacklevel=2)

    return handler


class _Exporter:
    """A profiler that remembers where its traces are."""

    def __init__(self, prof):
        self._prof = prof
        self.paths = []

    def export_chrome_trace(self, path, *args, **kwargs):
        result = self._prof.export_chrome_trace(path, *args, **kwargs)
        self.paths.append(path)
        return result

    def __getattr__(self, name):
        return getattr(self._prof, name)


def add_transfers(path):
    r"""Adds tracks of LMS's page-outs and page-ins to a trace of ``torch.profiler``.

    ::

        prof.export_chrome_trace("trace.json")
        torch.cuda.lms.integrations.profiler.add_transfers("trace.json")

    Each GPU gets a process ``LMS (GPU 0)`` with the tracks ``page-out`` and ``page-in``. A
    transfer has the operator that needed the tensor or its memory, the tensor's size in
    bytes, and the innermost range around it: an autograd node, a ``record_function``,
    or with ``with_stack=True`` a module. With ``ProfilerActivity.CUDA`` its time is the
    GPU's, on the axis of the kernels; without, it is when the host issued it. What
    took no time is a mark: page-outs whose bytes the host had already, and
    transfers that the GPU's part of the trace lacks. The streams that copy are named.

    Counters, in bytes: ``allocated`` on the GPU, if the profiler has
    ``profile_memory=True``; with ``record_shapes=True`` (PyTorch 2.1 and later), what
    LMS manages, ``managed on the GPU`` and ``paged out``, at the start of each transfer.

    The program need not run any more, and LMS need not be on. A trace without
    transfers stays as it is. If the trace has these tracks already, they are replaced.

    Args:
        path (str or path-like): the file, in JSON; compressed if its name ends with
            ``.gz``. It is replaced.

    Raises:
        ValueError: if the file is no trace.
        OSError: if it cannot be read or written.
    """
    path = os.fspath(path)
    trace = _read(path)
    events = trace.get("traceEvents") if isinstance(trace, dict) else trace
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise ValueError(
            "{} is no trace of torch.profiler; pass a file that export_chrome_trace() "
            "has written".format(path)
        )
    transfers = _transfers(events)
    if not transfers:
        return
    events[:] = [event for event in events if event.get("cat") != _CATEGORY]
    _name_streams(events, transfers)
    devices = sorted({transfer.device for transfer in transfers})
    added = []
    for device in devices:
        own = [transfer for transfer in transfers if transfer.device == device]
        added += _process(device)
        added += _tracks(device, own)
        added += _managed(device, own)
        added += _allocated(device, events)
    events += added
    _write(path, trace)


# ---- files -------------------------------------------------------------------


def _open(path, mode, compressed):
    return gzip.open(path, mode) if compressed else open(path, mode)


def _read(path):
    try:
        with _open(path, "rb", path.endswith(".gz")) as file:
            # Operators' names and inputs may be anything.
            return json.loads(file.read().decode("utf-8", "replace"), strict=False)
    except (ValueError, EOFError, zlib.error) as error:
        raise ValueError("{} cannot be read as JSON: {}".format(path, error)) from error


def _write(path, trace):
    unfinished = "{}.{}.tmp".format(path, os.getpid())
    try:
        with _open(unfinished, "wb", path.endswith(".gz")) as file:
            file.write(json.dumps(trace).encode("ascii"))
        os.replace(unfinished, path)
    finally:
        if os.path.exists(unfinished):
            os.remove(unfinished)


# ---- what was moved ----------------------------------------------------------


class _Transfer:
    """A page-out or page-in.

    Attributes:
        kind (str): "page-out" or "page-in".
        clean (bool): whether there was nothing to copy.
        device (int): the GPU.
        operator (str): that needed the tensor or its memory; empty outside of operators.
        size (int): bytes.
        host (dict or None): the host's range.
        gpu (list of dict): the ranges on the GPU's streams.
        range (str): the innermost range around the host's; empty without one.
    """

    def __init__(self, match):
        clean, self.kind, device, operator, size = match.groups()
        self.clean = clean is not None
        self.device = int(device)
        self.operator = "" if operator == "-" else operator
        self.size = int(size)
        self.host = None
        self.gpu = []
        self.range = ""


def _external_id(event):
    return event.get("args", {}).get("External id")


def _transfers(events):
    """The transfers of a trace, in the order in which it has them."""
    found, by_id, on_gpu = [], {}, []
    for event in events:
        match = event.get("ph") == "X" and _NAME.match(event.get("name", ""))
        if not match:
            continue
        if event.get("cat") == "gpu_user_annotation":
            on_gpu.append((match, event))
        elif event.get("cat") == "user_annotation":
            transfer = _Transfer(match)
            transfer.host = event
            found.append(transfer)
            by_id[_external_id(event)] = transfer
    by_id.pop(None, None)
    for match, event in on_gpu:
        transfer = by_id.get(_external_id(event))
        if transfer is None:
            # The host was not recorded.
            transfer = _Transfer(match)
            found.append(transfer)
        transfer.gpu.append(event)
    _find_ranges(events, found)
    return found


def _end(event):
    return event["ts"] + event.get("dur", 0)


def _thread(event):
    return event.get("pid"), event.get("tid")


def _range(event):
    """The name of the range that an event is; empty if it is none."""
    name, category = event.get("name", ""), event.get("cat")
    if event.get("ph") != "X" or _NAME.match(name):
        return ""
    if category == "user_annotation":
        return name
    if category == "python_function" and name.startswith(_MODULE):
        return name
    if category == "cpu_op" and name.startswith(_NODE):
        return name[len(_NODE) :]
    return ""


def _find_ranges(events, transfers):
    """Sets the ranges around transfers."""
    threads = {}
    for transfer in transfers:
        if transfer.host is not None:
            threads.setdefault(_thread(transfer.host), []).append((transfer.host, transfer))
    for event in events:
        if _thread(event) in threads and _range(event):
            threads[_thread(event)].append((event, None))
    for entries in threads.values():
        around = []
        for event, transfer in sorted(entries, key=lambda entry: (entry[0]["ts"], -_end(entry[0]))):
            while around and _end(around[-1]) <= event["ts"]:
                around.pop()
            if transfer is None:
                around.append(event)
            elif around:
                transfer.range = _range(around[-1])


# ---- what is added -----------------------------------------------------------


def _name_streams(events, transfers):
    """Says in the names of streams that LMS copies there."""
    kinds = {}
    for transfer in transfers:
        for event in transfer.gpu:
            kinds.setdefault(_thread(event), set()).add(transfer.kind)
    for event in events:
        if event.get("ph") == "M" and event.get("name") == "thread_name":
            kind = kinds.get(_thread(event))
            name = event.get("args", {}).get("name", "")
            if kind and "LMS" not in name:
                name = "{} (LMS {})".format(name.strip(), ", ".join(sorted(kind)))
                event["args"]["name"] = name


def _event(device, kind, name, time, **values):
    return dict(ph=kind, cat=_CATEGORY, pid=_FIRST_PROCESS + device, name=name, ts=time, **values)


def _process(device):
    title = "LMS (GPU {})".format(device)
    yield _event(device, "M", "process_name", 0, tid=0, args={"name": title})
    order = {"sort_index": _FIRST_PROCESS + device}
    yield _event(device, "M", "process_sort_index", 0, tid=0, args=order)
    for name, thread in _THREADS.items():
        yield _event(device, "M", "thread_name", 0, tid=thread, args={"name": name})
        order = {"sort_index": thread}
        yield _event(device, "M", "thread_sort_index", 0, tid=thread, args=order)


def _tracks(device, transfers):
    # The host's times and the GPU's would overlap in one track.
    timed_by_gpu = {transfer.kind for transfer in transfers if transfer.gpu}
    for transfer in transfers:
        name = transfer.kind
        args = {"bytes": transfer.size}
        if transfer.operator:
            name += ": " + transfer.operator
            args["operator"] = transfer.operator
        if transfer.range:
            args["range"] = transfer.range
        if transfer.clean:
            args["clean"] = True
        thread = _THREADS[transfer.kind]
        if not transfer.clean and (transfer.gpu or transfer.kind not in timed_by_gpu):
            parts = transfer.gpu or [transfer.host]
            begin = min(part["ts"] for part in parts)
            length = max(map(_end, parts)) - begin
            yield _event(device, "X", name, begin, dur=length, tid=thread, args=args)
        else:
            begin = transfer.host["ts"]
            yield _event(device, "i", name, begin, s="t", tid=thread, args=args)


def _managed(device, transfers):
    """The counters of what LMS manages: the last two values of Mover::show()."""
    for transfer in transfers:
        values = (transfer.host or {}).get("args", {}).get("Concrete Inputs", ())
        if len(values) != 3 or not all(str(value).isdigit() for value in values):
            continue
        for name, value in zip(("managed on the GPU", "paged out"), values[1:]):
            time = transfer.host["ts"]
            yield _event(device, "C", name, time, tid=0, args={"bytes": int(value)})


def _allocated(device, events):
    """The counter of what PyTorch has allocated on a GPU."""
    cuda = 1  # c10::DeviceType::CUDA
    for event in events:
        args = event.get("args", {})
        if event.get("name") == "[memory]" and (
            (args.get("Device Type"), args.get("Device Id")) == (cuda, device)
        ):
            count = {"bytes": args.get("Total Allocated", 0)}
            yield _event(device, "C", "allocated", event["ts"], tid=0, args=count)
