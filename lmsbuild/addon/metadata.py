"""METADATA, WHEEL and the entry point of the add-on's wheel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import lmsbuild
from lmsbuild.addon.release import LOADS_PACKAGES
from lmsbuild.registry import Tag
from lmsbuild.resources import license_files

PROJECT = "torch-lms"
PACKAGE = "torch_lms"
DIST_INFO = f"{PACKAGE}-{lmsbuild.__version__}.dist-info"

# Folders and files of the package.
RELEASES = f"{PACKAGE}/releases"
RUNTIME = f"{PACKAGE}/runtime"
PACKAGE_FILE = f"{PACKAGE}/package.json"

# `import torch` loads it; see torch._import_device_backends().
ENTRY_POINTS = f"[torch.backends]\n{PACKAGE} = {PACKAGE}:autoload\n"

_DESCRIPTION = """\
# torch-lms

Large Model Support (LMS) for an official PyTorch: train models that do not fit in GPU memory.

```python
import torch

torch.cuda.set_enabled_lms(True)  # the only line that LMS needs
```

When memory runs out, the CUDA allocator moves tensors that no operator is using to host memory, and
moves each tensor back before the next operator that uses it. The results are bit-identical.

`import torch` loads this package. It changes no file of PyTorch. With another release of PyTorch
than these, or with one without CUDA, LMS warns once and has no effect: {versions}.
"""


def wheel_name(platform: str) -> str:
    return f"{PACKAGE}-{lmsbuild.__version__}-py3-none-{platform}.whl"


def dist_info(tags: Sequence[Tag], platform: str) -> dict[str, bytes]:
    """The files of the wheel's dist-info folder, without RECORD, by path."""
    texts = {
        "METADATA": _metadata(tags),
        "WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: lmsbuild {lmsbuild.__version__}\n"
            f"Root-Is-Purelib: false\nTag: py3-none-{platform}\n"
        ),
        "entry_points.txt": ENTRY_POINTS,
    }
    files = {f"{DIST_INFO}/{name}": text.encode("utf-8") for name, text in texts.items()}
    licenses = {f"{DIST_INFO}/licenses/{path.name}": path.read_bytes() for path in license_files()}
    return {**licenses, **files}


def _metadata(tags: Sequence[Tag]) -> str:
    pythons = {tuple(map(int, python.split("."))) for tag in tags for python in tag.pythons}
    oldest = ".".join(map(str, min(pythons)))
    licenses = "".join(f"License-File: {Path(path).name}\n" for path in license_files())
    return (
        f"Metadata-Version: 2.4\nName: {PROJECT}\nVersion: {lmsbuild.__version__}\n"
        "Summary: Large Model Support for an official PyTorch: train models that do not fit in GPU"
        " memory\n"
        "License-Expression: BSD-3-Clause\n"
        f"{licenses}"
        "Classifier: Operating System :: POSIX :: Linux\n"
        "Classifier: Programming Language :: Python :: 3\n"
        f"Requires-Python: >={oldest}\n"
        f"Requires-Dist: torch>={LOADS_PACKAGES}\n"
        "Description-Content-Type: text/markdown\n\n"
        + _DESCRIPTION.format(versions=", ".join(tag.version for tag in tags))
    )
