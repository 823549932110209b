"""Tensors are compressed on their way to the host."""

import random
import re
import time
import warnings
from collections.abc import Callable

import pytest
import torch
from conftest import ON_HARDWARE, SMALL, start_within
from hardware import simulated
from layers import Layers
from past import write_unseen
from releases import since
from simcuda.process import run_sim
from tensors import evict, is_resident, managed, pattern, stat

MIB = 1 << 20
NOT_READY = 600  # cudaErrorNotReady


@pytest.fixture(autouse=True)
def compressed():
    torch.cuda.lms.set_compression("on")
    yield
    torch.cuda.lms.set_compression("off")


def ratio():
    return stat("compressed_written_bytes") / stat("compressed_bytes")


def data(dtype):
    """Two MiB on the host, as a network has them."""
    torch.manual_seed(0)
    count = 2 * MIB // torch.empty(0, dtype=dtype).element_size()
    return (torch.randn(count) if dtype.is_floating_point else torch.randint(2, (count,))).to(dtype)


def away_and_back(values):
    x = managed(values.cuda())
    evict()
    assert not is_resident(x)
    back = x.cpu()
    evict()  # the host copy is true, and its size is learned
    del x
    return back


# What is left of it, at most.
LEFT = {
    torch.bfloat16: 0.75,
    torch.float16: 0.92,
    torch.float32: 0.88,
    torch.int64: 0.04,
    torch.int32: 0.06,
    torch.uint8: 0.15,
    torch.bool: 0.15,
}


@pytest.mark.parametrize("dtype", LEFT, ids=str)
def test_every_bit_comes_back(dtype):
    values = data(dtype)
    assert torch.equal(away_and_back(values).view(torch.uint8), values.view(torch.uint8))
    assert stat("compressed_count") == 1
    assert stat("compressed_bytes") == 2 * MIB
    assert 0 < ratio() <= LEFT[dtype]


def test_what_has_no_kind_is_copied():
    values = data(torch.float64)
    assert torch.equal(away_and_back(values), values)
    assert stat("compressed_count") == 0


def test_bits_that_no_float_has():
    values = torch.randint(-(1 << 15), 1 << 15, (MIB,), dtype=torch.int16).view(torch.bfloat16)
    assert torch.equal(away_and_back(values).view(torch.int16), values.view(torch.int16))
    assert 0.9 < ratio() <= 1.01


@pytest.mark.parametrize("size", [SMALL, SMALL + 2, 3 * SMALL - 6, MIB + 2])
def test_sizes(size):
    values = torch.randn(size // 2).bfloat16()
    assert torch.equal(away_and_back(values), values)


def relu(mib, seed):
    """Half of it is zeros, so that less than half of it is left."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(int(mib * MIB) // 2, generator=generator).relu().bfloat16()


def noise(mib, seed):
    """Any bits, which do not shrink."""
    generator = torch.Generator().manual_seed(seed)
    count = int(mib * MIB) // 2
    values = torch.randint(-(1 << 15), 1 << 15, (count,), generator=generator, dtype=torch.int16)
    return values.view(torch.bfloat16)


def bits(tensor):
    return tensor.cpu().view(torch.int16)


def test_a_block_that_is_still_packed():
    """It does not come back in pieces, because nobody knows yet where they end."""
    away_and_back(data(torch.bfloat16))
    values = [data(torch.bfloat16) + k for k in range(4)]
    tensors = [managed(value.cuda()) for value in values]
    for _ in range(3):
        evict()
        for x, value in zip(tensors, values, strict=True):
            assert torch.equal(x.cpu(), value)
            x.add_(0)  # so that it is packed anew


def settled():
    """Host memory after the copies have ended, and after that has been seen."""
    torch.cuda.synchronize()
    torch.cuda.lms.trim_host()
    return torch.cuda.lms.stats()


def test_host_memory_shrinks():
    values = [relu(2, k) for k in range(12)]
    tensors = [managed(value.cuda()) for value in values]
    evict()
    stats = settled()
    assert stats["paged_out_bytes"] == stats["host_compressed_tensor_bytes"] == 24 * MIB
    assert stats["host_compressed_bytes"] == stats["host_used_bytes"] <= 0.52 * 24 * MIB
    assert all(torch.equal(x.cpu(), value) for x, value in zip(tensors, values, strict=True))
    del tensors
    stats = settled()
    assert stats["host_compressed_bytes"] == stats["host_compressed_tensor_bytes"] == 0
    assert stats["host_used_bytes"] == 0
    assert stats["host_compressed_bytes_peak"] >= 0.4 * 24 * MIB
    assert stats["host_compressed_tensor_bytes_peak"] == 24 * MIB


@simulated  # LMS pins these few MiB rather than wait for kernels, and here they have ended
def test_less_is_pinned():
    """Also in the first round, in which nothing is known of the tensors."""
    torch.cuda.lms.trim_host()
    torch.cuda.lms.reset_peak_stats()
    for _ in range(3):
        tensors = [managed(relu(2, k).cuda()) for k in range(24)]
        evict()
        assert all(torch.equal(x.cpu(), relu(2, k)) for k, x in enumerate(tensors))
        del tensors
    assert stat("host_bytes_peak") <= 0.75 * 48 * MIB


def test_more_fits_into_the_host_limit():
    torch.cuda.lms.trim_host()
    torch.cuda.set_host_limit_lms(16 * MIB)
    try:
        tensors = [managed(relu(2, k).cuda()) for k in range(12)]
        evict()
        assert stat("paged_out_bytes") == 24 * MIB
        assert stat("host_bytes") <= 16 * MIB
        assert all(torch.equal(x.cpu(), relu(2, k)) for k, x in enumerate(tensors))
    finally:
        torch.cuda.set_host_limit_lms(0)


@simulated
def test_what_work_in_flight_gives_back_is_waited_for(device):
    torch.cuda.lms.trim_host()
    torch.cuda.set_host_limit_lms(8 * MIB)  # one slab
    tensors = [managed(relu(2, k).cuda()) for k in range(7)]
    device.fault("cudaEventQuery", 1, NOT_READY, from_=True)
    try:
        evict()
        assert not any(is_resident(x) for x in tensors)
    finally:
        device.clear_faults()
        torch.cuda.set_host_limit_lms(0)
    assert all(torch.equal(x.cpu(), relu(2, k)) for k, x in enumerate(tensors))


@simulated
def test_a_buffer_is_not_cut_off_while_more_of_it_is_read(device):
    """A tensor has shrunk to less than before, and comes back before the host knows that."""
    torch.cuda.lms.trim_host()
    x = managed(relu(2, 0).cuda())
    for _ in range(2):
        evict()
        x.add_(0)
    x.zero_()
    evict()
    others = [managed(pattern(0.5, start=k)) for k in range(4)]
    device.fault("cudaEventQuery", 1, NOT_READY, from_=True)
    try:
        with torch.cuda.stream(torch.cuda.Stream()):
            x.sum()
    finally:
        device.clear_faults()
    evict()  # the checker of races knows whether they share memory with what is read
    assert not x.any()
    assert all(torch.equal(y, pattern(0.5, start=k)) for k, y in enumerate(others))


def test_what_does_not_shrink_any_more():
    """The buffer that is expected to be enough is too small. Then it is too large."""
    x = managed(torch.zeros(MIB, dtype=torch.bfloat16, device="cuda"))
    for seed, value in enumerate((relu, noise, noise, torch.zeros_like, relu, noise)):
        expected = x.cpu() * 0 if value is torch.zeros_like else value(2, seed)
        x.copy_(expected)
        evict()
        stats = settled()
        assert not is_resident(x)
        assert stats["host_compressed_tensor_bytes"] == 2 * MIB
        assert (stats["host_compressed_bytes"] > 2 * MIB) == (value is noise)
        assert torch.equal(bits(x), expected.view(torch.int16))
        x.sum()
        evict()  # the copy on the host is true


def test_an_unseen_write_that_needs_more_than_the_copy_had():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = managed(torch.zeros(MIB, dtype=torch.bfloat16, device="cuda"))
        source = managed(noise(2, 1).cuda())
        torch.cuda.lms.exclude(source)
        evict()
        others = [managed(relu(2, k).cuda()) for k in range(4)]
        evict()
        before = settled()["host_compressed_bytes"]
        y.sum()
        write_unseen(y, source)
        evict()
        assert not is_resident(y)
        assert settled()["host_compressed_bytes"] > before + 1.9 * MIB
        assert torch.equal(bits(y), noise(2, 1).view(torch.int16))
        assert stat("release_caught") == 1
        assert all(torch.equal(x.cpu(), relu(2, k)) for k, x in enumerate(others))


def test_a_true_copy_that_host_memory_is_too_small_to_pack_again():
    torch.cuda.lms.trim_host()
    torch.cuda.set_host_limit_lms(8 * MIB)
    try:
        tensors = [managed(relu(2, k).cuda()) for k in range(6)]
        evict()
        away = [x for x in tensors if not is_resident(x)]
        assert len(away) >= 5
        for _ in range(2):
            assert all(torch.equal(x.cpu(), relu(2, k)) for k, x in enumerate(tensors))
            evict()
            assert stat("host_bytes") <= 8 * MIB
    finally:
        torch.cuda.set_host_limit_lms(0)


def test_host_memory_is_not_fragmented():
    """Tensors of many sizes that shrink by much, by little and not at all come and go."""
    torch.cuda.lms.trim_host()
    torch.cuda.lms.reset_peak_stats()
    order = random.Random(1)
    alive: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for step in range(60):
        value = order.choice((relu, relu, noise))(order.choice((0.5, 1, 1.5, 3, 4.5)), step)
        alive[step] = value, managed(value.cuda())
        while sum(len(value) * 2 for value, _ in alive.values()) > 60 * MIB:
            del alive[order.choice(list(alive))]
        if step % 4 == 0:
            evict()
    evict()
    stats = settled()
    assert stats["paged_out_bytes"] > 40 * MIB
    assert stats["host_bytes_peak"] <= stats["host_used_bytes_peak"] + 24 * MIB
    assert stats["host_used_bytes"] < 0.8 * stats["paged_out_bytes"]
    for value, tensor in alive.values():
        assert torch.equal(bits(tensor), value.view(torch.int16))


def in_flight(_):
    """Pages out and in while the device is behind. Returns how often bits have changed."""
    import torch

    torch.cuda.set_size_lms(1 << 12)
    torch.cuda.lms.set_compression("on")
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    words = [
        torch.randint(-(1 << 15), 1 << (15 - k), (1 << 17,), dtype=torch.int16) for k in range(16)
    ]
    values = [word.view(torch.bfloat16) for word in words]
    values = [value.relu() if k % 2 else value for k, value in enumerate(values)]
    tensors = [value.cuda() for value in values]
    wrong = 0
    for turn in range(4):
        for x in tensors:
            x.sum()
        torch.cuda.reclaim_inactive()
        for k in range(turn, 16, 3):
            tensors[k].copy_(values[-k])
            values[k] = values[-k].clone()
            torch.cuda.reclaim_inactive()
    for x, value in zip(tensors, values, strict=True):
        wrong += not torch.equal(x.cpu().view(torch.int16), value.view(torch.int16))
    stats = torch.cuda.lms.stats()
    return [wrong, stats["compressed_count"] > 20, stats["host_compressed_bytes_peak"] > 0]


@simulated
def test_while_the_device_is_behind():
    assert run_sim(in_flight, mib=64, async_=1, delay_us=300) == [0, True, True]


def behind_an_operator(device):
    """How long it takes until a tensor is back whose memory an operator of 50 ms uses, in seconds.

    The link takes as long for what is left of it.
    """
    import torch

    torch.cuda.set_size_lms(1 << 12)
    torch.cuda.lms.set_compression("on")
    torch.cuda.set_enabled_lms(True)
    x = torch.arange(3 << 17, dtype=torch.int32, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    found = []
    for _ in range(5):
        x += 1
        torch.cuda.reclaim_inactive()
        torch.cuda.synchronize()
        began = device.host_time()
        other = torch.full_like(x, 7)
        device.takes(stream, 0, 50e-3, 0.0)
        other += 1
        del other
        x.sum()
        torch.cuda.synchronize()
        found.append(device.host_time() - began)
    return found


@simulated
def test_packed_bytes_do_not_wait_for_memory():
    _, *others = run_sim(behind_an_operator, mib=4096, timing=1, to_host=10, to_device=10)
    assert others == pytest.approx([50e-3] * 4, rel=0.05)


def ahead(device):
    """The kernels with which a tensor comes back, and whether it has the same bits."""
    import torch

    torch.cuda.set_size_lms(1 << 12)
    torch.cuda.lms.set_compression("on")
    torch.cuda.set_enabled_lms(True)
    x = torch.arange(1 << 16, dtype=torch.int32, device="cuda")
    for _ in range(3):  # after the first times, it is known how far it shrinks
        x += 1
        torch.cuda.reclaim_inactive()
        device.reset_counts()
        other = torch.full_like(x, 7)  # nothing of what was there is left
        del other
        x.sum()
    kernels = sorted(name for name in device.thread_blocks() if "unpack" in name)
    return [kernels, torch.equal(x.cpu(), torch.arange(3, (1 << 16) + 3, dtype=torch.int32))]


@simulated
@pytest.mark.parametrize("seen", [True, False])
def test_the_host_is_ahead(seen):
    """If it does not see that what has packed a tensor is done, it may only have been issued.

    It comes back by way of device memory all the same; lms_unpack looks for what had no room.
    """
    kernels = ["lms_unpack_window"] if seen else ["lms_unpack", "lms_unpack_window"]
    assert run_sim(ahead, mib=64, query_notready=0 if seen else 99) == [kernels, True]


def test_a_write_that_no_operator_shows():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = managed(torch.zeros_like(pattern(1)))
        source = managed(pattern(1, start=7))
        torch.cuda.lms.exclude(source)
        evict()
        torch.cuda.synchronize()  # what it has shrunk to is known
        y.sum()
        write_unseen(y, source)
        evict()
        assert not is_resident(y)
        assert torch.equal(y.cpu(), pattern(1, start=7, device="cpu"))
        assert stat("release_caught") == 1
        assert stat("compressed_count") > 0


def test_verify_reads_compressed_copies():
    torch.cuda.lms._set_verify(True)
    try:
        x = managed(data(torch.bfloat16).cuda())
        evict()
        x.sum()
        evict()
        assert not is_resident(x)
        assert stat("compressed_count") == 1
        assert stat("violations") == stat("clean_violations") == 0
    finally:
        torch.cuda.lms._set_verify(False)


def test_explain():
    away_and_back(data(torch.bfloat16))
    assert "2.00 MiB were compressed to 1." in torch.cuda.lms.explain()
    assert "host memory." not in torch.cuda.lms.explain()
    summary = torch.cuda.memory_summary
    x = managed(data(torch.bfloat16).cuda())
    evict()
    settled()
    assert "Compressed tensors of 2.00 MiB take 1." in torch.cuda.lms.explain()
    assert re.search(r"Compressed *: *2048 KiB \| in host memory *: *1[56]\d\d KiB", summary())
    del x
    torch.cuda.lms.set_compression("off")
    torch.cuda.lms.reset_accumulated_stats()
    assert "compressed" not in torch.cuda.lms.explain()


def test_settings():
    with pytest.raises(ValueError, match="'auto', 'on' or 'off', not 'yes'"):
        torch.cuda.lms.set_compression("yes")
    assert torch.cuda.lms.get_compression() == "on"
    torch.cuda.lms.set_compression("off")
    assert torch.cuda.lms.get_compression() == "off"
    away_and_back(data(torch.bfloat16))
    assert stat("compressed_count") == 0


def test_turned_off_while_blocks_are_away():
    values = data(torch.bfloat16)
    x = managed(values.cuda())
    evict()
    torch.cuda.lms.set_compression("off")
    assert torch.equal(x.cpu(), values)
    evict()
    assert torch.equal(x.cpu(), values)


def with_memory_for_pieces(device, memory):
    """Packs a tensor three times. Returns the kernels that ran, and whether each bit came back."""
    import torch

    torch.cuda.set_size_lms(1 << 12)
    torch.cuda.lms.set_compression("on")
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    value = torch.randn(1 << 18, generator=torch.Generator().manual_seed(1)).bfloat16()
    same = True
    for _ in range(3):
        x = value.cuda()
        x.sum()
        if not memory:
            device.fault("cudaMemGetInfo", 1, from_=True)
        torch.cuda.reclaim_inactive()
        device.clear_faults()
        torch.cuda.synchronize()
        same = same and torch.equal(x.cpu().view(torch.int16), value.view(torch.int16))
    return sorted(name for name in device.thread_blocks() if "pack" in name), same


@simulated
def test_without_memory_for_pieces():
    """Kernels use host memory themselves then, as they do while nothing is known of a tensor."""
    kernels = ["lms_pack", "lms_unpack"]
    assert run_sim(with_memory_for_pieces, False, mib=64) == [kernels, True]
    kernels = ["lms_pack", "lms_pack_piece", "lms_unpack", "lms_unpack_window"]
    assert run_sim(with_memory_for_pieces, True, mib=64) == [kernels, True]


def gone(_):
    """Bytes that were compressed and paged out, as the statistics have it."""
    import torch

    torch.cuda.set_size_lms(1 << 12)
    torch.cuda.lms.set_compression("on")
    torch.cuda.set_enabled_lms(True)
    for turn in range(3):
        tensors = [torch.zeros(1 << 16, device="cuda") for _ in range(4)]
        torch.cuda.reclaim_inactive()
        if turn == 0:  # kernels are made
            torch.cuda.synchronize()
            torch.cuda.lms.reset_accumulated_stats()
            continue
        for x in tensors:
            x += 1  # the tensors come back, and are freed before the device has compressed them
        del tensors, x
    torch.cuda.synchronize()
    _last = torch.zeros(1 << 16, device="cuda")
    torch.cuda.reclaim_inactive()
    stats = torch.cuda.lms.stats()
    return [stats["compressed_count"], stats["page_out_count"]]


@simulated
def test_what_is_gone_is_counted():
    compressed, paged_out = run_sim(gone, mib=64, async_=1, delay_us=5000)
    assert paged_out == 9
    assert compressed >= 8


def with_another_bit(_):
    """What a program is told that uses a tensor whose compressed bytes have changed on the host."""
    import torch

    torch.cuda.set_size_lms(1 << 12)
    torch.cuda.lms.set_compression("on")
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    x = torch.randint(-(1 << 15), 1 << 15, (1 << 14,), dtype=torch.int16).cuda()
    x.sum()
    noise = x.cpu().view(torch.uint8)[8192:8256].tolist()  # it is stored as it is
    torch.cuda.reclaim_inactive()
    assert not torch.cuda.lms.is_resident(x)
    found = 0
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "r+b", buffering=0) as memory:
        for line in maps.readlines():
            span, rights, *_ = line.split()
            begin, end = (int(address, 16) for address in span.split("-"))
            if rights[:2] != "rw" or end - begin > 1 << 28:
                continue
            memory.seek(begin)
            try:
                content = memory.read(end - begin)
            except OSError:  # a sanitizer's memory cannot be read
                continue
            at = content.find(bytes(noise))
            while at >= 0:
                memory.seek(begin + at)
                memory.write(bytes([noise[0] ^ 1]))
                found += 1
                at = content.find(bytes(noise), at + 1)
    assert found > 0
    told = []
    for use in (
        lambda: x.cpu(),
        torch.cuda.synchronize,
        lambda: torch.empty(1 << 20, device="cuda"),
    ):
        try:
            use()
            told.append("nothing")
        except RuntimeError as error:
            told.append(str(error).splitlines()[0])
    return told


@simulated
def test_other_bits_stop_the_device():
    told = run_sim(with_another_bit, mib=64)
    assert any("came back from host memory with other bits" in error for error in told)
    assert not any("out of memory" in error for error in told), "a training loop would go on"
    assert "nothing" not in told


COUNTS = ("compressed_count", "compressed_bytes", "compressed_written_bytes", "page_out_count")
COUNTS += ("page_out_bytes", "planned_iterations")


def planned(
    iterations: int,
    *,
    lms: bool = True,
    mib: float = 1,
    limit: int = 32,
    fastest: int = 3,
    beside: Callable[[], object] = lambda: None,
) -> tuple[list[float], list[dict[str, int]]]:
    """Trains twelve layers, in MiB each, which need 50 of them.

    Returns the losses, and what LMS did in each iteration.
    """
    torch.cuda.set_enabled_lms(lms)
    torch.cuda.set_limit_lms(limit * MIB)
    torch.cuda.lms._keep_plans(True, fastest)
    weights = [(pattern(mib, start=k) * 1e-4).requires_grad_() for k in range(12)]
    optimizer = torch.optim.SGD(weights, lr=1e-3, momentum=0.9, foreach=False)
    losses, counts = [], []
    for k in range(iterations):
        before = torch.cuda.lms.stats()
        optimizer.zero_grad()
        x = pattern(mib, start=k)
        for weight in weights:
            x = torch.sin(torch.relu(x * weight))
        beside()
        loss = x.sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        torch.cuda.lms._wait_for_plans()
        after = torch.cuda.lms.stats()
        counts.append({name: after[name] - before[name] for name in COUNTS})
    torch.cuda.lms._keep_plans(False)
    return losses, counts


def launched(device, layers: Layers) -> list[dict[str, int]]:
    """Thread blocks of the kernels, on demand and with a plan whose transfers nothing waits for."""
    start_within(38 * MIB)
    layers.between = lambda: time.sleep(0.3)  # all transfers can end meanwhile
    found: list[dict[str, int]] = [{}, {}]
    for k in range(8):
        before = stat("planned_iterations")
        device.reset_counts()
        layers.run(k)
        torch.cuda.lms._wait_for_plans()
        found[stat("planned_iterations") > before] = device.thread_blocks()
    assert all(found)
    return found


@simulated
@since((2, 1), "hooks of all optimizers")
def test_transfers_that_nothing_waits_for_leave_more_of_the_gpu(device, kept_plans):
    # Each block is large enough for 32, and too large to move in pieces on this device.
    on_demand, planned = launched(device, Layers((8.0,) * 3))
    assert on_demand["lms_unpack"] >= 30
    assert planned["lms_unpack"] == 25


@simulated
@since((2, 1), "hooks of all optimizers")
def test_transfers_that_nothing_waits_for_leave_in_one_piece(device, kept_plans):
    on_demand, planned = launched(device, Layers((1.0,) * 24, activation=torch.relu))
    assert {"lms_pack_piece", "lms_unpack_window"} <= on_demand.keys()
    assert "lms_pack_piece" not in planned
    assert "lms_unpack_window" in planned


def sleeping(device):
    """For 40 iterations: bytes that are written, and the seconds that kernels slept meanwhile.

    Half of each byte is left. The link needs longer for that than operators run.
    """
    import torch
    from simcuda.hill import hill, numbers

    torch.cuda.lms.set_compression("auto")
    torch.cuda.set_limit_lms(40 << 20)
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._keep_plans(True)
    make = numbers(16)
    found = []
    for _ in range(40):
        device.reset_counts()
        before = torch.cuda.lms.stats()["compressed_written_bytes"]
        hill(device, make=make)
        written = torch.cuda.lms.stats()["compressed_written_bytes"] - before
        found.append([written, device.napped()])
    torch.cuda.lms._keep_plans(False)
    return found


def slow_plans(device):
    """How many storages each iteration compressed. With a plan, they take 0.3 s longer."""
    import torch
    from simcuda.hill import hill

    torch.cuda.lms.set_compression("auto")
    torch.cuda.set_limit_lms(40 << 20)
    torch.cuda.set_enabled_lms(True)
    stream = torch.cuda.current_stream().cuda_stream
    compressed = []
    for _ in range(24):
        stats = torch.cuda.lms.stats()
        # Before its first operator, an iteration has none that could be longer for it.
        device.takes(stream, 0, 0.0, 0.3 if stats["planned_iterations"] else 0.0)
        hill(device)
        compressed.append(torch.cuda.lms.stats()["compressed_count"] - stats["compressed_count"])
    return compressed


def trial(device, longer, later, unequal):
    """What 36 iterations page out and compress, in storages.

    The link is a little too slow to page out five storages while nothing waits. After the first
    iteration that compresses, `longer` iterations take `later` milliseconds longer. If storages are
    `unequal`, three quarters of one's bytes are left, and a quarter of the others'; otherwise,
    nearly nothing.
    """
    import torch
    from simcuda.hill import constant, hill, numbers

    torch.cuda.lms.set_compression("auto")
    torch.cuda.set_limit_lms(40 << 20)
    torch.cuda.set_enabled_lms(True)
    stream = torch.cuda.current_stream().cuda_stream
    small, large = (numbers(8), numbers(24)) if unequal else (constant, constant)

    def make(number):
        return (large if number == 3 else small)(number)

    counts, compressing = [], 0
    for _ in range(36):
        before = torch.cuda.lms.stats()
        compressing += before["compressed_count"] > 0
        if 0 < compressing <= longer:
            device.takes(stream, 0, 0.0, later * 1e-3)
        hill(device, make=make)
        after = torch.cuda.lms.stats()
        names = ("page_out_count", "compressed_count")
        counts.append([after[name] - before[name] for name in names])
    return counts


def noise_and_zeros(device):
    """Tensors that 32 iterations page out, those that are compressed, and what is left of these.

    They are parts of tensors. Each operator takes 1 ms on a simulated device. On a GPU, tensors are
    so large that the link decides, and not the host. Otherwise none need be compressed.
    """
    import torch
    from simcuda.hill import end, operate

    torch.cuda.lms.set_compression("auto")
    size = (64 if device is None else 2) << 20
    torch.cuda.set_limit_lms(8 * size)
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._keep_plans(True, 2)  # compressed copies
    generator = torch.Generator().manual_seed(0)
    any_bits = torch.randint(-(1 << 31), (1 << 31) - 1, (size // 4,), generator=generator)
    values = [any_bits.to(torch.int32).cuda() * (k % 2) for k in range(12)]
    for k in range(60):
        if k == 28:
            torch.cuda.lms.reset_accumulated_stats()
        for value in values:
            value.bitwise_not_()
            if device is not None:
                operate(device)
        end()
    torch.cuda.lms._keep_plans(False)
    stats = torch.cuda.lms.stats()
    names = ("page_out_bytes", "compressed_bytes", "compressed_written_bytes")
    return [stats[name] / size for name in names]


@since((2, 1), "hooks of all optimizers")
class TestAuto:
    @pytest.fixture(autouse=True)
    def automatic(self):
        torch.cuda.lms.set_compression("auto")

    def test_on_demand_nothing_is_compressed(self):
        for _ in range(3):
            away_and_back(data(torch.bfloat16))
        assert stat("compressed_count") == 0

    @pytest.mark.parametrize("fastest", [1, 2, 3], ids=["copies", "compressed copies", "plans"])
    def test_the_fastest_way_is_kept(self, fastest):
        # On a GPU, it can take longer until what LMS tries has been timed.
        iterations = 44 if ON_HARDWARE else 32
        found, counts = planned(iterations, fastest=fastest)
        assert found == planned(iterations, lms=False)[0]
        assert counts[5]["planned_iterations"] == 1
        assert counts[5]["compressed_count"] == 0
        assert sum(count["compressed_count"] > 0 for count in counts) > 4
        assert counts[-1]["planned_iterations"] == 1
        assert counts[-1]["page_out_count"] > 0
        last = [count["compressed_count"] > 0 for count in counts[-8:]]
        assert any(last) == (fastest > 1), counts
        # A GPU has other plans. What it pages out may not shrink, and be tried again now and then.
        assert ON_HARDWARE or last[-3:] == [fastest > 1] * 3, counts

    @simulated
    def test_slow_ways_do_not_end_the_trial(self):
        """Trying ways takes time, and that time is not held against the plan."""
        compressed = run_sim(slow_plans, mib=512, timing=1, to_host=400, to_device=400)
        tried = [k for k, count in enumerate(compressed) if count]
        assert len(tried) > 5
        # One iteration copies between the two other ways: its plan is being made.
        assert max(tried) - min(tried) == len(tried)

    @simulated
    def test_what_need_not_be_compressed_is_copied(self):
        # Packing takes no time here, and plans that count on what is left have to be the fastest.
        counts = run_sim(trial, 5, 1, True, mib=512, timing=1, to_host=1400, to_device=1400)
        assert sum(0 < compressed < paged_out for paged_out, compressed in counts) > 3, counts
        assert counts[-10:] == [[7, 5]] * 10, counts

    @simulated
    def test_kernels_leave_some_of_the_link(self):
        """Operators would wait for stores that fill it, and nothing else lets them wait."""
        found = run_sim(sleeping, mib=512, timing=1, to_host=1000, to_device=1000)
        assert not any(slept for written, slept in found if not written)
        # Before, there are plans whose transfers the program waits for.
        assert all(written > 0 for written, _ in found[-10:]), found
        # All of them do, also what operators are expected to wait for.
        least = 0.9 / (0.8 * 1e9)  # seconds for each byte
        assert all(slept > least * written for written, slept in found[-10:]), found

    @simulated
    def test_the_first_iteration_of_a_way_does_not_count(self):
        """It may be fast because the iteration before it has copied."""
        counts = run_sim(trial, 14, 20, False, mib=512, timing=1, to_host=1000, to_device=1000)
        assert sum(compressed > 0 for _, compressed in counts) > 4
        assert [compressed for _, compressed in counts[-6:]] == [0] * 6, counts

    def test_what_does_not_shrink_is_copied(self):
        noise = torch.randint(-(1 << 31), (1 << 31) - 1, (2 * MIB,), dtype=torch.int32).cuda()
        _, counts = planned(24, beside=lambda: noise.bitwise_not_(), limit=36)
        # What does not shrink is tried again now and then, and what a plan pages out varies.
        copied = [count["page_out_bytes"] - count["compressed_bytes"] for count in counts[-4:]]
        assert max(copied) >= 8 * MIB, counts
        total = {name: sum(count[name] for count in counts[-4:]) for name in COUNTS}
        assert 0 < total["compressed_written_bytes"] < 0.8 * total["compressed_bytes"], counts

    def test_what_does_not_shrink_stops_no_others(self):
        """The same operator writes noise and zeros of the same size, in turn."""
        if ON_HARDWARE:
            torch.cuda.set_per_process_memory_fraction(1.0)
            paged_out, compressed, written = noise_and_zeros(None)
        else:
            time = {"timing": 1, "to_host": 4000, "to_device": 4000}
            paged_out, compressed, written = run_sim(noise_and_zeros, mib=512, **time)
        assert paged_out > 32 * 4
        # Which half of the tensors a plan pages out more often is up to the plan, on a GPU.
        assert compressed > (0.2 if ON_HARDWARE else 0.4) * paged_out
        # Noise is hardly tried again.
        assert written < (0.1 if ON_HARDWARE else 0.06) * compressed

    def test_small_tensors_are_copied(self):
        _, counts = planned(24, mib=0.5, limit=16)
        assert counts[-1]["planned_iterations"] == 1
        assert counts[-1]["page_out_count"] > 0
        assert stat("compressed_count") == 0


@since((2, 1), "hooks of all optimizers")
def test_plans_with_compression():
    torch.cuda.lms.set_compression("on")
    found, counts = planned(9)
    assert found == planned(9, lms=False)[0]
    assert counts[-1]["planned_iterations"] == 1
    assert 0 < counts[-1]["compressed_written_bytes"] < counts[-1]["compressed_bytes"]


def noisy(_):
    """Iterations of data that does not shrink. How many were planned, and the share left."""
    import torch

    torch.cuda.set_size_lms(1 << 12)
    torch.cuda.lms.set_compression("on")
    torch.cuda.lms._keep_plans(True)
    torch.cuda.set_limit_lms(12 << 20)
    torch.cuda.set_enabled_lms(True)
    generator = torch.Generator().manual_seed(0)
    given = [torch.randint(-(1 << 31), (1 << 31) - 1, (1 << 18,), generator=generator)] * 12
    values = [value.to(torch.int32).cuda() for value in given]
    for _ in range(12):
        for value in values:
            value.bitwise_not_()
        torch.cuda.lms.step()
        torch.cuda.lms._wait_for_plans()
    stats = torch.cuda.lms.stats()
    left = stats["compressed_written_bytes"] / stats["compressed_bytes"]
    return [stats["planned_iterations"], left]


@simulated
def test_plans_although_nothing_shrinks():
    """How fast transfers are is known from those alone."""
    planned, left = run_sim(noisy, mib=64)
    assert planned > 4
    assert left > 0.99
