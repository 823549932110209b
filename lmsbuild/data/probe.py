"""What `lmsbuild doctor` asks the interpreter whose torch it looks at: one line of JSON.

It runs there without lmsbuild, and reports instead of failing.
"""

import sys

# With `python -c`, the current folder comes first. What lies there, a torch or a json.py, is not
# what programs elsewhere import.
if sys.path[:1] == [""]:
    del sys.path[0]

import json
import os
import platform

_TRIAL_BYTES = 4 << 20


def main():
    told = {
        "python": platform.python_version(),
        "executable": sys.executable,
        "machine": platform.machine(),
        "torch": None,
        "error": "",
        "lms": None,
        "provenance": None,
        "devices": [],
        "cuda_error": "",
        "backend": "",
        "settings": {},
        "trial": None,
    }
    try:
        import torch
    except Exception as error:
        told["error"] = _words(error)
        return told
    told["torch"] = {
        "path": os.path.dirname(getattr(torch, "__file__", None) or ""),
        "version": str(getattr(torch, "__version__", "")),
        "cuda": getattr(getattr(torch, "version", None), "cuda", None),
    }
    lms = getattr(getattr(torch, "cuda", None), "lms", None)
    # The package torch_lms has a library for each release, and another path.
    path = getattr(lms, "_library_path", None)
    told["provenance"] = _provenance(path)
    if lms is not None:
        told["lms"] = _library(torch, lms, path)
    _devices(torch, told)
    if lms is not None and told["devices"] and not told["lms"]["error"]:
        told["settings"] = {
            "enabled": torch.cuda.get_enabled_lms(),
            "limit": torch.cuda.get_limit_lms(),
            "size": torch.cuda.get_size_lms(),
            "host_limit": torch.cuda.get_host_limit_lms(),
        }
        told["trial"] = {"error": _trial(torch)}
    return told


def _words(error):
    return "{}: {}".format(type(error).__name__, " ".join(str(error).split()))[:500]


def _provenance(path):
    try:
        if path:
            with open(os.path.join(os.path.dirname(path), "lms.json"), encoding="utf-8") as file:
                return json.load(file)
        from importlib.metadata import distribution

        text = distribution("torch").read_text("lms.json")
        return json.loads(text) if text else None
    except Exception:
        return None


def _library(torch, lms, path):
    import ctypes

    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    # In 1.1 to 1.5 it is a part of libc10_cuda.so.
    found = [os.path.join(folder, name) for name in ("libtorch_lms.so", "libc10_cuda.so")]
    path = path or next((name for name in found if os.path.exists(name)), found[0])
    told = {
        "path": path,
        "abi": None,
        "wanted": getattr(lms, "_ABI_VERSION", None),
        "error": "",
        "unsupported": getattr(lms, "_unsupported", None),
    }
    if told["unsupported"]:
        told["error"] = told["unsupported"]
        return told
    if not os.path.exists(path):
        told["error"] = "there is no " + path
        return told
    try:
        library = ctypes.CDLL(path)
        library.lms_abi_version.restype = ctypes.c_int
        told["abi"] = library.lms_abi_version()
    except (OSError, AttributeError) as error:
        told["error"] = _words(error)
    return told


def _devices(torch, told):
    if told["torch"]["cuda"] is None:
        return  # a build without CUDA lacks what is asked below
    try:
        # Before 2.0 there is no other.
        told["backend"] = getattr(torch.cuda, "get_allocator_backend", lambda: "native")()
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            name = torch.cuda.get_device_name(index)
            told["devices"].append({"name": name, "free": free, "total": total})
        if not told["devices"]:
            # Says what a program would see: no driver, one that is too old, no device.
            torch.cuda.init()
    except Exception as error:
        told["cuda_error"] = _words(error)


def _trial(torch):
    """Moves one tensor to the host and back; returns what went wrong, or ""."""
    before = torch.cuda.get_enabled_lms()
    try:
        torch.cuda.set_enabled_lms(True)
        torch.cuda.reclaim_inactive()  # LMS looks at operators from now on
        tensor = torch.arange(_TRIAL_BYTES // 4, dtype=torch.int32, device="cuda")
        tensor.add_(1)
        size = torch.cuda.get_size_lms()
        torch.cuda.set_size_lms(min(size, _TRIAL_BYTES))
        try:
            torch.cuda.reclaim_inactive()
            moved = not torch.cuda.lms.is_resident(tensor)
            expected = torch.arange(1, _TRIAL_BYTES // 4 + 1, dtype=torch.int32)
            same = torch.equal(tensor.cpu(), expected)
        finally:
            torch.cuda.set_size_lms(size)
    except Exception as error:
        return _words(error)
    finally:
        torch.cuda.set_enabled_lms(before)
    if not moved:
        return "a tensor that no operator uses stayed on the GPU"
    return "" if same else "a tensor came back with other values"


if __name__ == "__main__":
    print(json.dumps(main()))
