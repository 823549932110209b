"""Page-out and page-in: what moves, when, and that the bytes are the same."""

import ctypes

import pytest
import torch
from releases import RELEASE, scoped_library, untyped_storage
from tensors import evict, floats, is_resident, managed, pattern, raw_address, stat


def test_round_trip_keeps_every_byte():
    x = managed(pattern(2))
    evict()
    assert not is_resident(x)
    assert torch.equal(x.cpu(), pattern(2, device="cpu"))
    assert is_resident(x)


def test_memory_is_given_back():
    x = managed(pattern(4))
    before = torch.cuda.memory_allocated()
    evict()
    assert torch.cuda.memory_allocated() == before - 4 * 2**20
    del x


def test_a_model_larger_than_the_device():
    kept = [managed(pattern(8, start=i)) for i in range(12)]  # 96 MiB on 64 MiB
    for i, tensor in enumerate(kept):
        assert torch.equal(tensor.cpu(), pattern(8, start=i, device="cpu"))
    assert stat("page_out_bytes") > 0


def test_without_lms_it_is_out_of_memory():
    torch.cuda.set_enabled_lms(False)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        _ = [managed(pattern(8, start=i)) for i in range(12)]


def test_limit_bounds_what_is_resident():
    torch.cuda.set_limit_lms(16 << 20)
    kept = [managed(pattern(4, start=i)) for i in range(10)]
    assert stat("resident_bytes_peak") <= 16 << 20
    del kept


def test_a_paged_out_storage_has_no_plausible_address():
    x = managed(pattern(1))
    evict()
    if RELEASE < (2, 3):  # an access cannot throw: it faults, on a GPU and on the host
        assert raw_address(x) >> 48 == 0x6C6D
        assert raw_address(x[-1]) >> 48 == 0x6C6D
    else:
        message = r"paged this storage out .* torch\.cuda\.lms\.resident"
        with pytest.raises(RuntimeError, match=message):
            raw_address(x)
    x.add_(1)
    assert raw_address(x) != 0


def test_views_touch_no_data():
    x = managed(pattern(1))
    evict()
    views = [
        x.view(-1, 4),
        x[3:7],
        x.view(2, -1).t(),
        x.expand(3, -1),
        x.detach(),
        *x.chunk(4),
        x.as_strided((2, 2), (1, 1)),
        torch.empty_like(x[:2]),
    ]
    assert not is_resident(x)
    assert stat("page_in_count") == 0
    assert torch.equal(views[1].cpu(), pattern(1, device="cpu")[3:7])


def test_a_clean_storage_is_not_copied_again():
    x = managed(pattern(1))
    evict()
    x.sum()
    evict()
    assert stat("clean_count") == 1
    assert stat("page_out_bytes") == 1 << 20
    assert torch.equal(x.cpu(), pattern(1, device="cpu"))


def test_a_write_makes_the_host_copy_stale():
    x = managed(pattern(1))
    evict()
    x.add_(5)
    evict()
    assert stat("clean_count") == 0
    assert torch.equal(x.cpu(), pattern(1, start=5, device="cpu"))


def test_a_write_through_a_view_or_out_makes_it_stale():
    x = managed(pattern(1))
    evict()
    x.sum()
    x[4:8].zero_()
    evict()
    expected = pattern(1, device="cpu")
    expected[4:8] = 0
    assert torch.equal(x.cpu(), expected)
    torch.add(x, 1, out=x)
    evict()
    assert torch.equal(x.cpu(), expected + 1)


def test_an_operator_that_writes_unmarked_arguments():
    # native_batch_norm changes its running statistics, and its schema does not say so.
    torch.cuda.set_size_lms(1)
    torch.cuda.lms._set_verify_clean(True)
    statistics = managed(torch.zeros(64, device="cuda")), managed(torch.ones(64, device="cuda"))
    evict()
    x = torch.arange(2 * 64 * 9, dtype=torch.float32).view(2, 64, 3, 3)
    for tensor in statistics:
        tensor.sum()
    torch.native_batch_norm(x.cuda(), None, None, *statistics, True, 0.1, 1e-5)
    evict()
    expected = torch.zeros(64), torch.ones(64)
    torch.native_batch_norm(x, None, None, *expected, True, 0.1, 1e-5)
    for tensor, wanted in zip(statistics, expected, strict=True):
        assert torch.equal(tensor.cpu(), wanted)
    assert stat("clean_violations") == 0


def test_an_operator_writes_none_of_its_other_arguments():
    """What is copied to the host while a norm reads it need not be copied again."""
    torch.cuda.set_size_lms(1)
    torch.cuda.lms._set_verify_clean(True)
    data = torch.arange(2 * 64 * 9, dtype=torch.float32).view(2, 64, 3, 3)
    x, weight = managed(data.cuda()), managed(torch.ones(64, device="cuda"))
    evict()
    torch.native_batch_norm(x, weight, None, None, None, True, 0.1, 1e-5)
    assert stat("resident_bytes") > 0
    before = stat("page_out_bytes")
    evict()
    assert stat("page_out_bytes") == before
    assert torch.equal(x.cpu(), data)
    assert stat("clean_violations") == 0


def test_verify_clean_sees_an_unmarked_write(device):
    torch.cuda.lms._set_verify_clean(True)
    x = managed(pattern(1))
    evict()
    x.sum()
    ctypes.memset(device.host_view(raw_address(x)), 7, 16)  # what no operator shows
    evict()
    assert stat("clean_violations") == 1


def test_inputs_larger_than_the_room_beside_them():
    # The second input must not push the first one out.
    torch.cuda.set_limit_lms(10 << 20)
    a, b = managed(pattern(4)), managed(pattern(4, start=3))
    c = managed(pattern(4, start=9))
    torch.cuda.lms._set_stress(True)
    total = a + b + c
    torch.cuda.lms._set_stress(False)
    plain = [pattern(4, start=s, device="cpu") for s in (0, 3, 9)]
    assert torch.equal(total.cpu(), plain[0] + plain[1] + plain[2])


def test_outputs_that_nothing_has_read_yet():
    torch.cuda.set_limit_lms(12 << 20)
    x = managed(pattern(2))
    kept = [x + i for i in range(20)]
    assert stat("resident_bytes_peak") <= 12 << 20
    assert torch.cuda.max_memory_allocated() <= 14 << 20
    for i, tensor in enumerate(kept):
        assert torch.equal(tensor.cpu(), pattern(2, start=i, device="cpu"))


def test_new_memory_stays_until_it_is_used():
    # Whoever asked for it is about to fill it, perhaps where no operator shows it.
    x = torch.empty(1 << 18, device="cuda")
    y = torch.empty_like(managed(pattern(1)))
    evict()
    assert is_resident(x)
    assert is_resident(y)


def test_lists_of_tensors_are_inputs():
    torch.cuda.lms._set_stress(True)
    parts = [managed(pattern(0.25, start=i)) for i in range(5)]
    joined = torch.cat(parts)
    torch._foreach_add_(parts, 2.0)
    norm = torch.stack(parts).sum(0)
    index = [torch.tensor([1, 2], device="cuda"), None]
    picked = parts[0].view(-1, 16)[index[0]]
    torch.cuda.lms._set_stress(False)
    plain = [pattern(0.25, start=i, device="cpu") for i in range(5)]
    assert torch.equal(joined.cpu(), torch.cat(plain))
    plain = [p + 2 for p in plain]
    assert torch.equal(norm.cpu(), torch.stack(plain).sum(0))
    assert torch.equal(picked.cpu(), plain[0].view(-1, 16)[[1, 2]])


def test_sparse_tensors_bring_their_parts():
    values = managed(pattern(1))
    indices = torch.arange(values.numel(), device="cuda").unsqueeze(0)
    sparse = torch.sparse_coo_tensor(indices, values, values.shape)
    assert untyped_storage(sparse._values())._cdata == untyped_storage(values)._cdata
    evict()
    # An operator that calls no other, as a sparse kernel: those would bring them, too.
    parts = [values, indices]
    with scoped_library("lms_sparse") as library:
        library.define("peek(Tensor x) -> int[]")
        library.impl("peek", lambda _: [int(is_resident(part)) for part in parts], "SparseCUDA")
        assert torch.ops.lms_sparse.peek(sparse) == [1, 1]
    parts.clear()  # the registry keeps the function


def test_small_storages_stay():
    torch.cuda.set_size_lms(1 << 20)
    x = managed(torch.ones(floats(0.5), device="cuda"))
    evict()
    assert is_resident(x)
    assert torch.cuda.lms.is_resident(x)
    assert stat("page_out_count") == 0
