"""CUDA graphs: captured with LMS on, and replayed while LMS moves all else."""

import pytest
import torch
from bits import assert_same_bits, lms
from torch import nn
from training import WIDTH

ELEMENTS = 1 << 20  # 4 MiB of float32


def warm_up(function) -> None:
    """As PyTorch's documentation has it: on a side stream, before a capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(side)


def test_replay_after_page_outs():
    def run():
        weight, x = torch.randn(WIDTH, WIDTH).cuda(), torch.randn(WIDTH, WIDTH).cuda()
        beside = [torch.full((ELEMENTS,), float(i)).cuda() for i in range(8)]
        warm_up(lambda: (x @ weight).relu())
        graph = torch.cuda.CUDAGraph()
        # All that the capture uses has to be on the GPU before it starts.
        with torch.cuda.lms.resident(x, weight), torch.cuda.graph(graph):
            y = (x @ weight).relu()
        results = []
        for i in range(4):
            x.copy_(torch.randn(WIDTH, WIDTH))
            torch.cuda.reclaim_inactive()
            graph.replay()
            results.append(y.clone())
            beside[i].add_(y.mean())
        return results, beside

    assert_same_bits(run, limit=24 << 20)


def test_a_captured_training_step():
    def run():
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
        x = torch.randn(256, WIDTH).cuda()
        beside = [torch.full((ELEMENTS,), float(i)).cuda() for i in range(8)]

        def step():
            optimizer.zero_grad(set_to_none=True)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        warm_up(step)
        optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        state = [v for s in optimizer.state.values() for v in s.values()]
        with torch.cuda.lms.resident(x, *model.parameters(), *state), torch.cuda.graph(graph):
            loss = step()
        losses = []
        for i in range(4):
            x.copy_(torch.randn(256, WIDTH))
            torch.cuda.reclaim_inactive()
            graph.replay()
            losses.append(loss.clone())
            beside[i].add_(1)
        return losses, list(model.parameters()), beside

    assert_same_bits(run, limit=64 << 20)


def test_make_graphed_callables():
    def run():
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()).cuda()
        sample = torch.randn(256, WIDTH).cuda().requires_grad_()
        beside = [torch.full((ELEMENTS,), float(i)).cuda() for i in range(8)]
        graphed = torch.cuda.make_graphed_callables(model, (sample,))
        results = []
        for i in range(4):
            x = torch.randn(256, WIDTH).cuda().requires_grad_()
            y = graphed(x)
            y.square().mean().backward()
            torch.cuda.reclaim_inactive()
            results += [y.detach().clone(), x.grad]
            beside[i].add_(1)
        return results, beside, [p.grad for p in model.parameters()]

    # No limit: what the capture uses has to be on the GPU then, and nobody holds it.
    assert_same_bits(run, limit=0)


def test_what_is_paged_out_cannot_be_captured():
    with lms(limit=0):
        x = torch.ones(ELEMENTS, device="cuda")
        x.add_(1)
        torch.cuda.reclaim_inactive()
        graph = torch.cuda.CUDAGraph()
        with (
            pytest.raises(RuntimeError, match="while a CUDA graph is captured"),
            torch.cuda.graph(graph),
        ):
            x.add_(1)
        assert bool((x == 2).all())
