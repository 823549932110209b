"""A request that fits by bytes and not by layout: which storages make room for it."""

import pytest
import torch
from conftest import CAPACITY, MIB
from tensors import evict, floats, managed, raw_address, stat

SEGMENT = 20 * MIB
"""What PyTorch's allocator takes from the device for requests of 1 to 10 MiB."""


def fill() -> list[torch.Tensor]:
    """4 MiB tensors, five in a row in each of three segments: 60 of the 64 MiB."""
    return [managed(torch.full((floats(4),), float(i), device="cuda")) for i in range(15)]


def sources() -> dict[str, int]:
    stats = torch.cuda.memory_stats()
    prefix = "alloc_distribution."
    return {k[len(prefix) :]: v for k, v in stats.items() if k.startswith(prefix)}


def served_by(before: dict[str, int]) -> dict[str, int]:
    return {name: n - before[name] for name, n in sources().items() if n != before[name]}


@pytest.fixture(autouse=True)
def whole_device() -> None:
    torch.cuda.lms._set_late(True)  # only the device's end makes room
    assert torch.cuda.memory_reserved() == 0


def test_neighbours_are_paged_out():
    tensors = fill()
    rows = sorted(tensors, key=raw_address)
    # Idle: two that lie side by side, and others that do not, two of them in one segment.
    idle = [rows[0], rows[2], rows[6], rows[7], rows[14]]
    kept = [t for t in tensors if not any(t is other for other in idle)]
    before, moved = sources(), stat("page_out_bytes")
    with torch.cuda.lms.resident(*kept):
        wide = torch.full((floats(8),), 7.0, device="cuda")
        assert served_by(before) == {"reclaim_fragments": 1}
        assert stat("page_out_bytes") - moved == 8 * MIB
        assert [torch.cuda.lms.is_resident(t) for t in idle] == [True, True, False, False, True]
    assert (wide.cpu() == 7).all()
    assert all((t.cpu() == float(i)).all() for i, t in enumerate(tensors))


def test_one_storage_that_is_large_enough_is_preferred():
    small = [managed(torch.full((floats(4),), float(i), device="cuda")) for i in range(10)]
    large = managed(torch.full((floats(16),), 99.0, device="cuda"))
    before = sources()
    wide = torch.full((floats(12),), 7.0, device="cuda")
    assert served_by(before) == {"reclaim_one": 1}
    assert not torch.cuda.lms.is_resident(large)
    assert all(torch.cuda.lms.is_resident(t) for t in small)
    assert (wide.cpu() == 7).all()
    assert (large.cpu() == 99).all()


def test_storages_of_another_stream_are_no_neighbours():
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        tensors = fill()
    other.synchronize()
    # Their segments serve the other stream only, until they are empty: first as many bytes go,
    # and then everything.
    before = stat("out_of_memory_retries")
    wide = torch.full((floats(8),), 7.0, device="cuda")
    assert stat("out_of_memory_retries") - before == 2
    assert (wide.cpu() == 7).all()
    assert all((t.cpu() == float(i)).all() for i, t in enumerate(tensors))


def test_room_for_a_workspace_is_made_before_it_is_asked_for():
    torch.cuda.lms._set_late(False)
    torch.cuda.set_limit_lms(CAPACITY)
    tensors = fill()
    before = stat("page_out_count")
    torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(8 * MIB))
    assert stat("page_out_count") - before == 2
    assert stat("out_of_memory_retries") == 0
    assert all((t.cpu() == float(i)).all() for i, t in enumerate(tensors))


def test_everything_goes_when_nothing_less_helps():
    tensors = fill()
    before = sources()
    # Three times a segment: the cache has to be given back.
    wide = torch.full((floats(56),), 7.0, device="cuda")
    assert sum(served_by(before).values()) == 1
    assert (wide.cpu() == 7).all()
    del wide
    assert all((t.cpu() == float(i)).all() for i, t in enumerate(tensors))


def test_fragmentation_is_a_number():
    assert "fragmentation" not in torch.cuda.lms.stats()
    tensors = fill()
    del tensors[1::2]
    stats = torch.cuda.lms.stats()
    assert stats["free_bytes"] == torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    assert stats["largest_free_bytes"] == 4 * MIB
    assert stats["fragmentation"] == 1 - 4 * MIB / stats["free_bytes"]
    del tensors
    assert torch.cuda.lms.stats()["largest_free_bytes"] == SEGMENT


def test_changing_shapes_at_a_tight_limit():
    # Every size once more, in an order that leaves holes.
    torch.cuda.lms._set_late(False)
    kept = {}
    for i in range(120):
        mib = 1 + (i * 7) % 13
        kept[i % 9] = managed(torch.full((floats(mib),), float(i), device="cuda"))
        if i % 9 == 8:
            assert all((t.cpu() == t.cpu()[0]).all() for t in kept.values())
    assert sorted({int(t[0]) for t in kept.values()}) == list(range(111, 120))
    evict()


def test_the_automatic_limit_recovers():
    torch.cuda.lms._set_late(False)
    whole = stat("limit_bytes")

    def fail() -> None:
        # 24 of 60 MiB are in use and lie between all that is free. They cannot be moved.
        tensors = fill()
        other = torch.cuda.Stream()
        with torch.cuda.stream(other):
            for tensor in tensors:
                tensor.sum()
        other.synchronize()
        del tensors[1::2]
        torch.zeros(floats(12), device="cuda")

    fail()
    lowered = stat("limit_bytes")
    assert lowered == whole - whole // 32
    for _ in range(20):
        torch.cuda.empty_cache()
        fail()
    assert stat("limit_bytes") >= whole - whole // 4
    for _ in range(40 * 16):
        torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
    assert stat("limit_bytes") == whole
