r"""Loads the library through which Large Model Support (LMS) gets the calls of the CUDA allocator.

In this release the allocator is a set of functions in libc10_cuda. The library,
called the seam, defines functions of the same names. It is loaded first and
globally, so PyTorch's libraries call its functions. Until LMS is turned on, it
only forwards the calls.
"""

import ctypes
import os

_path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", "libtorch_lms_seam.so")
# A build without CUDA, or with USE_LMS=0, does not have it.
if os.path.exists(_path):
    ctypes.CDLL(_path, mode=ctypes.RTLD_GLOBAL)
