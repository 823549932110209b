r"""Loads what lets Large Model Support (LMS) hear of the CUDA allocator's calls.

In this release the allocator is a set of functions in libc10_cuda. The seam has
functions of the same names, and because it is loaded first, and for all, those
of PyTorch's libraries that call them come to it. Until LMS is turned on it only
passes them on.
"""

import ctypes
import os

_path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", "libtorch_lms_seam.so")
# A build without CUDA, or with USE_LMS=0, has none.
if os.path.exists(_path):
    ctypes.CDLL(_path, mode=ctypes.RTLD_GLOBAL)
