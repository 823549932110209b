"""Large Model Support (LMS) for an official PyTorch: ``torch.cuda.set_enabled_lms(True)``.

``import torch`` loads this package through its entry point, and nothing else needs to import it. If
the loading of such packages is turned off (``TORCH_DEVICE_BACKEND_AUTOLOAD=0``), ``import
torch_lms`` after ``import torch`` does the same. No file of PyTorch is changed.
"""

# It runs on every Python that a supported PyTorch runs on.

import sys
import threading

__all__ = ["autoload"]

_lock = threading.Lock()
_done = False


def autoload():
    """Adds LMS to PyTorch. Called by PyTorch while it is imported.

    Does nothing if this PyTorch has LMS already. Never raises: a PyTorch that LMS does not support
    works as without this package, and the first use of LMS warns. Where warnings are errors, they
    are written to stderr instead while PyTorch is imported.
    """
    global _done
    # Before the lock is taken, because another thread may be importing it, and call this function.
    import torch  # noqa: F401

    with _lock:
        if _done:
            return
        _done = True
        try:
            from torch_lms import install

            install.install()
        except Exception as error:
            import warnings

            text = (
                "torch-lms cannot be used with this PyTorch, which works without it ({}: {}). "
                "Reinstall torch-lms.".format(type(error).__name__, error)
            )
            try:
                warnings.warn(text, stacklevel=2)
            except Exception:  # where warnings are errors, this one would keep torch from working
                print(text, file=sys.stderr)


# This module does not import torch: one thread could import torch, which imports this module, while
# another one imports this module.
_torch = sys.modules.get("torch")
if _torch is not None and not getattr(_torch.__spec__, "_initializing", False):
    autoload()
