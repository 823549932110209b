"""torch.compile with inductor, with and without CUDA graphs."""

import signal
import subprocess
import sys

import pytest
import torch
import torch._inductor.config
from bits import assert_same_bits, lms
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


def test_a_backward_pass_brings_what_its_kernels_use():
    """What it uses in all does not fit: each saved activation has 8 MiB, each weight 4 MiB."""
    layers = 12
    model = torch.compile(network(layers))
    x = torch.randn(ROWS, WIDTH).cuda()
    with lms(limit=0):
        model(x).square().mean().backward()
        torch.cuda.reset_peak_memory_stats()
        model(x).square().mean().backward()
        most = torch.cuda.memory_stats()["pinned_bytes.all.peak"]
    assert most < layers * (8 << 20) / 2


def test_launches_of_the_cxx_launchers():
    """Inductor's static launcher, and Triton's own."""
    name = "use_static_triton_launcher"
    if not hasattr(torch._inductor.config, name):
        name = "use_static_cuda_launcher"
    for static in (True, False):
        torch._dynamo.reset()
        with torch._inductor.config.patch({name: static, "force_disable_caches": True}):
            assert_same_bits(lambda: train(torch.compile(network(2)), 2), limit=LIMIT, stress=True)


@pytest.mark.parametrize("mode", ["default", "max-autotune-no-cudagraphs"])
def test_modes(mode):
    def run():
        model = torch.compile(network(2), mode=mode)
        torch.manual_seed(2)
        with torch.no_grad():
            return [model(torch.randn(ROWS, WIDTH).cuda()) for _ in range(2)]

    run()  # what is measured decides about the kernels, so it is measured once
    assert_same_bits(run, limit=LIMIT, stress=True)


@pytest.mark.parametrize("option", ["cpp_wrapper", "graph_partition"])
def test_options(option):
    with torch._inductor.config.patch({option: True}):
        assert_same_bits(lambda: train(torch.compile(network(2)), 2), limit=LIMIT, stress=True)


def test_a_compiled_optimizer():
    def run():
        model = network(2)
        optimizer = torch.optim.Adam(model.parameters(), capturable=True)
        step = torch.compile(optimizer.step)
        torch.manual_seed(2)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(ROWS, WIDTH).cuda()).square().mean().backward()
            step()
        return list(model.parameters())

    assert_same_bits(run, limit=LIMIT, stress=True)


def test_compiled_autograd():
    def run():
        model = network(2)
        torch.manual_seed(2)
        with torch._dynamo.compiled_autograd._enable(torch.compile):
            model(torch.randn(ROWS, WIDTH).cuda()).square().mean().backward()
        return [p.grad for p in model.parameters()]

    assert_same_bits(run, limit=LIMIT, stress=True)


def test_flex_attention():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def causal(b, h, q, k):
        return q >= k

    attention = torch.compile(flex_attention)

    def run():
        torch.manual_seed(2)
        q, k, v = (torch.randn(2, 4, 512, 64).cuda().requires_grad_() for _ in range(3))
        mask = create_block_mask(causal, None, None, 512, 512)
        attention(q, k, v, block_mask=mask).square().mean().backward()
        return q.grad, k.grad, v.grad

    assert_same_bits(run, limit=4 << 20, stress=True)


def why_not_loaded(path: str) -> str:
    """How a process without LMS ends that loads the package; "" if it does load it."""
    program = "import sys, torch; torch._inductor.aoti_load_package(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, errors="replace"
    )
    if done.returncode < 0:
        return f"it was ended by {signal.Signals(-done.returncode).name}"
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def test_a_package_of_aotinductor(tmp_path):
    x = torch.randn(ROWS, WIDTH).cuda()
    model = network(2).eval()
    with torch.no_grad():
        program = torch.export.export(model, (x,))
        path = torch._inductor.aoti_compile_and_package(
            program, package_path=str(tmp_path / "model.pt2")
        )
        if reason := why_not_loaded(path):
            pytest.skip(f"aoti_load_package() fails here without LMS, too: {reason}")
        loaded = torch._inductor.aoti_load_package(path)

        def run():
            torch.manual_seed(2)
            return [loaded(torch.randn(ROWS, WIDTH).cuda()) for _ in range(4)]

        assert_same_bits(run, limit=16 << 20, stress=True)


def test_measuring_pages_nothing_out():
    """What is measured is not moved meanwhile, and neither is what measuring uses."""
    from torch._inductor.runtime.benchmarking import benchmarker

    with lms(limit=0, stress=True):
        a, b = torch.randn(1 << 20).cuda(), torch.randn(1 << 20).cuda()
        before = torch.cuda.lms.stats()["page_in_count"]
        benchmarker.benchmark_gpu(lambda: torch.add(a, b))
        assert torch.cuda.lms.stats()["page_in_count"] - before <= 2


def test_a_kernel_of_compile_kernel():
    if not hasattr(torch.cuda, "_compile_kernel"):
        pytest.skip("there is no torch.cuda._compile_kernel")
    source = """
    extern "C" __global__ void twice(const float* x, float* y, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) y[i] = 2 * x[i];
    }
    """
    kernel = torch.cuda._compile_kernel(source, "twice")
    with lms(limit=0, stress=True):
        x, y = torch.randn(1 << 20).cuda(), torch.zeros(1 << 20).cuda()
        kernel(((1 << 20) // 256, 1, 1), (256, 1, 1), [x, y, 1 << 20])
        torch.cuda.reclaim_inactive()
        assert not torch.cuda.lms.is_resident(x), "the launch has ended"
        assert torch.equal(y, x * 2)


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
