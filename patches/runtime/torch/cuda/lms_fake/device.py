r"""What programs ask torch.cuda about the GPU, where there is none."""

import collections
import contextlib

import torch

Properties = collections.namedtuple("Properties", "name total_memory major minor")
Properties.__doc__ = """What ``torch.cuda.get_device_properties()`` returns; sizes in bytes."""


@contextlib.contextmanager
def replaced(owner, name, value):
    r"""An attribute has another value in this block."""
    own = name in vars(owner)
    before = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


@contextlib.contextmanager
def gpu_in_sight(gpu):
    r"""``torch.cuda`` answers as if there were a GPU, if there is none.

    Args:
        gpu (cost.Gpu): which one.
    """
    if torch.cuda.is_available():
        yield
        return
    answers = {
        "is_available": True,
        "is_bf16_supported": "bfloat16" in gpu.flops,
        "is_current_stream_capturing": False,
        "device_count": 1,
        "current_device": 0,
        "get_device_name": gpu.title,
        "get_device_capability": tuple(gpu.capability),
        "get_device_properties": Properties(gpu.title, gpu.memory, *gpu.capability),
        "mem_get_info": (gpu.memory, gpu.memory),
    }
    # Without an answer. Statistics of memory are 0.
    answers.update(dict.fromkeys(("set_device", "synchronize", "empty_cache", "ipc_collect")))
    answers.update(dict.fromkeys(("reset_peak_memory_stats", "reset_accumulated_memory_stats")))
    for what in ("memory_allocated", "memory_reserved"):
        answers.update({what: 0, "max_" + what: 0})
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(replaced(torch.cuda, name, _always(answer)))
        yield


def _always(answer):
    return lambda *_, **__: answer
