"""Triton's kernels on the simulated device: Triton's own interpreter runs them on the CPU.

Importing this module skips the tests of a module if there is no Triton. Inductor and Triton do what
they do on a GPU, except that a kernel is not compiled but interpreted, over the bytes of the
simulated device. Its arguments are turned into addresses as Triton's launchers do it: by calling
their data_ptr().
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
import os
import tempfile
from typing import Any

import hardware
import pytest

if hardware.wanted():
    pytest.skip(hardware.REASON, allow_module_level=True)

os.environ["TRITON_INTERPRET"] = "1"

triton = pytest.importorskip("triton", reason="there is no triton")

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch._inductor.config  # noqa: E402
from conftest import DEVICE  # noqa: E402
from triton.backends import backends  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.language.extra import libdevice  # noqa: E402
from triton.runtime import driver, interpreter  # noqa: E402

complete = pytest.mark.skipif(
    tuple(map(int, triton.__version__.split(".")[:2])) < (3, 3),
    reason=f"Triton {triton.__version__} cannot interpret such a kernel",
)
"""For tests of kernels that only a newer interpreter runs."""

SCRATCH = 1 << 12
"""Bytes that a launch allocates when it has the addresses: under stress, all else is paged out."""


class Driver:
    """What Triton asks about the device."""

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 80, 32)

    def get_current_device(self) -> int:
        return torch.cuda.current_device()

    def get_current_stream(self, device: int) -> int:
        return torch.cuda.current_stream(device).cuda_stream

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device())


def _arguments(launch: Any, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a launch, with tensors of the host for those of the device."""
    names = [*launch.arg_names[: len(args)], *kwargs]
    values = [*args, *kwargs.values()]
    pointers = [_address(value) for value in values]
    scratch = torch.empty(SCRATCH, device="cuda", dtype=torch.uint8)
    uses = [
        (pointer, _extent(_tensor(value)), not name.startswith("in_ptr"))
        for name, value, pointer in zip(names, values, pointers, strict=True)
        if pointer is not None
    ]
    device = torch.cuda.current_device()
    stream = torch.cuda.current_stream().cuda_stream
    views = iter(DEVICE.kernel(stream, device, uses, launch.fn.__name__))
    found = [
        value if pointer is None else _on_host(_tensor(value), next(views))
        for value, pointer in zip(values, pointers, strict=True)
    ]
    del scratch
    count = len(args)
    return found[:count], dict(zip(kwargs, found[count:], strict=True))


def _tensor(value: Any) -> torch.Tensor:
    """The tensor of an argument, which may be wrapped (triton.reinterpret)."""
    return value if isinstance(value, torch.Tensor) else value.base


def _address(value: Any) -> int | None:
    return value.data_ptr() if hasattr(value, "data_ptr") else None


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to its last one."""
    if tensor.numel() == 0:
        return 0
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in strides)) * tensor.element_size()


def _on_host(tensor: torch.Tensor, view: int) -> torch.Tensor:
    size = _extent(tensor)
    if size == 0:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    data = (ctypes.c_char * size).from_address(view)
    flat = torch.frombuffer(data, dtype=tensor.dtype)
    return flat.as_strided(tensor.shape, tensor.stride())


def _as_libdevice(function: Any) -> Any:
    """A function of CUDA's libdevice, which the interpreter lacks."""

    def wrapper(x: Any, *others: Any) -> Any:
        handle = x.handle
        data = function(handle.data, *(other.handle.data for other in others))
        data = data.astype(handle.data.dtype)
        return triton.language.core.tensor(interpreter.TensorHandle(data, handle.dtype), x.type)

    return wrapper


_FUNCTIONS = {
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": np.vectorize(math.erf),
    "pow": np.power,
    "div_rn": np.divide,
    "sqrt_rn": np.sqrt,
}
for _name in ("exp", "exp2", "log", "log1p", "expm1", "sqrt", "tanh", "sin", "cos"):
    _FUNCTIONS[_name] = getattr(np, _name)
for _name, _function in _FUNCTIONS.items():
    setattr(libdevice, _name, _as_libdevice(_function))

interpreter.GridExecutor._init_args_hst = _arguments
# The kernel has written the device's own bytes.
interpreter.GridExecutor._restore_args_dev = lambda *_: None
backends["nvidia"] = dataclasses.replace(backends["nvidia"], driver=Driver)
backends.pop("amd", None)
driver.set_active(Driver())
# In this process, whose Triton has this driver.
torch._inductor.config.compile_threads = 1
# Compiled code of other runs may be of another device.
_cache = tempfile.TemporaryDirectory()
os.environ["TORCHINDUCTOR_CACHE_DIR"] = _cache.name
