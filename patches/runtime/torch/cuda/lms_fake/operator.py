r"""What an operator does to its storages, by the rules of the runtime's guard/operator.cpp."""

import collections

Operator = collections.namedtuple("Operator", "name kind writes")
Operator.__doc__ = """How an operator counts.

Attributes:
    name (str): such as ``aten::mm``.
    kind (str): USES, TRANSPARENT or FILLS.
    writes (tuple of bool): which arguments it may write; None for all.
"""
USES = "uses"  # the bytes of its tensors
TRANSPARENT = "transparent"  # views, and what reads metadata only
FILLS = "fills"  # reads metadata only, and its result is written by another operator

_METADATA = frozenset(
    "aten::" + name
    for name in (
        "empty_like",
        "new_empty",
        "new_empty_strided",
        "empty",
        "empty_strided",
        "is_same_size",
        "is_set_to",
        "detach_",
        "sym_size",
        "sym_stride",
        "sym_numel",
        "sym_storage_offset",
        "_has_compatible_shallow_copy_type",
    )
)
# By what they fill their result with.
_FILLED = {
    "aten::new_full": "aten::fill_",
    "aten::new_ones": "aten::fill_",
    "aten::ones_like": "aten::fill_",
    "aten::full_like": "aten::fill_",
    "aten::new_zeros": "aten::zero_",
    "aten::zeros_like": "aten::zero_",
    "aten::rand_like": "aten::uniform_",
    "aten::randn_like": "aten::normal_",
    "aten::randint_like": "aten::random_",
}
# Their schemas do not mark what they write.
_UNMARKED = ("batch_norm", "instance_norm", "rrelu", "rnn", "_fake_quant", "_fused_moving_avg")


class Operators:
    r"""Operators by their overloads."""

    def __init__(self):
        self._known = {}

    def __getitem__(self, overload):
        found = self._known.get(overload)
        if found is None:
            found = self._known[overload] = _describe(overload)
        return found


def _describe(overload):
    schema = getattr(overload, "_schema", None)
    if schema is None:  # a higher-order operator
        return Operator(str(overload), USES, None)
    if not schema.name.startswith("aten::"):
        return Operator(schema.name, USES, None)  # its schema may be wrong
    if schema.name in _FILLED:
        return Operator(_FILLED[schema.name], FILLS, None)
    writes = tuple(_writes(argument) for argument in schema.arguments)
    if schema.name in _METADATA or _is_view(schema, writes):
        return Operator(schema.name, TRANSPARENT, writes)
    if any(part in schema.name for part in _UNMARKED):
        writes = None
    return Operator(schema.name, USES, writes)


def _writes(argument):
    return argument.alias_info is not None and argument.alias_info.is_write


def _is_view(schema, writes):
    return (
        bool(schema.returns)
        and not any(writes)
        and all(
            result.alias_info is not None and not result.alias_info.is_write
            for result in schema.returns
        )
    )
