"""Storages that die, change hands or change size while LMS has a part in them."""

import contextlib
import gc
import threading
import weakref

import pytest
import torch
from releases import RELEASE, since, untyped_storage
from simcuda.process import run_sim
from tensors import (
    evict,
    floats,
    is_resident,
    managed,
    older,
    pattern,
    raw_address,
    stat,
    turn_on,
)


def test_dies_on_the_host():
    x = managed(pattern(2))
    evict()
    assert stat("paged_out_bytes") == 2 << 20
    del x
    assert stat("paged_out_bytes") == 0
    assert stat("host_used_bytes") == 0


def test_lms_keeps_nothing_alive():
    x = managed(pattern(1))
    reference = weakref.ref(x)
    del x
    gc.collect()
    assert reference() is None
    assert torch.cuda.memory_allocated() == 0


def test_dies_while_an_operator_has_it_pinned():
    # The output is an input too, and is given other memory inside the operator.
    out = managed(torch.zeros(8, device="cuda"))
    torch.cuda.set_size_lms(1)
    managed(out)
    a = managed(pattern(1))
    torch.add(a, 1, out=out.resize_(0))
    evict()
    assert torch.equal(out.cpu(), pattern(1, start=1, device="cpu"))


def test_resized_on_the_device():
    x = managed(pattern(1))
    evict()
    x.resize_(floats(2))
    evict()
    assert torch.equal(x[: floats(1)].cpu(), pattern(1, device="cpu"))


def resized(device, elements):
    """Tensors of which the first is older than LMS and grows to half of the device."""
    import torch

    mib = 1 << 20
    x = torch.full((elements,), 3.0, device="cuda")
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    rows = [torch.full((4 * mib,), float(i), device="cuda") for i in range(2)]  # 16 MiB each
    x.resize_(8 * mib)
    same = bool((x[:elements] == 3).all())
    return same and all(bool((row == i).all()) for i, row in enumerate(rows))


@pytest.mark.parametrize("elements", [1 << 22, 1 << 8], ids=["adopted", "too small"])
def test_what_is_older_than_lms_gets_room_when_it_grows(elements):
    assert run_sim(resized, elements, mib=64)


@since((2, 1), "storages that know their file")
def test_a_paged_out_storage_is_no_files():
    x = managed(pattern(1))
    evict()
    assert x.untyped_storage().filename is None
    assert not is_resident(x)


def test_storage_resize_of_a_paged_out_storage():
    x = managed(pattern(1))
    evict()
    untyped_storage(x).resize_(2 << 20)
    assert torch.equal(x.cpu(), pattern(1, device="cpu"))


def test_storage_freed_and_made_again():
    # As FSDP does: the flags of the paged-out memory must not stay behind.
    x = managed(pattern(1))
    evict()
    untyped_storage(x).resize_(0)
    assert stat("paged_out_bytes") == 0
    untyped_storage(x).resize_(1 << 20)
    x.copy_(pattern(1, start=4, device="cpu"))
    managed(x)
    evict()
    assert torch.equal(x.cpu(), pattern(1, start=4, device="cpu"))


@pytest.mark.parametrize("how", ["excluded", "held"])
@pytest.mark.parametrize("again", [True, False], ids=["freed and made again", "grown"])
def test_what_is_marked_stays_with_other_memory(how, again):
    """As FSDP's parameters, which are freed and gathered."""
    x = managed(pattern(1))
    with torch.cuda.lms.resident(x) if how == "held" else contextlib.nullcontext():
        if how == "excluded":
            torch.cuda.lms.exclude(x)
        if again:
            untyped_storage(x).resize_(0)
        untyped_storage(x).resize_(2 << 20)
        address = raw_address(x)
        evict()
        assert is_resident(x)
        assert raw_address(x) == address
    if how == "excluded":
        torch.cuda.lms.release(x)
    evict()
    assert not is_resident(x)


def test_memory_dropped_by_an_extension(extension):
    # The block dies and the storage lives on: what guarded the block's memory must go with it.
    x = managed(pattern(1))
    evict()
    storage = untyped_storage(x)
    assert extension.read_throws(storage._cdata) == (RELEASE >= (2, 3))
    extension.drop_memory(storage._cdata)
    assert stat("paged_out_bytes") == 0
    assert not extension.read_throws(storage._cdata)


def test_set_gives_the_storage_to_another_tensor():
    x, y = managed(pattern(1)), managed(torch.zeros(4, device="cuda"))
    evict()
    y.set_(x)
    del x
    assert torch.equal(y.cpu(), pattern(1, device="cpu"))


def test_data_swapped_between_tensors():
    x, y = managed(pattern(1)), managed(pattern(1, start=50))
    evict()
    x.data, y.data = y.data, x.data
    assert torch.equal(x.cpu(), pattern(1, start=50, device="cpu"))
    assert torch.equal(y.cpu(), pattern(1, device="cpu"))


@pytest.mark.skipif(
    not hasattr(torch.UntypedStorage, "_swap_data_ptr_"), reason="this PyTorch has no such method"
)
@pytest.mark.parametrize("paged_out", [0, 1, 2])
def test_data_swapped_between_storages(paged_out):
    x, y = managed(pattern(1)), managed(pattern(1, start=5))
    if paged_out:
        evict()
    if paged_out == 1:
        x.sum()
    untyped_storage(x)._swap_data_ptr_(untyped_storage(y))
    assert torch.equal(x.cpu(), pattern(1, start=5, device="cpu"))
    evict()
    x += 1
    evict()
    assert torch.equal(x.cpu(), pattern(1, start=6, device="cpu"))
    assert torch.equal(y.cpu(), pattern(1, device="cpu"))


def test_deleted_right_after_a_page_in():
    # The copy is in flight when the memory goes back to the allocator.
    for _ in range(3):
        x = managed(pattern(4))
        evict()
        x.sum()
        del x
        fresh = torch.zeros(floats(4), device="cuda")
        assert fresh.sum().item() == 0


def test_paged_out_right_after_a_page_in():
    x = managed(pattern(4))
    for _ in range(3):
        evict()
        x.add_(1)
    evict()
    assert torch.equal(x.cpu(), pattern(4, start=3, device="cpu"))


def test_host_memory_is_reused_behind_the_copies():
    x = managed(pattern(4))
    evict()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # nothing below makes this stream wait for the main one
        y = managed(pattern(4, start=7))
    x.sum()
    del x  # its host buffer is free again, and the copy from it may be running
    evict()  # y goes to the same buffer
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(y.cpu(), pattern(4, start=7, device="cpu"))


def test_two_storages_take_turns():
    x, y = managed(pattern(4)), managed(pattern(4, start=7))
    for _ in range(4):
        evict()
        x.add_(1)
        y.add_(1)
    evict()
    assert torch.equal(x.cpu(), pattern(4, start=4, device="cpu"))
    assert torch.equal(y.cpu(), pattern(4, start=11, device="cpu"))


def test_threads_that_share_tensors():
    torch.cuda.set_limit_lms(12 << 20)
    shared = [managed(pattern(1, start=i)) for i in range(24)]
    plain = [pattern(1, start=i, device="cpu").sum().item() for i in range(24)]
    failures = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for index in torch.randint(24, (40,), generator=generator).tolist():
            if (shared[index] * 2).sum().item() != 2 * plain[index]:
                failures.append(index)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert stat("page_in_count") > 0


def test_nothing_is_left_when_everything_is_gone():
    x = [managed(pattern(1, start=i)) for i in range(4)]
    evict()
    x[0].sum()
    del x
    gc.collect()
    numbers = torch.cuda.lms.stats()
    for name in ("resident_bytes", "paged_out_bytes", "held_bytes", "host_used_bytes"):
        assert numbers[name] == 0, name
    assert torch.cuda.memory_stats()["pinned.all.current"] == 0
    assert is_resident(torch.zeros(1, device="cuda"))


@since((2, 2), "storages that are copied when they are written")
@pytest.mark.parametrize("older", [False, True], ids=["made by LMS", "adopted"])
def test_a_lazy_clone(older):
    if older:
        torch.cuda.set_enabled_lms(False)
    x = pattern(1)
    if older:
        turn_on()
    managed(x)
    evict()
    y = torch._lazy_clone(x)
    evict()
    assert is_resident(x), "the clones share their memory"
    y.add_(1)
    evict()
    assert torch.equal(x.cpu(), pattern(1, device="cpu"))
    assert torch.equal(y.cpu(), pattern(1, start=1, device="cpu"))
    assert stat("resident_bytes") == y.nbytes
    x.add_(2)  # it is the last one that has the memory
    managed(x)
    evict()
    assert not is_resident(x)
    assert torch.equal(x.cpu(), pattern(1, start=2, device="cpu"))


@since((2, 2), "storages that are copied when they are written")
@pytest.mark.parametrize("how", ["address", "excluded", "held"])
def test_what_stays_stays_after_a_lazy_clone(how):
    x = managed(pattern(1))
    with torch.cuda.lms.resident(x) if how == "held" else contextlib.nullcontext():
        if how == "excluded":
            torch.cuda.lms.exclude(x)
        address = x.data_ptr() if how == "address" else raw_address(x)
        y = torch._lazy_clone(x)
        del y
        x.add_(1)  # it is the last one that has the memory
        managed(x)
        evict()
        assert is_resident(x)
        assert raw_address(x) == address
    if how != "held":
        torch.cuda.lms.release(x)
    evict()
    assert not is_resident(x)
    assert torch.equal(x.cpu(), pattern(1, start=1, device="cpu"))


@pytest.mark.parametrize("goes", ["while it is on the host", "after LMS"])
def test_nothing_waits_for_ever_for_an_unknown_stream(goes):
    torch.cuda.set_enabled_lms(False)
    x, y = pattern(2), pattern(2)
    turn_on()
    managed(x), managed(y)
    evict()
    y.sum()
    if goes != "after LMS":
        del x, y
    torch.cuda.set_enabled_lms(False)
    x = y = None
    assert torch.cuda.memory_allocated() == 0


def test_the_cache_is_emptied_of_what_was_paged_out():
    torch.cuda.set_enabled_lms(False)
    x = pattern(8)
    turn_on()
    managed(x)
    evict()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    assert torch.equal(x.cpu(), pattern(8, device="cpu"))


@since((2, 2), "storages that are copied when they are written")
def test_a_lazy_clone_on_another_stream():
    x = managed(pattern(1))
    torch.cuda.synchronize()
    evict()
    y = torch._lazy_clone(x)
    with torch.cuda.stream(torch.cuda.Stream()):
        z = y.clone()  # nothing has to be waited for here, because x was complete
    torch.cuda.synchronize()
    assert torch.equal(z.cpu(), pattern(1, device="cpu"))


@since((2, 2), "storages that are copied when they are written")
def test_what_takes_the_memory_of_a_lazy_clone():
    x, other = managed(pattern(2)), managed(pattern(2, start=3))
    evict()
    torch.cuda.empty_cache()
    x.sum()
    z = torch.empty_like(x)
    full = [torch.empty_like(x) for _ in range(8)]  # the rest of the segment
    place = raw_address(x)
    y = torch._lazy_clone(x)
    z.copy_(y)
    del x, y
    other.add_(1)  # paged in to where y was, after it was read
    assert raw_address(other) == place
    del full
    assert torch.equal(z.cpu(), pattern(2, device="cpu"))
    assert torch.equal(other.cpu(), pattern(2, start=4, device="cpu"))


@since((2, 2), "storages that are copied when they are written")
def test_lazy_clones_that_die():
    x = managed(pattern(1))
    evict()
    y, z = torch._lazy_clone(x), torch._lazy_clone(x)
    del x
    y.add_(1)
    del y
    assert torch.equal(z.cpu(), pattern(1, device="cpu"))
    del z
    assert torch.cuda.memory_allocated() == 0
    assert stat("resident_bytes") == 0


@since((2, 2), "storages that are copied when they are written")
def test_a_lazy_clone_of_what_lms_has_brought_on_another_stream():
    side = torch.cuda.Stream()
    x, out = older(2, side)
    torch.cuda.current_stream().wait_stream(side)
    managed(x)
    evict()
    managed(x)  # on a stream that LMS chooses
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        managed(x)  # so LMS knows this one, too
    y = torch._lazy_clone(x)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.mul(y, 2, out=out)
    del x, y
    others = [torch.zeros_like(out) for _ in range(4)]
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(out.cpu(), pattern(2, device="cpu") * 2)
    assert all(other.sum().item() == 0 for other in others)
