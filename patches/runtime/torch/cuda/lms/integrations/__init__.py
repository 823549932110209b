"""Large Model Support in other libraries, with one line each.

Each module imports the library that it is named after, and nothing imports the modules.
"""

# These files run on every Python that a supported PyTorch runs on: see torch.cuda.lms.

import torch
from torch.cuda.lms import environment


def turn_on(limit=None, size=None, host_limit=None, planning=None, compression=None):
    r"""Turns LMS on with these settings. What is None stays as it is.

    Args:
        limit, size, host_limit (int or str): bytes, or a text such as "12GiB"; see
            ``set_limit_lms``, ``set_size_lms`` and ``set_host_limit_lms``.
        planning (bool): see :func:`torch.cuda.lms.set_planning`.
        compression (str): see :func:`torch.cuda.lms.set_compression`.

    Raises:
        ValueError: a text is no number of bytes, or what the setting's function says.
        RuntimeError: LMS cannot be turned on.
    """
    for value, apply in (
        (limit, torch.cuda.set_limit_lms),
        (size, torch.cuda.set_size_lms),
        (host_limit, torch.cuda.set_host_limit_lms),
    ):
        if value is not None:
            apply(environment.size(value) if isinstance(value, str) else value)
    if planning is not None:
        torch.cuda.lms.set_planning(planning)
    if compression is not None:
        torch.cuda.lms.set_compression(compression)
    torch.cuda.set_enabled_lms(True)
