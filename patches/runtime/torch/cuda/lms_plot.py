r"""Reports of a recording that is still in memory, for ``torch.cuda.lms.plot()``."""

# As torch.cuda.lms, this file runs on every Python that a supported PyTorch runs on.

import torch
from torch.cuda import lms_trace
from torch.cuda.lms_report import form, planner, report
from torch.cuda.lms_report.picture import NoMatplotlibError

_BYTES = 1 << 24
_COPIES = 4


def plot(path, library, check, device, header, gpu_memory, link):
    r"""Writes a report of a device's last recording; ``header`` is what record() says of it."""
    render = form.form_of(path)
    names, events = lms_trace.packed(library, check, device)
    recording = planner.Recording(events, names, header["unmanaged_bytes"])
    if link is None:
        out_rate, in_rate = measured_link(device)
        title = "the measured link"
    else:
        out_rate, in_rate = link if isinstance(link, (tuple, list)) else (link, link)
        title = "the given link"
    source = report.Source(**{name: header[name] for name in report.Source._fields})
    try:
        found = report.Report(
            library,
            recording,
            source,
            header["limit_bytes"] if gpu_memory is None else gpu_memory,
            float(out_rate),
            float(in_rate),
            title,
        )
        data = render(found)
    except (planner.PlannerError, NoMatplotlibError) as error:
        raise RuntimeError("LMS: {}".format(error)) from error
    lms_trace.write_bytes(path, data)


def measured_link(device):
    r"""Returns bytes per second to the host and to the GPU, of copies from and to pinned memory."""
    host = torch.empty(_BYTES, dtype=torch.uint8, pin_memory=True)
    with torch.cuda.device(device):
        gpu = torch.empty(_BYTES, dtype=torch.uint8, device="cuda")
        return _rate(host, gpu), _rate(gpu, host)


def _rate(target, source):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    target.copy_(source, non_blocking=True)  # the first copy takes longer
    begin.record()
    for _ in range(_COPIES):
        target.copy_(source, non_blocking=True)
    end.record()
    end.synchronize()
    # An event's time has a resolution of half a microsecond.
    milliseconds = max(begin.elapsed_time(end), 5e-4)
    return _COPIES * _BYTES / milliseconds * 1e3
