"""Operators of other libraries, and kernels that are launched by hand."""

import ctypes
from typing import NamedTuple

import pytest
import torch
from cxx import HERE, compile_cxx
from releases import RELEASE, scoped_library, since, size_of
from stress import assert_same_bits, stress
from tensors import evict, is_resident, managed, pattern, raw_address
from training import inputs


@pytest.fixture(scope="module")
def extension_operators(tmp_path_factory):
    library = tmp_path_factory.mktemp("operator") / "operator.so"
    link = ("-Wl,--no-as-needed", "-ltorch_cpu")
    compile_cxx(HERE / "operator.cpp", library, "-shared", "-fPIC", *link)
    torch.ops.load_library(str(library))
    return torch.ops.lms_extension


def test_operator_in_cxx(extension_operators, device):
    x = managed(pattern(1))
    evict()
    for _ in range(2):  # paged out, and resident
        address = extension_operators.address(x)
        first = (ctypes.c_float * 4).from_buffer_copy(device.read(address, 16))
        assert list(first) == [0, 1, 2, 3]
    with stress():
        assert extension_operators.stays(x)
    assert torch.equal(x.cpu(), pattern(1, device="cpu"))


@since((2, 4), "torch.library.custom_op()")
def test_operator_in_python():
    @torch.library.custom_op("lms_python::shift", mutates_args={"x"})
    def shift(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        scratch = x * by
        x.add_(by)
        return scratch - x

    @torch.library.custom_op("lms_python::square", mutates_args=())
    def square(x: torch.Tensor) -> torch.Tensor:
        return x * x

    square.register_autograd(
        lambda ctx, gradient: 2 * gradient * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )

    def run():
        x, by = inputs(), inputs()
        results = [shift(x, by), x]
        x = inputs().requires_grad_()
        square(x).sum().backward()
        return results, x.grad

    assert_same_bits(run)


def reads(library, schema, tensors):
    """An operator that reads the addresses of these tensors, however it gets them.

    It outlives its library: the list is to be cleared.
    """

    def read(*_):
        addresses = [raw_address(tensor) for tensor in tensors]  # throws if one is not there
        scratch = torch.empty(1 << 20, device="cuda")
        assert [raw_address(tensor) for tensor in tensors] == addresses
        return scratch.numel()

    library.define(schema)
    library.impl(schema.partition("(")[0], read, "BackendSelect")


@torch.jit.script
class Pair:
    def __init__(self, a: torch.Tensor, b: torch.Tensor):
        self.a = a
        self.b = b


class Named(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor


@pytest.mark.parametrize(
    ("name", "schema", "nest"),
    [
        ("dictionary", "Dict(str, Tensor) x", lambda a, b: {"a": a, "b": b}),
        ("lists", "Dict(int, Tensor[]) x", lambda a, b: {1: [a], 2: [b]}),
        ("named_tuple", "(Tensor, Tensor) x", Named),
    ],
)
def test_inputs_inside_of_others(name, schema, nest):
    # A namespace each: torch.ops remembers operators, before 2.0 also those that are gone.
    a, b = tensors = [managed(pattern(1)), managed(pattern(1, start=3))]
    with scoped_library(f"lms_{name}") as library:
        reads(library, f"read({schema}) -> int", tensors)
        evict()
        with stress():
            assert getattr(torch.ops, f"lms_{name}").read(nest(a, b)) == 1 << 20
    tensors.clear()
    assert torch.equal(a.cpu(), pattern(1, device="cpu"))
    assert torch.equal(b.cpu(), pattern(1, start=3, device="cpu"))


def test_inputs_inside_of_scripted_objects():
    a, b = tensors = [managed(pattern(1)), managed(pattern(1, start=3))]
    with scoped_library("lms_scripted") as library:
        reads(library, "read(Any x) -> int", tensors)
        reads(library, "read_all(Dict(str, Tensor) x) -> int", tensors)

        @torch.jit.script
        def script(a: torch.Tensor, b: torch.Tensor):
            both = {"a": a, "b": b}
            return torch.ops.lms_scripted.read(Pair(a, b)) + torch.ops.lms_scripted.read_all(both)

        evict()
        with stress():
            assert script(a, b) == 2 << 20
        del script
    tensors.clear()
    assert torch.equal(a.cpu(), pattern(1, device="cpu"))


class Launcher:
    """Launches a kernel as Triton does: by the data_ptr() of its arguments."""

    def __init__(self, device):
        self.device = device

    def __call__(self, source, result):
        addresses = [argument.data_ptr() for argument in (source, result)]
        # Of the launcher's own, between the addresses and the launch.
        scratch = torch.empty(1 << 20, device="cuda")
        views = [self.device.host_view(address) for address in addresses]
        ctypes.memmove(views[1], views[0], size_of(source))
        return scratch


def test_kernel_launched_by_hand(device):
    launch = Launcher(device)
    x = managed(pattern(1))
    y = managed(torch.zeros_like(x))
    evict()
    with stress():
        launch(x, y)
        evict()
        assert is_resident(x)
        assert is_resident(y), "the kernel may still be running"
    torch.cuda.lms.release(x, y)
    evict()
    assert not is_resident(y)
    assert torch.equal(y.cpu(), pattern(1, device="cpu"))


def test_kernel_launched_by_hand_in_an_operator(device):
    launch = Launcher(device)

    def copied(x):
        result = torch.empty_like(x)
        launch(x, result)
        return result

    x = managed(pattern(1))
    evict()
    with scoped_library("lms_kernels") as library, stress():
        library.define("copied(Tensor x) -> Tensor")
        library.impl("copied", copied, "CUDA")
        y = torch.ops.lms_kernels.copied(x)
        evict()
        assert not is_resident(x), "an operator's end is the kernel's, in stream order"
    assert torch.equal(y.cpu(), pattern(1, device="cpu"))


def test_cxx_past_the_dispatcher():
    # As resident() and the message of the error have it.
    x = managed(pattern(1))
    evict()
    if RELEASE >= (2, 3):  # before, see test_a_paged_out_storage_has_no_plausible_address
        with pytest.raises(RuntimeError, match=r"torch\.cuda\.lms\.resident"):
            raw_address(x)
    with torch.cuda.lms.resident(x):
        address = raw_address(x)
        evict()
        assert raw_address(x) == address
