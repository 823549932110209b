"""A simulated CUDA device, on which the official CUDA builds of PyTorch run without a GPU.

    import simcuda
    device = simcuda.start(mib=64)   # before torch is imported
    import torch
    torch.ones(3, device="cuda") + 1

PyTorch's own caching allocator, streams, events, autograd and dispatcher run; what is simulated is
the CUDA runtime under them. Operators run their CPU kernels over the device's bytes.
`python -m simcuda.build` builds it beforehand.
"""

from simcuda.device import Device, start, start_at_import

__all__ = ["Device", "start", "start_at_import"]
