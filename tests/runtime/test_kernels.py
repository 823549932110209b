"""The release check's kernels: what they find, what they write, and what happens without them.

On the simulated device the very source that a GPU gets runs on the CPU. tests/gpu/kernels.py is for
a GPU.
"""

from __future__ import annotations

import ctypes
import os
import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import torch
from checker import Checker, CheckError, load
from hardware import simulated
from simcuda.process import run_sim
from tensors import raw_address

SIZES = (1, 2, 7, 8, 15, 16, 17, 511, 512, 513, 4097, 3 * 512 + 9, 300_001)  # bytes
SLOTS = 4096  # of one table


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return load(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(autouse=True)
def cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: ctypes.CDLL, clean_slate: None
) -> Path:
    """Each test compiles anew, into a folder of its own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PYTORCH_KERNEL_CACHE_PATH", str(folder))
    library.forget_images()
    torch.cuda.set_enabled_lms(False)
    return folder


@pytest.fixture
def checker(library: ctypes.CDLL, cache: Path) -> Iterator[Checker]:
    with Checker(library) as made:
        assert made.available(), made.why()
        yield made
        torch.cuda.synchronize()


class Block:
    """Bytes on the device, and pinned host memory in parts that holds the same."""

    def __init__(self, size: int, parts: int = 1, offset: int = 0, seed: int = 0) -> None:
        self.size = size
        self.values = random.Random(seed).randbytes(size)
        self.device = torch.zeros(size + offset + 64, dtype=torch.uint8, device="cuda")
        self.address = raw_address(self.device) + offset
        self.offset = offset
        each = max(-(-size // parts // 16) * 16, 16)
        # 16 bytes apart, and the last one longer than what it has to hold.
        self.host = [torch.zeros(each + 32, dtype=torch.uint8).pin_memory() for _ in range(parts)]
        self.parts = [(part.data_ptr(), each) for part in self.host]
        self.put(self.values)
        self.copy()

    def put(self, values: bytes) -> None:
        """The values to the device, past LMS."""
        part = self.device[self.offset : self.offset + self.size]
        part.copy_(torch.frombuffer(bytearray(values), dtype=torch.uint8))
        torch.cuda.synchronize()

    def flip(self, *bits: int) -> bytes:
        values = bytearray(self.values)
        for bit in bits:
            values[bit // 8] ^= 1 << bit % 8
        self.put(bytes(values))
        return bytes(values)

    def copy(self) -> None:
        """What a page-out does."""
        each = self.parts[0][1]
        for index, part in enumerate(self.host):
            part.zero_()
            piece = bytearray(self.values[index * each : (index + 1) * each])
            if piece:
                part[: len(piece)] = torch.frombuffer(piece, dtype=torch.uint8)

    def hosted(self) -> bytes:
        torch.cuda.synchronize()
        each = self.parts[0][1]
        return b"".join(bytes(part[:each].tolist()) for part in self.host)

    def padded(self, values: bytes) -> bytes:
        return values + bytes(len(self.parts) * self.parts[0][1] - self.size)

    def assert_hosts(self, values: bytes) -> None:
        assert self.hosted() == self.padded(values)
        assert all(not part[-32:].any() for part in self.host), "written behind a part"


def check(checker: Checker, slot: int, block: Block) -> None:
    checker.check(slot, block.address, block.size, block.parts)


@pytest.mark.parametrize("size", SIZES)
def test_one_changed_bit_is_found_wherever_it_is(checker: Checker, size: int) -> None:
    block, slot = Block(size), checker.take()
    last = size * 8 - 1
    bits = {0, 7, last, last - 7, *(random.Random(size).randrange(last + 1) for _ in range(8))}
    for caught, bit in enumerate(sorted(bits), start=1):
        block.put(block.values)
        block.copy()
        checker.hash(slot, block.address, size)
        values = block.flip(bit)
        check(checker, slot, block)
        block.assert_hosts(values)
        assert (checker.caught(), checker.last_caught()) == (caught, slot), f"bit {bit}"
    check(checker, slot, block)
    torch.cuda.synchronize()
    assert checker.caught() == len(bits), "the new bytes are what is expected now"


def test_a_change_of_each_strand_is_found(checker: Checker) -> None:
    """Several thread blocks take several turns, and leave out nothing."""
    chunk, row, vector = 2048, 512, 16  # bytes; a strand has a vector of each row of a chunk
    block, slot = Block(48 * chunk + row), checker.take()
    checker.hash(slot, block.address, block.size)
    starts = range(0, block.size, chunk)
    firsts = [start + column for start in starts for column in range(0, row, vector)]
    for first in firsts:
        block.device[block.offset + first] ^= 1
        check(checker, slot, block)
    torch.cuda.synchronize()
    assert checker.caught() == len(firsts)


@pytest.mark.parametrize("size", SIZES)
def test_what_has_not_changed_is_not_written(checker: Checker, size: int) -> None:
    block, slot = Block(size), checker.take()
    checker.hash(slot, block.address, size)
    for part in block.host:
        part.fill_(170)  # nobody writes there
    check(checker, slot, block)
    assert set(block.hosted()) == {170}
    assert checker.caught() == 0


@pytest.mark.parametrize("distance", [1, 2, 3, 4, 8, 16, 64, 128, 2048, 4096, 32768])
def test_changes_do_not_cancel_each_other(checker: Checker, distance: int) -> None:
    block, slot = Block(1 << 20), checker.take()
    sign = 31
    for first in (0, 1, 77_777):
        second = first + distance  # 32-bit words
        words = torch.frombuffer(bytearray(block.values), dtype=torch.int32).clone()
        swapped = words.clone()
        swapped[first], swapped[second] = words[second], words[first]
        negated = words.clone()
        negated[first] ^= -(1 << sign)
        negated[second] ^= -(1 << sign)
        both = negated.clone()
        both[second + 1] ^= -(1 << sign)
        for changed in (swapped, negated, both):
            block.put(block.values)
            checker.hash(slot, block.address, block.size)
            before = checker.caught()
            block.put(changed.numpy().tobytes())
            check(checker, slot, block)
            torch.cuda.synchronize()
            assert checker.caught() == before + 1


def test_order_and_length_count(checker: Checker) -> None:
    """Zeros, and bytes in another place, are not taken for each other."""
    block, slot = Block(1 << 16), checker.take()
    zeros = bytes(block.size)
    for position in (1, 4096, 65535):
        block.put(b"\1" + zeros[1:])
        checker.hash(slot, block.address, block.size)
        before = checker.caught()
        block.put(zeros[:position] + b"\1" + zeros[position + 1 :])
        check(checker, slot, block)
        torch.cuda.synchronize()
        assert checker.caught() == before + 1
    block.put(zeros)
    checker.hash(slot, block.address, 16)
    before = checker.caught()
    checker.check(slot, block.address, 32, block.parts)
    torch.cuda.synchronize()
    assert checker.caught() == before + 1


@pytest.mark.parametrize("parts", [2, 3, 8, 9, 20])
@pytest.mark.parametrize("size", [4097, 300_001])
def test_every_part_of_the_host_buffer_is_written(checker: Checker, size: int, parts: int) -> None:
    block, slot = Block(size, parts), checker.take()
    checker.hash(slot, block.address, size)
    values = block.flip(*range(0, size * 8, 1001))
    check(checker, slot, block)
    block.assert_hosts(values)
    assert checker.caught() == 1


@pytest.mark.parametrize("offset", [1, 4, 8, 15])
def test_any_alignment(checker: Checker, offset: int) -> None:
    block, slot = Block(5000, 2, offset), checker.take()
    checker.hash(slot, block.address, block.size)
    check(checker, slot, block)
    torch.cuda.synchronize()
    assert checker.caught() == 0
    check_after = block.flip(5000 * 8 - 1, 0)
    check(checker, slot, block)
    block.assert_hosts(check_after)


def test_the_hash_does_not_depend_on_the_address(checker: Checker) -> None:
    here, there, slot = Block(70_001), Block(70_001, offset=8), checker.take()
    checker.hash(slot, here.address, here.size)
    check(checker, slot, there)
    torch.cuda.synchronize()
    assert checker.caught() == 0


def test_nothing_has_no_bytes(checker: Checker) -> None:
    slot = checker.take()
    checker.hash(slot, 0, 0)
    checker.check(slot, 0, 0, [])
    torch.cuda.synchronize()
    assert checker.caught() == 0


def test_slots_are_apart_and_used_again(checker: Checker) -> None:
    block = Block(100)
    slots = [checker.take() for _ in range(SLOTS + 2)]
    assert len(set(slots)) == len(slots)
    chosen = slots[0], slots[1], slots[SLOTS - 1], slots[SLOTS + 1]
    for number, slot in enumerate(chosen):
        block.flip(number)
        checker.hash(slot, block.address, block.size)
    for number, slot in enumerate(chosen):
        block.flip(number)
        check(checker, slot, block)
        torch.cuda.synchronize()
    assert checker.caught() == 0
    checker.give(slots[1])
    assert checker.take() == slots[1]
    check(checker, slots[1], block)  # something else than its first owner expected
    torch.cuda.synchronize()
    assert (checker.caught(), checker.last_caught()) == (1, slots[1])


def test_slots_take_memory_once(checker: Checker, device) -> None:
    slots = [checker.take() for _ in range(SLOTS)]
    used = device.used()
    for slot in slots:
        checker.give(slot)
    for _ in slots:
        checker.take()
    assert device.used() == used
    checker.take()
    assert device.used() > used


@simulated
def test_the_order_of_streams(checker: Checker, device) -> None:
    """What each kernel touches is seen, and that the last one writes only where it has to."""
    block, slot = Block(4096), checker.take()
    out, home = torch.cuda.Stream(), torch.cuda.Stream()
    host, size = block.parts[0]

    def run(ordered: bool, changed: bool) -> list[str]:
        torch.cuda.synchronize()
        block.put(block.values)
        device.clear_races()
        checker.hash(slot, block.address, block.size, out)
        if changed:
            torch.cuda.synchronize()
            block.flip(3)
        elif ordered:
            home.wait_stream(out)
        checker.check(slot, block.address, block.size, block.parts, home)
        device.host_access(host, size, write=False)
        races = device.races()
        device.clear_races()
        return races

    assert run(ordered=True, changed=False) == []
    assert any("a kernel of the runtime" in race for race in run(ordered=False, changed=False))
    (race,) = run(ordered=True, changed=True)
    assert "a kernel of the runtime" in race
    assert "the host" in race


@simulated
def test_the_order_of_a_write_that_nobody_saw(checker: Checker, device) -> None:
    block, slot = Block(4096), checker.take()
    other = torch.cuda.Stream()
    device.clear_races()
    checker.hash(slot, block.address, block.size, other)
    block.device.add_(1)  # on the default stream, which waits for no stream of PyTorch's
    assert device.races() != []
    torch.cuda.synchronize()
    device.clear_races()


# When CUDA refuses ------------------------------------------------------------------------------

# What the first call of available() makes, and the number of the error to return.
LOADING = (
    "cudaDeviceGetAttribute",
    "cudaHostAlloc",
    "cudaFree",
    "nvrtcVersion",
    "nvrtcGetNumSupportedArchs",
    "nvrtcGetSupportedArchs",
    "nvrtcCreateProgram",
    "nvrtcCompileProgram",
    "nvrtcGetCUBINSize",
    "nvrtcGetCUBIN",
    "cuModuleLoadData",
    "cuModuleGetFunction",
)
BENIGN = ("nvrtcDestroyProgram", "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")


@pytest.fixture
def old_nvrtc(library: ctypes.CDLL) -> Iterator[None]:
    """An NVRTC that only compiles to PTX."""
    for name in ("nvrtcGetCUBIN", "nvrtcGetCUBINSize"):
        library.hide_function(name.encode())
    yield
    library.hide_function(None)


def fail_while_loading(library: ctypes.CDLL, cache: Path, device, api: str) -> None:
    """Loads with each call failing in turn."""
    live = device.live()
    failed = 0
    for nth in count(1):
        library.forget_images()
        for file in cache.glob("*"):
            file.unlink()
        device.reset_counts()
        device.fault(api, nth)
        with Checker(library) as checker:
            available = checker.available()
            if not available:
                failed += 1
                assert api in checker.why() or "CUDA error" in checker.why()
                assert "\n" not in checker.why()
                assert not checker.available(), "it does not try again"
                for call in (
                    checker.take,
                    lambda c=checker: c.hash(0, 0, 1),
                    lambda c=checker: c.check(0, 0, 1, []),
                ):
                    with pytest.raises(CheckError, match="is not available on this GPU: "):
                        call()
                assert (checker.caught(), checker.last_caught()) == (0, 0)
            called = device.count(api)
            device.clear_faults()
        assert device.live() == live
        if called < nth:
            assert available
            break
    assert failed > 0


@simulated
@pytest.mark.parametrize("api", LOADING)
def test_what_fails_while_loading_is_said(library, cache, device, api: str) -> None:
    fail_while_loading(library, cache, device, api)


@simulated
@pytest.mark.usefixtures("old_nvrtc")
@pytest.mark.parametrize("api", ["nvrtcGetPTXSize", "nvrtcGetPTX"])
def test_what_fails_while_ptx_is_made_is_said(library, cache, device, api: str) -> None:
    fail_while_loading(library, cache, device, api)


@simulated
@pytest.mark.parametrize("api", BENIGN)
def test_what_may_fail_while_loading(library, device, api: str) -> None:
    device.fault(api, from_=True)
    if api != "nvrtcDestroyProgram":
        device.fault("nvrtcCompileProgram", error=6)
    with Checker(library) as checker:
        assert checker.available() == (api == "nvrtcDestroyProgram")


@simulated
def test_what_fails_in_use_is_thrown(checker: Checker, device) -> None:
    block = Block(4096, 20)
    for _ in range(4096):  # then it needs another table
        checker.take()
    used = device.used()
    live = device.live()
    for api in ("cudaMalloc", "cudaStreamCreate", "cudaMemsetAsync", "cudaStreamSynchronize"):
        device.fault(api)
        with pytest.raises(CheckError):
            checker.take()
        assert (device.used(), device.live()) == (used, live), api
    slot = checker.take()
    device.fault("cuLaunchKernel", error=719)
    with pytest.raises(CheckError, match=r"cuLaunchKernel\(\) failed: .* \(719\)"):
        checker.hash(slot, block.address, block.size)
    for nth in range(1, 5):  # the check, and 20 parts in three launches
        checker.hash(slot, block.address, block.size)
        device.fault("cuLaunchKernel", nth)
        with pytest.raises(CheckError, match="cuLaunchKernel"):
            check(checker, slot, block)
    device.clear_faults()
    checker.hash(slot, block.address, block.size)
    values = block.flip(9)
    check(checker, slot, block)
    block.assert_hosts(values)
    assert torch.ones(3, device="cuda").sum() == 3, "no error is left behind"


@simulated
def test_a_thread_without_a_context(checker: Checker, device) -> None:
    block, slot = Block(64), checker.take()
    device.fault("cuLaunchKernel", error=201)
    checker.hash(slot, block.address, block.size)
    check(checker, slot, block)
    torch.cuda.synchronize()
    assert checker.caught() == 0


def end(device, here, library):
    import sys

    sys.path.insert(0, here)
    import torch
    from checker import Checker, opened

    torch.cuda.init()
    for api in ("cudaFree", "cudaFreeHost", "cuModuleUnload"):
        checker = Checker(opened(library))
        checker.take()
        device.fault(api, error=4)
        checker.close()
        assert torch.ones(3, device="cuda").sum() == 3, "no error is left behind"


@simulated
def test_what_fails_at_the_end(library) -> None:
    run_sim(end, str(Path(__file__).parent), library._name)


@simulated
def test_nothing_is_left_behind(library, device) -> None:
    live, used = device.live(), device.used()
    with Checker(library) as checker:
        checker.take()
        assert device.live() != live
        assert device.used() > used
    assert (device.live(), device.used()) == (live, used)


def test_no_libraries(library) -> None:
    library.hide_libraries(True)
    try:
        with Checker(library) as checker:
            assert not checker.available()
            assert "no library on this system provides nvrtcVersion()" in checker.why()
    finally:
        library.hide_libraries(False)


@simulated
def test_what_nvrtc_is_asked_for(library) -> None:
    def target(capability: int) -> str:
        return "" if library.target_of(capability) < 0 else library.error().decode()

    assert target(80) == "sm_80"
    assert target(75) == "sm_75"
    assert target(86) == "compute_80"  # the driver compiles the rest of the way
    assert target(120) == "compute_90"
    assert target(61) == ""
    assert b"compute capability 7.0 or later, but this GPU has 6.1" in library.error()


def test_each_device_has_its_own(library) -> None:
    with torch.cuda.device(1), Checker(library, 1) as second:
        assert second.available(), second.why()
        slot = second.take()
        x = torch.ones(100, device="cuda:1")
        host = torch.empty(100).pin_memory()
        second.hash(slot, raw_address(x), 400)
        x += 1
        second.check(slot, raw_address(x), 400, [(host.data_ptr(), 400)])
        torch.cuda.synchronize(1)
        assert second.caught() == 1
        assert host.eq(2).all()


# The cache on disk --------------------------------------------------------------------------------


@simulated
class TestCache:
    @pytest.fixture
    def compiled(self, library, device):
        """How often a new checker has the kernels compiled."""

        def run() -> int:
            library.forget_images()
            device.reset_counts()
            with Checker(library) as checker:
                assert checker.available(), checker.why()
            return int(device.count("nvrtcCompileProgram"))

        return run

    def test_hit(self, compiled, library, cache) -> None:
        assert compiled() == 1
        (file,) = cache.iterdir()
        assert file.name.startswith("lms_checksum_sm_80_")
        assert compiled() == 0

    def test_memory(self, compiled, library, cache, device) -> None:
        assert compiled() == 1
        for file in cache.iterdir():
            file.unlink()
        with Checker(library) as checker:
            assert checker.available()
        assert device.count("nvrtcCompileProgram") == 1

    @pytest.mark.parametrize("damage", ["empty", "header", "short", "long", "changed", "magic"])
    def test_damage(self, compiled, cache, damage: str) -> None:
        assert compiled() == 1
        (file,) = cache.iterdir()
        good = file.read_bytes()
        middle = len(good) // 2
        changed = bytes([good[middle] ^ 1])
        file.write_bytes(
            {
                "empty": b"",
                "header": good[:24],
                "short": good[:-1],
                "long": good + b"\0",
                "changed": good[:middle] + changed + good[middle + 1 :],
                "magic": bytes(8) + good[8:],
            }[damage]
        )
        assert compiled() == 1
        assert file.read_bytes() == good
        assert compiled() == 0

    def test_what_the_driver_refuses_is_made_again(self, compiled, cache, device) -> None:
        assert compiled() == 1
        device.fault("cuModuleLoadData", error=200)
        assert compiled() == 1

    def test_a_folder_that_cannot_be(self, compiled, cache, tmp_path, monkeypatch) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("PYTORCH_KERNEL_CACHE_PATH", str(tmp_path / "file" / "cache"))
        assert compiled() == 1
        assert compiled() == 1

    def test_a_full_disk(self, compiled, monkeypatch) -> None:
        monkeypatch.setenv("PYTORCH_KERNEL_CACHE_PATH", "/proc")
        assert compiled() == 1

    def test_turned_off(self, compiled, cache, monkeypatch) -> None:
        monkeypatch.setenv("USE_PYTORCH_KERNEL_CACHE", "0")
        assert compiled() == 1
        assert compiled() == 1
        assert not cache.exists()

    def test_where_it_is(self, compiled, tmp_path, monkeypatch) -> None:
        monkeypatch.delenv("PYTORCH_KERNEL_CACHE_PATH")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        assert compiled() == 1
        assert len(os.listdir(tmp_path / "xdg/torch/kernels")) == 1
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert compiled() == 1
        assert len(os.listdir(tmp_path / "home/.cache/torch/kernels")) == 1
        monkeypatch.delenv("HOME")
        assert compiled() == 1


# Streams that really run beside each other --------------------------------------------------------


def beside(device, here, library):
    import sys

    sys.path.insert(0, here)
    import torch
    from checker import Checker, opened

    with Checker(opened(library)) as checker:
        assert checker.available(), checker.why()
        slot = checker.take()
        out, home = torch.cuda.Stream(), torch.cuda.Stream()
        found = []
        for turn in range(20):
            x = torch.full((50_000,), float(turn), device="cuda")
            host = torch.zeros(50_000).pin_memory()
            out.wait_stream(torch.cuda.current_stream())
            checker.hash(slot, x.data_ptr(), 200_000, out)
            with torch.cuda.stream(out):
                host.copy_(x, non_blocking=True)
            torch.cuda.current_stream().wait_stream(out)
            if turn % 3 == 0:
                x.add_(1)
            home.wait_stream(torch.cuda.current_stream())
            checker.check(slot, x.data_ptr(), 200_000, [(host.data_ptr(), 200_000)], home)
            home.synchronize()
            found.append([host.unique().item(), checker.caught()])
        return [found, device.races()]


@simulated
def test_beside_other_work(library) -> None:
    here = str(Path(__file__).parent)
    found, races = run_sim(beside, here, library._name, async_=1, delay_us=500)
    assert races == []
    assert found == [[turn + (turn % 3 == 0), turn // 3 + 1] for turn in range(20)]
