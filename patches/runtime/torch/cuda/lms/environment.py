"""Environment variables that say what the functions of torch.cuda.lms say in a program."""

# This file runs on every Python that a supported PyTorch runs on: see torch.cuda.lms. It does not
# import torch.

import collections
import re
import warnings

# Values of a flag, in lower case, as PyTorch's build takes them.
_ON = ("1", "true", "on", "yes", "y")
_OFF = ("", "0", "false", "off", "no", "n")


def flag(text):
    """Whether a flag is on. Raises ValueError."""
    if text.lower() in _ON:
        return True
    if text.lower() in _OFF:
        return False
    raise ValueError("{!r} is neither 1 (true, on, yes) nor 0 (false, off, no)".format(text))


def size(text):
    """Bytes: 12G is 12 * 10**9, 12GiB is 12 * 2**30. Raises ValueError."""
    found = re.match(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)B?$", text.strip())
    if not found or (found.group(3) and not found.group(2)):
        raise ValueError(
            "{!r} is not a number of bytes such as 12000000000, 12G or 12GiB".format(text)
        )
    power = "KMGT".index(found.group(2).upper()) + 1 if found.group(2) else 0
    return int(float(found.group(1)) * (1024 if found.group(3) else 1000) ** power)


def compression(text):
    """A setting of set_compression(). Raises ValueError."""
    if text.lower() not in ("auto", "on", "off"):
        raise ValueError("{!r} is neither auto nor on nor off".format(text))
    return text.lower()


Variable = collections.namedtuple("Variable", "name setting read option metavar help")

# The option is that of `python -m torch.cuda.lms`; without a metavar it has no value.
VARIABLES = (
    Variable("PYTORCH_LMS", "enabled", flag, None, None, "turn LMS on"),
    Variable(
        "PYTORCH_LMS_LIMIT",
        "limit",
        size,
        "--limit",
        "SIZE",
        "GPU memory that PyTorch may reserve on each GPU, such as 12G or 12GiB; by default, or "
        "with 0, what there is",
    ),
    Variable(
        "PYTORCH_LMS_SIZE",
        "size",
        size,
        "--size",
        "SIZE",
        "smallest storage that may leave the GPU; by default 1MiB",
    ),
    Variable(
        "PYTORCH_LMS_HOST_LIMIT",
        "host_limit",
        size,
        "--host-limit",
        "SIZE",
        "host memory that may be pinned; by default, or with 0, what there is",
    ),
    Variable(
        "PYTORCH_LMS_PLANNING",
        "planning",
        flag,
        "--no-planning",
        None,
        "move everything on demand, and plan no iterations",
    ),
    Variable(
        "PYTORCH_LMS_COMPRESSION",
        "compression",
        compression,
        "--compression",
        "SETTING",
        "compress what is paged out, without loss: auto, on or off; by default auto",
    ),
    Variable(
        "PYTORCH_LMS_DEBUG", None, None, "--debug", None, "log page-outs and page-ins to stderr"
    ),
    Variable(
        "PYTORCH_LMS_ORACLE",
        "oracle",
        flag,
        "--oracle",
        None,
        "page everything idle out at each allocation, and compare; slow",
    ),
)


def settings(environment):
    """The settings that the environment names, by name. Warns of a value that has no meaning."""
    found = {}
    for variable in VARIABLES:
        text = environment.get(variable.name)
        if text and variable.setting:
            try:
                found[variable.setting] = variable.read(text)
            except ValueError as error:
                warnings.warn("Ignoring {}: {}".format(variable.name, error), stacklevel=2)
    return found
