"""Compiled code: Inductor's wrappers, and the kernels that they and Triton launch."""

import threading

import interpreted  # first: it prepares Triton
import pytest
import torch
import triton
import triton.language as tl
from results import as_bytes
from stress import assert_same_bits, stress
from tensors import evict, is_resident, managed, pattern, stat
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH = 64
ROWS = 16
ACTIVATION = ROWS * WIDTH * 4  # bytes
WEIGHT = WIDTH * WIDTH * 4


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        return x + nn.functional.silu(self.norm(self.linear(x)))


def network(layers=2):
    torch.manual_seed(1)
    return nn.Sequential(*(Block() for _ in range(layers))).cuda()


def batch(rows=ROWS):
    return torch.randn(rows, WIDTH).cuda()


def train(model, steps=2, rows=ROWS):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        loss = model(batch(rows)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, list(model.parameters())


@pytest.mark.parametrize(
    "options",
    [{}, {"dynamic": True}, {"options": {"max_autotune_pointwise": True}}],
    ids=["plain", "dynamic", "autotuned"],
)
def test_training(options):
    assert_same_bits(lambda: train(torch.compile(network(), **options)))


def test_a_compiled_backward_pass_brings_what_its_kernels_use():
    """It does not bring all saved activations together, as one operator would."""
    layers = 6
    model = torch.compile(network(layers))
    train(model, 1)
    torch.cuda.set_size_lms(1)
    torch.cuda.lms._set_stress(True)
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.lms._watch()
    loss = model(batch()).square().mean()
    loss.backward()
    torch.cuda.lms._set_stress(False)
    most = torch.cuda.memory_stats()["pinned_bytes.all.peak"]
    inputs = layers * (WEIGHT + 3 * ACTIVATION)
    assert most < inputs / 2, "more than a kernel's arguments was pinned at once"


def test_what_a_compiled_call_returns_may_be_paged_out():
    model = torch.compile(network())
    outputs = [model(batch()) for _ in range(3)]
    evict()
    assert not any(is_resident(output) for output in outputs)
    assert stat("held_bytes") == 0


@interpreted.complete
def test_graph_breaks():
    def run():
        @torch.compile
        def function(x, y):
            z = (x * y).sin()
            torch._dynamo.graph_break()
            return torch.mm(z, y.t()).relu() + x.sum()

        torch.manual_seed(2)
        return [function(batch(), batch()) for _ in range(2)]

    assert_same_bits(run)


def test_inputs_that_are_not_aligned():
    def run():
        @torch.compile
        def function(x, y):
            y.add_(1)
            return (x * y).sin() + 1

        torch.manual_seed(2)
        x, y = torch.randn(ROWS * WIDTH + 1).cuda(), torch.randn(ROWS * WIDTH + 2).cuda()
        aligned = [function(x[:-1], y[1:-1]) for _ in range(2)]
        return aligned, [function(x[1:], y[1:-1]) for _ in range(2)], x, y

    assert_same_bits(run)


def test_looking_at_the_alignment_of_inputs_brings_nothing():
    @torch.compile
    def function(x, y):
        return x.sin() * 2, y + 1

    x, y = batch(), batch()
    function(x, y)
    evict()
    from torch._inductor import utils

    utils.copy_misaligned_inputs([x, y], [0, 1])
    assert not is_resident(x)
    assert stat("held_bytes") == 0


@interpreted.complete
def test_buffers_that_compiled_code_writes():
    def run():
        norm = torch.compile(nn.Sequential(nn.BatchNorm1d(WIDTH), nn.ReLU()).cuda())
        torch.manual_seed(2)
        return [norm(batch()) for _ in range(2)], norm.state_dict()

    assert_same_bits(run)


@interpreted.complete
def test_a_compiled_optimizer():
    def run():
        model = network(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        step = torch.compile(optimizer.step)
        for seed in range(2):
            torch.manual_seed(seed)
            optimizer.zero_grad()
            model(batch()).square().mean().backward()
            step()
        return list(model.parameters())

    assert_same_bits(run)


def test_compiled_autograd():
    def run():
        model = network(1)
        x = batch()
        with torch._dynamo.compiled_autograd._enable(torch.compile):
            model(x).square().mean().backward()
        return [p.grad for p in model.parameters()]

    assert_same_bits(run)


def test_checkpoint():
    def run():
        first, second = torch.compile(network(1)), torch.compile(network(1))
        torch.manual_seed(2)
        x = batch().requires_grad_()
        y = checkpoint(first, x, use_reentrant=True)
        checkpoint(second, y, use_reentrant=False).square().mean().backward()
        return x.grad, [p.grad for p in first.parameters()]

    assert_same_bits(run)


def test_a_compiled_graph_on_another_stream():
    def run():
        model = torch.compile(network(1))
        stream = torch.cuda.Stream()
        torch.manual_seed(2)
        x = batch().requires_grad_()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            y = model(x)
        torch.cuda.current_stream().wait_stream(stream)
        y.square().mean().backward()
        torch.cuda.synchronize()
        return y, x.grad, [p.grad for p in model.parameters()]

    assert_same_bits(run)


def test_hooks_of_the_node_of_a_compiled_graph():
    def run():
        model = torch.compile(network(1))
        torch.manual_seed(2)
        x = batch().requires_grad_()
        y = model(x)
        kept = []
        y.grad_fn.register_hook(
            lambda gradients, _: kept.extend(g for g in gradients if g is not None)
        )
        y.square().mean().backward()
        return x.grad, kept

    assert_same_bits(run)


def test_gradients_that_are_accumulated():
    def run():
        model = torch.compile(network(1))
        torch.manual_seed(2)
        x = batch().requires_grad_()
        for _ in range(2):
            (model(x) + model(x * 2)).square().mean().backward()
        return x.grad, [p.grad for p in model.parameters()]

    assert_same_bits(run)


def test_threads():
    def run():
        model = torch.compile(network(1))
        inputs = [torch.full((ROWS, WIDTH), i / 10).cuda() for i in range(3)]
        with torch.no_grad():
            model(inputs[0])
        results = [None] * 3
        turn = threading.Lock()  # Triton's interpreter serves one thread

        def use(i):
            with torch.no_grad():
                for _ in range(2):
                    with turn:
                        results[i] = model(inputs[i])

        threads = [threading.Thread(target=use, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    assert_same_bits(run)


def test_lms_that_is_turned_on_after_compiling():
    torch.cuda.set_enabled_lms(False)
    model = torch.compile(network(1))
    torch.manual_seed(2)
    x = batch()
    expected = as_bytes(model(x))
    torch.cuda.set_enabled_lms(True)
    assert as_bytes(model(x)) == expected, "while LMS only counts"
    with stress():
        assert as_bytes(model(x)) == expected


class Graph:
    """What torch.cuda.lms looks at in a CompiledFxGraph."""

    constants = None

    def __init__(self, **options):
        self.fx_kwargs = options

    @torch.cuda.lms.region
    def __call__(self, inputs):
        evict()
        return [is_resident(tensor) for tensor in inputs]


def test_what_compiled_code_drops_is_freed_at_once():
    class Dropping(Graph):
        @torch.cuda.lms.region
        def __call__(self, inputs):
            before = torch.cuda.memory_allocated()
            inputs.clear()
            return before - torch.cuda.memory_allocated()

    assert Dropping(cpp_wrapper=True)([managed(pattern(1))]) == 1 << 20


@pytest.mark.parametrize(
    ("options", "stays"),
    [
        ({"cpp_wrapper": False, "cudagraphs": False}, False),
        ({"cpp_wrapper": True, "cudagraphs": False}, True),
        ({"cpp_wrapper": False, "cudagraphs": True}, True),
        ({}, True),
    ],
    ids=["python", "cpp_wrapper", "cudagraphs", "unknown"],
)
def test_code_that_launches_unseen_keeps_its_inputs(options, stays):
    assert Graph(**options)([managed(pattern(1))]) == [stays]


def test_graphs_have_the_options_that_lms_looks_at():
    seen = []
    from torch._inductor.output_code import CompiledFxGraph
    from torch.cuda import lms_launch

    original = lms_launch.launches_kernels
    lms_launch.launches_kernels = lambda code: seen.append((code, original(code))) or seen[-1][1]
    try:
        torch.compile(lambda x: x.sin() + 1)(batch())
    finally:
        lms_launch.launches_kernels = original
    assert [(type(code), python) for code, python in seen] == [(CompiledFxGraph, True)]


# ---- Triton's kernels, launched by hand --------------------------------------


@triton.jit
def scaled_sum(a, b, result, count, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < count
    total = tl.load(a + index, mask=mask) * 2 + tl.load(b + index, mask=mask)
    tl.store(result + index, total, mask=mask)


def launch(a, b, result):
    scaled_sum[(triton.cdiv(result.numel(), 1024),)](a, b, result, result.numel(), BLOCK=1024)


def values(start=0):
    return torch.arange(4096, dtype=torch.float32).cuda() + start


def test_a_launch_of_triton():
    a, b, result = managed(values()), managed(values(5)), managed(values())
    evict()
    with stress():
        launch(a, b, result)
    evict()
    assert not any(is_resident(tensor) for tensor in (a, b, result))
    assert torch.equal(result, values() * 2 + values(5))


def test_triton_in_an_autograd_function():
    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            result = torch.empty_like(a)
            launch(a, b, result)
            ctx.save_for_backward(a)
            return result

        @staticmethod
        def backward(ctx, gradient):
            result = torch.empty_like(gradient)
            launch(gradient, ctx.saved_tensors[0], result)
            return result, gradient

    def run():
        a, b = values().requires_grad_(), values(5).requires_grad_()
        Sum.apply(a * 1, b * 1).square().sum().backward()
        return a.grad, b.grad

    assert_same_bits(run)


def test_triton_beside_compiled_code():
    def run():
        @torch.compile
        def function(a, b):
            result = torch.empty_like(a)
            torch._dynamo.disable(launch)(a.sin(), b, result)
            return result.cos()

        return [function(values(i), values(5)) for i in range(2)]

    assert_same_bits(run)
