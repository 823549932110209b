r"""Recording an iteration of a program whose tensors are fake."""

import contextlib
import sys

import torch

from .recorder import Recorder

OLDEST = (2, 6)  # releases whose fake tensors were tried
_current = []  # recorders, the innermost last


@contextlib.contextmanager
def recording(gpu, smallest=1 << 20, find_steps=True):
    r"""Makes the block's tensors fake, and records what it does with those on the GPU.

    Args:
        gpu (cost.Gpu): says how long operators take.
        smallest (int): bytes of the smallest storage that LMS manages.
        find_steps (bool): an iteration ends with the step of an optimizer.

    Yields:
        recorder.Recorder: whose ``trace()`` can be called when the block has ended.

    Raises:
        RuntimeError: if this PyTorch is too old.
    """
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if release < OLDEST:
        raise RuntimeError(
            "LMS: recordings with fake tensors need PyTorch {}.{} or later, and this is {}".format(
                OLDEST[0], OLDEST[1], torch.__version__
            )
        )
    from .device import gpu_in_sight
    from .mode import FakeGpu
    from .program import gpu_program

    recorder = Recorder(smallest)
    mode = FakeGpu(recorder, gpu)
    with contextlib.ExitStack() as stack:
        if find_steps:
            from torch.cuda import lms_trace

            # torch.optim has deleted its attribute of this name.
            optimizer = sys.modules[torch.optim.Optimizer.__module__]
            hook = optimizer.register_optimizer_step_post_hook(
                lambda optimizer, *_: recorder.step(lms_trace.number_of(optimizer))
            )
            stack.callback(hook.remove)
        stack.enter_context(gpu_in_sight(gpu))
        _current.append(recorder)
        stack.callback(_current.remove, recorder)
        stack.enter_context(gpu_program(mode.hides_device))
        stack.enter_context(mode)
        yield recorder


def step(optimizer=0):
    r"""Ends an iteration of the recording that is on. Returns whether there is one."""
    for recorder in _current[-1:]:
        recorder.step(optimizer)
    return bool(_current)
