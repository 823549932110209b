"""The allocator, the guard and the runtime in the patched c10 and c10_cuda, compiled.

The simulated device has 64 MiB. Each test ends with LMS off, no race and nothing left over.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from ctypes import c_int64, c_uint32, sizeof

import pytest
from device import MIB, Lms, OperatorError, Tensor

CAPACITY = 64 * MIB


@pytest.fixture(scope="module")
def kept(lms: Lms) -> int:
    """Bytes of host memory in which each device says what its release check has found."""
    lms.lms("set_size", MIB)
    lms.enable()
    for device in range(2):
        tensor = Tensor(lms, MIB, device=device).fill(1)
        lms.reclaim()
        del tensor
    lms.enable(False)
    lms.do("synchronize")
    lms.do("empty_cache")
    return 2 * 2 * sizeof(c_uint32)


@pytest.fixture(autouse=True)
def clean_slate(lms: Lms, kept: int) -> Iterator[None]:
    lms.lms("set_size", MIB)
    lms.lms("set_limit", 0)
    lms.enable()
    yield
    lms.cuda.simcuda_clear_faults()
    lms.lms("set_host_limit", 0)
    lms.lms("set_option", b"stress", 0)
    lms.lms("set_option", b"verify_clean", 0)
    gc.collect()  # an error's traceback holds the frame that holds the tensors
    lms.enable(False)
    lms.do("synchronize")
    lms.do("empty_cache")
    races = lms.races()
    lms.cuda.simcuda_clear_races()
    assert races == []
    assert lms.calls.allocated_bytes() == 0
    assert lms.calls.reserved_bytes() == 0
    assert lms.cuda.simcuda_host_bytes() == kept, "emptying the cache did not unpin host memory"


def made(lms: Lms, count: int, size: int = 8 * MIB) -> list[Tensor]:
    return [Tensor(lms, size).fill(seed) for seed in range(count)]


def use_at_once(lms: Lms, tensors: list[Tensor], name: bytes = b"aten::some_operator") -> None:
    with lms.operator(name):
        for tensor in tensors:
            tensor.address()


def test_off_means_off(lms: Lms) -> None:
    assert lms.calls.listening()
    lms.enable(False)
    assert not lms.calls.listening()
    tensor = Tensor(lms, 8 * MIB).fill(3)
    assert tensor.same(3)
    assert lms.runtime.lms_is_resident(tensor.storage) == -1  # not managed
    with pytest.raises(OperatorError, match=r"^CUDA out of memory"):
        made(lms, 9)


def test_twice_the_memory(lms: Lms) -> None:
    tensors = made(lms, 16)
    assert sum(not tensor.resident for tensor in tensors) >= 8
    for _ in range(2):
        assert all(tensor.same(seed) for seed, tensor in enumerate(tensors))
    stats = lms.stats()
    assert stats["lms.page_out_count"] > 16
    assert stats["lms.page_in_count"] >= 16
    assert stats["pinned.all.current"] == 0
    assert lms.calls.reserved_bytes() <= CAPACITY


def test_the_limit(lms: Lms) -> None:
    lms.lms("set_limit", 24 * MIB)
    tensors = made(lms, 6)
    assert sum(tensor.resident for tensor in tensors) <= 3
    assert lms.stats()["lms.resident_bytes.current"] <= 24 * MIB
    assert all(tensor.same(seed) for seed, tensor in enumerate(tensors))


def test_the_limit_is_of_what_is_reserved(lms: Lms) -> None:
    lms.lms("set_limit", 40 * MIB)
    tensors = []
    for seed in range(6):
        tensors.append(Tensor(lms, 10 * MIB).fill(seed))
        assert lms.calls.reserved_bytes() <= 40 * MIB
    for seed, tensor in enumerate(tensors):
        assert tensor.same(seed)
        assert lms.calls.reserved_bytes() <= 40 * MIB
    assert lms.stats()["lms.over_limit_count"] == 0


def test_the_limit_is_of_memory_that_is_no_storage(lms: Lms) -> None:
    lms.lms("set_limit", 40 * MIB)
    tensors = made(lms, 4)
    memory = lms.raw("raw_alloc", 20 * MIB)
    assert lms.calls.reserved_bytes() <= 40 * MIB
    for seed, tensor in enumerate(tensors):
        assert tensor.same(seed)
        assert lms.calls.reserved_bytes() <= 40 * MIB
    assert lms.stats()["lms.over_limit_count"] == 0
    lms.calls.raw_delete(memory)


def test_the_limit_is_of_small_storages(lms: Lms) -> None:
    lms.lms("set_limit", 40 * MIB)
    tensors = made(lms, 4)
    small = [Tensor(lms, MIB // 2).fill(seed) for seed in range(12)]
    # What is free lies in pieces here; then it is counted.
    over = lms.calls.reserved_bytes() - 40 * MIB
    assert over <= lms.stats()["lms.over_limit_bytes_peak"]
    for some in (tensors, small):
        assert all(tensor.same(seed) for seed, tensor in enumerate(some))


def test_the_limit_gives_way_to_what_runs(lms: Lms) -> None:
    lms.lms("set_limit", 20 * MIB)
    tensors = [Tensor(lms, 16 * MIB).fill(seed) for seed in range(2)]
    with lms.operator():
        addresses = [tensor.address() for tensor in tensors]
        assert all(addresses)
        assert lms.calls.reserved_bytes() >= 32 * MIB
    assert lms.stats()["lms.over_limit_count"] >= 1
    assert all(tensor.same(seed) for seed, tensor in enumerate(tensors))


def test_the_steps_of_the_first_lms(lms: Lms) -> None:
    """Those that its own test had: a limit makes room, and what is paged out comes back."""
    stats, calls = lms.stats, lms.calls
    lms.lms("set_limit", 40 * MIB)
    tensors = [Tensor(lms, 20 * MIB).fill(1)]
    before = stats()
    reserved = calls.reserved_bytes()
    tensors.append(Tensor(lms, 20 * MIB).fill(2))
    assert calls.reserved_bytes() == reserved
    assert stats()["reclaimed_bytes"] - before["reclaimed_bytes"] == 20 * MIB
    for source, times in (("cudamalloc", 0), ("reclaim_one", 1)):
        name = "alloc_distribution." + source
        assert stats()[name] - before[name] == times
    lms.lms("set_limit", 0)
    before = stats()
    assert lms.reclaim() == 20 * MIB
    assert calls.reserved_bytes() == reserved
    assert tensors[1].same(2)
    assert calls.reserved_bytes() == reserved
    after = stats()
    assert after["alloc_distribution.freelist"] == before["alloc_distribution.freelist"] + 1
    assert after["alloc_distribution.cudamalloc"] == before["alloc_distribution.cudamalloc"]
    assert after["pinned_bytes.all.current"] == before["pinned_bytes.all.current"] == 0


def test_small_storages_stay(lms: Lms) -> None:
    tensor = Tensor(lms, MIB - 4).fill(1)
    assert lms.reclaim() == 0
    assert tensor.same(1)


def test_a_paged_out_storage_has_no_address(lms: Lms) -> None:
    tensor = Tensor(lms, 8 * MIB).fill(1)
    assert tensor.plain_address() != 0
    assert lms.reclaim() == 8 * MIB
    assert tensor.plain_address() == 0
    assert not tensor.resident


@pytest.mark.parametrize("way", Tensor.WAYS)
def test_whoever_asks_for_an_address_gets_the_bytes(lms: Lms, way: str) -> None:
    tensor = Tensor(lms, 8 * MIB).fill(1)
    lms.reclaim()
    with lms.operator():
        address = tensor.address(way)
        assert address != 0
        assert lms.reclaim() == 0
        assert tensor.plain_address() == address
    assert tensor.same(1)


def test_an_operator_pins_what_it_has_the_address_of(lms: Lms) -> None:
    tensors = made(lms, 3)
    others = made(lms, 3)
    with lms.operator():
        addresses = [tensor.address() for tensor in tensors]
        assert lms.reclaim() == 3 * 8 * MIB  # the others
        assert lms.stats()["pinned.all.current"] == 3
        # What an inner operator used stays, too: the outer one may have its address.
        with lms.operator():
            inner = others[0].address()
        made(lms, 2)
        assert [tensor.plain_address() for tensor in tensors] == addresses
        assert others[0].plain_address() == inner
        assert all(tensor.same(seed) for seed, tensor in enumerate(tensors))
    assert lms.stats()["pinned.all.current"] == 0
    assert lms.reclaim() >= 3 * 8 * MIB


def test_what_an_operator_makes_stays_while_it_runs(lms: Lms) -> None:
    with lms.operator():
        output = Tensor(lms, 8 * MIB)
        address = output.address()
        assert lms.reclaim() == 0
        assert output.plain_address() == address
    assert lms.reclaim() == 8 * MIB  # and can go when it has ended, although nobody read it


def test_a_composite_operator_gives_free_what_its_parts_used(lms: Lms) -> None:
    tensors = made(lms, 10)
    with lms.operator(b"aten::lstm"):
        assert all(tensor.same(seed) for seed, tensor in enumerate(tensors))
    with pytest.raises(OperatorError, match="out of memory"):
        use_at_once(lms, tensors)


def test_out_of_memory_says_why_and_the_program_goes_on(lms: Lms) -> None:
    tensors = made(lms, 8)
    with pytest.raises(OperatorError) as raised:
        use_at_once(lms, tensors, b"aten::cat")
    message = str(raised.value)
    assert message.startswith("CUDA out of memory")
    assert "LMS" in message
    assert "aten::cat asked for" in message
    assert all(tensor.same(seed) for seed, tensor in enumerate(tensors))
    assert lms.stats()["alloc_distribution.reclaim_one"] > 0


def test_more_than_the_device_has(lms: Lms) -> None:
    kept = Tensor(lms, 8 * MIB).fill(5)
    with pytest.raises(OperatorError, match=r"^CUDA out of memory.*\(LMS\) could not make room"):
        Tensor(lms, 2 * CAPACITY)
    assert kept.same(5)


def test_an_address_outside_of_operators_stays_until_released(lms: Lms) -> None:
    tensor = Tensor(lms, 8 * MIB).fill(7)
    lms.reclaim()
    address = tensor.address()
    assert address != 0
    assert lms.reclaim() == 0
    assert tensor.address() == address
    assert lms.stats()["lms.held_bytes.current"] == 8 * MIB
    lms.lms("release_address", tensor.storage)
    assert lms.reclaim() == 8 * MIB
    assert tensor.same(7)


def test_two_addresses_of_foreign_code_are_valid_at_once(lms: Lms) -> None:
    lms.lms("set_limit", 8 * MIB)  # room for one of them
    one, two = made(lms, 2)
    addresses = one.address(), two.address()
    assert 0 not in addresses
    assert (one.plain_address(), two.plain_address()) == addresses
    for tensor in (one, two):
        lms.lms("release_address", tensor.storage)


def test_reads_keep_the_host_copy_and_writes_do_not(lms: Lms) -> None:
    lms.lms("set_option", b"verify_clean", 1)
    tensor = Tensor(lms, 8 * MIB).fill(1)
    lms.reclaim()
    assert tensor.same(1)
    before = lms.stats()
    lms.reclaim()
    after = lms.stats()
    assert after["lms.clean_count"] == before["lms.clean_count"] + 1
    assert after["lms.page_out_bytes"] == before["lms.page_out_bytes"]
    tensor.fill(2)
    lms.reclaim()
    assert tensor.same(2)
    lms.reclaim()
    tensor.train_batch_norm(3)
    lms.reclaim()
    assert tensor.same(3)
    assert lms.stats()["lms.clean_violations"] == 0


def test_a_read_and_then_a_write_in_one_operator(lms: Lms) -> None:
    tensor = Tensor(lms, 8 * MIB).fill(1)
    lms.reclaim()
    assert tensor.same(1)
    with lms.operator():
        tensor.address()
        tensor.fill(2)
    lms.reclaim()
    assert tensor.same(2)


def test_turning_it_off_brings_everything_back(lms: Lms) -> None:
    tensors = made(lms, 6)
    lms.reclaim()
    assert not any(tensor.resident for tensor in tensors)
    lms.enable(False)
    assert all(tensor.resident and tensor.plain_address() for tensor in tensors)
    assert all(tensor.same(seed) for seed, tensor in enumerate(tensors))


def test_turning_it_off_when_not_all_fits(lms: Lms) -> None:
    tensors = made(lms, 12)
    with pytest.raises(OperatorError, match="out of memory"):
        lms.enable(False)
    assert lms.runtime.lms_get_enabled()
    assert all(tensor.same(seed) for seed, tensor in enumerate(tensors))
    del tensors[4:]
    lms.enable(False)
    assert all(tensor.same(seed) for seed, tensor in enumerate(tensors))


def test_storages_older_than_lms(lms: Lms) -> None:
    lms.enable(False)
    tensors = made(lms, 5)
    lms.enable()
    assert all(tensor.same(seed) for seed, tensor in enumerate(tensors))
    more = made(lms, 5)
    assert all(tensor.same(seed) for seed, tensor in enumerate(tensors))
    assert all(tensor.same(seed) for seed, tensor in enumerate(more))


def test_an_operator_that_is_older_than_lms(lms: Lms) -> None:
    lms.enable(False)
    tensor = Tensor(lms, 8 * MIB).fill(1)
    with lms.operator():
        tensor.address()
        lms.enable()
    with lms.operator():
        tensor.address()
        lms.enable(False)
    assert lms.stats()["pinned.all.current"] == 0


def test_a_storage_that_dies(lms: Lms) -> None:
    tensors = made(lms, 4)
    lms.reclaim()
    assert lms.stats()["lms.paged_out_bytes.current"] == 4 * 8 * MIB
    del tensors
    stats = lms.stats()
    assert stats["lms.paged_out_bytes.current"] == 0
    assert stats["lms.host_used_bytes.current"] == 0


def test_dies_while_pinned(lms: Lms) -> None:
    tensor = Tensor(lms, 8 * MIB).fill(1)
    with lms.operator():
        tensor.address()
        del tensor
    assert lms.stats()["pinned.all.current"] == 0
    assert lms.calls.allocated_bytes() == 0


def test_resize(lms: Lms) -> None:
    tensor = Tensor(lms, 8 * MIB).fill(1)
    lms.reclaim()
    tensor.resize(16 * MIB)
    tensor.resize(8 * MIB)
    lms.reclaim()
    assert tensor.same(1)


def test_memory_that_is_no_storage(lms: Lms) -> None:
    tensors = made(lms, 6)
    for name in ("raw_alloc", "raw_allocate"):
        memory = lms.raw(name, 32 * MIB)  # room is made for it
        lms.calls.raw_delete(memory)
    assert all(tensor.same(seed) for seed, tensor in enumerate(tensors))


@pytest.fixture
def with_stream(lms: Lms) -> str:
    """What `torch.cuda.caching_allocator_alloc` calls."""
    name = "raw_alloc_with_stream"
    if not hasattr(lms.calls, name):
        pytest.skip("this release's raw_alloc() takes no stream")
    return name


@pytest.mark.parametrize("stream", ["default_stream", "pool_stream"])
def test_memory_of_a_stream_that_is_no_storage(lms: Lms, with_stream: str, stream: str) -> None:
    tensors = made(lms, 7)
    memory = lms.raw(with_stream, 24 * MIB, getattr(lms.calls, stream)())
    assert lms.stats()["lms.page_out_count"] > 0
    lms.calls.raw_delete(memory)
    assert all(tensor.same(seed) for seed, tensor in enumerate(tensors))


@pytest.mark.parametrize("on", [True, False])
def test_memory_of_a_stream_is_that_streams(lms: Lms, with_stream: str, on: bool) -> None:
    lms.enable(on)
    other = lms.calls.pool_stream()
    memory = lms.raw(with_stream, 8 * MIB, other)
    lms.calls.raw_delete(memory)
    current = lms.raw("raw_alloc", 8 * MIB)
    with lms.stream(other):
        again = lms.raw("raw_alloc", 8 * MIB)
    lms.calls.raw_delete(current)
    lms.calls.raw_delete(again)
    assert current != memory
    assert again == memory


@pytest.mark.parametrize("on", [True, False])
def test_memory_of_a_stream_that_there_is_not(lms: Lms, with_stream: str, on: bool) -> None:
    lms.enable(on)
    message = r"^CUDA out of memory" + (r".*\(LMS\) could not make room" if on else "")
    with pytest.raises(OperatorError, match=message):
        lms.raw(with_stream, 2 * CAPACITY, lms.calls.default_stream())
    with pytest.raises(AssertionError):
        lms.raw(with_stream, 0, lms.calls.default_stream())  # null


def test_two_streams(lms: Lms) -> None:
    other = lms.calls.pool_stream()
    tensors = made(lms, 10)
    lms.do("synchronize")
    with lms.stream(other):
        assert all(tensor.same(seed) for seed, tensor in enumerate(tensors))
        for seed, tensor in enumerate(tensors):
            with lms.operator():  # as torch.cuda.lms has it
                tensor.record_stream(other)
            tensor.fill(seed + 100)
    lms.do("synchronize")
    assert all(tensor.same(seed + 100) for seed, tensor in enumerate(tensors))


def test_what_a_recorded_stream_does_comes_before_a_page_out(lms: Lms) -> None:
    other = lms.calls.pool_stream()
    tensor = Tensor(lms, 8 * MIB).fill(1)
    lms.do("synchronize")
    with lms.operator():
        tensor.record_stream(other)
    with lms.stream(other):
        tensor.fill_unseen(2)
    assert lms.reclaim() == 8 * MIB
    assert tensor.same(2)
    assert lms.races() == []


def test_making_room_does_not_unpin_host_memory(lms: Lms) -> None:
    """Only the program's own empty_cache() does, and not LMS's."""
    tensors = made(lms, 4)
    lms.reclaim()
    del tensors
    pinned = lms.cuda.simcuda_host_bytes()
    assert pinned > 0
    with pytest.raises(OperatorError, match="could not make room"):
        Tensor(lms, 2 * CAPACITY)
    assert lms.cuda.simcuda_host_bytes() >= pinned


def test_fragments(lms: Lms) -> None:
    """What lies side by side is paged out, and not as many bytes from anywhere."""
    tensors = made(lms, 28, 2 * MIB)  # in segments of 20 MiB
    oldest = [*tensors[::2], *tensors[1::2]]
    for tensor in oldest:
        assert not tensor.same(99)
    before = lms.stats()["lms.page_out_bytes"]
    large = Tensor(lms, 16 * MIB).fill(99)
    # The limit takes 7 blocks, every other one; 4 between them make 8 in a row.
    assert lms.stats()["lms.page_out_bytes"] - before <= 22 * MIB
    assert lms.stats()["alloc_distribution.reclaim_fragments"] > 0
    assert large.same(99)
    assert all(tensor.same(seed) for seed, tensor in enumerate(tensors))


def test_threads(lms: Lms) -> None:
    failures: list[str] = []

    def work(first: int) -> None:
        try:
            tensors = [Tensor(lms, 6 * MIB).fill(first + i) for i in range(8)]
            for _ in range(4):
                for i, tensor in enumerate(tensors):
                    if not tensor.same(first + i):
                        failures.append(f"{first + i} has other bytes")
        except Exception as error:
            failures.append(str(error))

    threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("api", ["cudaMemcpyAsync", "cudaEventRecord", "cudaStreamWaitEvent"])
@pytest.mark.parametrize("nth", range(1, 7))
def test_a_cuda_call_that_fails(lms: Lms, api: str, nth: int) -> None:
    lms.lms("set_limit", 24 * MIB)
    tensors = made(lms, 6)
    lms.fault(api, nth)
    for seed, tensor in enumerate(tensors):
        try:
            assert tensor.same(seed)
        except OperatorError:
            assert tensor.same(seed)
    assert lms.stats()["pinned.all.current"] == 0


def test_without_host_memory(lms: Lms) -> None:
    lms.lms("set_host_limit", 1)
    tensors = made(lms, 5)
    with pytest.raises(OperatorError, match="set_host_limit_lms"):
        made(lms, 9)
    assert all(tensor.same(seed) for seed, tensor in enumerate(tensors))


def test_everything_moves_at_each_allocation(lms: Lms) -> None:
    lms.lms("set_option", b"stress", 1)
    tensors = made(lms, 4)
    for seed, tensor in enumerate(tensors):
        Tensor(lms, 2 * MIB)
        assert not tensor.resident
        assert tensor.same(seed)


def test_where_memory_comes_from(lms: Lms) -> None:
    def sources() -> list[int]:
        stats = lms.stats()
        return [stats[f"alloc_distribution.{name}"] for name in ("cudamalloc", "freelist")]

    before = sources()
    assert Tensor(lms, 32 * MIB).resident
    assert Tensor(lms, 32 * MIB).resident  # where the first was
    assert [now - then for now, then in zip(sources(), before, strict=True)] == [1, 1]
    lms.enable(False)
    before = sources()
    assert Tensor(lms, 32 * MIB).resident
    assert sources() == before, "requests while LMS is off were counted"


def test_the_names_of_the_statistics(lms: Lms) -> None:
    names = set(lms.stats())
    for pool in ("all", "small_pool", "large_pool"):
        for key in ("current", "peak", "allocated", "freed"):
            assert {f"pinned.{pool}.{key}", f"pinned_bytes.{pool}.{key}"} <= names
    assert {"reclaimed", "reclaimed_bytes", "alloc_distribution.cudamalloc_retry"} <= names


@pytest.fixture
def active(lms: Lms) -> Callable[[], tuple[int, int]]:
    """Bytes that cannot be paged out, and the most of them: from the statistics before 1.4."""
    if not hasattr(lms.runtime, "lms_active"):
        pytest.skip("this release's LMS has memory_stats() instead")

    def values() -> tuple[int, int]:
        numbers = (c_int64 * 2)()
        lms.lms("active", 0, numbers)
        return numbers[0], numbers[1]

    return values


def test_active_is_what_operators_use(lms: Lms, active: Callable[[], tuple[int, int]]) -> None:
    lms.lms("reset_active", 0)
    assert active() == (0, 0)
    tensors = made(lms, 3)
    assert lms.calls.allocated_bytes() == 24 * MIB
    assert active() == (0, 8 * MIB)  # one after the other
    assert lms.reclaim() == 24 * MIB
    assert active() == (0, 8 * MIB)
    use_at_once(lms, tensors[:2])
    assert active() == (0, 16 * MIB)
    lms.lms("reset_active", 0)
    with lms.operator():
        tensors[0].address()
        assert active() == (8 * MIB, 8 * MIB)
        small = Tensor(lms, 1000)
        assert active() == (8 * MIB + 1024, 8 * MIB + 1024)
        workspace = lms.raw("raw_alloc", 2 * MIB)
        lms.calls.raw_delete(workspace)
    del small
    assert active() == (0, 10 * MIB + 1024)


def test_all_is_active_while_lms_is_off(lms: Lms, active: Callable[[], tuple[int, int]]) -> None:
    tensors = made(lms, 3)
    lms.enable(False)
    lms.lms("reset_active", 0)
    assert active() == (24 * MIB, 24 * MIB)
    tensors.append(Tensor(lms, 8 * MIB))
    tensors.pop()
    assert active() == (24 * MIB, 32 * MIB)
    lms.enable()
    assert all(tensor.same(seed) for seed, tensor in enumerate(tensors))
    lms.lms("reset_active", 0)
    assert active() == (0, 0)


def test_what_is_small_is_active(lms: Lms, active: Callable[[], tuple[int, int]]) -> None:
    """The two steps of the first LMS's test that 1.4 has no more."""
    before, _ = active()
    small = Tensor(lms, 1024).fill(1)
    assert active()[0] == before + 1024
    lms.lms("set_size", 0)
    before, _ = active()
    tensors = [Tensor(lms, size).fill(1) for size in (512, 1024, 8 * MIB)]
    assert active()[0] == before
    assert all(tensor.same(1) for tensor in (small, *tensors))


@pytest.mark.usefixtures("active")
def test_each_statistic_of_the_first_lms_starts_again_by_itself(lms: Lms) -> None:
    def values() -> list[bool]:
        stats = lms.stats()
        sources = ("freelist", "cudamalloc", "reclaim_one")
        served = sum(stats[f"alloc_distribution.{source}"] for source in sources)
        return [stats["reclaimed_bytes"] > 0, served > 0, stats["reclaimed"] > 0]

    tensors = made(lms, 9)
    lms.reclaim()
    assert values() == [True, True, True]
    lms.lms("reset_reclaimed", 0)
    assert values() == [False, True, True]
    lms.lms("reset_alloc_distribution", 0)
    assert values() == [False, False, True]
    assert all(tensor.same(seed) for seed, tensor in enumerate(tensors))


def test_two_devices(lms: Lms) -> None:
    tensors = [Tensor(lms, 8 * MIB, device=i % 2).fill(i) for i in range(24)]
    assert all(tensor.same(i) for i, tensor in enumerate(tensors))
    assert all(lms.stats(device)["lms.page_out_count"] > 0 for device in (0, 1))
