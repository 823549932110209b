"""The release check's kernels on a real GPU: whether they are right, and what they cost.

    python tests/gpu/kernels.py [--out DIR] [--rounds N]

needs torch and g++, no LMS and no CUDA toolkit. Compiles the checker with g++; the kernels are
compiled by the NVRTC that torch brings. Prints a table, and leaves kernels.json in DIR. Fails when
a change is not found, or is not written to the host.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import machine

sys.path.append(str(Path(__file__).parent.parent / "runtime"))  # checker.py, cxx.py

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = (4 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB)
ODD_SIZES = (1, 15, 16, 17, 4095, 128 * KIB - 1, 128 * KIB, 128 * KIB + 1, 5 * MIB + 7, 99 * MIB)
WARM = 3


@contextmanager
def new_checker(library: ctypes.CDLL) -> Iterator:
    from checker import Checker

    with Checker(library) as made:
        began = time.perf_counter()
        if not made.available():
            raise SystemExit(f"there are no kernels: {made.why()}")
        print(f"ready after {time.perf_counter() - began:.3f} s")
        yield made


class Block:
    """Random bytes on the GPU, and pinned host memory in parts that holds the same."""

    def __init__(self, size: int, parts: int = 1, offset: int = 0) -> None:
        import torch

        self.size = size
        memory = torch.randint(256, (size + offset,), dtype=torch.uint8, device="cuda")
        self.bytes = memory[offset:]
        self.address = self.bytes.data_ptr()
        each = -(-size // parts // 4096) * 4096
        self.host = torch.empty(parts * each, dtype=torch.uint8).pin_memory()
        self.host[:size].copy_(self.bytes)
        self.parts = [(self.host.data_ptr() + i * each, each) for i in range(parts)]

    def hosted(self) -> bool:
        import torch

        return torch.equal(self.host[: self.size], self.bytes.cpu())


def correct(checker, rounds: int) -> int:
    """Changes of one bit, of two, and swaps: each has to be found and written. How many."""
    import torch

    generator = random.Random(0)
    out, home = torch.cuda.Stream(), torch.cuda.Stream()
    found = 0
    for size in ODD_SIZES:
        for offset, parts in ((0, 1), (0, 11), (16, 2), (3, 1)):
            if offset % 16 and size > 8 * MIB:
                continue  # byte by byte takes long
            block, slot = Block(size, parts, offset), checker.take()
            for turn in range(rounds):
                before = checker.caught()
                torch.cuda.synchronize()
                checker.hash(slot, block.address, size, out)
                home.wait_stream(out)
                changed = turn > 0
                with torch.cuda.stream(home):
                    places = {0, size - 1, generator.randrange(size)}
                    if turn > 3:
                        places = {generator.randrange(size)}
                    for place in places if changed else ():
                        block.bytes[place].bitwise_xor_(1 << generator.randrange(8))
                    if turn > 5 and size > 64:
                        # Signs of two floats in the same lane of the hash.
                        first = generator.randrange(size - 32) // 16 * 16
                        for place in (first + 3, first + 19):
                            block.bytes[place].bitwise_xor_(128)
                checker.check(slot, block.address, size, block.parts, home)
                torch.cuda.synchronize()
                name = f"{size} bytes, offset {offset}, {parts} parts, turn {turn}"
                if not block.hosted():
                    raise SystemExit(f"{name}: the host has other bytes")
                if checker.caught() != before + changed:
                    raise SystemExit(f"{name}: {checker.caught() - before} differences are counted")
                if changed and checker.last_caught() != slot:
                    raise SystemExit(f"{name}: another slot is named")
                found += changed
            checker.give(slot)
    return found


def seconds(work: Callable[[], None], repeats: int) -> float:
    """On the GPU, of one call, without the host's part as long as the GPU is the slower one."""
    import torch

    for _ in range(WARM):
        work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1000 / repeats


def host_seconds(work: Callable[[], None]) -> float:
    """On the host, of one call. The best of some rounds that the driver's queue can hold."""
    import torch

    best = float("inf")
    for _ in range(10):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(50):
            work()
        best = min(best, (time.perf_counter() - began) / 50)
    torch.cuda.synchronize()
    return best


def measure(checker, size: int) -> dict[str, float]:
    import torch

    # Several blocks in turn, so that the cache does not hold what is read again.
    count = max(1, min(8, GIB // size))
    blocks = [Block(size) for _ in range(count)]
    others = [Block(size) for _ in range(count)]
    slots = [checker.take() for _ in range(count)]
    stream = torch.cuda.current_stream()
    turn = 0

    def hash_one() -> None:
        nonlocal turn
        turn = (turn + 1) % count
        checker.hash(slots[turn], blocks[turn].address, size, stream)

    def check_one() -> None:
        nonlocal turn
        turn = (turn + 1) % count
        checker.check(slots[turn], blocks[turn].address, size, blocks[turn].parts, stream)

    def check_other() -> None:
        """Always different: the two blocks take turns."""
        nonlocal turn
        turn += 1
        block = (blocks if turn % 2 else others)[0]
        checker.check(slots[0], block.address, size, block.parts, stream)

    repeats = max(5, min(200, 4 * GIB // size))
    hashed = seconds(hash_one, repeats)
    for _ in range(count):
        hash_one()
    checked = seconds(check_one, repeats)
    caught = checker.caught()
    restored = seconds(check_other, 5)
    torch.cuda.synchronize()
    if checker.caught() - caught < 5:
        raise SystemExit(f"{size} bytes: blocks that differ were taken for the same")
    for _ in range(count):
        hash_one()
    row = {
        "hash GB/s": size / hashed / 1e9,
        "check GB/s": size / checked / 1e9,
        "check and restore GB/s": size / restored / 1e9,
        "hash us": hashed * 1e6,
        "check us": checked * 1e6,
    }
    if size <= MIB:
        row["host us of hash"] = host_seconds(hash_one) * 1e6
        row["host us of check"] = host_seconds(check_one) * 1e6
    for slot in slots:
        checker.give(slot)
    return row


def preload() -> None:
    """What the checker calls of CUDA has to be found by name; torch has it loaded already."""
    import torch

    torch.cuda.init()
    major = torch.version.cuda.split(".")[0]
    for name in (f"libcudart.so.{major}", "libcudart.so.11.0"):
        try:
            ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=10, help="changes of each size")
    arguments = parser.parse_args()
    preload()
    import torch
    from checker import load

    described = machine.describe()
    for name, value in described.items():
        print(f"{name}: {value}")
    rows = {}
    with tempfile.TemporaryDirectory(prefix="lms-kernels-") as work:
        os.environ["PYTORCH_KERNEL_CACHE_PATH"] = work
        library = load(Path(work), "-O2")
        with new_checker(library) as checker:
            print(f"{correct(checker, arguments.rounds)} changes were found, and none missed")
            torch.cuda.empty_cache()
            for size in SIZES:
                rows[size] = row = measure(checker, size)
                cells = "  ".join(f"{name} {value:8.1f}" for name, value in row.items())
                print(f"{size / MIB:9.3f} MiB: {cells}")
        library.forget_images()
        print("again, with the compiled kernels on disk: ", end="")
        with new_checker(library):
            pass
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        document = {"machine": described, "results": rows}
        (arguments.out / "kernels.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
