"""The codec's kernels on a real GPU: sizes and GB/s by kind of data and number of thread blocks.

    python tests/gpu/codec.py [--out DIR] [--mib N] [--blocks N ...] [--threads N]
        [--kinds NAME ...]

needs torch and g++, no LMS and no CUDA toolkit. Compiles the packer with g++; the kernels are
compiled by the NVRTC that torch brings. Prints, for each kind of data,

- left: bytes that go over the link, as a share of the data
- out, in: GB/s of data (not of packed bytes) from device memory to a pinned host buffer and back,
  beside a plain copy of the same data by the copy engine; then in both directions at the same
  time, as while a model is trained, and the same by way of device memory

and leaves codec.json in DIR. Fails when a bit is another one after unpacking.

On the simulated device it runs with small sizes, and its times mean nothing:
SIMCUDA_AUTO="mib=256 race=0" PYTHONPATH=tests/simcuda/auto python tests/gpu/codec.py --mib 1
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import machine
from kernels import preload, seconds

sys.path.append(str(Path(__file__).parent.parent / "runtime"))  # packer.py, cxx.py

MIB = 1 << 20
BLOCKS = (4, 8, 16, 32, 64, 128)
REPEATS = 5


def samples(size: int) -> dict[str, tuple[str, object]]:
    """Data of `size` bytes on the GPU, with the name of its type in C++."""
    import torch

    torch.manual_seed(0)
    normal = torch.randn(size // 4, device="cuda")
    half = torch.cat([normal, -normal])  # of two bytes each
    mask = torch.randint(2, (size,), dtype=torch.uint8, device="cuda")
    return {
        "bf16 dense": ("BFloat16", half.bfloat16()),
        "bf16 after ReLU": ("BFloat16", half.relu().bfloat16()),
        "fp16 dense": ("Half", half.half()),
        "fp16 after ReLU": ("Half", half.relu().half()),
        "fp32 dense": ("Float", normal),
        "fp32 after ReLU": ("Float", normal.relu()),
        "fp8 e5m2": ("Float8_e5m2", half.half().view(torch.uint8)[1::2].repeat(2).contiguous()),
        "int64 indices": ("Long", torch.randint(12544, (size // 8,), device="cuda")),
        "int32 words": (
            "Int",
            torch.randint(32000, (size // 4,), dtype=torch.int32, device="cuda"),
        ),
        "mask": ("Bool", mask),
        "any bits": ("BFloat16", torch.randint(256, (size,), dtype=torch.uint8, device="cuda")),
        "zeros": ("BFloat16", torch.zeros(size, dtype=torch.uint8, device="cuda")),
    }


class Case:
    """One kind of data with its buffer."""

    def __init__(self, packer, name: str, scalar_type: str, data) -> None:
        import torch

        self.packer, self.name = packer, name
        # The last chunk is a part of one.
        self.data = data.contiguous().view(torch.uint8).reshape(-1)[:-6]
        self.size = self.data.numel()
        self.kind = packer.kind_of(scalar_type)
        if not packer.available(self.kind):
            raise SystemExit(f"{name}: {packer.why(self.kind)}")
        self.back = torch.zeros_like(self.data)
        self.host = torch.empty(packer.staged_bytes(self.size), dtype=torch.uint8).pin_memory()
        self.parts = [(self.host.data_ptr(), self.host.numel())]
        self.left = 1.0

    def pack(self, blocks: int) -> None:
        import torch

        stream = torch.cuda.current_stream()
        self.packer.pack(self.kind, self.data.data_ptr(), self.size, self.parts, blocks, stream)

    def unpack(self, blocks: int) -> None:
        import torch

        stream = torch.cuda.current_stream()
        self.packer.unpack(self.kind, self.back.data_ptr(), self.size, self.parts, blocks, stream)

    def pack_staged(self, blocks: int) -> None:
        import torch

        block = (self.kind, self.data.data_ptr(), self.size, self.parts)
        self.packer.pack_staged(*block, blocks, torch.cuda.current_stream(), self.left)

    def unpack_staged(self, blocks: int) -> None:
        import torch

        block = (self.kind, self.back.data_ptr(), self.size, self.parts)
        self.packer.unpack_staged(*block, blocks, torch.cuda.current_stream())

    def check(self, blocks: int) -> float:
        """The share that is left. Exits if other bits come back."""
        import torch

        ways = ((self.pack, self.unpack), (self.pack_staged, self.unpack_staged))
        for pack, unpack in ways:
            self.host.fill_(0x5A)
            self.back.fill_(0xA5)
            pack(blocks)
            torch.cuda.synchronize()
            unpack(blocks)
            torch.cuda.synchronize()
            if not torch.equal(self.back, self.data):
                wrong = int((self.back != self.data).nonzero()[0])
                raise SystemExit(f"{self.name}, {blocks} blocks: byte {wrong} is another one")
            self.left = self.packer.written(self.parts) / self.size
        return self.left

    def rate(self, work: Callable[[], None]) -> float:
        """GB/s of data."""
        return self.size / seconds(work, REPEATS) / 1e9

    def copy_out(self) -> None:
        self.host[: self.size].copy_(self.data, non_blocking=True)

    def copy_in(self) -> None:
        self.back.copy_(self.host[: self.size], non_blocking=True)

    def measure(self, blocks: tuple[int, ...]) -> dict:
        row: dict = {
            "kind": self.kind,
            "bytes": self.size,
            "copy out": self.rate(self.copy_out),
            "copy in": self.rate(self.copy_in),
            "blocks": {},
        }
        for count in blocks:
            row["left"] = self.check(count)
            row["blocks"][count] = {
                "out": self.rate(lambda count=count: self.pack(count)),
                "in": self.rate(lambda count=count: self.unpack(count)),
            }
        return row

    def measure_both(self, back: Case, blocks: tuple[int, ...]) -> dict:
        """This one goes to the host, and the other one comes back, at the same time."""
        copies = self.both_rates(self.copy_out, back.copy_in)
        found: dict = {"copies": copies, "blocks": {}, "staged": {}}
        back.check(max(blocks))
        for count in blocks:
            out, home = partial(self.pack, count), partial(back.unpack, count)
            found["blocks"][count] = self.both_rates(out, home)
            out, home = partial(self.pack_staged, count), partial(back.unpack_staged, count)
            found["staged"][count] = self.both_rates(out, home)
        return found

    def both_rates(self, *directions: Callable[[], None]) -> dict[str, float]:
        """GB/s of data in each direction while the other one is in use, too."""
        import torch

        streams = [torch.cuda.Stream() for _ in directions]
        done = [[self.mark(stream)] for stream in streams]
        torch.cuda.synchronize()
        for _ in range(2 * REPEATS):
            for stream, transfer, marks in zip(streams, directions, done, strict=True):
                with torch.cuda.stream(stream):
                    transfer()
                marks.append(self.mark(stream))
        torch.cuda.synchronize()
        ends = [[marks[0].elapsed_time(mark) / 1e3 for mark in marks] for marks in done]
        last = min(times[-1] for times in ends)
        rates = []
        for times in ends:
            within = [time for time in times if time <= last]
            rates.append((len(within) - 1) * self.size / within[-1] / 1e9)
        return {"out": rates[0], "in": rates[1]}

    @staticmethod
    def mark(stream):
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--mib", type=int, default=256, help="data of each kind (256)")
    parser.add_argument("--blocks", type=int, nargs="+", default=BLOCKS)
    parser.add_argument("--threads", type=int, default=256, help="of each block (256)")
    parser.add_argument("--kinds", nargs="+", help="words in the names of kinds")
    arguments = parser.parse_args()
    preload()
    import torch
    from packer import Packer, load

    described = machine.describe()
    for name, value in described.items():
        print(f"{name}: {value}")
    blocks = tuple(arguments.blocks)
    rows: dict[str, dict] = {}
    with tempfile.TemporaryDirectory(prefix="lms-codec-") as work:
        os.environ["PYTORCH_KERNEL_CACHE_PATH"] = work
        library = load(Path(work), "-O2")
        with Packer(library) as packer:
            packer.threads = arguments.threads
            print("kind of data        left   copy out/in", *(f"{n:>4} blocks " for n in blocks))
            for name, (scalar_type, data) in samples(arguments.mib * MIB).items():
                if arguments.kinds and not any(word in name for word in arguments.kinds):
                    continue
                case = Case(packer, name, scalar_type, data)
                rows[name] = row = case.measure(blocks)
                cells = "  ".join(
                    f"{cell['out']:5.1f}/{cell['in']:5.1f}" for cell in row["blocks"].values()
                )
                copies = f"{row['copy out']:5.1f}/{row['copy in']:5.1f}"
                print(f"{name:18} {row['left']:.3f}   {copies}  {cells}", flush=True)
                back = Case(packer, name, scalar_type, data)
                row["both"] = both = case.measure_both(back, blocks)
                cells = "  ".join(
                    f"{cell['out']:5.1f}/{cell['in']:5.1f}"
                    for cell in (both["copies"], *both["blocks"].values())
                )
                print(f"  at the same time         {cells}", flush=True)
                cells = "  ".join(
                    f"{cell['out']:5.1f}/{cell['in']:5.1f}" for cell in both["staged"].values()
                )
                print(f"  by way of device memory                {cells}", flush=True)
                del case, back
                torch.cuda.empty_cache()
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        document = {"machine": described, "results": rows}
        (arguments.out / "codec.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
