"""Modules that change device or type, and tensors that swap places."""

import copy
import functools
import gc
import pickle
import weakref

import pytest
import torch
from releases import RELEASE, since
from stress import assert_same_bits
from tensors import evict, is_resident, managed, pattern, stat
from torch import nn
from training import inputs, network

SWAP = pytest.param(True, marks=since((2, 3), "swap_tensors()"))


@pytest.fixture(params=[False, SWAP], ids=["data", "swap"])
def conversion(request):
    """How nn.Module.to() replaces a parameter's memory."""
    if RELEASE < (2, 3):
        yield
        return
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(request.param)
    yield
    torch.__future__.set_swap_module_params_on_conversion(before)


@since((1, 8), "lazy modules")
def test_a_lazy_module():
    lazy = nn.LazyLinear(1 << 10, device="cuda")
    with torch.cuda.lms.resident(lazy):
        torch.cuda.reclaim_inactive()
    torch.cuda.lms.exclude(lazy)
    torch.cuda.lms.release(lazy)
    assert torch.cuda.lms.wrap(lazy)(torch.ones(2, 1 << 10, device="cuda")).shape == (2, 1 << 10)


def test_copies_of_a_wrapped_module():
    module = torch.cuda.lms.wrap(network())
    copied = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    x = inputs()
    found = copied(x)
    assert found.count_nonzero() == 0
    found.sum().backward()
    assert all(parameter.grad is not None for parameter in copied.parameters())
    assert all(parameter.grad is None for parameter in module.parameters())
    loaded = pickle.loads(pickle.dumps(module))
    assert loaded(x).equal(module(x))


class Scaled(nn.Module):
    scale = 1.0

    def forward(self, x):
        return x * self.scale


def test_a_shallow_copy_of_a_wrapped_module_is_not_the_original():
    module = torch.cuda.lms.wrap(Scaled())
    copied = copy.copy(module)
    copied.scale = 3.0
    x = inputs()
    assert copied(x).equal(x * 3)
    assert module(x).equal(x)
    del module
    assert copied(x).equal(x * 3)


def test_replicas_of_a_wrapped_module():
    """DataParallel's, whose parameters are other tensors, and no parameters."""

    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(pattern(1))

        def forward(self):
            return is_resident(self.weight), self.weight.device

    module = torch.cuda.lms.wrap(torch.cuda.lms.wrap(Scale()))
    replica = module._replicate_for_data_parallel()
    # As torch.nn.parallel.replicate() does, whose broadcast needs NCCL or a peer's memory.
    weight = managed(module.weight.detach().to("cuda:1"))
    replica.weight, replica._former_parameters = weight, {"weight": weight}
    evict()
    assert module() == (True, torch.device("cuda:0"))
    assert not is_resident(weight)
    assert replica() == (True, torch.device("cuda:1"))


@since((2, 0), "functools.partialmethod as a forward, and scripts that can be replicated")
def test_forwards_that_are_no_methods():
    class Twice(nn.Module):
        def times(self, factor, x):
            return x * factor

        forward = functools.partialmethod(times, 2)

    x = inputs()
    assert torch.cuda.lms.wrap(Twice())(x).equal(x * 2)
    script = torch.cuda.lms.wrap(torch.jit.script(nn.Linear(x.shape[1], 3).cuda()))
    replica = script._replicate_for_data_parallel()
    assert replica.forward._module() is replica
    assert script(x).shape == (len(x), 3)
    module = torch.cuda.lms.wrap(network())
    hooked = functools.update_wrapper(functools.partial(print, 1), module.forward)
    assert pickle.loads(pickle.dumps(hooked)).args == (1,)


def test_a_wrapped_module_is_in_no_cycle():
    """Its memory must not wait until Python collects garbage, nor a replica's for each step."""
    module = torch.cuda.lms.wrap(network())
    forward, replica = module.forward, module._replicate_for_data_parallel()
    gone = [weakref.ref(module), weakref.ref(replica)]
    gc.disable()
    try:
        del module, replica
        assert [reference() for reference in gone] == [None, None]
    finally:
        gc.enable()
    with pytest.raises(RuntimeError, match="does not exist any more"):
        forward(inputs())


@pytest.mark.usefixtures("conversion")
def test_conversions():
    @torch.no_grad()
    def run():
        model, x = network(), inputs()
        # The simulated device's old releases lack the CPU's half precision.
        low = torch.float16 if RELEASE >= (2, 1) else torch.bfloat16
        results = [model(x), model.to(low)(x.to(low)), model.double()(x.double())]
        model.cpu().float()
        model.to(memory_format=torch.contiguous_format).cuda()
        results.append(model(x))
        # One after the other: the simulated device knows no peer copy to another type.
        results.append(model.to("cuda:1").bfloat16()(x.to("cuda:1").bfloat16()))
        return results, model.state_dict()

    assert_same_bits(run)


@since((2, 3), "swap_tensors()")
def test_swap_tensors():
    def run():
        one, other = network(), network()
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            torch.utils.swap_tensors(a, b)
        x = inputs()
        return one(x), other(x)

    assert_same_bits(run)


@since((2, 1), "load_state_dict(assign=True)")
def test_load_state_dict_with_assign():
    def run():
        one, other = network(), network()
        one.load_state_dict(other.state_dict(), assign=True)
        with torch.no_grad():
            other[0].weight.zero_()
        return one(inputs()), one.state_dict()

    assert_same_bits(run)


def test_recurrent_weights_are_not_held():
    # flatten_parameters() compares their addresses.
    torch.cuda.set_size_lms(1)
    lstm = nn.LSTM(32, 32).cuda()
    lstm.flatten_parameters()
    assert stat("held_bytes") == 0


def test_buffers_that_a_forward_pass_writes():
    def run():
        norm = nn.BatchNorm1d(32).cuda()
        return [norm(inputs()) for _ in range(3)], norm.state_dict()

    assert_same_bits(run)
