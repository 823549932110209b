"""Autograd: what it saves, recomputes and calls, in its own threads."""

import threading

import pytest
import torch
from past import write_unseen
from releases import RELEASE, since
from stress import assert_same_bits
from tensors import evict, managed, pattern, raw_address, stat
from torch.utils.checkpoint import checkpoint
from training import WIDTH, gradients, inputs, network


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant):
    def run():
        model, x = network(), inputs().requires_grad_()
        loss = checkpoint(model, x, use_reentrant=reentrant).square().sum()
        loss.backward()
        return loss, x.grad, gradients(model)

    assert_same_bits(run)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        square = x * x
        ctx.save_for_backward(x, square)
        ctx.aside = x + 1  # kept past save_for_backward(), as many do
        return square * x

    @staticmethod
    def backward(ctx, gradient):
        x, square = ctx.saved_tensors
        return gradient * (2 * square + x * (ctx.aside - 1))


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_wrapped_function_in_a_checkpoint(reentrant):
    """A checkpoint lets each saved tensor be read once."""
    function = torch.cuda.lms.wrap(type("Wrapped", (Cube,), {}))

    def run():
        x = inputs().requires_grad_()
        loss = checkpoint(function.apply, x, use_reentrant=reentrant).sum()
        evict()
        loss.backward()
        return x.grad

    assert_same_bits(run)


def test_custom_function():
    def run():
        x = inputs().requires_grad_()
        y = Cube.apply(x)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        return y, first, second

    assert_same_bits(run)


class Copy(torch.autograd.Function):
    """As in C++: its backward() allocates, and then reads the gradient without an operator."""

    @staticmethod
    def forward(ctx, x):
        return x + 1

    @staticmethod
    def backward(ctx, gradient):
        copy = torch.empty(gradient.shape, device="cuda")
        torch.cuda.lms.exclude(copy)
        write_unseen(copy, gradient)
        return copy


def test_a_gradient_that_is_read_without_an_operator():
    def run():
        x = inputs().requires_grad_()
        loss = (Copy.apply(x) * 3).square().sum()
        evict()
        loss.backward()
        return x.grad

    assert_same_bits(run)


def test_hooks():
    def run():
        model, seen = network(), []
        model[0].register_forward_pre_hook(lambda _, args: (args[0] * 2,))
        model[2].register_forward_hook(lambda _, args, output: output + args[0].mean())
        model[3].register_full_backward_hook(lambda _, inner, outer: (inner[0] * 2,))
        model[0].weight.register_hook(lambda gradient: gradient.clamp(-1, 1))
        if RELEASE >= (2, 1):
            model[0].bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad * 1))
        model(inputs()).square().sum().backward()
        return seen, gradients(model)

    assert_same_bits(run)


@pytest.mark.parametrize("save", ["own", "save_on_cpu"])
def test_saved_tensors_hooks(save):
    def run():
        hooks = (
            torch.autograd.graph.save_on_cpu(pin_memory=True)
            if save == "save_on_cpu"
            else torch.autograd.graph.saved_tensors_hooks(lambda x: x * 2, lambda x: x / 2)
        )
        model = network()
        with hooks:
            loss = model(inputs()).square().sum()
        loss.backward()
        return loss, gradients(model)

    assert_same_bits(run)


def test_backward_passes_of_several_threads():
    def run():
        models = [network() for _ in range(3)]
        losses = [model(inputs()).square().sum() for model in models]
        threads = [threading.Thread(target=loss.backward) for loss in losses]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return losses, [gradients(model) for model in models]

    assert_same_bits(run)


def test_backward_pass_over_two_devices():
    # Autograd has a thread for each device.
    def run():
        x = inputs().requires_grad_()
        y = (x @ torch.randn(WIDTH, WIDTH).cuda()).relu().to("cuda:1")
        loss = (y @ torch.randn(WIDTH, WIDTH).to("cuda:1")).square().sum()
        loss.backward()
        return loss, x.grad

    assert_same_bits(run)


def test_anomaly_mode():
    def run():
        model = network()
        with torch.autograd.detect_anomaly():
            model(inputs()).square().sum().backward()
        return gradients(model)

    assert_same_bits(run)


def test_anomaly_mode_finds_the_operator():
    torch.cuda.lms._set_stress(True)
    x = inputs().sub(100).requires_grad_()
    with (
        pytest.raises(RuntimeError, match=r"SqrtBackward0.* returned nan"),
        torch.autograd.detect_anomaly(),
    ):
        (x.sqrt() * 0).sum().backward()


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_without_gradients(mode):
    def run():
        with mode():
            model, x = network(), inputs()
            for _ in range(3):
                x = model(x).add_(1)
            return x

    assert_same_bits(run)


def two_streams():
    """The leaves of a sum whose parts were made on a stream of their own, and the sum."""
    w1, w2 = pattern(1).requires_grad_(), pattern(1, start=2).requires_grad_()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        a, b = w1 * 2, w2 * 3
    torch.cuda.current_stream().wait_stream(side)
    return w1, w2, a, b


def test_backward_across_streams():
    # The engine reads the address of a gradient that another stream is to use.
    def run():
        w1, w2, a, b = two_streams()
        (a * b).sum().backward()
        return w1.grad, w2.grad

    assert_same_bits(run)


def test_a_given_gradient_for_another_stream():
    # The engine looks at its address before the first operator.
    w = pattern(1).requires_grad_()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = w * 2
    torch.cuda.current_stream().wait_stream(side)
    g = managed(pattern(1, start=5))
    evict()
    y.backward(g)
    assert torch.equal(w.grad.cpu(), pattern(1, start=5, device="cpu") * 2)


def test_given_gradients_that_do_not_fit_together():
    weights = [pattern(1).requires_grad_() for _ in range(3)]
    given = [managed(pattern(12, start=k)) for k in range(3)]
    outputs = [(weight * 2).repeat(12) for weight in weights]
    evict()
    torch.cuda.set_limit_lms(32 << 20)
    torch.autograd.backward(outputs, given)
    torch.cuda.set_limit_lms(0)
    for k, weight in enumerate(weights):
        expected = pattern(12, start=k, device="cpu").view(12, -1).sum(0) * 2
        assert torch.equal(weight.grad.cpu(), expected)


def test_backward_across_streams_of_what_no_operator_computed():
    # Nodes of additions hand on what they were given.
    def run():
        w1, w2, a, b = two_streams()
        (a + b + a).square().sum().backward()
        return w1.grad, w2.grad

    assert_same_bits(run)


def test_backward_across_streams_of_what_is_added_up_later():
    # The first of two gradients waits for the other, while nodes of its own stream allocate.
    def run():
        w1, w2, a, b = two_streams()
        (a * b + (a * b).sin().exp() * a).sum().backward()
        return w1.grad, w2.grad

    assert_same_bits(run)


def test_a_checkpoint_in_a_node_does_not_keep_everything():
    # Its forward pass runs again inside of one node of the backward pass.
    def segment(x):
        for _ in range(30):
            x = torch.relu(x + 1)
        return x

    for reentrant in (False, True):
        x = pattern(2).requires_grad_()
        torch.cuda.set_limit_lms(24 << 20)
        checkpoint(segment, x, use_reentrant=reentrant).sum().backward()
        assert stat("resident_bytes_peak") <= 30 << 20
        torch.cuda.set_limit_lms(0)
        assert torch.equal(x.grad.cpu(), torch.ones(x.shape))


@since((2, 1), "allow_mutation_on_saved_tensors()")
def test_saved_tensors_that_are_written_later():
    """They are known by their addresses, in PyTorch's own code."""
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        a = torch.full((1 << 18,), 2.0, device="cuda", requires_grad=True)
        b = a.clone()
        out = (b**2).sum()
        place = raw_address(b)
        evict()
        holes = [torch.zeros(1 << 18, device="cuda") for _ in range(8)]  # where b was, too
        b.sin_()
        assert raw_address(b) != place
        out.backward()
    assert (a.grad == 4).all()
    del holes
