"""The types of torch by the names that C++ has for them (c10::toString())."""

import torch

SCALAR_TYPES = {
    torch.bfloat16: "BFloat16",
    torch.float16: "Half",
    torch.float32: "Float",
    torch.int64: "Long",
    torch.int32: "Int",
    torch.int16: "Short",
    torch.bool: "Bool",
    torch.uint8: "Byte",
    torch.int8: "Char",
}
# Not in every release.
for _name in ("float8_e4m3fn", "float8_e5m2"):
    if hasattr(torch, _name):
        SCALAR_TYPES[getattr(torch, _name)] = _name.replace("f", "F", 1)
