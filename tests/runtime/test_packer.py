"""The codec's kernels, launched as on a GPU: what they write, their order, and what fails.

On the simulated device the very source that a GPU gets runs on the CPU. tests/codec tests the
format, and tests/gpu/codec.py is for a GPU.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

import pytest
import torch
from conftest import ON_HARDWARE
from cxx import RUNTIME
from hardware import simulated
from packer import Packer, PackError, load
from simcuda.process import run_sim
from tensors import raw_address

KIB = 1 << 10
ALIGN = 4 * KIB
SIZES = (1, 15, 2 * KIB - 1, 2 * KIB, 2 * KIB + 1, 32 * KIB, 33 * KIB + 6, 300_001)  # bytes
KINDS = list(range(1, 10))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return load(tmp_path_factory.mktemp("packer"))


@pytest.fixture(autouse=True)
def cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: ctypes.CDLL, clean_slate: None
) -> Path:
    """Each test compiles anew, into a folder of its own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PYTORCH_KERNEL_CACHE_PATH", str(folder))
    library.packer_forget_images()
    torch.cuda.set_enabled_lms(False)
    return folder


@pytest.fixture
def packer(library: ctypes.CDLL, cache: Path) -> Iterator[Packer]:
    with Packer(library, hashes=True) as made:
        yield made
        torch.cuda.synchronize()


class Block:
    """Bytes on the device, and a buffer of pinned host memory in parts."""

    def __init__(self, packer: Packer, values: bytes, parts: int = 1) -> None:
        self.packer = packer
        self.caught = packer.caught()
        self.values = values
        self.size = len(values)
        self.device = torch.zeros(self.size + 64, dtype=torch.uint8, device="cuda")
        self.device[self.size :] = 7
        self.device[: self.size].copy_(torch.frombuffer(bytearray(values), dtype=torch.uint8))
        self.address = raw_address(self.device)
        each = -(-packer.staged_bytes(self.size) // parts // ALIGN) * ALIGN
        # Pinned memory begins at a page.
        self.host = [torch.zeros(each + 64, dtype=torch.uint8).pin_memory() for _ in range(parts)]
        self.parts = [(part.data_ptr(), each) for part in self.host]
        torch.cuda.synchronize()

    def kept(self, packer: Packer) -> list[tuple[int, int]]:
        """The parts without what is not needed any more, which gets another content."""
        left = -(-packer.end(self.parts) // ALIGN) * ALIGN
        assert left <= sum(length for _, length in self.parts)
        found = []
        for part in self.host:
            length = part.numel() - 64
            part[min(max(left, 0), length) : length] = 0x5A
            if left > 0:
                found.append((part.data_ptr(), min(left, length)))
            left -= length
        return found

    def checks(self) -> None:
        """Finds that the block has changed since it was packed."""
        self.packer.check(self.address, self.size, self.parts)
        torch.cuda.synchronize()
        self.caught += 1
        assert self.packer.caught() == self.caught

    def assert_comes_back(self) -> None:
        torch.cuda.synchronize()
        self.packer.check(self.address, self.size, self.parts)
        torch.cuda.synchronize()
        assert self.packer.caught() == self.caught, "the hash of what was packed is another one"
        assert bytes(self.device[: self.size].tolist()) == self.values
        assert self.device[self.size :].eq(7).all(), "written behind the block"
        assert all(not part[-64:].any() for part in self.host), "written behind a part"


def values_of(size: int, seed: int = 0) -> bytes:
    """Some chunks of every sort: small numbers, zeros and any bits."""
    generator = random.Random(seed)
    values = b""
    while len(values) < size:
        sort = generator.randrange(3)
        values += (
            bytes(2 * KIB)
            if sort == 0
            else generator.randbytes(2 * KIB)
            if sort == 1
            else torch.randint(-9, 9, (256,), generator=_seeded(seed)).numpy().tobytes()
        )
    return values[:size]


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("kind", KINDS)
def test_every_bit_comes_back(packer: Packer, kind: int) -> None:
    assert packer.available(kind), packer.why(kind)
    assert packer.why(kind) == ""
    for size in SIZES:
        for parts, blocks in ((1, 1), (1, 32), (min(3, -(-size // ALIGN)), 2)):
            block = Block(packer, values_of(size, size), parts)
            packer.pack(kind, block.address, size, block.parts, blocks)
            torch.cuda.synchronize()
            assert 0 < packer.written(block.parts) <= packer.buffer_bytes(size)
            for unpack in (packer.unpack, packer.unpack_staged):
                block.device[:size] = 1
                unpack(kind, block.address, size, block.kept(packer), blocks + 1)
                block.assert_comes_back()


CONTENTS = {
    "mixed": values_of((1 << 20) + 3),
    "zeros": bytes(1 << 20),
    "any bits": random.Random(1).randbytes(1 << 20),
    "a little": values_of(5 * KIB),
}


@pytest.mark.parametrize("threads", [384, 768])
def test_larger_thread_blocks(packer: Packer, monkeypatch, threads: int) -> None:
    """On a GPU, with more shared memory than a kernel may have unless it is told."""
    kind = packer.kind_of(torch.bfloat16)
    monkeypatch.setattr(packer, "threads", threads)
    for values in (b"1", CONTENTS["mixed"]):
        block = Block(packer, values)
        for pack in (packer.pack, partial(packer.pack_staged, share=1.0)):
            pack(kind, block.address, block.size, block.parts, 1)
            torch.cuda.synchronize()
            for unpack in (packer.unpack, packer.unpack_staged):
                block.device[: block.size] = 1
                unpack(kind, block.address, block.size, block.kept(packer), 1)
                block.assert_comes_back()


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("share", [None, 0.01, 0.4, 0.75, 1.0])
def test_pieces(packer: Packer, content: str, share: float | None) -> None:
    """By way of device memory: whether or not there is room for what is packed.

    A chunk may end in the next piece, and one of zeros may have no bytes.
    """
    kind = packer.kind_of(torch.bfloat16)
    assert packer.available(kind)
    block = Block(packer, CONTENTS[content], 3)
    size = block.size
    written = []
    for blocks in (32, 3, 32):
        pack = packer.pack if share is None else partial(packer.pack_staged, share=share)
        pack(kind, block.address, size, block.parts, blocks)
        torch.cuda.synchronize()
        written.append(packer.written(block.parts))
        for unpack in (packer.unpack, packer.unpack_staged):
            block.device[:size] = 1
            unpack(kind, block.address, size, block.kept(packer))
            block.assert_comes_back()
    assert written == written[:1] * 3
    packer.pack(kind, block.address, size, block.parts)
    torch.cuda.synchronize()
    assert packer.written(block.parts) == written[0]


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("share", [0.01, 0.4, 1.0])
def test_pieces_that_the_host_does_not_wait_for(packer: Packer, content: str, share: float) -> None:
    """The host does not know how much of the buffer is in use when it issues the way back."""
    kind = packer.kind_of(torch.bfloat16)
    assert packer.available(kind)
    block = Block(packer, CONTENTS[content], 3)
    pieces = packer.pack_staged(kind, block.address, block.size, block.parts, share=share)
    block.device[: block.size] = 1
    packer.unpack_staged(kind, block.address, block.size, block.parts, pieces=pieces)
    block.assert_comes_back()
    assert packer.end(block.parts) >= pieces


def test_packing_pieces_again(packer: Packer) -> None:
    """After a write that LMS did not see, chunks have other places."""
    size = 300 * KIB
    block = Block(packer, bytes(size))
    other = values_of(size)
    assert packer.available(1)
    pieces = packer.pack_staged(1, block.address, size, block.parts, share=0.01)
    block.device[:size].copy_(torch.frombuffer(bytearray(other), dtype=torch.uint8))
    flag = torch.ones(1, dtype=torch.int32, device="cuda")
    block.checks()
    packer.repack(1, block.address, size, block.parts, raw_address(flag))
    block.device[:size] = 1
    packer.unpack_staged(1, block.address, size, block.parts, pieces=pieces)
    block.values = other
    block.assert_comes_back()
    # What was hashed of the pieces before they were found to be of no use does not count.
    pieces = packer.pack_staged(1, block.address, size, block.parts, share=1.0)
    block.device[:size] = 1
    packer.unpack_staged(1, block.address, size, block.parts, pieces=pieces)
    block.assert_comes_back()
    assert not packer.corrupted()


def test_blocks_without_room_for_their_heads(packer: Packer) -> None:
    # The larger the GPU, the larger is what it has for heads.
    size = 4 << 30 if ON_HARDWARE else 1 << 30
    assert packer.takes(1 << 20)
    assert not packer.takes(size)
    part = torch.zeros(ALIGN, dtype=torch.uint8).pin_memory()
    assert packer.available(1)
    with pytest.raises(PackError, match="the buffer cannot hold the packed block"):
        packer.unpack_staged(1, 1 << 30, size, [(part.data_ptr(), 8 << 30)])
    with pytest.raises(PackError, match="the buffer cannot hold the packed block"):
        packer.pack_staged(1, 1 << 30, size, [(part.data_ptr(), 8 << 30)])


def test_a_buffer_without_room_for_pieces(packer: Packer) -> None:
    """A chunk that has no room in its piece has room behind all of them."""
    block = Block(packer, values_of(300 * KIB))
    (part, _) = block.parts[0]
    assert packer.available(1)
    needed = packer.staged_bytes(block.size)
    assert needed > packer.buffer_bytes(block.size)
    packer.pack_staged(1, block.address, block.size, [(part, needed)])
    with pytest.raises(PackError, match="the buffer cannot hold the packed block"):
        packer.pack_staged(1, block.address, block.size, [(part, needed - 1)])


@simulated  # a real device cannot be used again
@pytest.mark.parametrize("way", ["kernels", "a piece", "pieces", "unknown pieces"])
def test_other_bits_stop_the_device(packer: Packer, device, way: str) -> None:
    block = Block(packer, random.Random(1).randbytes(3 * KIB if way == "a piece" else 300 * KIB))
    assert packer.available(1)
    pieces = packer.pack_staged(1, block.address, block.size, block.parts, share=1.0)
    torch.cuda.synchronize()
    (head,) = block.host[0][128:132].view(torch.int32).tolist()
    block.host[0][head * 16 + 999] ^= 4
    with suppress(PackError):  # the device may have stopped before all is issued
        if way == "kernels":
            packer.unpack(1, block.address, block.size, block.parts)
        else:
            known = {"pieces": pieces} if way == "unknown pieces" else {}
            packer.unpack_staged(1, block.address, block.size, block.parts, **known)
    with pytest.raises(RuntimeError, match="a kernel was launched"):  # what this error says here
        torch.cuda.synchronize()
    assert packer.corrupted()
    device.clear_faults()


@simulated
@pytest.mark.parametrize("known", [True, False])
def test_after_a_piece_that_did_not_come_back(packer: Packer, device, known: bool) -> None:
    """Pieces are hashed one after the other, and the next attempt begins with the first."""
    block = Block(packer, values_of(300 * KIB))
    assert packer.available(1)
    pieces = packer.pack_staged(1, block.address, block.size, block.parts)
    torch.cuda.synchronize()
    where = {} if known else {"pieces": pieces}
    for nth in (3, 5):
        device.reset_counts()
        device.fault("cudaMemcpyAsync", nth)
        with pytest.raises(PackError):
            packer.unpack_staged(1, block.address, block.size, block.parts, **where)
        device.clear_faults()
        torch.cuda.synchronize()
        block.device[: block.size] = 1
        packer.unpack_staged(1, block.address, block.size, block.parts, **where)
        block.assert_comes_back()
    assert not packer.corrupted()


@simulated
def test_after_a_piece_that_failed(packer: Packer, device) -> None:
    """The next block is not taken for the rest of this one."""
    block = Block(packer, values_of(300 * KIB))
    assert packer.available(1)
    packer.pack_staged(1, block.address, block.size, block.parts)
    torch.cuda.synchronize()
    written = packer.written(block.parts)
    for nth in (2, 5):
        device.reset_counts()
        device.fault("cudaMemcpyAsync", nth)
        with pytest.raises(PackError):
            packer.pack_staged(1, block.address, block.size, block.parts)
        device.clear_faults()
        for pack in (packer.pack_staged, packer.pack):
            torch.cuda.synchronize()
            pack(1, block.address, block.size, block.parts)
            torch.cuda.synchronize()
            assert packer.written(block.parts) == written
            block.device[: block.size] = 1
            packer.unpack(1, block.address, block.size, block.kept(packer))
            block.assert_comes_back()


def test_packing_again(packer: Packer) -> None:
    size = 40 * KIB
    block = Block(packer, bytes(size))
    packer.pack(1, block.address, size, block.parts)
    torch.cuda.synchronize()
    written, end = packer.written(block.parts), packer.end(block.parts)
    assert 0 < written < end < size
    for differs, values in ((0, bytes(size)), (1, values_of(size))):
        block.device[:size].copy_(torch.frombuffer(bytearray(values_of(size)), dtype=torch.uint8))
        flag = torch.full((1,), differs, dtype=torch.int32, device="cuda")
        if differs:
            block.checks()
        packer.repack(1, block.address, size, block.parts, raw_address(flag))
        torch.cuda.synchronize()
        assert (packer.end(block.parts) > end) == (differs != 0)
        block.device[:size] = 1
        packer.unpack(1, block.address, size, block.kept(packer))
        block.values = values
        block.assert_comes_back()
        assert packer.written(block.parts) == written, "what is counted is the first time"


@simulated
def test_kernels_that_change_bits_are_not_used(tmp_path: Path, cache: Path) -> None:
    chunk = Path("torch/csrc/cuda/lms/codec/chunk.cpp")
    text = (RUNTIME / chunk).read_text()
    right = "is ? words[at % kWords] : Word(0);"
    assert right in text
    (tmp_path / chunk.parent).mkdir(parents=True)
    (tmp_path / chunk).write_text(text.replace(right, "words[at % kWords];"))
    with Packer(load(tmp_path, f"-I{tmp_path}")) as wrong:
        assert not wrong.available(1)
        assert wrong.why(1) == "LMS: the kernels for bfloat16 change bits on this GPU"


@pytest.mark.parametrize(
    ("dtype", "most"),
    [
        (torch.bfloat16, 0.73),
        (torch.float16, 0.92),
        (torch.float32, 0.87),
        (torch.bool, 0.13),
        (torch.int64, 0.13),
    ],
)
def test_tensors_shrink(packer: Packer, dtype: torch.dtype, most: float) -> None:
    values = torch.randn(40_960, generator=_seeded(1))
    if not dtype.is_floating_point:
        values = values > 0 if dtype == torch.bool else values * 20
    kind, values = packer.kind_of(dtype), values.to(dtype)
    block = Block(packer, values.view(torch.uint8).numpy().tobytes())
    packer.pack(kind, block.address, block.size, block.parts)
    torch.cuda.synchronize()
    assert packer.written(block.parts) / block.size < most
    block.device[: block.size] = 1
    packer.unpack(kind, block.address, block.size, block.parts)
    block.assert_comes_back()


def test_nothing(packer: Packer) -> None:
    assert packer.buffer_bytes(0) == 0
    packer.pack(1, 0, 0, [])
    packer.unpack(1, 0, 0, [])
    assert packer.kind_of(torch.float64) == 0
    assert not packer.available(0)
    assert packer.why(0) == "LMS: data of this type is not packed"


def test_what_does_not_fit(packer: Packer) -> None:
    size = 40 * KIB
    block = Block(packer, values_of(size))
    (part, length), address = block.parts[0], block.address
    assert packer.fits(address, size, block.parts)
    wrong = {
        "too small": (address, size, [(part, packer.buffer_bytes(size) - 1)]),
        "an odd address": (address + 8, size, block.parts),
        "a part at an odd address": (address, size, [(part + 64, length)]),
        "a part of an odd size": (address, size, [(part, 2 * KIB), (part + 2 * KIB, length)]),
        "too many parts": (address, size, [(part + i * ALIGN, ALIGN) for i in range(11)]),
        "too many bytes": (address, (32 << 30) + 1, [(part, 1 << 40)]),
    }
    for name, arguments in wrong.items():
        assert not packer.fits(*arguments), name
        for call in (packer.pack, packer.unpack):
            if (name, call) == ("too small", packer.unpack):
                continue  # what was packed may be smaller
            with pytest.raises(PackError, match="the buffer cannot hold the packed block"):
                call(1, *arguments)
    with pytest.raises(PackError, match="the buffer cannot hold the packed block"):
        packer.unpack(1, address, size, [(part, KIB)])
    eight = [(part + i * ALIGN, ALIGN) for i in range(7)] + [(part + 7 * ALIGN, length)]
    assert packer.fits(address, size, eight)
    assert packer.fits(address, size, [(part, length), *wrong["too many parts"][2]]), "not all used"


@simulated
def test_the_order_of_streams(packer: Packer, device) -> None:
    """What the kernels touch is seen, on the device and in the buffer."""
    block = Block(packer, values_of(40 * KIB))
    out, other = torch.cuda.Stream(), torch.cuda.Stream()
    assert packer.available(1)

    def races(work) -> list[str]:
        torch.cuda.synchronize()
        device.clear_races()
        work()
        found = device.races()
        device.clear_races()
        return found

    def pack(stream) -> None:
        packer.pack(1, block.address, block.size, block.parts, 4, stream)

    def unpack(stream) -> None:
        packer.unpack(1, block.address, block.size, block.parts, 4, stream)

    def ordered() -> None:
        pack(out)
        other.wait_stream(out)
        unpack(other)

    def reads_what_is_written() -> None:
        pack(out)
        unpack(other)

    def writes_what_is_read() -> None:
        pack(out)
        torch.cuda.synchronize()
        device.clear_races()
        unpack(other)
        with torch.cuda.stream(out):
            block.device.sum()

    def host_reads(offset: int) -> None:
        pack(out)
        device.host_access(block.parts[0][0] + offset, 16, write=False)

    assert races(ordered) == []
    assert any("a kernel of the runtime" in race for race in races(reads_what_is_written))
    assert any("a kernel of the runtime" in race for race in races(writes_what_is_read))
    assert races(lambda: host_reads(0)), "the summary"
    assert races(lambda: host_reads(128)), "heads"
    assert races(lambda: host_reads(2 * KIB)), "slots"


@simulated
@pytest.mark.parametrize("size", [20 * KIB, 300 * KIB], ids=["a piece", "pieces"])
def test_blocks_that_follow_each_other(packer: Packer, device, size: int) -> None:
    """Nothing overwrites what an earlier block still needs in device memory."""
    blocks = [Block(packer, values_of(size, k)) for k in range(4)]
    streams = [torch.cuda.Stream() for _ in blocks]
    assert packer.available(1)
    device.clear_races()
    for block, stream in zip(blocks, streams, strict=True):
        packer.pack_staged(1, block.address, block.size, block.parts, stream=stream)
    torch.cuda.synchronize()
    for block in blocks:
        block.device[: block.size] = 1
    torch.cuda.synchronize()
    for block, stream in zip(blocks, streams, strict=True):
        kept = block.kept(packer)
        packer.unpack_staged(1, block.address, block.size, kept, stream=stream)
    for block in blocks:
        block.assert_comes_back()
    assert device.races() == []


# What the first call of available() makes.
LOADING = (
    "cudaDeviceGetAttribute",
    "cudaMalloc",
    "cudaStreamCreate",
    "cudaMemsetAsync",
    "cudaStreamSynchronize",
    "nvrtcCompileProgram",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cudaDeviceGetAttribute",
    "cuFuncSetAttribute",
)


@simulated
@pytest.mark.parametrize("api", LOADING)
def test_what_fails_while_loading_is_said(library, cache, device, api: str) -> None:
    live, used = device.live(), device.used()
    failed = 0
    for nth in count(1):
        library.packer_forget_images()
        for file in cache.glob("*"):
            file.unlink()
        device.reset_counts()
        device.fault(api, nth)
        with Packer(library) as packer:
            available = packer.available(1)
            if not available:
                failed += 1
                assert api in packer.why(1) or "CUDA error" in packer.why(1)
                assert "\n" not in packer.why(1)
                asked = device.count("cudaDeviceGetAttribute")
                assert not packer.available(1)
                assert device.count("cudaDeviceGetAttribute") == asked, "it does not try again"
                with pytest.raises(PackError, match="bfloat16 cannot be packed on this GPU: "):
                    packer.pack(1, 0, 1, [])
                device.clear_faults()
                assert packer.available(9), "another kind"
            called = device.count(api)
            device.clear_faults()
        assert (device.live(), device.used()) == (live, used)
        if called < nth:
            assert available
            break
    assert failed > 0


@simulated
def test_what_fails_in_use_is_thrown(packer: Packer, device) -> None:
    block = Block(packer, values_of(4096))
    assert packer.available(1)
    for call in (packer.pack, packer.unpack):
        device.fault("cuLaunchKernel", error=719)
        with pytest.raises(PackError, match=r"cuLaunchKernel\(\) failed: .* \(719\)"):
            call(1, block.address, block.size, block.parts)
        device.clear_faults()
    packer.pack(1, block.address, block.size, block.parts)
    packer.unpack(1, block.address, block.size, block.parts)
    block.assert_comes_back()


@simulated
def test_each_kind_is_compiled_once(library, cache, device) -> None:
    for expected in (2, 0):
        library.packer_forget_images()
        device.reset_counts()
        with Packer(library) as packer:
            assert all(packer.available(kind) for kind in (1, 9, 1, 9))
        assert device.count("nvrtcCompileProgram") == expected
    names = sorted(file.name for file in cache.iterdir())
    assert [name.rpartition("_")[0] for name in names] == [
        "lms_codec_bfloat16_sm_80",
        "lms_codec_byte_sm_80",
    ]


def test_each_device_has_its_own(library) -> None:
    with torch.cuda.device(1), Packer(library, 1) as second:
        x = torch.ones(10_000, device="cuda:1")
        host = torch.zeros(second.buffer_bytes(40_000), dtype=torch.uint8).pin_memory()
        parts = [(host.data_ptr(), host.numel())]
        kind = second.kind_of(torch.float32)
        second.pack(kind, raw_address(x), 40_000, parts)
        torch.cuda.synchronize(1)
        x.zero_()
        second.unpack(kind, raw_address(x), 40_000, parts)
        torch.cuda.synchronize(1)
        assert x.eq(1).all()


def beside(device, here, library):
    import sys

    sys.path.insert(0, here)
    import torch
    from packer import Packer, opened

    with Packer(opened(library)) as packer:
        assert packer.available(3)
        out, back = torch.cuda.Stream(), torch.cuda.Stream()
        size = 200_000
        host = torch.zeros(packer.buffer_bytes(size), dtype=torch.uint8).pin_memory()
        parts = [(host.data_ptr(), host.numel())]
        wrong = 0
        for turn in range(20):
            x = torch.full((size // 4,), float(turn), device="cuda")
            out.wait_stream(torch.cuda.current_stream())
            packer.pack(3, x.data_ptr(), size, parts, 4, out)
            torch.cuda.current_stream().wait_stream(out)
            x.zero_()
            back.wait_stream(torch.cuda.current_stream())
            packer.unpack(3, x.data_ptr(), size, parts, 4, back)
            back.synchronize()
            wrong += not x.eq(turn).all().item()
        return [wrong, device.races()]


@simulated
def test_beside_other_work(library) -> None:
    here = str(Path(__file__).parent)
    assert run_sim(beside, here, library._name, async_=1, delay_us=500) == [0, []]
