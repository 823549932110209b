"""The forwarding allocator against the headers of the PyTorch that is installed.

A virtual method with a default implementation that is not forwarded is lost without a word from
the compiler. ci/forwarding.py writes the allocator from the headers of the releases that it has
read; this looks at what is installed, and in another way.
"""

import re
from pathlib import Path

import torch
from releases import since

FORWARDING = Path(__file__).parents[2] / "patches/runtime/torch/csrc/cuda/lms/compat/forwarding.h"
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
    kept, active = [], True
    for line in class_body(text, "ForwardingAllocator").splitlines():
        if line.startswith("#if "):
            terms = [
                re.fullmatch(r"(!?)LMS_TORCH_AT_LEAST\((\d+)\)", term)
                for term in line.removeprefix("#if ").split(" && ")
            ]
            assert all(terms), f"not understood: {line}"
            active = all((minor >= int(term[2])) == (not term[1]) for term in terms)
        elif line.startswith("#endif"):
            active = True
        else:
            assert not line.startswith("#"), f"not understood: {line}"
            if active:
                kept.append(line)
    return set(re.findall(r"\b(\w+)\s*\([^;{}]*\)\s*(?:const\s*)?override", "\n".join(kept)))


def missing(headers: dict[str, str], forwarding: str, minor: int) -> set[str]:
    wanted = set().union(*(virtual_methods(class_body(headers[f], n)) for f, n in BASES.items()))
    return wanted - forwarded(forwarding, minor) - {"Allocator", "DeviceAllocator"}


pytestmark = since((2, 0), "class of allocator")


def installed() -> tuple[dict[str, str], int]:
    headers = {name: (INCLUDE / name).read_text() for name in BASES}
    return headers, int(torch.__version__.split(".")[1])


def test_every_virtual_method_is_forwarded():
    headers, minor = installed()
    assert "allocate" in virtual_methods(class_body(headers["c10/core/Allocator.h"], "Allocator"))
    assert missing(headers, FORWARDING.read_text(), minor) == set()


def test_a_new_virtual_method_is_noticed():
    headers, minor = installed()
    name = "c10/cuda/CUDACachingAllocator.h"
    place = "virtual void* raw_alloc(size_t nbytes)"
    assert place in headers[name]
    headers[name] = headers[name].replace(place, f"virtual int novelty(int x) {{}}\n  {place}", 1)
    assert missing(headers, FORWARDING.read_text(), minor) == {"novelty"}
