r"""What a program needs besides fake tensors, to run as if it had a GPU."""

import contextlib
import functools
import sys

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .autocast import autocast
from .device import replaced

_FLASH_DTYPES = (torch.float16, torch.bfloat16)
_RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])
_LARGEST_HEAD = 256  # elements: what FlashAttention takes


@contextlib.contextmanager
def gpu_program(hides_device):
    r"""Modules can be moved, autocast works, and optimizers choose what they choose on a GPU.

    Args:
        hides_device (bool): C++ does not know that tensors are on the GPU.
    """
    with contextlib.ExitStack() as stack:
        # Moving a module swaps fake parameters, which their mode's weak references forbid.
        stack.enter_context(replaced(torch.nn.Module, "_apply", _apply))
        supported = sys.modules[torch.optim.Optimizer.__module__]._foreach_supported_types
        supported.append(FakeTensor)
        stack.callback(supported.remove, FakeTensor)
        if hides_device:
            common = torch.cuda.amp.common
            stack.enter_context(replaced(common, "amp_definitely_not_available", bool))
            stack.enter_context(replaced(torch.Tensor, "pin_memory", _pinned))
            stack.enter_context(replaced(FakeTensor, "is_cuda", property(_is_cuda)))
            stack.enter_context(replaced(FakeTensor, "__torch_dispatch__", _hidden()))
            # FakeTensor starts CUDA where torch.cuda sees a GPU.
            module = sys.modules[FakeTensor.__module__]
            stack.enter_context(replaced(module, "init_gpu_context", lambda device: None))
            kernels = stack.enter_context(autocast())
            # C++ would decide these by the device.
            stack.enter_context(replaced(torch.Tensor, "to", _to))
            stack.enter_context(replaced(torch.Tensor, "cuda", _cuda))
            functional = torch.nn.functional
            stack.enter_context(
                replaced(
                    functional,
                    "scaled_dot_product_attention",
                    functools.partial(
                        _attention, kernels.lower, functional.scaled_dot_product_attention
                    ),
                )
            )
        yield


def _pinned(tensor, device=None):
    return tensor


def _is_cuda(tensor):
    return tensor.fake_device.type == "cuda"


def _hidden():
    """What C++ asks while no mode is on."""
    dispatch = FakeTensor.__torch_dispatch__

    def without_device(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.prim.device.default:
            return torch.device("meta")
        return dispatch(func, types, args, kwargs or {})

    return classmethod(without_device)


def _apply(module, fn, recurse=True):
    """Module._apply(), which keeps parameters what they are to everyone who has them."""
    _apply_to(module, fn, recurse, {})
    return module


def _apply_to(module, fn, recurse, done):
    if recurse:
        for child in module.children():
            _apply_to(child, fn, recurse, done)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            module._parameters[name] = _moved(parameter, fn, done)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = fn(buffer)


def _moved(parameter, fn, done):
    if id(parameter) in done:
        return done[id(parameter)][1]
    with torch.no_grad():
        applied = fn(parameter)
    result = parameter
    if applied is not parameter:
        if isinstance(parameter, FakeTensor):
            parameter.data = applied
            parameter.fake_device = applied.fake_device
        else:
            result = torch.nn.Parameter(applied, parameter.requires_grad)
    # With the old one, so that no other gets its id.
    done[id(parameter)] = parameter, result
    return result


def _cuda(tensor, device=None, non_blocking=False, memory_format=torch.preserve_format):
    device = torch.device("cuda") if device is None else torch.device(device)
    return _to(tensor, device, non_blocking=non_blocking, memory_format=memory_format)


def _to(tensor, *args, copy=False, **kwargs):
    other = args[0] if args else kwargs.pop("other", None)
    if isinstance(other, torch.Tensor):  # of which C++ knows another device
        args = (other.device, other.dtype, *args[1:])
    device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
    device = tensor.device if device is None else device
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", 0)
    dtype = dtype or tensor.dtype
    if memory_format is None:
        memory_format = torch.preserve_format
    stays = memory_format == torch.preserve_format or tensor.is_contiguous(
        memory_format=memory_format
    )
    if not copy and device == tensor.device and dtype == tensor.dtype and stays:
        return tensor
    return torch.ops.aten._to_copy.default(
        tensor, dtype=dtype, device=device, non_blocking=non_blocking, memory_format=memory_format
    )


def _attention(
    lower,
    original,
    query,
    key,
    value,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    scale=None,
    enable_gqa=False,
):
    if not query.is_cuda:
        return original(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    aten = torch.ops.aten
    if torch.is_autocast_enabled("cuda"):
        query, key, value = lower(query), lower(key), lower(value)
    backends = torch.backends.cuda
    shared = enable_gqa and key.size(-3) != query.size(-3)
    fits = query.dim() == 4 and query.size(-1) <= _LARGEST_HEAD and query.size(-1) % 8 == 0
    flash = query.dtype in _FLASH_DTYPES and attn_mask is None and backends.flash_sdp_enabled()
    if fits and flash:
        return aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
    if shared:  # only FlashAttention takes them as they are
        repeats = query.size(-3) // key.size(-3)
        key, value = (tensor.repeat_interleave(repeats, -3) for tensor in (key, value))
    efficient = backends.mem_efficient_sdp_enabled() and not (shared and _RELEASE < (2, 12))
    if fits and efficient:
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(
                    ~attn_mask, float("-inf")
                )
            attn_mask = attn_mask.expand(*query.shape[:-1], key.size(-2))
        keeps = any(tensor.requires_grad for tensor in (query, key, value))
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, keeps, dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale
    )[0]
