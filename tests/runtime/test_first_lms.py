"""What programs for the first LMS rely on: its functions, its statistics, and what they mean.

The steps are those of the test that the first LMS brought (1.4 and 1.5), for a device of 64 MiB.
docs/migration.md has the differences.
"""

from __future__ import annotations

import ctypes

import pytest
import torch
from conftest import MIB
from cxx import CUDA_OPTIONS, HERE, compile_cxx
from releases import since
from simcuda.process import run_sim
from tensors import managed, pattern

FUNCTIONS = (
    "get_enabled_lms",
    "get_limit_lms",
    "get_size_lms",
    "reclaim_inactive",
    "set_enabled_lms",
    "set_limit_lms",
    "set_size_lms",
)


def made(*sizes: int) -> list[torch.Tensor]:
    """Tensors of random numbers, by their bytes: small ones and one of 20 MiB, if not told."""
    sizes = sizes or (128, 512, 20 * MIB)
    return [torch.empty(size // 4, device="cuda").normal_() for size in sizes]


def stat(name: str) -> int:
    return int(torch.cuda.memory_stats()[name])


class Change:
    """How much statistics have grown since it was made."""

    def __init__(self, **names: str) -> None:
        self.names = names
        self.before = {key: stat(name) for key, name in names.items()}

    def __getattr__(self, key: str) -> int:
        return stat(self.names[key]) - self.before[key]


WHERE_FROM = {
    "allocated": "allocated_bytes.all.current",
    "reclaimed": "reclaimed_bytes",
    "cudamalloc": "alloc_distribution.cudamalloc",
    "reclaim_one": "alloc_distribution.reclaim_one",
}
"""How room was made for a tensor, and which memory it got."""


@pytest.fixture(autouse=True)
def as_at_the_start() -> None:
    torch.cuda.set_size_lms(MIB)
    torch.cuda.empty_cache()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_have_both_their_homes(function):
    assert getattr(torch.cuda.memory, function) is getattr(torch.cuda, function)


@pytest.mark.parametrize("enabled", [False, True])
def test_pinned_is_all_that_is_allocated_while_lms_is_off(enabled):
    torch.cuda.set_enabled_lms(enabled)
    tensors = made()
    numbers = torch.cuda.memory_stats()
    for pool in ("all", "small_pool", "large_pool"):
        pinned, allocated = (
            numbers[f"{name}.{pool}.current"] for name in ("pinned_bytes", "allocated_bytes")
        )
        assert (pinned == allocated) != enabled
    assert (numbers["pinned.all.current"] == numbers["allocation.all.current"] == 3) != enabled
    del tensors


def test_a_limit_makes_room_by_paging_out():
    torch.cuda.set_limit_lms(40 * MIB)
    tensors = made()
    change = Change(**WHERE_FROM)
    tensors += made(20 * MIB)
    assert change.allocated == 0
    assert change.reclaimed == 20 * MIB
    assert change.cudamalloc == 0
    assert change.reclaim_one == 1


def test_a_limit_that_is_far_away_changes_nothing():
    torch.cuda.set_limit_lms(1024 * MIB)
    tensors = made()
    change = Change(**WHERE_FROM)
    tensors += made(20 * MIB)
    assert change.allocated == 20 * MIB
    assert change.reclaimed == 0
    assert change.cudamalloc == 1
    assert change.reclaim_one == 0


def test_page_out_and_page_in():
    tensors = made()
    sums = [x.sum().item() for x in tensors]
    change = Change(
        allocated="allocated_bytes.all.current",
        reserved="reserved_bytes.all.current",
        pinned="pinned_bytes.all.current",
        reclaimed="reclaimed_bytes",
        cudamalloc="alloc_distribution.cudamalloc",
        freelist="alloc_distribution.freelist",
    )
    torch.cuda.reclaim_inactive()
    assert change.reclaimed == -change.allocated == 20 * MIB
    assert change.pinned == change.reserved == 0
    assert [x.sum().item() for x in tensors] == sums
    assert change.pinned == change.reserved == change.allocated == 0
    assert change.freelist > 0
    assert change.cudamalloc == 0


def test_bytes_that_have_not_changed_are_not_copied_again():
    x = made(20 * MIB)[0]
    torch.cuda.reclaim_inactive()
    x.sum().item()
    change = Change(blocks="reclaimed", bytes="reclaimed_bytes")
    torch.cuda.reclaim_inactive()
    assert (change.blocks, change.bytes) == (1, 0)


@pytest.mark.parametrize("size", [0, 1])
def test_storages_of_every_size_can_be_paged_out(size):
    before = made(128, MIB // 2)
    torch.cuda.set_size_lms(size)
    after = made(128, MIB // 2)
    sums = [x.sum().item() for x in after]
    torch.cuda.reclaim_inactive()
    assert all(torch.cuda.lms.is_resident(x) for x in before)
    assert not any(torch.cuda.lms.is_resident(x) for x in after)
    assert [x.sum().item() for x in after] == sums


def test_where_memory_came_from_is_counted_while_lms_is_on():
    torch.cuda.set_enabled_lms(False)
    off = Change(**WHERE_FROM)
    tensors = made(20 * MIB)
    assert (off.allocated, off.cudamalloc) == (20 * MIB, 0)
    torch.cuda.set_enabled_lms(True)
    on = Change(**WHERE_FROM)
    tensors += made(20 * MIB, 512)
    assert on.cudamalloc == 1


@pytest.mark.parametrize("stream", ["default", "another"])
def test_memory_that_is_no_tensor_makes_room(stream):
    tensors = [torch.full((8 * MIB // 4,), float(i), device="cuda") for i in range(7)]
    change = Change(**WHERE_FROM)
    chosen = torch.cuda.Stream() if stream == "another" else torch.cuda.default_stream()
    memory = torch.cuda.caching_allocator_alloc(24 * MIB, stream=chosen)
    assert change.reclaimed >= 16 * MIB
    torch.cuda.caching_allocator_delete(memory)
    assert all(x[-1].item() == i for i, x in enumerate(tensors))


# What the limit is a limit of ---------------------------------------------------------------------


def test_a_limit_is_of_what_pytorch_reserves():
    torch.cuda.set_limit_lms(40 * MIB)
    tensors = [torch.full((10 * MIB // 4,), float(i), device="cuda") for i in range(12)]
    for turn in range(2):
        for i, x in enumerate(tensors):
            x.add_(1)
            assert torch.cuda.memory_reserved() <= 40 * MIB
            assert x[-1].item() == i + turn + 1
    assert torch.cuda.max_memory_reserved() <= 40 * MIB
    assert torch.cuda.lms.stats()["over_limit_count"] == 0


def test_a_limit_counts_what_is_not_managed():
    torch.cuda.set_limit_lms(40 * MIB)
    small = [torch.ones(MIB // 8, device="cuda") for _ in range(24)]  # 512 KiB each
    tensors = [torch.full((10 * MIB // 4,), float(i), device="cuda") for i in range(6)]
    assert torch.cuda.max_memory_reserved() <= 40 * MIB
    assert all(x[-1].item() == i for i, x in enumerate(tensors))
    assert len(small) == 24


def test_a_limit_gives_way_to_what_runs():
    torch.cuda.set_limit_lms(20 * MIB)
    a, b = made(16 * MIB, 16 * MIB)
    expected = a.cpu() + b.cpu()
    torch.cuda.reset_peak_memory_stats()
    assert torch.equal((a + b).cpu(), expected)
    stats = torch.cuda.lms.stats()
    assert stats["over_limit_count"] >= 1
    assert torch.cuda.max_memory_reserved() - 20 * MIB <= stats["over_limit_bytes_peak"]
    assert "The limit gave way" in torch.cuda.lms.explain()


def test_a_limit_holds_again():
    torch.cuda.set_limit_lms(20 * MIB)
    a, b = made(16 * MIB, 16 * MIB)
    (a + b).sum()
    del a, b
    assert torch.cuda.memory_reserved() > 20 * MIB
    for _ in range(100):  # as much as several iterations allocate
        made(11 * MIB)
    assert torch.cuda.memory_reserved() <= 20 * MIB


def test_a_limit_below_what_is_reserved():
    tensors = made(20 * MIB, 10 * MIB, 20 * MIB)
    torch.cuda.set_limit_lms(24 * MIB)
    made(MIB)
    assert torch.cuda.memory_reserved() <= 24 * MIB
    torch.cuda.set_limit_lms(0)
    tensors += made(20 * MIB)
    assert torch.cuda.memory_reserved() > 24 * MIB


def test_a_limit_ends_with_lms():
    torch.cuda.set_limit_lms(24 * MIB)
    first = made(20 * MIB)
    torch.cuda.set_enabled_lms(False)
    first += made(20 * MIB)
    assert torch.cuda.memory_reserved() >= 40 * MIB
    torch.cuda.set_enabled_lms(True)
    first += made(MIB)
    assert torch.cuda.memory_reserved() <= 24 * MIB


@since((2, 6), "get_per_process_memory_fraction")
def test_a_limit_and_a_share_of_the_device():
    total = torch.cuda.get_device_properties(0).total_memory
    share = torch.cuda.get_per_process_memory_fraction()
    torch.cuda.set_limit_lms(24 * MIB)
    made(MIB)
    assert torch.cuda.get_per_process_memory_fraction() == share
    torch.cuda.set_per_process_memory_fraction(40 * MIB / total)
    assert torch.cuda.get_per_process_memory_fraction() == 40 * MIB / total
    kept = [torch.full((10 * MIB // 4,), float(i), device="cuda") for i in range(6)]
    assert torch.cuda.max_memory_reserved() <= 24 * MIB
    torch.cuda.set_limit_lms(0)
    kept += [torch.full((10 * MIB // 4,), float(i), device="cuda") for i in range(6, 9)]
    assert 24 * MIB < torch.cuda.memory_reserved() <= 40 * MIB
    assert all(x[0].item() == i for i, x in enumerate(kept))


@since((2, 0), "pools of memory")
def test_a_pool_has_no_limit():
    torch.cuda.set_limit_lms(14 * MIB)
    made(MIB)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = made(10 * MIB, 10 * MIB)
    assert torch.cuda.memory_reserved() > 14 * MIB
    assert torch.cuda.lms.stats()["over_limit_count"] == 0
    assert all(x.isfinite().all() for x in inside)
    assert torch.cuda.lms.stats()["over_limit_count"] > 0
    del inside, pool


@since((2, 0), "allocator that answers for LMS")
def test_free_memory_as_cudnn_sees_it(tmp_path):
    compile_cxx(HERE / "memory.cpp", tmp_path / "memory.so", "-shared", "-fPIC", *CUDA_OPTIONS)
    memory = ctypes.CDLL(str(tmp_path / "memory.so"))
    memory.obtainable_bytes.restype = ctypes.c_size_t
    torch.cuda.set_limit_lms(40 * MIB)
    assert memory.obtainable_bytes(0) == pytest.approx(0.95 * 40 * MIB, abs=4096)
    idle = managed(pattern(20))
    assert memory.obtainable_bytes(0) == pytest.approx(0.95 * 40 * MIB, abs=4096)
    with torch.cuda.lms.resident(idle):
        assert memory.obtainable_bytes(0) == pytest.approx(0.95 * 40 * MIB - 20 * MIB, abs=4096)
    torch.cuda.set_enabled_lms(False)
    # Other programs may use the same GPU meanwhile.
    assert memory.obtainable_bytes(0) == pytest.approx(torch.cuda.mem_get_info()[0], rel=0.01)


# The rest -----------------------------------------------------------------------------------------


def reclaimed_at_once(device):
    import torch

    torch.cuda.set_enabled_lms(True)
    x = torch.arange(1 << 18, device="cuda")
    y = [{"in": torch.arange(1 << 18, device="cuda")}]
    small = torch.arange(8, device="cuda")
    bytes = torch.cuda.reclaim_inactive()
    same = all(torch.equal(t.cpu(), torch.arange(1 << 18)) for t in (x, y[0]["in"]))
    return bytes, same, small.sum().item()


def test_reclaim_inactive_at_once():
    assert run_sim(reclaimed_at_once) == [4 << 20, True, 28]


def logs(device, path):
    import os

    import torch

    with open(path, "w") as file:
        os.dup2(file.fileno(), 2)
    torch.cuda.set_enabled_lms(True)
    x = torch.ones(1 << 20, device="cuda") + 1
    torch.cuda.reclaim_inactive()
    return x.sum().item()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("1", True),
        ("0", False),
        ("verbosity=1", True),
        ("speculative-pageout=off,verbosity=2", True),
        ("verbosity=0", False),
        ("reclaim-algo=size", False),
    ],
)
def test_values_of_the_debugging_variable(tmp_path, value, says):
    log = tmp_path / "log"
    result = run_sim(logs, str(log), environment={"PYTORCH_LMS_DEBUG": value})
    assert result == 2 << 20
    assert ("[lms] page-out" in log.read_text()) == says
