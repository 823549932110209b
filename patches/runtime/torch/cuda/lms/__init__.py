r"""Large Model Support (LMS): train models that do not fit in GPU memory.

After ``torch.cuda.set_enabled_lms(True)``, the CUDA allocator moves tensors that
no operator is using to host memory when GPU memory runs out, and moves each one
back before the next operator that uses it. Results are bit-identical.

All sizes are in bytes. Settings apply to the whole process and to each of its
GPUs.
"""

# The Python interface of libtorch_lms.so, which is loaded at the first call that needs it; in
# PyTorch 1.1 to 1.5 it is a part of libc10_cuda.so. This file runs on every Python that a supported
# PyTorch runs on: it uses neither f-strings nor annotations of variables.

import atexit
import collections.abc
import contextlib
import ctypes
import errno
import functools
import gc
import inspect
import os
import sys
import threading
import types
import warnings
import weakref

import torch
from torch.cuda.lms import environment, hint
from torch.cuda.lms.metrics import Metrics as Metrics

__all__ = [
    "get_enabled_lms",
    "get_host_limit_lms",
    "get_limit_lms",
    "get_size_lms",
    "reclaim_inactive",
    "set_enabled_lms",
    "set_host_limit_lms",
    "set_limit_lms",
    "set_size_lms",
]

_ABI_VERSION = 13
_OUT_OF_MEMORY = 2

_POOLS = ("all", "small_pool", "large_pool")
_STAT = ("current", "peak", "allocated", "freed")
_SOURCES = (
    "freelist",
    "cudamalloc",
    "reclaim_one",
    "reclaim_fragments",
    "reclaim_all",
    "cudamalloc_retry",
)

_lock = threading.RLock()
_library = None
_addresses_guarded = False
# The module torch.cuda.lms_launch, once it sees kernels.
_launch = None
# Whether operators have used tensors while LMS did not track them.
_unseen = False
# What the user set, in bytes, also while there is no device to apply it to.
_settings = {
    "enabled": False,
    "limit": 0,
    "size": 1 << 20,
    "host_limit": 0,
    "planning": True,
    "compression": "auto",
}
# Whether the program has turned LMS on before now.
_known = False
# An _Oracle, if the environment requests one.
_oracle = None
# What the package torch_lms sets, if this file is a part of it and not of PyTorch: the path of the
# library, or why there is none for this PyTorch.
_library_path = None
_unsupported = None
_warned = False


def _path():
    if _library_path is not None:
        return _library_path
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    paths = [os.path.join(folder, name) for name in ("libtorch_lms.so", "libc10_cuda.so")]
    return next((path for path in paths if os.path.exists(path)), paths[0])


def _open(path):
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise RuntimeError(
            "LMS: {} cannot be loaded ({}). Reinstall this build of PyTorch, or build it again "
            "with lmsbuild.".format(path, error)
        ) from error
    if not hasattr(library, "lms_abi_version"):
        raise RuntimeError(
            "LMS: {} was built without it; build PyTorch again with USE_LMS=1.".format(path)
        )
    library.lms_abi_version.restype = ctypes.c_int
    found = library.lms_abi_version()
    if found != _ABI_VERSION:
        raise RuntimeError(
            "LMS: {} has version {} of the interface, and torch.cuda.lms needs {}: the two "
            "come from different builds.".format(path, found, _ABI_VERSION)
        )
    size = ctypes.c_size_t
    storage = ctypes.c_void_p
    device = ctypes.c_int
    for name, result, arguments in (
        ("last_error", ctypes.c_char_p, ()),
        ("set_enabled", ctypes.c_int, (ctypes.c_int,)),
        ("get_enabled", ctypes.c_int, ()),
        ("set_limit", ctypes.c_int, (size,)),
        ("get_limit", size, ()),
        ("set_size", ctypes.c_int, (size,)),
        ("get_size", size, ()),
        ("reclaim_inactive", ctypes.c_int, (ctypes.POINTER(size),)),
        ("set_host_limit", ctypes.c_int, (size,)),
        ("get_host_limit", size, ()),
        ("reserve_host", ctypes.c_int, (device, ctypes.POINTER(size))),
        ("trim_host", ctypes.c_int, (ctypes.POINTER(size),)),
        ("stat_count", size, ()),
        ("stat_name", ctypes.c_char_p, (size,)),
        ("stats", ctypes.c_int, (device, ctypes.POINTER(ctypes.c_int64))),
        ("reset_peak_stats", ctypes.c_int, (device,)),
        ("reset_accumulated_stats", ctypes.c_int, (device,)),
        ("hold", ctypes.c_int, (storage,)),
        ("release", ctypes.c_int, (storage,)),
        ("take_address", ctypes.c_int, (storage, ctypes.c_int)),
        ("know_slice", ctypes.c_int, (storage, storage)),
        ("release_address", ctypes.c_int, (storage,)),
        (
            "begin_region",
            ctypes.c_int,
            (ctypes.POINTER(storage), size, ctypes.POINTER(ctypes.c_int)),
        ),
        ("end_region", ctypes.c_int, ()),
        ("bring", ctypes.c_int, (storage,)),
        ("count_region", None, (ctypes.POINTER(ctypes.c_int),)),
        ("uncount_region", None, ()),
        ("begin_compiled", ctypes.c_int, (ctypes.POINTER(ctypes.c_int),) * 2),
        ("end_compiled", ctypes.c_int, (ctypes.POINTER(storage), size)),
        ("begin_hook", ctypes.c_int, (ctypes.POINTER(ctypes.c_int),)),
        ("end_hook", ctypes.c_int, ()),
        ("is_resident", ctypes.c_int, (storage,)),
        ("checks", ctypes.c_int, (device, ctypes.POINTER(ctypes.c_char_p))),
        ("record", ctypes.c_int, (device, ctypes.c_int)),
        ("step", ctypes.c_int, (ctypes.c_uint32,)),
        ("set_planning", ctypes.c_int, (ctypes.c_int,)),
        ("set_readable", ctypes.c_int, (ctypes.c_int,)),
        ("set_compression", ctypes.c_int, (ctypes.c_int,)),
        ("why_not_compressed", ctypes.c_int, (device, ctypes.POINTER(ctypes.c_char_p))),
        (
            "trace",
            ctypes.c_int,
            (device, ctypes.POINTER(storage), ctypes.POINTER(size), ctypes.POINTER(size)),
        ),
        ("trace_name", ctypes.c_char_p, (device, size)),
        ("set_option", ctypes.c_int, (ctypes.c_char_p, ctypes.c_int)),
    ):
        function = getattr(library, "lms_" + name)
        function.restype = result
        function.argtypes = arguments
    return library


def _callers():
    """The stacklevel of the first caller that is not in this module, for a warning."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__") == __name__:
        level, frame = level + 1, frame.f_back
    return level


def _load():
    """Returns the library, or None without a CUDA device, or if this PyTorch is not supported."""
    global _library, _warned
    with _lock:
        if _unsupported is not None:
            if not _warned:
                _warned = True
                warnings.warn("LMS has no effect: " + _unsupported, stacklevel=_callers())
            return None
        if _library is None and torch.cuda.device_count() > 0:
            library = _open(_path())
            _check(library.lms_set_limit(_settings["limit"]), library)
            _check(library.lms_set_size(_in_effect("size", _settings["size"])), library)
            _check(library.lms_set_host_limit(_settings["host_limit"]), library)
            _check(library.lms_set_planning(int(_settings["planning"])), library)
            _check(
                library.lms_set_compression(_COMPRESSION.index(_settings["compression"])), library
            )
            _library = library
        return _library


def _check(code, library=None):
    if code == 0:
        return
    message = (library or _library).lms_last_error().decode("utf-8", "replace")
    if code == _OUT_OF_MEMORY:
        raise getattr(torch.cuda, "OutOfMemoryError", RuntimeError)(message)
    raise RuntimeError(message)


def _size(value, name):
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("{} must be an int (bytes), not {}".format(name, type(value).__name__))
    if value < 0:
        raise ValueError("{} must not be negative, but is {}".format(name, value))
    return value


def _in_effect(name, value):
    return 1 if name == "size" and _oracle is not None else value


def _set_bytes(name, value):
    library = _load()
    if library is not None:
        _check(getattr(library, "lms_set_" + name)(_in_effect(name, value)))
    _settings[name] = value


def set_enabled_lms(enable):
    r"""Turns Large Model Support (LMS) on or off for all devices of this process.

    Can be called at any time, before or after tensors are created. Turning LMS
    off moves every tensor back to its GPU. Without a CUDA device the setting is
    remembered and has no effect.

    Args:
        enable (bool): whether to page idle tensors out to host memory when GPU
            memory runs out.

    Raises:
        torch.cuda.OutOfMemoryError: if LMS is turned off and the tensors that it
            paged out do not fit on the GPU. LMS stays on.
        RuntimeError: if the CUDA allocator in use is not PyTorch's native one, or
            if the LMS library is missing or belongs to another build.
    """
    global _known, _unseen
    enable = bool(enable)
    library = _load()
    if library is not None:
        # PYTORCH_LMS=1 changes the setting before it changes the library.
        was_on = library.lms_get_enabled()
        _check(library.lms_set_enabled(int(enable)))
        if enable:
            _guard_addresses()
            if not was_on:
                _unseen = True
        _find_steps(enable)
        if enable:
            distributed = torch.distributed
            if distributed.is_available() and distributed.is_initialized():
                _watch()  # hooks and collectives use what no operator reports
    _settings["enabled"] = enable
    _known = _known or enable
    if enable and library is not None:
        _keep_marked()


def get_enabled_lms():
    r"""Returns whether Large Model Support is on.

    Returns:
        bool: the setting, also if there is no CUDA device.
    """
    return _settings["enabled"]


def set_limit_lms(limit):
    r"""Sets how many bytes PyTorch may reserve on each GPU (``memory_reserved()``).

    LMS starts to page out when 95 % of the limit is in use, or up to 99.5 % when it
    follows a plan; the rest is left for fragmentation. The limit is exceeded only
    when nothing more can be paged out: what is left is used by running operators,
    smaller than ``set_size_lms``, or held, or host memory is full.
    ``torch.cuda.lms.explain()`` reports it, and
    ``torch.cuda.lms.stats()["over_limit_count"]`` counts such requests. In
    PyTorch before 1.8 a request can exceed the limit for a moment.

    Args:
        limit (int): bytes per device. 0, the default, means automatic: what the
            process can get.

    Raises:
        TypeError: if ``limit`` is not an int.
        ValueError: if ``limit`` is negative.
        RuntimeError: if the LMS library is missing or belongs to another build.
    """
    _set_bytes("limit", _size(limit, "limit"))


def get_limit_lms():
    r"""Returns the limit that was set with ``set_limit_lms``.

    Returns:
        int: bytes per device; 0 means automatic. Then
        ``torch.cuda.lms.stats()["limit_bytes"]`` says at how many bytes LMS
        starts to page out.
    """
    return _settings["limit"]


def set_size_lms(size):
    r"""Sets the size of the smallest tensor storage that LMS pages out.

    Args:
        size (int): bytes; initially 1 MiB.

    Raises:
        TypeError: if ``size`` is not an int.
        ValueError: if ``size`` is negative.
        RuntimeError: if the LMS library is missing or belongs to another build.
    """
    _set_bytes("size", _size(size, "size"))


def get_size_lms():
    r"""Returns the size of the smallest tensor storage that LMS pages out.

    Returns:
        int: bytes.
    """
    return _settings["size"]


def set_host_limit_lms(limit):
    r"""Sets how many bytes of host memory LMS may pin, for all devices together.

    When the limit is reached, nothing more is paged out, and a request that does
    not fit on the GPU raises ``torch.cuda.OutOfMemoryError``.

    Args:
        limit (int): bytes. 0, the default, means what the machine or the
            container has left.

    Raises:
        TypeError: if ``limit`` is not an int.
        ValueError: if ``limit`` is negative.
        RuntimeError: if the LMS library is missing or belongs to another build.
    """
    _set_bytes("host_limit", _size(limit, "limit"))


def get_host_limit_lms():
    r"""Returns the limit that was set with ``set_host_limit_lms``.

    Returns:
        int: bytes; 0 means what the machine or the container has left.
    """
    return _settings["host_limit"]


def reclaim_inactive():
    r"""Pages out every tensor that no operator is using.

    While less than a twentieth of the automatic limit is in use, LMS does not
    track what operators use (``torch.cuda.lms.stats()["watching"]`` is 0). In
    that case the first call of this function starts the tracking, and pages out
    the tensors that Python knows. Tensors that only C++ knows can be paged out
    once an operator has used them again.

    Returns:
        int: bytes of GPU memory that were given back to PyTorch's cache. 0 while
        LMS is off.

    Raises:
        RuntimeError: if the LMS library is missing or belongs to another build.
    """
    library = _load()
    if library is None:
        return 0
    if _settings["enabled"]:
        _show_tensors()
    reclaimed = ctypes.c_size_t()
    _check(library.lms_reclaim_inactive(ctypes.byref(reclaimed)))
    return reclaimed.value


def _show_tensors():
    """Makes LMS manage what operators have used while it did not track them."""
    if not _unseen:
        return
    _watch()
    for known in gc.get_objects():
        # Not isinstance(), which runs the code of proxy objects.
        if issubclass(type(known), torch.Tensor):
            for storage in _readable_storages(known):
                if storage.device.type != "cuda" or not isinstance(storage.size(), int):
                    continue  # symbolic: it is being traced, and has no memory
                # Before 1.10 storages have no nbytes().
                if storage.size() * storage.element_size() >= _settings["size"]:
                    _check(_library.lms_hold(storage._cdata))
                    _check(_library.lms_release(storage._cdata))


def _readable_storages(tensor):
    """Those of any tensor of the program: one that is being made, or refuses functions, has none.

    What has no operators either cannot have been used, so that it need not be known.
    """
    try:
        return list(_storages([tensor]))
    except Exception:
        return []


def reserve_host(size, device=None):
    r"""Pins host memory now, so that the first page-outs do not wait for it.

    Args:
        size (int): bytes to be pinned, including what is pinned already.
        device (torch.device or int, optional): the device whose tensors the
            memory is for. It is allocated on the NUMA node next to this device.
            Default: the current device.

    Returns:
        int: bytes that are pinned for the device; 0 without a CUDA device.

    Raises:
        RuntimeError: if the host limit or the machine's memory does not allow it.
        TypeError: if ``size`` is not an int.
        ValueError: if ``size`` is negative.
    """
    size = _size(size, "size")
    library = _load()
    if library is None:
        return 0
    pinned = ctypes.c_size_t(size)
    _check(library.lms_reserve_host(_index(device), ctypes.byref(pinned)))
    return pinned.value


def trim_host():
    r"""Gives pinned host memory that holds no tensor back to the operating system.

    ``torch.cuda.empty_cache()`` does the same.

    Returns:
        int: bytes that were unpinned.
    """
    if _library is None:
        return 0
    trimmed = ctypes.c_size_t()
    _check(_library.lms_trim_host(ctypes.byref(trimmed)))
    return trimmed.value


# ---- recordings --------------------------------------------------------------


@contextlib.contextmanager
def record(path=None, device=None):
    r"""Records what operators use on a GPU, for ``plot()``, and writes it to a file.

    The file says which storages were allocated, used and freed, in which order,
    and how long the GPU took. Record two or more iterations, after the first ones
    have passed. If the block raises an exception, no file is written.

    Storages that are too small for LMS count with the most that they have had since the
    program began, or called ``torch.cuda.reset_peak_memory_stats()``. If LMS manages some
    of 1 MiB or less, they count with what they have when the block ends, and so do those
    above 1 MiB that are too small because of ``set_size_lms``.

    Args:
        path (str or path-like, optional): the file, in JSON; compressed if its
            name ends with ``.gz``. Without it, no file is written.
        device (torch.device or int, optional): Default: the current device.

    Raises:
        FileNotFoundError: if the file's folder does not exist.
        RuntimeError: if LMS is off, or if the device is being recorded already.

    Example::

        >>> with torch.cuda.lms.record("trace.json.gz"):
        ...     for images, labels in itertools.islice(loader, 3):
        ...         train(images, labels)
    """
    from torch.cuda import lms_trace
    from torch.cuda.lms_report import planner
    from torch.cuda.lms_report.events import FORMAT, VERSION

    if not _settings["enabled"] or _load() is None:
        raise RuntimeError("LMS: record() needs a GPU and torch.cuda.set_enabled_lms(True)")
    _check_folder(path)
    index = _index(device)
    if index in _recorded:
        raise RuntimeError("LMS: GPU {} is being recorded already".format(index))
    _recorded.add(index)
    try:
        torch.cuda.synchronize(index)
        before = stats(index)
        _headers.pop(index, None)  # what the library has recorded is about to go
        _check(_library.lms_record(index, 1))
        try:
            yield
        finally:
            _check(_library.lms_record(index, 0))
    finally:
        _recorded.discard(index)
    after = stats(index)
    # Now that LMS has seen what the iterations use; it may have looked at nothing before.
    unmanaged = torch.cuda.memory_allocated(index) - after["resident_bytes"]
    names, events = lms_trace.packed(_library, _check, index)
    if lms_trace.smallest_block(events) > _SMALL_POOL:
        unmanaged += _small_bytes_gone(index)
    properties = torch.cuda.get_device_properties(index)
    # The automatic limit is this part of the memory already.
    limit = _settings["limit"] or int(before["limit_bytes"] / planner.IN_USE)
    limit = min(limit, properties.total_memory)
    header = {
        "format": FORMAT,
        "version": VERSION,
        "torch": str(torch.__version__),
        "gpu": properties.name,
        "gpu_bytes": properties.total_memory,
        "limit_bytes": limit,
        "unmanaged_bytes": max(0, unmanaged),
        "page_out_bytes": max(0, after["page_out_bytes"] - before["page_out_bytes"]),
        "page_in_bytes": max(0, after["page_in_bytes"] - before["page_in_bytes"]),
        "estimated": False,
    }
    _headers[index] = header
    if path is not None:
        lms_trace.write(path, dict(header, names=names, events=lms_trace.unpacked(events)))


def _small_bytes_gone(device):
    """How many bytes more the storages that are too small for LMS have had.

    The allocator has a pool for them, whose peak it knows. Recording does not reset the peak, which
    is the program's.
    """
    native = torch.cuda.memory_stats(device)
    name = "allocated_bytes.small_pool."
    # PyTorch 1.1 to 1.3 does not count pools.
    return native.get(name + "peak", 0) - native.get(name + "current", 0)


def _check_folder(path):
    """Before what is to be written is recorded, which can take long."""
    if path is not None:
        folder = os.path.dirname(os.path.abspath(os.fspath(path)))
        if not os.path.isdir(folder):
            raise FileNotFoundError(errno.ENOENT, "LMS: there is no such folder", folder)


@contextlib.contextmanager
def record_fake(path, gpu):
    r"""Records what a program would use on a GPU, without one, and writes it to a file.

    Tensors that are made in the block are fake: they have shapes, and no memory. Make
    the model and the optimizer in the block, move them to ``"cuda"``, and run three
    or more iterations. The file is as that of ``record()``. Its times are estimates from the
    GPU's peak rates, and it has no workspaces of libraries such as cuDNN. A value
    that the program reads, as with ``loss.item()``, is 0. If the block raises an
    exception, no file is written.

    Args:
        path (str or path-like): the file, in JSON; compressed if its name ends with
            ``.gz``.
        gpu (dict): the GPU: ``title`` (str), ``capability`` (tuple of two ints: the
            compute capability), ``memory`` (int, bytes), ``bandwidth`` of its
            memory (float, bytes per second), ``flops`` (dict of str to float:
            operations per second by dtype, such as ``"float32"``), the parts of these
            rates that programs reach, ``compute_part`` and ``bandwidth_part`` (float, 0 to
            1), and ``seconds`` that an operator takes at least (float).

    Raises:
        FileNotFoundError: if the file's folder does not exist.
        RuntimeError: before PyTorch 2.6, if there were fewer than two iterations, or if nothing
            is as large as ``set_size_lms`` says.

    Example::

        >>> with torch.cuda.lms.record_fake("trace.json.gz", gpu):
        ...     model = torchvision.models.resnet50().cuda()
        ...     optimizer = torch.optim.AdamW(model.parameters())
        ...     for _ in range(3):
        ...         train(torch.randn(256, 3, 224, 224, device="cuda"))
    """
    from torch.cuda import lms_trace
    from torch.cuda.lms_fake.cost import Gpu
    from torch.cuda.lms_fake.recording import recording
    from torch.cuda.lms_report.events import FORMAT, VERSION

    _check_folder(path)
    given = Gpu(**gpu)
    with recording(given, _settings["size"]) as recorder:
        yield
    if recorder.uses_gpu and not recorder.manages:
        raise RuntimeError(
            "LMS: nothing that this program has on the GPU is as large as set_size_lms() says, "
            "which is {} bytes".format(_settings["size"])
        )
    try:
        trace = recorder.trace()
    except ValueError as error:
        raise RuntimeError(
            "LMS: record_fake() needs two complete iterations; an iteration ends with the step of "
            "an optimizer, or torch.cuda.lms.step()"
        ) from error
    header = {
        "format": FORMAT,
        "version": VERSION,
        "torch": str(torch.__version__),
        "gpu": given.title,
        "gpu_bytes": given.memory,
        "limit_bytes": given.memory,
        "page_out_bytes": 0,
        "page_in_bytes": 0,
        "estimated": True,
    }
    lms_trace.write(path, dict(header, **trace))


_SMALL_POOL = 1 << 20  # bytes: PyTorch's allocator has what is not larger in a pool of its own
_recorded = set()  # devices that are being recorded
_headers = {}  # of the last recordings, by device


def step():
    r"""Marks the end of an iteration, for ``record()`` and for plans (``set_planning()``).

    Not needed in a training loop: LMS detects optimizer steps (PyTorch 2.1 and
    later). Call it in loops without an optimizer. Does nothing while LMS is off,
    except in ``record_fake()``.
    """
    _step_of(0)


def _step_of(optimizer):
    """An optimizer with this number has made a step; 0 if the program calls step() itself."""
    fake = sys.modules.get("torch.cuda.lms_fake.recording")
    if fake is not None and fake.step(optimizer):
        return
    if _library is not None and _settings["enabled"]:
        _check(_library.lms_step(optimizer))


def plot(path, device=None, gpu_memory=None, link=None):
    r"""Draws the last iteration of the last recording: memory, transfers, and what takes time.

    The report has GPU and host memory over one iteration, the transfers beside the
    computation, and what would be paged out with less GPU memory. What LMS would do
    is predicted, from the times at which the operators ran while they were recorded.
    ``lmsbuild report`` makes the same of a file that ``record()`` has written.

    Args:
        path (str or path-like): the file. Its name says what it is: ``.html``, a page
            that needs no network; ``.png``, which needs matplotlib; ``.txt``; or
            ``.json`` or ``.json.gz``, a trace for Perfetto.
        device (torch.device or int, optional): Default: the current device.
        gpu_memory (int, optional): bytes that PyTorch may reserve. Default: what
            it might while it was recorded, which ``set_limit_lms`` limits.
        link (float or tuple of two, optional): bytes per second between GPU and host,
            or to the host and to the GPU. Default: measured now.

    Raises:
        FileNotFoundError: if the file's folder does not exist.
        RuntimeError: if nothing was recorded, if the recording has no complete
            iteration, if an operator needs more than ``gpu_memory``, or if
            matplotlib is missing.
        ValueError: if the file's name says nothing.

    Example::

        >>> with torch.cuda.lms.record():
        ...     for images, labels in itertools.islice(loader, 3):
        ...         train(images, labels)
        >>> torch.cuda.lms.plot("iteration.html")
    """
    from torch.cuda import lms_plot

    _check_folder(path)
    index = _index(device)
    if index in _recorded:
        raise RuntimeError("LMS: GPU {} is being recorded; plot after that".format(index))
    if index not in _headers:
        raise RuntimeError(
            "LMS: nothing was recorded on GPU {}; run some iterations in a block "
            "`with torch.cuda.lms.record():` first".format(index)
        )
    lms_plot.plot(path, _library, _check, index, _headers[index], gpu_memory, link)


def set_planning(enable):
    r"""Sets whether LMS plans iterations that repeat. It does by default.

    While a program pages out, LMS records what operators use between two
    ``step()``. When such an iteration has been repeated, a plan is made in the
    background: what leaves the GPU and when it comes back, so that copies run
    beside operators. Iterations that do something else are paged on demand from
    there on. Results do not depend on plans. ``torch.cuda.lms.stats()`` counts
    ``"plans"``, ``"planned_iterations"`` and ``"plan_departures"``.

    Args:
        enable (bool): ``False`` forgets all plans; LMS pages on demand.

    Raises:
        RuntimeError: if the LMS library is missing or belongs to another build.
    """
    enable = bool(enable)
    library = _load()
    if library is not None:
        _check(library.lms_set_planning(int(enable)))
    _settings["planning"] = enable


def get_planning():
    r"""Returns whether LMS plans iterations that repeat.

    Returns:
        bool: the setting, also if there is no CUDA device.
    """
    return _settings["planning"]


_COMPRESSION = ("auto", "on", "off")  # the numbers are those of lms_set_compression()


def set_compression(setting):
    r"""Sets whether tensors are compressed on their way to the host. Default: ``"auto"``.

    Compression is lossless: every bit comes back. Kernels on the GPU compress
    while they copy, so fewer bytes cross the link: typically 0.43 of them for
    bfloat16 after a ReLU, 0.72 for other bfloat16, 0.86 for float32, 0.13 for
    masks. The kernels slow down what runs beside them. Host memory holds what the
    tensors became, and a little more: a tensor has its full size only until its
    copy has ended. ``torch.cuda.lms.stats()`` has ``"compressed_count"``,
    ``"compressed_bytes"`` (of the tensors) and ``"compressed_written_bytes"`` (what
    they became), and ``"host_compressed_bytes"`` and
    ``"host_compressed_tensor_bytes"`` for what is in host memory now.

    Args:
        setting (str): ``"auto"`` tries compression once iterations repeat and are
            planned (see :func:`torch.cuda.lms.set_planning`), and keeps it for each
            kind of iteration that it makes faster: for tensors of at least 1 MiB that
            shrink. ``"on"`` compresses everything that the kernels can, at any time,
            which may be slower. ``"off"`` compresses nothing.

    Raises:
        ValueError: if ``setting`` is none of these.
        RuntimeError: if the LMS library is missing or belongs to another build.
    """
    if setting not in _COMPRESSION:
        raise ValueError("setting must be 'auto', 'on' or 'off', not {!r}".format(setting))
    library = _load()
    if library is not None:
        _check(library.lms_set_compression(_COMPRESSION.index(setting)))
    _settings["compression"] = setting


def get_compression():
    r"""Returns whether tensors are compressed on their way to the host.

    Returns:
        str: ``"auto"``, ``"on"`` or ``"off"``, also if there is no CUDA device.
    """
    return _settings["compression"]


def _wait_for_plans():
    """Waits until the device is idle and all plans are made. For tests."""
    torch.cuda.synchronize()
    _check(_library.lms_set_option(b"plans", 1))


def _keep_plans(wanted, fastest=3):
    """Whether plans are followed even if they make iterations slower. For tests.

    It is as if this way was the fastest: copies (1), copies that are compressed (2), or
    plans that count on compression (3).
    """
    _check(_library.lms_set_option(b"keep_plans", fastest if wanted else 0))


_hook = None  # that calls step()


def _find_steps(wanted):
    """Calls _step_of() after each optimizer step from now on, or no longer."""
    global _hook
    from torch.cuda import lms_trace

    if wanted and _hook is None:
        _hook = lms_trace.after_optimizers(_step_of)
    elif not wanted and _hook is not None:
        _hook.remove()
        _hook = None


# ---- tensors -----------------------------------------------------------------


# By the layouts' names: old releases lack some of them.
_COMPRESSED = {
    "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
}


def _parts(tensor):
    """The tensors that make up a sparse tensor, or a subclass that wraps other tensors."""
    if hasattr(tensor, "__tensor_flatten__"):
        # Not at the top of the module: torch.cuda is imported before torch.utils can be.
        from torch.utils._python_dispatch import is_traceable_wrapper_subclass

        if is_traceable_wrapper_subclass(tensor):
            parts = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
            return [part for part in parts if isinstance(part, torch.Tensor)]
    if tensor.layout is torch.strided:
        if not _is_wrapper(tensor):
            return []
        return [part for part in vars(tensor).values() if isinstance(part, torch.Tensor)]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    return [getattr(tensor, name)() for name in _COMPRESSED.get(str(tensor.layout), ())]


def _is_wrapper(tensor):
    """Whether a tensor of a subclass has a size, but no memory of its own, and the address 0."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter) or not tensor.is_cuda:
        return False
    traced = sys.modules.get("torch._subclasses.fake_tensor")
    if traced is not None and isinstance(tensor, traced.FakeTensor):
        return False  # which has no memory either, and warns whoever asks for its address
    # A subclass would call the method that _guard_addresses() replaces.
    plain = getattr(torch._C, "DisableTorchFunctionSubclass", None)
    plain = plain or getattr(torch._C, "DisableTorchFunction", None)
    if plain is None:
        return False
    try:
        with plain():
            return torch.Tensor.__base__.data_ptr(tensor) == 0 and tensor.numel() > 0
    except (NotImplementedError, RuntimeError, TypeError, ValueError):
        return False  # it is paged out, or says nothing of its address


def _storage_of(tensor):
    # Before 2.0 storages had a type for each dtype; all of them have the same _cdata.
    untyped = getattr(tensor, "untyped_storage", None)
    return untyped() if untyped else tensor.storage()


def _storage_types():
    if hasattr(torch, "UntypedStorage"):
        return (torch.UntypedStorage,)
    return tuple(kind for kind in torch._storage_classes if kind.is_cuda)


def _storages(tensors):
    """The CUDA storages of tensors, including sparse tensors and the parts of subclasses."""
    for tensor in tensors:
        parts = _parts(tensor)
        if parts:
            yield from _storages(parts)
        elif tensor.layout is torch.strided and tensor.is_cuda:
            try:
                yield _storage_of(tensor)
            except (NotImplementedError, RuntimeError, ValueError):
                # A wrapper without memory of its own, or a lazy parameter.
                continue


def _tensors(values):
    for value in values:
        if isinstance(value, torch.nn.Module):
            yield from value.parameters()
            yield from value.buffers()
            for module in value.modules():
                # Where DataParallel's replicas have their parameters.
                yield from getattr(module, "_former_parameters", {}).values()
        else:
            yield value


class _Held:
    """The tensors of a resident() block, and the storages that LMS holds for it."""

    def __init__(self, tensors):
        self._tensors = tensors
        self._storages = {}  # by their _cdata
        self._ended = False
        self._mutex = threading.Lock()  # another thread may turn LMS on, or resize a storage

    def hold(self):
        with self._mutex:
            for storage in () if self._ended else _storages(_tensors(self._tensors)):
                if storage._cdata not in self._storages:  # also if LMS was turned off and on
                    self._hold(storage)

    def has_moved(self, storage):
        """The memory of a storage is another one, which LMS does not hold."""
        with self._mutex:
            if self._storages.pop(storage._cdata, None) is not None and _settings["enabled"]:
                self._hold(storage)

    def _hold(self, storage):
        _check(_library.lms_hold(storage._cdata))
        self._storages[storage._cdata] = storage

    def let_go(self):
        with self._mutex:
            self._ended = True
            # All of them, even if one fails.
            codes = [_library.lms_release(key) for key in self._storages]
            self._storages = {}
        for code in codes:
            _check(code)


# What the user marks. It counts from when LMS is turned on, and for other memory that a storage
# gets from its resize_().
_blocks = []  # the resident() blocks that have begun
_excluded = {}  # weak references to storages, by their _cdata; also what others got without LMS
_most_excluded = 64  # how many there may be before those that are gone are looked for


def _keep_marked():
    with _lock:
        blocks, excluded = list(_blocks), list(_excluded.values())
    for held in blocks:
        held.hold()
    for reference, kind in excluded:
        storage = kind._new_with_weak_ptr(reference.cdata)
        if storage is not None:
            _take_address(storage)


def _is_on():
    return _settings["enabled"] and _library is not None


@contextlib.contextmanager
def resident(*tensors):
    r"""Keeps tensors on their GPU inside a ``with`` block.

    Use this for code that uses a tensor's memory outside of PyTorch operators,
    such as a C++ extension that keeps pointers between calls. If the code uses
    the memory only during its calls, ``wrap()`` is sufficient. If LMS is turned on
    inside the block, the tensors are kept from then on.

    Args:
        tensors (torch.Tensor or torch.nn.Module): tensors, and modules for their
            parameters and buffers. Only CUDA tensors are affected.

    Raises:
        torch.cuda.OutOfMemoryError: if the tensors do not fit on the GPU together.

    Example::

        with torch.cuda.lms.resident(weight, model.head):
            extension.begin(weight)
            extension.end()
    """
    held = _Held(tensors)
    with _lock:
        _blocks.append(held)
    try:
        if _is_on():
            held.hold()
        yield
    finally:
        with _lock:
            _blocks.remove(held)
        held.let_go()


def exclude(*tensors):
    r"""Keeps tensors on their GPU until they are freed or passed to ``release()``.

    Can be called before LMS is turned on.

    Args:
        tensors (torch.Tensor or torch.nn.Module): tensors, and modules for their
            parameters and buffers. Only CUDA tensors are affected.

    Raises:
        torch.cuda.OutOfMemoryError: if the tensors do not fit on the GPU together.
    """
    storages = list(_storages(_tensors(tensors)))
    marked = _mark(storages)
    try:
        for storage in storages:
            _take_address(storage)
    except BaseException:
        with _lock:
            for key in marked:
                _excluded.pop(key, None)
        raise


def _mark(storages):
    """Returns the keys of those that were not marked."""
    from torch.multiprocessing.reductions import StorageWeakRef

    global _most_excluded
    with _lock:
        if len(_excluded) > _most_excluded:  # not each time, because there may be many
            for key in [key for key, (known, _) in _excluded.items() if known.expired()]:
                del _excluded[key]
            _most_excluded = 2 * len(_excluded) + 64
        marked = [storage._cdata for storage in storages if storage._cdata not in _excluded]
        for storage in storages:
            kind = getattr(torch, "UntypedStorage", type(storage))
            _excluded[storage._cdata] = StorageWeakRef(storage), kind
    return marked


@contextlib.contextmanager
def enabled(enable=True):
    r"""Turns LMS on or off inside a ``with`` block, and restores the setting at its end.

    Args:
        enable (bool): whether LMS is on inside the block.

    Raises:
        torch.cuda.OutOfMemoryError, RuntimeError: as ``set_enabled_lms``.
    """
    before = get_enabled_lms()
    set_enabled_lms(enable)
    try:
        yield
    finally:
        set_enabled_lms(before)


def release(*tensors):
    r"""Allows LMS to page out what ``exclude()`` or an exported address keeps on a GPU.

    A tensor stays on its GPU if its address was handed out (``data_ptr()``, DLPack,
    ``__cuda_array_interface__``, CUDA IPC, a CUDA graph), or if a post hook of an
    autograd node used it, until its storage is freed or passed to this function.
    Call it when the address is no longer used.

    Args:
        tensors (torch.Tensor or torch.nn.Module): tensors of any shape, dtype and
            layout, and modules for their parameters and buffers.
    """
    for storage in _storages(_tensors(tensors)):
        with _lock:
            _excluded.pop(storage._cdata, None)
        if _library is not None:
            _check(_library.lms_release_address(storage._cdata))


def is_resident(tensor):
    r"""Returns whether a tensor's memory is on its GPU now.

    Args:
        tensor (torch.Tensor): a tensor of any device, shape, dtype and layout.

    Returns:
        bool: always ``True`` for tensors that LMS does not manage.
    """
    if _library is None:
        return True
    return all(_library.lms_is_resident(s._cdata) != 0 for s in _storages((tensor,)))


class _Lending(threading.local):
    """While it is ``now``, what this thread hands out is used until the operator ends."""

    now = False


_lending = _Lending()


@contextlib.contextmanager
def _lends():
    before, _lending.now = _lending.now, True
    try:
        yield
    finally:
        _lending.now = before


def _take_address(storage, lasting=True):
    """Makes an address valid that others have from now on, or until the operator that runs ends.

    While LMS is off, those that have it for good have to be remembered.
    """
    lasting = lasting and not _lending.now
    if not _is_known_to_lms(lasting) or storage.device.type != "cuda":
        return
    if not _settings["enabled"]:
        _mark([storage])
    _check(_library.lms_take_address(storage._cdata, int(lasting)))


def _is_known_to_lms(lasting):
    """Whether LMS has to know of an address."""
    return _library is not None and (lasting or _settings["enabled"])


def _take_tensor_address(tensor, lasting=True):
    if _is_known_to_lms(lasting) and isinstance(tensor, torch.Tensor):
        for storage in _storages((tensor,)):
            _take_address(storage, lasting)


def takes_address(function):
    r"""Decorates a function that hands out the address of its first argument, a tensor.

    For PyTorch's own files.
    """

    @functools.wraps(function)
    def wrapper(tensor, *args, **kwargs):
        _take_tensor_address(tensor)
        return function(tensor, *args, **kwargs)

    return wrapper


def _takes_storage_address(function):
    @functools.wraps(function)
    def wrapper(storage, *args, **kwargs):
        _take_address(storage)
        return function(storage, *args, **kwargs)

    return wrapper


def _only_on_the_host(get_filename):
    """Memory of a GPU is no file's. To look for one needs a storage that is not paged out."""

    @functools.wraps(get_filename)
    def wrapper(storage):
        return None if storage.device.type == "cuda" else get_filename(storage)

    return wrapper


def _keeps_what_is_sliced(function):
    """Wraps a storage's __getitem__: a slice is another storage, with an address in this one."""
    guarded = _as_operator(function)

    @functools.wraps(function)
    def wrapper(storage, index):
        if not isinstance(index, slice) or storage.device.type != "cuda":
            return guarded(storage, index)
        _take_address(storage)
        part = guarded(storage, index)
        _check(_library.lms_know_slice(part._cdata, storage._cdata))
        return part

    return wrapper


# PyTorch's own code that compares addresses, with each other or with 0, and
# keeps none of them: torch.save() of a model must not page in all of it.
_COMPARERS = frozenset(
    (
        "torch.serialization",
        "torch.nn.modules.rnn",
        "torch.distributed._state_dict_utils",
        "torch.distributed.checkpoint._state_dict_stager",
        "torch.distributed.utils",
        "torch.distributed.fsdp._flat_param",
        "torch.distributed.fsdp._fully_shard._fsdp_param",
        "torch.distributed.fsdp._runtime_utils",
        "torch.export.pt2_archive._package_weights",
        "accelerate.accelerator",
        "accelerate.big_modeling",
        "accelerate.hooks",
        "accelerate.utils.modeling",
        "huggingface_hub.serialization._torch",
        "safetensors.torch",
        "transformers.modeling_utils",
        "transformers.pytorch_utils",
    )
)
# The same for these functions; the rest of their modules hands out addresses.
_COMPARING_FUNCTIONS = frozenset(
    (
        ("torch._tensor", "_reduce_ex_internal"),
        ("torch._tensor", "__deepcopy__"),
        ("torch._inductor.utils", "is_same_tensor"),
        ("torch.export.pt2_archive._package", "_get_raw_tensor_bytes"),
        # A graphed callable, of each input with the one that was captured.
        ("torch.cuda.graphs", "forward"),
        ("torch.cuda.graphs", "backward"),
        # The names of saved tensors, which must not change when these are paged out.
        ("torch.autograd.graph", "_get_tid"),
        ("torch.autograd.graph", "_get_sid"),
    )
)


def _only_compares():
    """Whether the caller of a wrapped data_ptr() only compares addresses."""
    frame = sys._getframe(2)
    while frame.f_back and frame.f_globals.get("__name__") == "torch.storage":
        frame = frame.f_back
    module = frame.f_globals.get("__name__")
    return module in _COMPARERS or (module, frame.f_code.co_name) in _COMPARING_FUNCTIONS


def _name_of(storage, offset=0):
    """A number that is unique for a storage while it exists, and 0 for one without memory."""
    return storage._cdata + offset if len(storage) else 0


def _guarded_data_ptr(function):
    @functools.wraps(function)
    def data_ptr(tensor):
        if _settings["enabled"] and tensor.is_cuda and _only_compares():
            if _is_wrapper(tensor):
                return 0
            offset = tensor.storage_offset() * tensor.element_size()
            return _name_of(_storage_of(tensor), offset)
        _take_tensor_address(tensor, lasting=False)
        return function(tensor)

    return data_ptr


def _guarded_storage_data_ptr(function):
    @functools.wraps(function)
    def data_ptr(storage):
        if _settings["enabled"] and storage.device.type == "cuda" and _only_compares():
            return _name_of(storage)
        _take_address(storage, lasting=False)
        return function(storage)

    return data_ptr


def _guard_addresses():
    """Wraps every function that hands out an address, so that LMS knows of it first.

    This is done when LMS is turned on, and not in PyTorch's files, so that LMS
    costs nothing until then.
    """
    global _addresses_guarded, _launch
    with _lock:
        if _addresses_guarded:
            return
        _addresses_guarded = True

        torch.Tensor.data_ptr = _guarded_data_ptr(torch.Tensor.data_ptr)
        if hasattr(torch.Tensor, "__cuda_array_interface__"):
            interface = torch.Tensor.__cuda_array_interface__
            torch.Tensor.__cuda_array_interface__ = property(takes_address(interface.fget))
        for storage in _storage_types():
            storage.data_ptr = _guarded_storage_data_ptr(storage.data_ptr)
            storage._share_cuda_ = _takes_storage_address(storage._share_cuda_)
            storage.resize_ = _resident_resize(storage.resize_)
            storage.__getitem__ = _keeps_what_is_sliced(storage.__getitem__)
            if hasattr(storage, "_get_filename"):
                storage._get_filename = _only_on_the_host(storage._get_filename)
            for name in _STORAGE_METHODS:
                setattr(storage, name, _as_operator(getattr(storage, name)))
        if hasattr(torch, "UntypedStorage"):
            # Slices that were made before are known by their likeness to this one.
            storage = torch.UntypedStorage(2)
            part = storage[:1]
            _check(_library.lms_know_slice(part._cdata, storage._cdata))
        else:
            # Not an operator in these releases, and it needs a storage that is not paged out.
            torch.Tensor.record_stream = _as_operator(torch.Tensor.record_stream)
        for name in ("_to_dlpack", "_to_dlpack_versioned"):
            if hasattr(torch._C, name):
                setattr(torch._C, name, takes_address(getattr(torch._C, name)))
        if hasattr(torch._C, "_gds_register_buffer"):
            register = _takes_storage_address(torch._C._gds_register_buffer)
            torch._C._gds_register_buffer = register
        for name in _FUNCTIONS:
            if hasattr(torch._C, name):
                setattr(torch._C, name, _as_operator(_on_given_streams(getattr(torch._C, name))))
        if hasattr(torch.distributed, "Reducer"):
            reducer = torch.distributed.Reducer
            for name, method in list(vars(reducer).items()):
                if callable(method) and not name.startswith("__"):
                    setattr(reducer, name, _as_hook(method))
        # A backward pass that begins on another stream than the gradient that it gets looks at the
        # gradient's address before its first operator.
        run = getattr(torch.autograd, "_engine_run_backward", None)
        if run is not None:
            run = _brings_gradients(run)
            torch.autograd._engine_run_backward = torch.autograd.graph._engine_run_backward = run
        if hasattr(torch, "compile"):
            from torch.cuda import lms_launch

            lms_launch.guard()
            _launch = lms_launch
        profile = torch.autograd.profiler.profile
        if hasattr(profile, "_start_trace"):
            profile._start_trace = _lets_read(profile._start_trace, True)
            profile.__exit__ = _lets_read(profile.__exit__, False)
        # TorchScript's fused kernels take the addresses of their inputs before they
        # allocate their outputs, and no operator reports the inputs.
        name = "_jit_override_can_fuse_on_gpu"
        if hasattr(torch._C, name):
            getattr(torch._C, name)(False)
        # The other fuser, before 2.0. Later releases only warn that it was removed.
        if not hasattr(torch, "compile") and getattr(torch._C, "_jit_nvfuser_enabled", bool)():
            torch._C._jit_set_nvfuser_enabled(False)


def _lets_read(method, begins):
    """Wraps the method that begins or ends a profile.

    With stacks, the profiler reads the addresses of modules' parameters and of optimizers' states,
    where an exception would end the process.
    """

    @functools.wraps(method)
    def wrapper(profile, *args):
        if not getattr(profile, "with_stack", False):
            return method(profile, *args)
        begun = False
        if begins:
            _check(_library.lms_set_readable(1))
        try:
            result = method(profile, *args)
            begun = begins
            return result
        finally:
            if not begun:
                _check(_library.lms_set_readable(0))

    return wrapper


# Methods that access a storage's bytes and are not operators.
_STORAGE_METHODS = (
    "__setitem__",
    "_set_from_file",
    "_write_file",
    "copy_",
    "fill_",
)

# Functions of torch._C that are not operators: the jiterator's kernels, those that read and write
# files without the host, and the functions that DataParallel and torch.cuda.nccl call NCCL with.
_FUNCTIONS = (
    "_gds_load_storage",
    "_gds_save_storage",
    "_cuda_jiterator_compile_and_launch_kernel",
    "_broadcast",
    "_broadcast_coalesced",
    "_broadcast_out",
    "_nccl_all_gather",
    "_nccl_all_reduce",
    "_nccl_broadcast",
    "_nccl_reduce",
    "_nccl_reduce_scatter",
)


def _storages_in(values, seen=None):
    for value in values:
        if isinstance(value, _storage_types()):
            yield value
        elif isinstance(value, torch.Tensor):
            yield from _storages((value,))
        elif isinstance(value, torch.nn.Module):
            yield from _storages(_tensors((value,)))
        else:
            parts = _parts_of(value)
            if parts is not None:
                seen = {} if seen is None else seen
                if id(value) not in seen:  # it may contain itself
                    seen[id(value)] = value  # so that nothing else gets this id()
                    yield from _storages_in(parts, seen)


def _parts_of(value):
    """What a container or a dataclass has; None for other values."""
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        return value
    if isinstance(value, collections.abc.Mapping):
        return value.values()
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        fields = [getattr(value, name, None) for name in value.__dataclass_fields__]
        return fields + list(getattr(value, "__dict__", {}).values())
    return None


def _as_operator(function, bound=()):
    """Makes LMS treat a function as one operator on the storages among its arguments."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        with _region_of(_storages_in(args + bound + tuple(kwargs.values()))):
            return function(*args, **kwargs)

    return wrapper


def _on_given_streams(function):
    """Orders a function with the streams that it gets, and with no others: NCCL's may be any."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        lists = [arg for arg in args if isinstance(arg, (list, tuple))]
        streams = [s for given in lists for s in given if isinstance(s, torch.cuda.Stream)]
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream(stream.device))  # for what was brought
        result = function(*args, **kwargs)
        for stream in streams:
            for given in lists:
                for tensor in given:
                    if isinstance(tensor, torch.Tensor) and tensor.device == stream.device:
                        tensor.record_stream(stream)
        return result

    return wrapper


def _brings_gradients(run_backward):
    @functools.wraps(run_backward)
    def wrapper(outputs, gradients, *args, **kwargs):
        if _settings["enabled"] and _library is not None:
            for storage in _storages_in(gradients):
                if storage.device.type == "cuda" and not _library.lms_is_resident(storage._cdata):
                    # One that finds no room may not be looked at, or its node brings it.
                    _library.lms_bring(storage._cdata)
        return run_backward(outputs, gradients, *args, **kwargs)

    return wrapper


class _Forward:
    """A module's ``forward`` as one operator on its arguments and on what the module has.

    Not a function, because a copy of a module would share it, and compute with the original. The
    reference to the module is weak, because a cycle would keep GPU memory until Python collects
    garbage.
    """

    # Not in __dict__, which functools.update_wrapper() copies.
    __slots__ = ("__dict__", "_bound", "_function", "_module")

    def __init__(self, module, function=None, bound=True):
        # Without ``bound``, the function has the module already, or needs none. None stands for
        # that of the module's class, which need not have a name by which pickle finds it.
        self._module = weakref.ref(module)
        self._function = type(module).forward if function is None else function
        self._bound = bound
        for name in functools.WRAPPER_ASSIGNMENTS:
            if hasattr(self._function, name):
                setattr(self, name, getattr(self._function, name))
        module.forward = self
        if hasattr(module, "_replicate_for_data_parallel"):
            module._replicate_for_data_parallel = self.replicate

    @classmethod
    def install(cls, module):
        _bind_copies()
        forward = module.forward
        if isinstance(forward, types.MethodType) and forward.__self__ is module:
            cls(module, forward.__func__)
        elif not isinstance(forward, cls):
            cls(module, forward, bound=False)

    def _alive(self):
        module = self._module()
        if module is None:
            raise RuntimeError("LMS: the module that wrap() got does not exist any more")
        return module

    @property
    def __wrapped__(self):
        return types.MethodType(self._function, self._alive()) if self._bound else self._function

    def __call__(self, *args, **kwargs):
        with _region_of(_storages_in((self._alive(), *args, *kwargs.values()))):
            return self.__wrapped__(*args, **kwargs)

    def __reduce__(self):
        module = self._alive()
        inherited = self._bound and self._function is type(module).forward
        return _Forward, (module, None if inherited else self._function, self._bound)

    def bind(self, module):
        """The module is a copy, or is being made by pickle or copy.deepcopy()."""
        if self._module() is not module:
            _Forward(module, self._function, self._bound)

    def replicate(self):
        """Returns what DataParallel computes with on another GPU; it shares attributes, too."""
        module = self._alive()
        replica = type(module)._replicate_for_data_parallel(module)
        if vars(replica).get("forward") is self:
            _Forward(replica, self._function, self._bound)
        else:
            _Forward.install(replica)  # that of a script is its own
        return replica


def _bind_copies():
    """Makes copy.copy() of a wrapped module give the copy a ``forward`` of its own."""
    global _copies_bound
    if _copies_bound:
        return
    _copies_bound = True
    set_state = torch.nn.Module.__setstate__

    @functools.wraps(set_state)
    def wrapper(module, state):
        set_state(module, state)
        forward = vars(module).get("forward")
        if isinstance(forward, _Forward):
            forward.bind(module)

    torch.nn.Module.__setstate__ = wrapper


_copies_bound = False


def _as_hook(function):
    """Makes LMS treat a method of DistributedDataParallel's reducer as a hook of an autograd node.

    What it uses stays on the GPU from then on, because the reducer reads the addresses of gradients
    and of its buckets between operators.
    """

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        if _library is None:
            return function(*args, **kwargs)
        with _counted_region() as counted:
            if counted:
                return function(*args, **kwargs)
        begun = ctypes.c_int()
        try:
            _check(_library.lms_begin_hook(ctypes.byref(begun)))
            return function(*args, **kwargs)
        finally:
            if begun.value:
                _check(_library.lms_end_hook())

    return wrapper


def _resident_resize(function):
    resize = _as_operator(function)

    @functools.wraps(function)
    def wrapper(storage, *args, **kwargs):
        result = resize(storage, *args, **kwargs)
        # It has copied into new memory, which was not an input.
        with _region_of([storage]):
            _keep_again(storage)
            return result

    return wrapper


def _keep_again(storage):
    """The memory of a storage is another one. What the user has marked stays all the same."""
    if _library is not None and storage.device.type == "cuda":
        with _lock:
            blocks = list(_blocks)
            excluded = storage._cdata in _excluded
        for held in blocks:
            held.has_moved(storage)
        if excluded:
            _take_address(storage)


# Python raises KeyboardInterrupt when a call of the library returns, which may have taken long.
# So what has begun is told to a variable, and ends even if the call's result is lost.


@contextlib.contextmanager
def _counted_region():
    """A region while LMS is off: if another thread turns it on, that waits for the end.

    Yields whether it is one; otherwise LMS is on.
    """
    begun = ctypes.c_int()
    try:
        if not _settings["enabled"]:
            _library.lms_count_region(ctypes.byref(begun))
        yield bool(begun.value)
    finally:
        if begun.value:
            _library.lms_uncount_region()


@contextlib.contextmanager
def _region_of(storages):
    if _library is None:
        yield
        return
    with _counted_region() as counted:
        if counted:
            yield
            return
    storages = [s for s in storages if s.device.type == "cuda"]
    addresses = (ctypes.c_void_p * len(storages))(*[s._cdata for s in storages])
    begun = ctypes.c_int()
    try:
        _check(_library.lms_begin_region(addresses, len(storages), ctypes.byref(begun)))
        del storages  # code that was compiled frees its inputs early
        yield
    finally:
        if begun.value:
            _check(_library.lms_end_region())


def wrap(target):
    r"""Makes LMS treat each call of native code as one operator.

    Use this for extensions that are called without the dispatcher and that read
    or write the memory of tensors by address. During a call, the following
    tensors are on the GPU and stay there, and may be written:

    - for a function, the tensors among its arguments, also inside lists, tuples, sets,
      dictionaries and dataclasses, and those that a ``functools.partial`` has, or the module
      whose method it is;
    - for a module, its arguments, parameters and buffers;
    - for an autograd function, the arguments of ``forward`` and ``backward``, and
      in ``backward`` also the saved tensors.

    A call raises ``torch.cuda.OutOfMemoryError`` if these tensors do not fit on
    the GPU together.

    Args:
        target (callable, torch.nn.Module or torch.autograd.Function class): what
            to wrap. The tensors that it is passed may have any shape, dtype and layout.

    Returns:
        A function that calls ``target``. If ``target`` is a module or a class, its
        methods are replaced, and ``target`` itself is returned. The ``forward`` of a
        module can be called for as long as the module exists.

    Raises:
        TypeError: if ``target`` is none of these, or a generator or coroutine function,
            whose work is not done when the call returns.

    Example::

        fused_norm = torch.cuda.lms.wrap(extension.fused_norm)
        model.attention = torch.cuda.lms.wrap(model.attention)
    """
    if isinstance(target, torch.nn.Module):
        _Forward.install(target)
        return target
    if isinstance(target, type) and issubclass(target, torch.autograd.Function):
        target.forward = staticmethod(_as_operator(target.forward))
        # PyTorch refuses a class that has both of the first two.
        for name in ("backward", "vjp", "jvp"):
            inherited = getattr(torch.autograd.Function, name, None)
            if getattr(target, name, inherited) is not inherited:
                setattr(target, name, staticmethod(_as_backward(getattr(target, name))))
        return target
    # Their work is done after the call.
    lazy = inspect.isgeneratorfunction(target) or inspect.iscoroutinefunction(target)
    if not callable(target) or isinstance(target, type) or lazy:
        raise TypeError(
            "wrap() takes a function (but no generator or coroutine), a module or an autograd "
            "function, not {!r}".format(target)
        )
    if isinstance(target, functools.partial):
        return _as_operator(target, target.args + tuple(target.keywords.values()))
    return _as_operator(target, (getattr(target, "__self__", None),))


def _as_backward(function):
    @functools.wraps(function)
    def wrapper(ctx, *gradients):
        if _library is None:
            return function(ctx, *gradients)
        saved = tuple(ctx.saved_tensors)
        with _region_of(_storages_in(gradients + saved)):
            return function(_Context(ctx, saved), *gradients)

    return wrapper


class _Context:
    """The context of an autograd function, whose saved tensors were read already.

    Hooks for saved tensors can compute or copy them each time, and checkpoints allow one time only.
    """

    def __init__(self, context, saved):
        self.__dict__.update(_context=context, saved_tensors=saved)

    def __getattr__(self, name):
        return getattr(self._context, name)

    def __setattr__(self, name, value):
        setattr(self._context, name, value)


def region(function):
    r"""Decorates a method that runs compiled code on a list of inputs.

    If Python launches the code's kernels, LMS sees each launch. Other code
    accesses memory without LMS seeing it, so LMS treats the whole call as one
    operator that may write each of its inputs. For PyTorch's own files.
    """

    @functools.wraps(function)
    def wrapper(self, inputs, *args, **kwargs):
        if _library is None:
            return function(self, inputs, *args, **kwargs)
        with _counted_region() as counted:
            if counted:
                return function(self, inputs, *args, **kwargs)
        if _launch is not None and _launch.launches_kernels(self):
            return _launch.call(function, self, inputs, *args, **kwargs)
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        constants = getattr(self, "constants", None)
        if isinstance(constants, dict):
            tensors.extend(v for v in constants.values() if isinstance(v, torch.Tensor))
        storages = list(_storages(tensors))
        # The function empties the list of its inputs in order to free them early.
        del tensors
        with _region_of(storages):
            del storages
            return function(self, inputs, *args, **kwargs)

    return wrapper


# ---- statistics --------------------------------------------------------------


def _zeros():
    names = []
    for name in ("pinned", "pinned_bytes"):
        for pool in _POOLS:
            names.extend("{}.{}.{}".format(name, pool, key) for key in _STAT)
    names.extend(("reclaimed", "reclaimed_bytes"))
    names.extend("alloc_distribution." + source for source in _SOURCES)
    return dict.fromkeys(names, 0)


def _index(device):
    return torch.cuda._utils._get_device_index(device, optional=True)


def _values(device):
    """All statistics of a device by name; without the library, only those of the first LMS."""
    if _library is None:
        return _zeros()
    count = _library.lms_stat_count()
    values = (ctypes.c_int64 * count)()
    _check(_library.lms_stats(_index(device), values))
    return {_library.lms_stat_name(i).decode("ascii"): values[i] for i in range(count)}


def add_stats(stats, device=None):
    r"""Adds LMS's statistics to the nested dictionary of ``memory_stats``.

    While LMS is off, everything that is allocated counts as pinned, as in the
    first LMS. For PyTorch's own files.

    Args:
        stats (dict): is changed in place.
        device (torch.device or int, optional): Default: the current device.

    Returns:
        dict: ``stats``.
    """
    for name, value in _values(device).items():
        parts = name.split(".")
        nested = stats
        for part in parts[:-1]:
            nested = nested.setdefault(part, {})
        nested[parts[-1]] = value
    if not _settings["enabled"]:
        for name, allocated in (("pinned", "allocation"), ("pinned_bytes", "allocated_bytes")):
            for pool, values in stats.get(allocated, {}).items():
                stats[name][pool].update(values)
    return stats


def stats(device=None):
    r"""Returns LMS's statistics of a device.

    Args:
        device (torch.device or int, optional): Default: the current device.

    Returns:
        dict: counts and bytes (int) by name. It is empty until LMS has been turned
        on or a setting has been changed.

        - ``page_out_count``, ``page_out_bytes``: page-outs, and bytes copied to
          the host for them
        - ``page_in_count``, ``page_in_bytes``: page-ins, and bytes copied back
        - ``clean_count``: page-outs that needed no copy
        - ``compacted_count``, ``compacted_bytes``: storages that were moved on the
          GPU, so that free memory is in one piece
        - ``resident_bytes``, ``paged_out_bytes``: managed storages on the GPU, and
          on the host only; each also with ``_peak``
        - ``held_bytes``, ``held_bytes_peak``: storages kept on the GPU by
          ``resident()``, ``exclude()``, exported addresses, CUDA graphs and hooks
        - ``hook_bytes``: the part of ``held_bytes`` that hooks of autograd nodes
          have used
        - ``host_bytes``, ``host_used_bytes``, ``host_busy_bytes``: pinned host
          memory; the part of it that holds tensors; the same and buffers of
          copies in flight; each also with ``_peak``
        - ``host_compressed_bytes``, ``host_compressed_tensor_bytes``: the part of
          ``host_used_bytes`` that holds compressed tensors, and the bytes of these
          tensors; each also with ``_peak``
        - ``host_bytes_on_node0`` and so on: pinned host memory on each NUMA node
        - ``free_bytes``, ``largest_free_bytes``: unused memory in PyTorch's cache,
          and the largest request that it can serve
        - ``fragmentation``: the share of ``free_bytes`` that a single request for
          all of it could not use (float, 0 to 1); absent if the cache is empty
        - ``limit_bytes``: the limit that was set; if it is automatic, 95 % of what the
          process can get, where LMS starts to page out
        - ``over_limit_count``, ``over_limit_bytes_peak``: requests that exceeded
          the limit that was set, and the largest excess
        - ``watching``: 1 if LMS tracks what operators use, 0 if memory use is too
          far from the automatic limit for that
        - ``release_caught``: page-outs at which LMS found a write that no operator
          had reported; nothing was lost
        - ``compressed_count``, ``compressed_bytes``, ``compressed_written_bytes``:
          storages that were compressed on their way to the host, their bytes, and
          what the bytes became; counted when LMS next handles the storage
        - ``adopted``: storages that existed before LMS managed them
        - ``out_of_memory_retries``: allocations that failed at first
        - ``out_of_memory_caught``: operators that continued without memory that
          they had requested
        - ``plans``, ``planned_iterations``, ``plan_departures``: plans that were
          made, iterations that went as planned, and iterations that did something
          else than planned (``set_planning()``)
        - ``copied_ahead_count``, ``prefetch_count``: storages that a plan copied to
          the host while they were still on the GPU, and page-ins that a plan issued
          before they were needed
        - ``placed_count``: storages that got the memory that a plan had chosen for
          them
        - ``violations``, ``clean_violations``: with the oracle, comparisons that
          failed after and before the release check
    """
    result = {}
    for name, value in _values(device).items():
        if name.startswith("lms."):
            parts = name.split(".")[1:]
            if len(parts) == 1 or parts[1] == "current":
                result[parts[0]] = value
            elif parts[1] == "peak":
                result[parts[0] + "_peak"] = value
    if result.get("free_bytes"):
        result["fragmentation"] = 1.0 - result["largest_free_bytes"] / result["free_bytes"]
    return result


def _words(size):
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << shift:
            return "{:.2f} {}".format(size / (1 << shift), unit)
    return "{} bytes".format(size)


def explain(device=None):
    r"""Explains whether LMS pages out, and what prevents it.

    Args:
        device (torch.device or int, optional): Default: the current device.

    Returns:
        str: one finding per line. Peaks and counts are those of ``stats()``, since
        their last reset.
    """
    if torch.cuda.device_count() == 0:
        return "There is no CUDA device: LMS has no effect."
    if not _settings["enabled"]:
        return "LMS is off: torch.cuda.set_enabled_lms(True) turns it on."
    if _load() is None:
        return "LMS has no effect: {}".format(_unsupported)
    found = []
    values = _values(device)
    native = torch.cuda.memory_stats(device)
    used = native.get("allocated_bytes.all.current", 0)
    limit = values["lms.limit_bytes"]
    resident = values["lms.resident_bytes.current"]
    held = values["lms.held_bytes.current"]
    hooks = values["lms.hook_bytes"]
    how = "set with set_limit_lms" if _settings["limit"] else "automatic"
    most = native.get("allocated_bytes.all.peak", 0)
    pressure = most > limit or values["lms.out_of_memory_retries"] > 0
    if values["reclaimed"]:
        found.append(
            "LMS pages out: {} page-outs moved {} to the host; {} came back, and {} are there "
            "now.".format(
                values["reclaimed"],
                _words(values["reclaimed_bytes"]),
                _words(values["lms.page_in_bytes"]),
                _words(values["lms.paged_out_bytes.current"]),
            )
        )
    else:
        found.append("LMS has paged nothing out.")
        if not pressure:
            found.append(
                "There was no need to: at most {} were in use, and the limit is {} ({}).".format(
                    _words(most), _words(limit), how
                )
            )
    if not values["lms.watching"]:
        found.append(
            "LMS does not track what operators use yet. It starts when a twentieth of the limit is "
            "in use, or when a limit is set."
        )
    # Old releases have no CUDA graphs.
    if getattr(torch.cuda, "is_current_stream_capturing", bool)():
        found.append("A CUDA graph is being captured: LMS moves nothing until the capture ends.")
    if used > 0 and (used - resident) * 2 > used:
        found.append(
            "{} of {} in use are not managed: storages below {} (set_size_lms), storages that no "
            "operator has used since LMS started to track them, and memory of CUDA graphs and "
            "pools.".format(_words(used - resident), _words(used), _words(_settings["size"]))
        )
    if held > 0 and held * 2 > resident:
        why_held = []
        if hooks > 0:
            why_held.append(
                "hooks of autograd nodes used {}, as DistributedDataParallel's do with gradients "
                "and buckets".format(_words(hooks))
            )
        if held > hooks:
            why_held.append(
                "their addresses were exported (data_ptr(), DLPack, CUDA graphs), or exclude() or "
                "resident() holds them"
            )
        found.append(
            "{} of {} managed on the GPU are held there, because {}. release() allows LMS to page "
            "them out.".format(_words(held), _words(resident), ", and ".join(why_held))
        )
    if values["lms.over_limit_count"]:
        found.append(
            "The limit gave way {} times, by at most {}: running operators, and memory that cannot "
            "be paged out, needed more, or host memory was full.".format(
                values["lms.over_limit_count"], _words(values["lms.over_limit_bytes_peak"])
            )
        )
    if values["pinned_bytes.all.peak"] * 10 > limit * 8:
        found.append(
            "Operators that ran at the same time used {} together, and the limit is {}. What one "
            "operator uses has to fit: use smaller batches, or foreach=False in an "
            "optimizer.".format(_words(values["pinned_bytes.all.peak"]), _words(limit))
        )
    why = ctypes.c_char_p()
    _check(_library.lms_checks(_index(device), ctypes.byref(why)))
    if why.value and values["reclaimed"]:
        found.append(
            "LMS cannot detect writes that no operator reports ({}). Therefore it copies "
            "everything that it pages out, after all queued work, which takes longer.".format(
                why.value.decode("utf-8", "replace")
            )
        )
    if values["lms.compressed_bytes"]:
        found.append(
            "{} were compressed to {} on their way to the host.".format(
                _words(values["lms.compressed_bytes"]),
                _words(values["lms.compressed_written_bytes"]),
            )
        )
    if values["lms.host_compressed_tensor_bytes.current"]:
        found.append(
            "Compressed tensors of {} take {} of host memory.".format(
                _words(values["lms.host_compressed_tensor_bytes.current"]),
                _words(values["lms.host_compressed_bytes.current"]),
            )
        )
    _check(_library.lms_why_not_compressed(_index(device), ctypes.byref(why)))
    if why.value:
        found.append(
            "Some data is not compressed ({}).".format(why.value.decode("utf-8", "replace"))
        )
    if values["lms.release_caught"]:
        found.append(
            "{} times, a tensor that was paged out had been written, and no operator had reported "
            "it. Nothing was lost. Call the code that does so through "
            "torch.cuda.lms.wrap().".format(values["lms.release_caught"])
        )
    host_limit = _settings["host_limit"]
    pinned = sum(
        _values(index)["lms.host_bytes.current"] for index in range(torch.cuda.device_count())
    )
    if host_limit and pressure and (not values["reclaimed"] or pinned * 10 >= host_limit * 9):
        found.append(
            "There may be too little host memory: {} are pinned, and set_host_limit_lms allows "
            "{}.".format(_words(pinned), _words(host_limit))
        )
    return "\n".join(found)


def reset_peak_stats(device=None):
    r"""Resets the peaks of LMS's statistics to the current values.

    Args:
        device (torch.device or int, optional): Default: the current device.
    """
    if _library is not None:
        _check(_library.lms_reset_peak_stats(_index(device)))


def reset_accumulated_stats(device=None):
    r"""Resets the sums and counts of LMS's statistics to 0.

    Args:
        device (torch.device or int, optional): Default: the current device.
    """
    if _library is not None:
        if _oracle is not None:
            _oracle.forgotten += _violations(_index(device))
        _check(_library.lms_reset_accumulated_stats(_index(device)))


def summary_lines(stats):
    r"""Returns the rows that ``memory_summary`` adds while LMS is on (list of str).

    For PyTorch's own files.
    """
    if not _settings["enabled"] or "lms.page_in_bytes" not in stats:
        return []

    def size(name):
        value = float(stats[name])
        for unit in ("B  ", "KiB", "MiB", "GiB"):
            if value < 10240 or unit == "GiB":
                return "{:6d} {}".format(int(value), unit)
            value /= 1024

    rows = ["-" * 75, " Large Model Support   | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  "]
    for title, name in (
        ("Pinned memory", "pinned_bytes.all"),
        ("Resident memory", "lms.resident_bytes"),
        ("Paged-out memory", "lms.paged_out_bytes"),
        ("Held memory", "lms.held_bytes"),
    ):
        cells = [size(name + "." + key) for key in _STAT]
        rows.append(" {:<21} | {} | {} | {} | {} ".format(title, *cells))
    rows.append("-" * 75)

    def pair(left, left_value, right, right_value):
        return " {:<17}: {:>15} | {:<17}: {:>15}   ".format(left, left_value, right, right_value)

    rows.append(pair("Paged out", size("reclaimed_bytes"), "in blocks", stats["reclaimed"]))
    rows.append(
        pair("Paged in", size("lms.page_in_bytes"), "in blocks", stats["lms.page_in_count"])
    )
    rows.append(
        pair("Host memory", size("lms.host_bytes.current"), "Limit", size("lms.limit_bytes"))
    )
    rows.append(
        pair(
            "Compressed",
            size("lms.host_compressed_tensor_bytes.current"),
            "in host memory",
            size("lms.host_compressed_bytes.current"),
        )
    )
    for left, right in zip(_SOURCES[::2], _SOURCES[1::2]):
        rows.append(
            pair(
                left,
                stats["alloc_distribution." + left],
                right,
                stats["alloc_distribution." + right],
            )
        )
    return rows


def _set_stress(enable):
    """Sets whether everything idle is paged out at each allocation. For tests."""
    _check(_load().lms_set_option(b"stress", int(enable)))


def _set_shuffle(enable):
    """Sets whether idle storages are moved on the GPU at each allocation. For tests."""
    _check(_load().lms_set_option(b"shuffle", int(enable)))


def _set_late(enable):
    """Sets whether LMS pages out only for requests that have failed. For tests."""
    _check(_load().lms_set_option(b"late", int(enable)))


def _watch():
    """Tracks what operators use from now on, however little memory is in use."""
    global _unseen
    _unseen = False
    _check(_load().lms_set_option(b"watch", 1))


def _set_verify(enable):
    """Sets whether to count blocks that are given up with a wrong host copy. For tests."""
    _check(_load().lms_set_option(b"verify", int(enable)))


def _set_verify_clean(enable):
    """Sets whether to count clean blocks whose bytes have changed nevertheless. For tests."""
    _check(_load().lms_set_option(b"verify_clean", int(enable)))


def _set_unchecked(enable):
    """Sets whether to leave out the release check, which loses unseen writes. For tests of time."""
    _check(_load().lms_set_option(b"unchecked", int(enable)))


def _violations(device):
    """What _set_verify() has counted on a device: unseen writes, and blocks that lost bytes."""
    values = _values(device)
    return values["lms.clean_violations"] + values["lms.violations"]


# ---- the oracle --------------------------------------------------------------


class _Oracle:
    """Runs any program with everything idle paged out at each allocation, and verifies it."""

    # The exit code of a process in which a comparison failed.
    EXIT_CODE = 86

    def __init__(self):
        # What the statistics had counted before they were reset.
        self.forgotten = 0
        # The process that uses CUDA. A process that it forks cannot use it.
        self._process = None
        # Registered first, so it runs last: it may end the process.
        atexit.register(self.end)
        # torch.cuda is still being imported, so torch has no attribute of that name yet.
        from torch.cuda import _lazy_call

        _lazy_call(self.begin)

    def begin(self):
        if _load() is None:
            return
        self._process = os.getpid()
        set_enabled_lms(True)
        _set_stress(True)
        _set_verify(True)
        process = sys.modules.get("multiprocessing.process")
        if process is not None and getattr(process, "parent_process", bool)():
            # Such a process does not run atexit's functions. Its queues are flushed at -5.
            from multiprocessing.util import Finalize

            Finalize(None, self.end, exitpriority=-1000)

    def end(self):
        if self._process != os.getpid():
            return
        self._process = None
        # Verifies what is still on the device, which may be unusable by now.
        with contextlib.suppress(RuntimeError):
            reclaim_inactive()
        found = self.forgotten + sum(map(_violations, range(torch.cuda.device_count())))
        if found == 0:
            return
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):
                stream.flush()
        text = "LMS oracle: {} storages were given up with a wrong host copy\n".format(found)
        os.write(2, text.encode())
        # The only way to change the exit code here.
        os._exit(self.EXIT_CODE)


def _start_oracle():
    global _oracle
    if _oracle is None:
        _oracle = _Oracle()


# ---- what the environment says -------------------------------------------------


def _begin():
    """Does what the environment says. CUDA is left alone until the process uses it."""
    found = environment.settings(os.environ)
    if found.pop("oracle", False):
        _start_oracle()
    _settings.update(found)
    if found.get("enabled"):
        if _unsupported is not None:
            _load()  # warns
        # As above, torch.cuda may still be being imported.
        from torch.cuda import _lazy_call

        _lazy_call(_turn_on)


def _turn_on():
    if not _settings["enabled"]:
        return  # the program has turned it off
    try:
        set_enabled_lms(True)
    except RuntimeError as error:
        _settings["enabled"] = False
        warnings.warn("PYTORCH_LMS=1 has no effect: {}".format(error), stacklevel=_callers())


def _helps():
    """Whether an error should say that LMS exists."""
    return not (_known or _settings["enabled"] or _unsupported)


hint.install(_helps)

# The package torch_lms has to say first where the library is, and calls it then. It is imported
# later than torch.cuda.
if not hasattr(torch, "cuda"):
    _begin()


# The first LMS had its functions in torch.cuda.memory, too, which imports this module.
_memory = sys.modules.get("torch.cuda.memory")
if _memory is not None:
    for _name in __all__:
        setattr(_memory, _name, globals()[_name])
