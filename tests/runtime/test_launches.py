"""Launches of kernels from Python: each is one operator on the tensors that it gets."""

import ctypes
import importlib
import inspect
import pickle
import sys
import threading

import pytest
import torch
from hardware import simulated
from releases import scoped_library, since
from stress import stress
from tensors import evict, floats, is_resident, managed, pattern, raw_address, stat, turn_on

pytestmark = since((2, 0), "torch.compile()")

launches = pytest.importorskip("torch.cuda.lms_launch", reason="there is no torch.compile()")


class Kernel:
    """Copies its first argument to its last one, as a launcher does it: by their data_ptr()."""

    def __init__(self, device):
        self.device = device
        self.seen = []

    def run(self, *args, stream=None, then=None):
        addresses = [a.data_ptr() for a in args if hasattr(a, "data_ptr")]
        self.seen.append([is_resident(a) for a in args if isinstance(a, torch.Tensor)])
        scratch = torch.empty(1 << 20, device="cuda")  # between the addresses and the launch
        if then is not None:
            then()
        size = args[0].numel() * args[0].element_size()
        views = [self.device.host_view(address) for address in addresses]
        ctypes.memmove(views[-1], views[0], size)
        del scratch
        return "done"


class Wrapped:
    """Has the address of a tensor, like Triton's wrappers and descriptors."""

    def __init__(self, base):
        self.base = base

    def data_ptr(self):
        return self.base.data_ptr()


@pytest.fixture(scope="module", autouse=True)
def guarded():
    turn_on()
    launches.guard_launcher(Kernel, "run")


@pytest.fixture
def kernel(device):
    return Kernel(device)


def expected(start=0):
    return pattern(1, start=start, device="cpu")


@pytest.mark.parametrize("paged_out", [True, False])
def test_a_launch_brings_its_arguments_and_lets_them_go(paged_out, kernel):
    x, y = managed(pattern(1)), managed(pattern(1, start=5))
    if paged_out:
        evict()
        assert not is_resident(x)
    with stress():
        assert kernel.run(x, 7, None, y, stream=0) == "done"
    assert kernel.seen == [[True, True]]
    evict()
    assert not is_resident(x), "the launch has ended"
    assert not is_resident(y), "the launch has ended"
    assert torch.equal(y.cpu(), expected())


@pytest.mark.parametrize("paged_out", [True, False])
def test_other_arguments_are_seen_by_their_data_ptr(paged_out, kernel):
    x, y = managed(pattern(1)), managed(pattern(1, start=5))
    if paged_out:
        evict()
    with stress():
        kernel.run(x, Wrapped(y))
    evict()
    assert not is_resident(y), "the launch has ended"
    assert torch.equal(y.cpu(), expected())


def test_named_arguments(device):
    class Named(Kernel):
        def run(self, *, source, result):
            super().run(source, result)

    launches.guard_launcher(Named, "run")
    x, y = managed(pattern(1)), managed(pattern(1, start=5))
    evict()
    with stress():
        Named(device).run(source=x, result=y)
    evict()
    assert not is_resident(y)
    assert torch.equal(y.cpu(), expected())


def test_views_and_parameters(kernel):
    x = torch.nn.Parameter(pattern(2))
    y = managed(torch.zeros_like(x))
    managed(x)
    evict()
    with stress():
        kernel.run(x[x.numel() // 2 :], y[: y.numel() // 2])
    assert torch.equal(y.cpu()[: 1 << 18], x.detach().cpu()[1 << 18 :])
    assert y.cpu()[1 << 18 :].abs().sum() == 0


def test_a_launch_that_fails_lets_go(kernel):
    def fail():
        raise KeyError("a launcher's own error")

    x, y = managed(pattern(1)), managed(pattern(1))
    evict()
    with pytest.raises(KeyError, match="a launcher's own error"):
        kernel.run(x, y, then=fail)
    evict()
    assert not is_resident(x)
    kernel.run(x, y)  # and LMS goes on


def test_arguments_that_do_not_fit(kernel, device):
    x, y, z = (managed(pattern(16, start=i)) for i in range(3))
    evict()
    device.set_cap(40 << 20)
    torch.cuda.empty_cache()
    with pytest.raises(torch.cuda.OutOfMemoryError, match="out of memory"):
        kernel.run(x, y, z)
    assert kernel.seen == [], "it was launched"
    device.set_cap(64 << 20)
    assert torch.equal(x.cpu(), pattern(16, device="cpu"))


def test_arguments_that_cannot_be_brought_now(kernel):
    """Programs take other errors than this for a lack of memory, and try again with less."""
    x, y = managed(pattern(1)), managed(pattern(1))
    evict()
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        graph.capture_begin()
        with pytest.raises(RuntimeError, match="nothing can be paged in while") as caught:
            kernel.run(x, y)
        graph.capture_end()
    assert type(caught.value) is RuntimeError


def test_a_launch_inside_of_another(kernel):
    x, y, z = managed(pattern(1)), managed(pattern(1, start=5)), managed(pattern(1, start=9))
    evict()

    def inner():
        kernel.run(y, z)
        evict()
        assert is_resident(x), "the outer launch has not ended"
        assert is_resident(y), "the outer launch has not ended"

    with stress():
        kernel.run(x, y, then=inner)
    evict()
    assert not is_resident(x)
    assert torch.equal(z.cpu(), expected(5))
    assert torch.equal(y.cpu(), expected())


def test_only_what_is_written_is_copied_again(device):
    class Reader(Kernel):
        def run(self, *args):
            return Kernel.run(self, *args)

    def describe(reader):
        address = launches._python.lms_python_kernel(b"a kernel with a name", 0b01)
        reader._lms_kernel = launches._Kernel(address)
        return reader._lms_kernel

    launches.guard_launcher(Reader, "run", describe)
    x, y = managed(pattern(1)), managed(pattern(1, start=5))
    evict()
    reader = Reader(device)
    before = torch.cuda.lms.stats()
    reader.run(x, y)
    evict()
    after = torch.cuda.lms.stats()
    assert after["clean_count"] - before["clean_count"] == 1, "x was only read"
    assert torch.equal(y.cpu(), expected())


def test_a_description_is_nothing_to_another_process():
    kernel = pickle.loads(pickle.dumps(launches._Kernel(1 << 40)))
    assert kernel == 0


def test_a_launch_before_lms_watches(kernel):
    torch.cuda.set_enabled_lms(False)
    torch.cuda.set_enabled_lms(True)  # it only counts
    assert stat("watching") == 0
    x, y = pattern(1), pattern(1, start=5)

    def begin_to_watch():
        torch.cuda.lms._watch()
        managed(x)
        managed(y)
        torch.cuda.lms._set_stress(True)
        torch.empty(1 << 20, device="cuda")  # nothing may be moved while the launch runs
        torch.cuda.lms._set_stress(False)
        assert stat("page_out_count") == 0

    kernel.run(x, y, then=begin_to_watch)
    assert torch.equal(y.cpu(), expected())
    managed(x)
    evict()
    assert stat("page_out_count") > 0, "nothing was moved after the launch"
    assert stat("held_bytes") == 0, "addresses were kept"


def test_a_launch_while_lms_is_off(kernel):
    torch.cuda.set_enabled_lms(False)
    x, y = pattern(1), pattern(1, start=5)
    kernel.run(x, y)
    assert torch.equal(y.cpu(), expected())


@simulated  # the kernels of Kernel run on the host, and here in threads, which cannot skip the test
def test_threads(device):
    x = managed(pattern(1))
    results = [managed(pattern(1, start=i + 1)) for i in range(4)]
    failures = []

    def launch(y):
        try:
            for _ in range(10):
                Kernel(device).run(x, y)
        except Exception as error:
            failures.append(error)

    evict()
    with stress():
        threads = [threading.Thread(target=launch, args=(y,)) for y in results]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    for y in results:
        assert torch.equal(y.cpu(), expected())


def test_a_launch_on_another_stream(kernel):
    x, y = managed(pattern(1)), managed(pattern(1, start=5))
    evict()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), stress():
        kernel.run(x, y, stream=stream.cuda_stream)
        y.add_(1)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(y.cpu(), expected(1))


def test_a_launch_on_a_stream_that_is_not_current(device):
    class Beside(Kernel):
        def run(self, *args, stream):
            uses = [(a.data_ptr(), a.numel() * 4, a is args[-1]) for a in args]
            views = self.device.kernel(stream.cuda_stream, 0, uses, "a kernel")
            ctypes.memmove(views[-1], views[0], args[0].numel() * 4)

    launches.guard_launcher(Beside, "run", stream_of=lambda *_, stream: stream)
    x, y = managed(pattern(1)), managed(pattern(1, start=5))
    evict()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with stress():
        Beside(device).run(x, y, stream=stream)  # the race checker looks at the page-ins
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(y.cpu(), expected())


def test_a_launch_of_numba(device):
    """It gets a tuple, and asks for the arrays' interfaces."""

    class Dispatcher:
        def call(self, args, griddim, blockdim, stream, sharedmem):
            found = [x.__cuda_array_interface__["data"][0] for x in args]
            torch.empty(floats(1), device="cuda")  # LMS pages out what may leave, for that
            assert all(is_resident(x) for x in args)
            assert found == [raw_address(x) for x in args]

    launches.guard_numba(Dispatcher, "call")
    x, y = managed(pattern(1)), managed(pattern(1, start=5))
    evict()
    with stress():
        Dispatcher().call((x, y), 1, 1, 0, 0)
    evict()
    assert not is_resident(x)
    with torch.cuda.lms.enabled(False):
        Dispatcher().call((x, y), 1, 1, 0, 0)
    evict()
    assert not is_resident(x)
    assert not is_resident(y)


def test_the_stream_of_a_launch_of_numba():
    class Stream:
        handle = ctypes.c_void_p(0)

    assert launches._stream_of_numba((), 1, 1, 0, 0) == torch.cuda.default_stream()
    assert launches._stream_of_numba((), 1, 1, Stream(), 0) == torch.cuda.default_stream()
    stream = torch.cuda.Stream()
    Stream.handle = ctypes.c_void_p(stream.cuda_stream)
    found = launches._stream_of_numba((), 1, 1, Stream(), 0)
    assert found.cuda_stream == stream.cuda_stream

    class Configuration:  # since numba-cuda 0.30
        pass

    Configuration.stream = Stream()
    found = launches._stream_of_numba((), Configuration())
    assert found.cuda_stream == stream.cuda_stream
    assert launches._stream_of_numba((), object()) is None, "of a signature to come"


def test_constants_that_a_package_has_addresses_of():
    got = []
    load = launches._keeps_constants(lambda package, constants, *flags: got.append(flags))
    mine, copied = managed(pattern(1)), managed(pattern(1, start=3))
    evict()
    load(None, {"x": mine}, False, True, True)
    load(None, {"x": copied}, False, True)
    assert got == [(False, True, True), (False, True)]
    evict()
    assert is_resident(mine)
    assert not is_resident(copied)
    assert torch.equal(copied.cpu(), pattern(1, start=3, device="cpu"))


def test_the_address_outside_of_a_launch_stays(kernel):
    x, y = managed(pattern(1)), managed(pattern(1))
    kernel.run(x, y)
    address = x.data_ptr()
    evict()
    assert is_resident(x)
    assert address == x.data_ptr()
    assert not is_resident(y)


def test_data_ptr_of_other_tensors(kernel):
    class Subclass(torch.Tensor):
        pass

    host = torch.arange(4)
    assert host.data_ptr() == host.untyped_storage().data_ptr()
    x = managed(pattern(1)).as_subclass(Subclass)
    evict()
    kernel.run(x, managed(pattern(1)))
    assert kernel.seen == [[True, True]]
    evict()
    assert not is_resident(x), "the launch has ended"


@pytest.mark.parametrize(
    ("module", "name", "method"), [m for m in launches._LAUNCHERS if m[0].startswith("torch.")]
)
def test_the_launchers_of_torch_are_guarded(module, name, method):
    kind = getattr(importlib.import_module(module), name, None)
    if kind is None:
        pytest.skip(f"this release has no {name}")
    launch = vars(kind)[method]
    if name in launches._STREAMS:
        assert launch.__wrapped__
        return
    assert inspect.ismethoddescriptor(launch)
    # Inductor looks at the signature. That has to be one that takes everything.
    assert str(inspect.signature(launch)) == "(self, /, *args, **kwargs)"


def test_what_inductor_measures_with_is_guarded():
    from torch._inductor.runtime import benchmarking

    guarded = [
        f"{kind.__name__}.{name}"
        for kind in vars(benchmarking).values()
        if isinstance(kind, type) and kind.__module__ == benchmarking.__name__
        for name in vars(kind)
        if name.startswith("benchmark") and hasattr(vars(kind)[name], "__wrapped__")
    ]
    assert {"Benchmarker.benchmark", "TritonBenchmarker.benchmark_gpu"} <= set(guarded)


def test_what_is_measured_stays_meanwhile():
    from torch._inductor.runtime.benchmarking import Benchmarker

    class Own(Benchmarker):
        def benchmark_cpu(self, function, *args, **kwargs):
            function()
            evict()
            return is_resident(x)

    from torch.cuda import lms

    x = managed(pattern(1))
    evict()
    Own.benchmark_cpu = lms._as_operator(Own.benchmark_cpu)
    assert Own().benchmark_cpu(lambda: managed(x))
    evict()
    assert not is_resident(x)


def test_looking_at_the_alignment_of_inputs(device):
    x = managed(pattern(1))
    small = torch.ones(1000, device="cuda")  # not managed
    torch.cuda.set_size_lms(1 << 20)
    views = [
        (x, 0, False),
        (x[1:], 1, True),
        (x[4:], 4, False),
        (small, 0, False),
        (small[3:], 3, True),
    ]
    evict()
    misaligned = launches._python.lms_python_misaligned()
    for view, offset, expected in views:
        assert view.storage_offset() == offset
        assert misaligned(view) is expected
    assert misaligned(torch.ones(8)), "nothing is known about other memory"
    assert not is_resident(x)


def test_what_imports_later_is_guarded(tmp_path, monkeypatch):
    (tmp_path / "lms_late.py").write_text("class Launcher:\n    def run(self): return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    importer = launches._Importer()
    monkeypatch.setattr(sys, "meta_path", [importer, *sys.meta_path])
    seen = []
    importer.when_imported("lms_late", seen.append)
    importer.when_imported("sys", seen.append)
    assert seen == [sys]
    late = importlib.import_module("lms_late")
    assert seen == [sys, late]
    importlib.reload(late)
    assert seen == [sys, late]


# ---- compiled code -----------------------------------------------------------


class Code:
    """Stands in for a CompiledFxGraph whose kernels Python launches."""

    fx_kwargs = {"cpp_wrapper": False, "cudagraphs": False}  # noqa: RUF012

    def __init__(self, run):
        self.run = run

    @torch.cuda.lms.region
    def __call__(self, inputs):
        return self.run(inputs)


class InNode(torch.autograd.Function):
    """Its backward pass is a call of compiled code."""

    @staticmethod
    def forward(ctx, x, run, then=None):
        ctx.run = run
        ctx.then = then
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (result,) = Code(ctx.run)([gradient])
        if ctx.then is not None:
            ctx.then()
        return result, None, None


def test_inputs_of_compiled_code_need_not_stay(kernel):
    x, y = managed(pattern(1)), managed(pattern(1, start=5))

    def run(inputs):
        evict()
        assert not is_resident(x), "the code has launched nothing"
        kernel.run(x, y)
        evict()
        assert not is_resident(y), "the launch has ended"
        return inputs

    Code(run)([x, y])
    assert torch.equal(y.cpu(), expected())


def test_an_address_stays_until_compiled_code_ends(kernel):
    x = managed(pattern(1))
    evict()

    def run(inputs):
        address = x.data_ptr()  # for a kernel of another kind, or a descriptor
        evict()
        assert raw_address(x) == address
        return inputs

    Code(run)([x])
    evict()
    assert not is_resident(x), "the code has ended"


def test_compiled_code_that_fails():
    def run(inputs):
        inputs[0].data_ptr()
        raise KeyError("an error of compiled code")

    x = managed(pattern(1))
    with pytest.raises(KeyError, match="an error of compiled code"):
        Code(run)([x])
    evict()
    assert not is_resident(x)


def test_compiled_code_in_a_node(kernel):
    """The node does not keep what the code uses, nor its own inputs meanwhile."""
    saved, result = managed(pattern(1)), managed(pattern(1, start=5))

    def run(inputs):
        kernel.run(saved, result)
        managed(saved)
        evict()
        assert not is_resident(saved), "its launch and its operator have ended"
        assert not is_resident(inputs[0]), "the code has not used it yet"
        saved.data_ptr()
        return [inputs[0] + result]

    def then():
        evict()
        assert not is_resident(saved), "the code has ended"

    x = pattern(1, start=9).requires_grad_()
    # The gradient is a tensor of its own.
    (InNode.apply(x, run, then) * torch.ones_like(x)).sum().backward()
    evict()
    assert not is_resident(x.grad)
    assert torch.equal(x.grad.cpu(), expected(1))


def test_compiled_code_in_a_forward_pass_that_a_node_repeats():
    """As a checkpoint does. The function that calls the code begins after the node's first pins."""
    x = managed(pattern(1))
    seen = []

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y):
            return Code(lambda inputs: [inputs[0] * 3])([y])[0] * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 6

    class Repeated(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y):
            ctx.save_for_backward(y)
            return y * 6

        @staticmethod
        def backward(ctx, gradient):
            x * 1
            x * 1
            (y,) = ctx.saved_tensors
            with torch.enable_grad():
                result = Function.apply(y.detach().requires_grad_())
            assert torch.equal(result, y * 6)
            return gradient * 6

    class Outer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y):
            return y * 1

        @staticmethod
        def backward(ctx, gradient):
            x * 1
            with torch.enable_grad():
                y = pattern(1, start=3).requires_grad_()
                Repeated.apply(y).sum().backward()
            evict()
            seen.append(is_resident(x))
            return gradient * 1

    Outer.apply(pattern(1).requires_grad_()).sum().backward()
    assert seen == [True], "the outer node has not ended"
    evict()
    assert not is_resident(x)


def test_what_compiled_code_returns_to_a_node_with_hooks():
    """Hooks of others read addresses of what the node passes to them."""
    seen = []

    def run(inputs):
        outputs = [inputs[0] * 3]
        evict()
        assert is_resident(inputs[0]), "the node's hooks get it, too"
        return outputs

    def hook(gradients, _):
        evict()
        seen.append(is_resident(gradients[0]))

    x = pattern(1, start=9).requires_grad_()
    y = InNode.apply(x, run)
    y.grad_fn.register_hook(hook)
    (y * torch.ones_like(x)).sum().backward()
    assert seen == [True]


def test_compiled_code_in_an_operator(kernel):
    """An operator may use everything that it has used until its end."""
    x = managed(pattern(1))
    tensors = [x, managed(pattern(1, start=5))]  # the operator outlives its library

    def run(inputs):
        kernel.run(*tensors)
        evict()
        assert is_resident(tensors[0])
        return inputs

    def operator(tensor):
        Code(run)([tensor])
        return tensor.clone()

    try:
        with scoped_library("lms_compiled") as library:
            library.define("call(Tensor x) -> Tensor")
            library.impl("call", operator, "CUDA")
            torch.ops.lms_compiled.call(x)
    finally:  # a launch skips the test on hardware
        tensors.clear()
    evict()
    assert not is_resident(x)
