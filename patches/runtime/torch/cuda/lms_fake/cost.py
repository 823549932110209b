r"""How long an operator would take on a GPU: a roofline.

An operator takes as long as its arithmetic or its memory traffic needs, whichever is more, at the
parts of the GPU's peak rates that programs reach. The arithmetic is counted by the formulas of
``torch.utils.flop_counter``; other operators are taken to do none. See S. Williams, A. Waterman,
D. Patterson: Roofline, Communications of the ACM 52(4), 2009.
"""

import collections

import torch

Gpu = collections.namedtuple(
    "Gpu", "title capability memory bandwidth flops compute_part bandwidth_part seconds"
)
Gpu.__doc__ = """A GPU.

Attributes:
    title (str): its name.
    capability (tuple of two ints): its compute capability.
    memory (int): bytes.
    bandwidth (float): of its memory, in bytes per second, at most.
    flops (dict of str to float): floating-point operations per second at most, by the names of
        dtypes, and "tensorfloat32".
    compute_part (float): the part of ``flops`` that is reached, 0 to 1.
    bandwidth_part (float): the same of ``bandwidth``.
    seconds (float): that an operator takes at least.
"""


def seconds_of(gpu, overload, args, kwargs, result, bytes_used):
    r"""Returns how long an operator takes (float), with ``bytes_used`` read and written."""
    flops = _flops(overload, args, kwargs, result)
    compute = flops / (_rate(gpu, overload, args) * gpu.compute_part) if flops else 0.0
    return max(compute, bytes_used / (gpu.bandwidth * gpu.bandwidth_part), gpu.seconds)


def _flops(overload, args, kwargs, result):
    from torch.utils.flop_counter import flop_registry

    formula = flop_registry.get(getattr(overload, "overloadpacket", None))
    if formula is None:
        return 0
    if "scaled_dot_product" in str(overload):
        args = _with_all_heads(args)
    return int(formula(*args, **kwargs, out_val=result))


def _with_all_heads(args):
    """The arguments of attention, with shapes in the place of tensors.

    Several heads of the query can share a key and a value, for which some releases have no formula.
    """
    heads = [arg.size(1) for arg in args if isinstance(arg, torch.Tensor) and arg.dim() == 4]
    return [
        (arg.size(0), max(heads), *arg.shape[2:])
        if isinstance(arg, torch.Tensor) and arg.dim() == 4
        else arg
        for arg in args
    ]


def _rate(gpu, overload, args):
    dtypes = [value.dtype for value in args if isinstance(value, torch.Tensor)]
    name = str(dtypes[0]).split(".")[-1] if dtypes else "float32"
    if name == "float32" and _may_round(overload):
        name = "tensorfloat32"
    # What a GPU has no rate of its own for, it does as float32.
    return gpu.flops.get(name, gpu.flops["float32"])


def _may_round(overload):
    """Whether the program allows TensorFloat-32 here."""
    convolution = "convolution" in str(overload)
    # In newer releases, a program has set it in one of two ways, and the other one raises.
    precision = getattr(torch._C, "_get_fp32_precision_getter", None)
    if precision is not None:
        return precision("cuda", "conv" if convolution else "matmul") == "tf32"
    if convolution:
        return torch.backends.cudnn.allow_tf32
    return torch.backends.cuda.matmul.allow_tf32
