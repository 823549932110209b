"""The line at the end of PyTorch's out-of-memory errors that says that LMS exists."""

# This file runs on every Python that a supported PyTorch runs on: see torch.cuda.lms.

import sys

_LINE = (
    "Large Model Support (LMS) is off. It would move idle tensors to host memory: call "
    "torch.cuda.set_enabled_lms(True), or set PYTORCH_LMS=1 in the environment."
)
# Other devices, and allocators that LMS does not know, have other words.
_ERROR = "CUDA out of memory"
# LMS's own report, and this line in an error that was raised again with its text, begin so.
_TOLD = "Large Model Support (LMS)"


def install(helps):
    """Adds the line to the text of errors while ``helps()`` is true.

    Their ``args`` stay as they are, and so do pickled errors. Nothing is done before an error is
    printed.
    """
    # torch has no attribute cuda while torch.cuda is imported. Before 1.13, running out of memory
    # is a plain RuntimeError.
    error_type = getattr(sys.modules["torch.cuda"], "OutOfMemoryError", None)
    if error_type is None:
        return
    text_of = error_type.__str__

    def __str__(self):
        text = text_of(self)
        if _ERROR in text and _TOLD not in text and helps():
            return "{}\n{}".format(text, _LINE)
        return text

    error_type.__str__ = __str__
