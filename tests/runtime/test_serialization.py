"""Saving, loading and copying: what reaches storages without operators, and compares addresses."""

import copy
import io
import pickle

import pytest
import torch
from conftest import MIB
from releases import untyped_storage
from stress import assert_same_bits
from tensors import evict, floats, managed, pattern, stat
from torch import nn
from training import inputs, network, train


def saved(value, **options) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file, **options)
    file.seek(0)
    return file


@pytest.mark.parametrize("zipped", [True, False])
def test_save_and_load(zipped):
    def run():
        model = network()
        file = saved(model.state_dict(), _use_new_zipfile_serialization=zipped)
        other = network()
        other.load_state_dict(torch.load(file))
        return other.state_dict()

    assert_same_bits(run)


@pytest.mark.parametrize("target", ["cpu", "cuda:1"])
def test_load_to_another_device(target):
    assert_same_bits(lambda: torch.load(saved([inputs(), inputs()]), map_location=target))


def test_save_of_views_that_share_a_storage():
    def run():
        x = inputs()
        torch.cuda.reclaim_inactive()
        rows, columns = torch.load(saved([x[2:4], x.t()]))
        rows.zero_()
        return rows, columns

    assert_same_bits(run)


def test_optimizer_state():
    def run():
        state = train(torch.optim.AdamW)[2]
        return torch.load(saved(state))

    assert_same_bits(run)


def test_save_and_load_of_more_than_the_device_holds():
    # torch.save() and torch.load() compare addresses: that must hold nothing on the device.
    kept = [managed(pattern(8, start=i)) for i in range(12)]  # 96 MiB on 64 MiB
    file = saved(kept)
    assert stat("held_bytes") == 0
    del kept
    for i, tensor in enumerate(torch.load(file)):
        assert torch.equal(tensor.cpu(), pattern(8, start=i, device="cpu"))
    assert stat("held_bytes") == 0


COPIES = {
    "tensor": inputs,
    "parameter": lambda: nn.Parameter(inputs()),
    "module": network,
}


@pytest.mark.parametrize("kind", COPIES)
@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"]
)
def test_duplicate(kind, duplicate):
    def run():
        original = COPIES[kind]()
        torch.cuda.reclaim_inactive()
        duplicated = duplicate(original)
        if isinstance(original, nn.Module):
            return original.state_dict(), duplicated.state_dict()
        return original, duplicated

    assert_same_bits(run)


def test_deepcopy_keeps_tied_parameters():
    def run():
        model = network()
        model[3].weight = nn.Parameter(model[0].weight.detach().t())
        model[0].weight = nn.Parameter(model[3].weight.detach().t())
        duplicate = copy.deepcopy(model)
        with torch.no_grad():
            duplicate[0].weight.zero_()
        return model.state_dict(), duplicate.state_dict()

    assert_same_bits(run)


def contents(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.float32).set_(storage.cpu())


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_methods_of_storages():
    x = managed(pattern(1))
    storage = untyped_storage(x)
    expected = pattern(1, device="cpu")
    evict()
    assert storage[4:8].tolist() == untyped_storage(expected)[4:8].tolist()
    assert stat("held_bytes") == MIB  # a slice has an address in the storage
    torch.cuda.lms.release(x)
    evict()
    storage[6] = untyped_storage(expected)[6] = 5
    evict()
    assert torch.equal(contents(storage), expected)
    evict()
    assert torch.equal(contents(storage.clone()), expected)
    evict()
    typed = x.storage()
    assert typed[9] == 9
    evict()
    typed[9] = expected[9] = 1
    evict()
    assert torch.equal(x.cpu(), expected)
    evict()
    storage.fill_(0)
    evict()
    assert torch.equal(x.cpu(), torch.zeros(floats(1)))
    assert stat("held_bytes") == 0
