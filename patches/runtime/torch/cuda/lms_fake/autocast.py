r"""Autocast of fake tensors whose device C++ does not know.

PyTorch's own kernels of autocast cast tensors that C++ finds on the GPU. These do the same for fake
ones. Which operators run in which precision is read from the header that has PyTorch's own lists.
"""

import contextlib
import os
import re
import warnings

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_flatten, tree_map

_HEADER = "include/ATen/autocast_mode.h"
_LISTS = {
    "AT_FORALL_LOWER_PRECISION_FP": "_lower",
    "AT_FORALL_FP32": "_float",
    "AT_FORALL_FP32_SET_OPT_DTYPE": "_float_result",
    "AT_FORALL_PROMOTE": "_promoted",
}
_ENTRY = re.compile(r"_\((\w+)(?:,\s*(\w+))?\)")


@contextlib.contextmanager
def autocast():
    r"""Autocast for "cuda" casts fake tensors in this block.

    Raises:
        RuntimeError: PyTorch's headers are missing.
    """
    library = torch.library.Library("aten", "IMPL")
    kernels = _Kernels()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns that its kernels are replaced
            for kind, name, overload in _operators():
                kernels.register(library, kind, name, overload)
        clear = torch.clear_autocast_cache
        torch.clear_autocast_cache = lambda: (kernels.clear(), clear())[1]
        try:
            yield kernels
        finally:
            torch.clear_autocast_cache = clear
    finally:
        library._destroy()


def _operators():
    path = os.path.join(os.path.dirname(torch.__file__), _HEADER)
    try:
        with open(path) as file:
            text = file.read().replace("\\\n", " ")
    except OSError as error:
        raise RuntimeError(
            "LMS: without a GPU, autocast is recorded with the help of PyTorch's {}: {}".format(
                _HEADER, error.strerror
            )
        ) from error
    for macro, kind in _LISTS.items():
        found = re.search(r"#define {}\(_\)(.*)".format(macro), text)
        for name, overload in _ENTRY.findall(found.group(1)) if found else ():
            yield kind, name, overload


class _Kernels:
    def __init__(self):
        self._casts = {}  # of parameters, by their ids: (parameter, result)
        self._keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)

    def clear(self):
        self._casts.clear()

    def register(self, library, kind, name, overload):
        packet = getattr(torch.ops.aten, name, None)
        function = getattr(packet, overload or "default", None)
        if function is None or "Dimname" in str(function._schema):
            return
        prepare = getattr(self, kind)

        def kernel(*args, **kwargs):
            with torch._C._ExcludeDispatchKeyGuard(self._keys):
                args, kwargs = prepare(function, args, kwargs)
                return function(*args, **kwargs)

        with contextlib.suppress(RuntimeError):
            library.impl(name + "." + overload if overload else name, kernel, "AutocastCUDA")

    def lower(self, value):
        r"""A tensor in autocast's precision."""
        return self._cast(value, torch.get_autocast_dtype("cuda"))

    def _lower(self, function, args, kwargs):
        return tree_map(self.lower, (args, kwargs))

    def _float(self, function, args, kwargs):
        return tree_map(lambda value: self._cast(value, torch.float32), (args, kwargs))

    def _float_result(self, function, args, kwargs):
        names = [argument.name for argument in function._schema.arguments]
        if not _eligible(args[0]) or "dtype" not in names:
            return args, kwargs
        place = names.index("dtype")
        if place >= len(args):
            return args, dict(kwargs, dtype=kwargs.get("dtype") or torch.float32)
        return (*args[:place], args[place] or torch.float32, *args[place + 1 :]), kwargs

    def _promoted(self, function, args, kwargs):
        found = [value.dtype for value in tree_flatten((args, kwargs))[0] if _eligible(value)]
        if torch.float32 not in found:
            return args, kwargs
        return self._float(function, args, kwargs)

    def _cast(self, value, dtype):
        if not _eligible(value) or value.dtype == dtype:
            return value
        keeps = (
            dtype != torch.float32
            and value.dtype == torch.float32
            and value.requires_grad
            and value.is_leaf
            and torch.is_autocast_cache_enabled()
        )
        if not keeps:
            return value.to(dtype)
        known = self._casts.get(id(value))
        if known is None:
            known = self._casts[id(value)] = value, value.to(dtype)
        return known[1]


def _eligible(value):
    return (
        isinstance(value, FakeTensor)
        and value.fake_device.type == "cuda"
        and value.is_floating_point()
        and value.dtype != torch.float64
    )
