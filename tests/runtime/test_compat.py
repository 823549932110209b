"""The forwarding allocator against the headers of the PyTorch that is installed.

A virtual method with a default implementation that is not forwarded is lost without a word from
the compiler.
"""

import re
from pathlib import Path

import torch
from releases import since

COMPAT = Path(__file__).parents[2] / "patches/runtime/torch/csrc/cuda/lms/compat.h"
INCLUDE = Path(torch.__file__).parent / "include"
BASES = {
    "c10/core/Allocator.h": "Allocator",
    "c10/core/CachingDeviceAllocator.h": "DeviceAllocator",
    "c10/cuda/CUDACachingAllocator.h": "CUDAAllocator",
}


def class_body(text: str, name: str) -> str:
    """The text of a class or struct definition, or "" if there is none."""
    found = re.search(rf"^(?:class|struct)\s+(?:\w+\s+)?{name}\b[^;{{]*\{{", text, re.MULTILINE)
    return text[found.end() : text.index("\n};", found.end())] if found else ""


def virtual_methods(text: str) -> set[str]:
    """The names of the virtual methods that a class body declares, but its destructor."""
    text = re.sub(r"//[^\n]*", "", text)
    return set(re.findall(r"\bvirtual\b[^;{(]*?\b(\w+)\s*\(", text))


def forwarded(text: str, minor: int) -> set[str]:
    """The methods that ForwardingAllocator overrides when torch is 2.<minor>."""
    kept, active, taken = [], True, False
    for line in class_body(text, "ForwardingAllocator").splitlines():
        if found := re.match(r"#(el)?if LMS_TORCH_AT_LEAST\((\d+)\)", line):
            taken = bool(found[1]) and taken
            active = not taken and minor >= int(found[2])
            taken = taken or active
        elif line.startswith("#else"):
            active = not taken
        elif line.startswith("#endif"):
            active = True
        else:
            assert not line.startswith("#"), f"not understood: {line}"
            if active:
                kept.append(line)
    return set(re.findall(r"\b(\w+)\s*\([^;{}]*\)\s*(?:const\s*)?override", "\n".join(kept)))


def missing(headers: dict[str, str], compat: str, minor: int) -> set[str]:
    wanted = set().union(*(virtual_methods(class_body(headers[f], n)) for f, n in BASES.items()))
    return wanted - forwarded(compat, minor) - {"Allocator", "DeviceAllocator"}


pytestmark = since((2, 0), "class of allocator")


def installed() -> tuple[dict[str, str], int]:
    headers = {name: (INCLUDE / name).read_text() for name in BASES}
    return headers, int(torch.__version__.split(".")[1])


def test_every_virtual_method_is_forwarded():
    headers, minor = installed()
    assert "allocate" in virtual_methods(class_body(headers["c10/core/Allocator.h"], "Allocator"))
    assert missing(headers, COMPAT.read_text(), minor) == set()


def test_a_new_virtual_method_is_noticed():
    headers, minor = installed()
    name = "c10/cuda/CUDACachingAllocator.h"
    place = "virtual void* raw_alloc(size_t nbytes)"
    assert place in headers[name]
    headers[name] = headers[name].replace(place, f"virtual int novelty(int x) {{}}\n  {place}", 1)
    assert missing(headers, COMPAT.read_text(), minor) == {"novelty"}
