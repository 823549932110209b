"""Host memory: what is pinned, when, up to which limit, and how it goes back."""

import random
import subprocess

import pytest
import torch
from conftest import MIB
from cxx import HERE, compile_cxx
from faults import NOT_READY
from releases import size_of
from tensors import evict, floats, is_resident, managed, pattern, stat

# Exact sizes, and copies in parts. test_compression.py has the sizes of what is compressed.
pytestmark = pytest.mark.usefixtures("uncompressed")


def test_what_is_pinned_is_little_more_than_what_is_paged_out():
    tensors = [managed(pattern(1, start=i)) for i in range(48)]
    evict()
    assert stat("host_used_bytes") == 48 * MIB
    assert stat("host_bytes") <= 64 * MIB
    assert all(torch.equal(t.cpu(), pattern(1, i, "cpu")) for i, t in enumerate(tensors))


def leave_gaps() -> list[torch.Tensor]:
    """Four storages of 5 MiB, paged out, each with a gap of as much behind it in host memory."""
    tensors = [managed(pattern(5, start=i)) for i in range(8)]
    evict()
    del tensors[1::2]
    return tensors


def test_a_buffer_that_fits_nowhere_is_put_together_from_parts(device):
    kept = leave_gaps()
    torch.cuda.lms.reserve_host(0)  # what is being pinned ahead is there now
    pinned = stat("host_bytes")
    larger = [managed(pattern(9, start=20 + i)) for i in range(2)]
    copies = device.count("cudaMemcpyAsync")
    torch.cuda.lms._set_verify_clean(True)
    evict()
    assert stat("host_bytes") == pinned
    assert device.count("cudaMemcpyAsync") > copies + 2  # else this shows nothing
    for _ in range(2):
        for start, tensor in zip((0, 2, 4, 6, 20, 21), kept + larger, strict=True):
            mib = 5 if start < 20 else 9
            assert torch.equal(tensor.cpu(), pattern(mib, start, "cpu"))
        evict()  # clean: compared with the host copies, part by part
    assert stat("clean_violations") == 0


def test_fragments_are_no_parts(device):
    # Gaps of 64 KiB: to put a large buffer together from them would take hundreds of copies.
    small = [managed(pattern(1 / 16, start=i)) for i in range(256)]
    evict()
    del small[1::2]
    x = managed(pattern(4, start=300))
    copies = device.count("cudaMemcpyAsync")
    evict()
    assert device.count("cudaMemcpyAsync") <= copies + 4
    assert torch.equal(x.cpu(), pattern(4, 300, "cpu"))


@pytest.mark.parametrize("part", [1, 2])
def test_a_part_that_cannot_be_copied_out(device, part):
    kept = leave_gaps()
    x = managed(pattern(18, start=20))
    device.fault("cudaMemcpyAsync", nth=part)
    evict()
    assert is_resident(x)
    device.clear_faults()
    evict()
    assert not is_resident(x)
    assert torch.equal(x.cpu(), pattern(18, 20, "cpu"))
    assert all(torch.equal(t.cpu(), pattern(5, 2 * i, "cpu")) for i, t in enumerate(kept))


@pytest.mark.parametrize("part", [1, 2])
def test_a_part_that_cannot_be_copied_in(device, part):
    kept = leave_gaps()
    x = managed(pattern(18, start=20))
    evict()
    device.fault("cudaMemcpyAsync", nth=part)
    with pytest.raises(RuntimeError):
        x.add_(1)
    device.clear_faults()
    assert torch.equal(x.cpu(), pattern(18, 20, "cpu"))
    assert all(torch.equal(t.cpu(), pattern(5, 2 * i, "cpu")) for i, t in enumerate(kept))


def test_storages_of_many_sizes_take_little_more_than_their_bytes():
    torch.cuda.set_limit_lms(1)  # everything idle goes
    order = random.Random(1)
    alive: dict[int, torch.Tensor] = {}
    for step in range(60):
        alive[step] = managed(pattern(order.choice((0.5, 1, 1.5, 3, 4.5, 7, 11)), start=step))
        while sum(size_of(t) for t in alive.values()) > 120 * MIB:
            del alive[order.choice(list(alive))]
    evict()
    torch.cuda.lms.reserve_host(0)
    assert stat("host_used_bytes_peak") > 110 * MIB
    # A step ahead (8 MiB when there is so little), the end of the last one, small gaps.
    assert stat("host_bytes") <= stat("host_used_bytes_peak") + 20 * MIB
    for start, tensor in alive.items():
        assert torch.equal(tensor.cpu(), pattern(size_of(tensor) / MIB, start, "cpu"))


def test_host_memory_is_busy_until_its_copies_are_done():
    x = managed(pattern(4))
    evict()
    assert stat("host_busy_bytes") == stat("host_used_bytes") == 4 * MIB
    x.add_(1)  # its host copy is not needed any more, but the way here may take its time
    assert stat("host_used_bytes") == 0
    assert stat("host_busy_bytes_peak") >= 4 * MIB
    torch.cuda.lms.trim_host()  # waits for it
    assert stat("host_busy_bytes") == stat("host_bytes") == 0
    torch.cuda.lms.reset_peak_stats()
    assert stat("host_busy_bytes_peak") == 0


def test_what_has_ended_is_given_back_a_few_at_a_time(device):
    # To ask about an event takes the host microseconds. When an iteration begins, all of the one
    # before have ended, and the device has nothing to do.
    kept = [managed(pattern(1, start=i)) for i in range(40)]
    evict()
    pinned = stat("host_bytes")
    device.fault("cudaEventQuery", 1, NOT_READY, from_=True)  # as when the host is far ahead
    for tensor in kept:
        tensor.add_(1)  # its hash and its place in host memory are free when it has come back
    device.clear_faults()
    torch.cuda.synchronize()
    outs = stat("page_out_count")
    torch.cuda.set_limit_lms(stat("resident_bytes"))
    device.reset_counts()
    kept.append(managed(pattern(1, start=40)))
    assert stat("page_out_count") > outs
    assert device.count("cudaEventQuery") <= 16
    del kept[0]
    evict()
    torch.cuda.synchronize()
    assert stat("host_bytes") == pinned  # each page-out gave some back
    for i, tensor in enumerate(kept):
        assert torch.equal(tensor.cpu(), pattern(1, min(i + 2, 40), "cpu"))


def test_what_has_ended_is_one_range_again(device):
    torch.cuda.lms.reserve_host(16 << 20)
    kept = [managed(pattern(2, start=i)) for i in range(8)]
    evict()
    device.fault("cudaEventQuery", 1, NOT_READY, from_=True)
    for tensor in kept:
        tensor.add_(1)
    device.clear_faults()
    torch.cuda.synchronize()
    x = managed(pattern(14, start=9))
    outs = stat("page_out_count")
    del kept, tensor
    copies = device.count("cudaMemcpyAsync")
    evict()
    assert stat("page_out_count") == outs + 1
    assert device.count("cudaMemcpyAsync") == copies + 1
    assert torch.equal(x.cpu(), pattern(14, 9, "cpu"))


def test_reserve_pins_ahead(device):
    assert torch.cuda.lms.reserve_host(20 * MIB) >= 20 * MIB
    assert stat("host_bytes") == torch.cuda.lms.reserve_host(1) >= 20 * MIB
    assert stat("host_used_bytes") == 0
    calls = device.count("cudaHostRegister")
    tensors = [managed(pattern(1, start=i)) for i in range(12)]
    evict()
    assert device.count("cudaHostRegister") == calls
    assert all(torch.equal(t.cpu(), pattern(1, i, "cpu")) for i, t in enumerate(tensors))


def test_reserve_above_the_limit_says_so():
    torch.cuda.set_host_limit_lms(16 * MIB)
    with pytest.raises(RuntimeError, match="host limit is 16777216 bytes"):
        torch.cuda.lms.reserve_host(64 * MIB)


def test_the_limit_holds_and_the_process_works_on():
    torch.cuda.set_host_limit_lms(16 * MIB)
    assert torch.cuda.get_host_limit_lms() == 16 * MIB
    torch.cuda.set_limit_lms(24 * MIB)
    tensors = [managed(pattern(2, start=i)) for i in range(20)]
    # The limit of the GPU is soft, the one of the host is not.
    assert stat("host_bytes") <= 16 * MIB
    assert torch.cuda.memory_allocated() == 40 * MIB - stat("paged_out_bytes")
    with pytest.raises(torch.cuda.OutOfMemoryError, match="host limit is 16777216 bytes"):
        torch.ones(floats(60), device="cuda")
    assert all(torch.equal(t.cpu(), pattern(2, i, "cpu")) for i, t in enumerate(tensors))
    torch.cuda.set_host_limit_lms(0)
    assert torch.ones(floats(60), device="cuda").sum() == floats(60)
    assert all(torch.equal(t.cpu(), pattern(2, i, "cpu")) for i, t in enumerate(tensors))


def test_copies_of_what_is_on_the_device_give_way():
    # A clean storage keeps its host copy, which is only a short cut.
    torch.cuda.set_host_limit_lms(16 * MIB)
    clean = [managed(pattern(2, start=i)) for i in range(8)]
    evict()
    for tensor in clean:
        tensor.sum()
    assert stat("host_used_bytes") == 16 * MIB
    # The device is full, and only one of these can make room at once.
    torch.cuda.lms._set_late(True)
    others = [managed(pattern(4, start=20 + i)) for i in range(11)]
    torch.zeros(floats(4), device="cuda")
    assert all(torch.cuda.lms.is_resident(t) for t in clean)
    assert [torch.cuda.lms.is_resident(t) for t in others].count(False) == 1
    assert stat("host_used_bytes") == 16 * MIB
    for start, tensor in enumerate(clean):
        assert torch.equal(tensor.cpu(), pattern(2, start, "cpu"))
    for start, tensor in enumerate(others, start=20):
        assert torch.equal(tensor.cpu(), pattern(4, start, "cpu"))


def test_memory_that_cannot_be_registered_is_allocated(device):
    device.fault("cudaHostRegister", error=801, from_=True)
    x = managed(pattern(1))
    evict()
    assert not torch.cuda.lms.is_resident(x)
    assert device.count("cudaHostAlloc") > 0
    assert torch.equal(x.cpu(), pattern(1, device="cpu"))


def test_empty_cache_gives_host_memory_back(device):
    x = managed(pattern(1))
    evict()
    pinned = stat("host_bytes")
    torch.cuda.empty_cache()
    assert 0 < stat("host_bytes") <= pinned  # it holds x
    del x
    torch.cuda.empty_cache()
    assert stat("host_bytes") == 0
    torch.cuda.lms.reset_peak_stats()
    assert stat("host_bytes_peak") == 0


def test_the_first_slab_is_begun_before_the_first_page_out(device):
    torch.cuda.set_limit_lms(18 * MIB)
    calls = device.count("cudaHostRegister")
    tensors = [managed(pattern(1, start=i)) for i in range(16)]
    assert stat("page_out_count") == 0
    torch.cuda.lms.trim_host()  # waits for it
    assert device.count("cudaHostRegister") == calls + 1
    assert stat("host_bytes") == 0
    del tensors


def test_the_oldest_leaves_first_although_it_waits_for_host_memory():
    torch.cuda.empty_cache()
    assert stat("host_bytes") == 0
    torch.cuda.set_limit_lms(24 * MIB)
    tensors = [managed(pattern(10, start=i)) for i in range(3)]
    assert [torch.cuda.lms.is_resident(tensor) for tensor in tensors] == [False, True, True]


def test_copies_are_not_given_up_for_a_block_that_they_do_not_make_room_for():
    torch.cuda.set_host_limit_lms(8 * MIB)
    small = [managed(pattern(1, start=k)) for k in range(4)]
    evict()
    large = managed(pattern(16))
    for tensor in small:
        tensor.sum()  # they are on the host, too, and idle for less long
    evict()
    assert is_resident(large)
    del large
    before = stat("page_out_bytes")
    evict()
    assert not any(is_resident(tensor) for tensor in small)
    assert stat("page_out_bytes") == before
    for k, tensor in enumerate(small):
        assert torch.equal(tensor.cpu(), pattern(1, start=k, device="cpu"))


def test_pinned_memory_has_a_node():
    x = managed(pattern(1))
    evict()
    stats = torch.cuda.lms.stats()
    by_node = {k: v for k, v in stats.items() if k.startswith("host_bytes_on_node")}
    assert sum(by_node.values()) == stats["host_bytes"] > 0
    del x


GIB = 1 << 30
MEMINFO = "MemTotal: 67108864 kB\nMemFree: 1 kB\nMemAvailable: 33554432 kB\n"


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    """host.cpp on its own: prints the bytes available and the node of a device, below a root."""
    program = tmp_path_factory.mktemp("host") / "host"
    compile_cxx(HERE / "host.cpp", program)

    def run(root) -> tuple[int, int]:
        command = [program, str(root), "0000:18:00.0"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        available, node = done.stdout.split()
        return int(available), int(node)

    return run


def write(root, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_machine_keeps_a_reserve(tmp_path, probe):
    write(tmp_path, {"proc/meminfo": MEMINFO})
    assert probe(tmp_path) == (32 * GIB - GIB, -1)


def test_a_container_has_its_own_limit(tmp_path, probe):
    group = "sys/fs/cgroup/job"
    write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/job/step\n",
            f"{group}/memory.max": str(8 * GIB),
            f"{group}/memory.current": str(6 * GIB),
            f"{group}/memory.stat": f"anon 1\ninactive_file {GIB // 2}\nactive_file {GIB // 2}\n",
            f"{group}/step/memory.max": "max\n",
        },
    )
    assert probe(tmp_path)[0] == 3 * GIB - 8 * GIB // 64
    write(tmp_path, {f"{group}/memory.high": str(7 * GIB)})
    assert probe(tmp_path)[0] == 2 * GIB - 7 * GIB // 64


def test_the_older_interface_of_containers(tmp_path, probe):
    group = "sys/fs/cgroup/memory"
    write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/a\n",
            f"{group}/memory.limit_in_bytes": str((1 << 63) - 4096),
            f"{group}/memory.usage_in_bytes": str(60 * GIB),
            f"{group}/a/memory.limit_in_bytes": str(2 * GIB),
            f"{group}/a/memory.usage_in_bytes": str(GIB),
            f"{group}/a/memory.stat": f"total_inactive_file {GIB // 4}\ntotal_active_file 0\n",
        },
    )
    assert probe(tmp_path)[0] == GIB + GIB // 4 - 2 * GIB // 64


def test_the_node_next_to_a_device(tmp_path, probe):
    write(tmp_path, {"sys/bus/pci/devices/0000:18:00.0/numa_node": "1\n"})
    assert probe(tmp_path)[1] == 1
