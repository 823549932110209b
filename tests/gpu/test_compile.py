"""torch.compile with inductor, with and without CUDA graphs."""

import pytest
import torch
from bits import assert_same_bits
from torch import nn
from training import LIMIT, ROWS, WIDTH, network, train


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_training():
    assert_same_bits(lambda: train(torch.compile(network())), limit=LIMIT)


def test_training_under_stress():
    assert_same_bits(lambda: train(torch.compile(network(3)), 2), limit=LIMIT, stress=True)


def test_dynamic_shapes():
    def run():
        model = torch.compile(network(2), dynamic=True)
        with torch.no_grad():
            return [model(torch.randn(rows, WIDTH).cuda()) for rows in (256, 512, 1024)]

    assert_same_bits(run, limit=8 << 20, stress=True)


def test_extern_kernels_beside_fused_ones():
    @torch.compile
    def function(x, y):
        z = (x * y).sin() + 1
        return z @ x, z.sum(0)

    def run():
        x, y = torch.randn(WIDTH, WIDTH).cuda(), torch.randn(WIDTH, WIDTH).cuda()
        return [function(x, y) for _ in range(3)]

    assert_same_bits(run, limit=8 << 20, stress=True)


@pytest.mark.parametrize("grad", [False, True])
def test_cuda_graphs(grad):
    """What the graphs use stays on the GPU; what is beside them is moved."""

    def run():
        model = torch.compile(network(2), mode="reduce-overhead")
        beside = [torch.full((1 << 20,), float(i)).cuda() for i in range(8)]  # 4 MiB each
        results = []
        with torch.set_grad_enabled(grad):
            for i in range(6):
                torch.compiler.cudagraph_mark_step_begin()
                x = torch.randn(ROWS // 8, WIDTH).cuda()
                y = model(x)
                if grad:
                    model.zero_grad()
                    y.square().mean().backward()
                results.append(y.detach().clone())
                beside[i].add_(y.detach().mean())
        return results, beside, [p.grad for p in model.parameters()] if grad else []

    assert_same_bits(run, limit=32 << 20)


def test_cuda_graphs_of_a_model_that_is_trained():
    def run():
        model = torch.compile(network(2), mode="reduce-overhead")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        beside = [torch.full((1 << 20,), float(i)).cuda() for i in range(8)]
        losses = []
        for i in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            loss = model(torch.randn(ROWS // 8, WIDTH).cuda()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().clone())
            beside[i].add_(1)
        return losses, beside, list(model.parameters())

    assert_same_bits(run, limit=40 << 20)


def test_buffers_that_compiled_code_writes():
    def run():
        norm = torch.compile(nn.Sequential(nn.BatchNorm1d(WIDTH), nn.ReLU()).cuda())
        results = [norm(torch.randn(ROWS, WIDTH).cuda()) for _ in range(3)]
        return results, norm.state_dict()

    assert_same_bits(run, limit=8 << 20, stress=True)
