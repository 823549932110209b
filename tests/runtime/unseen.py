"""Random programs with a C++ extension that writes without the dispatcher, under memory pressure.

The expected value of each tensor is computed on the CPU and compared bit for bit. The extension
uses tensors that are resident at that time: either an operator has used them just before, or
torch.cuda.lms.wrap() makes the call an operator. Otherwise it succeeds or raises PagedOut.

The streams are ordered as a correct program orders them, and not more than that.
"""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from cxx import HERE, compile_cxx
from releases import untyped_storage

ROOM = 1000  # bytes for a message
MODES = ("operator", "wrap", "bare")
MESSAGE = "has paged this storage out"


class PagedOut(RuntimeError):
    """The extension used a storage that is in host memory."""


class Wrong(AssertionError):
    """A tensor does not have its expected value."""


class Extension:
    """The functions of unseen.cpp, on the current stream."""

    def __init__(self, folder: Path) -> None:
        library = folder / "unseen.so"
        compile_cxx(HERE / "unseen.cpp", library, "-shared", "-fPIC")
        self.library = ctypes.CDLL(str(library))
        self.library.unseen_has_written.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self.library.unseen_has_written.restype = ctypes.c_bool

    def has_written(self, address: int, size: int) -> bool:
        return bool(self.library.unseen_has_written(address, size))

    def _call(self, name: str, *arguments: Any) -> None:
        message = ctypes.create_string_buffer(ROOM)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        function = getattr(self.library, name)
        status = function(*arguments, stream, message, ctypes.c_size_t(ROOM))
        text = message.value.decode(errors="replace")
        if MESSAGE in text:
            raise PagedOut(text)
        if status:
            raise RuntimeError(f"{name}: {text or status}")

    def fill(self, target: torch.Tensor, offset: int, size: int, value: int) -> None:
        """Fills bytes of the tensor's storage."""
        storage = ctypes.c_void_p(untyped_storage(target)._cdata)
        number = ctypes.c_size_t
        self._call("unseen_fill", storage, number(offset), number(size), ctypes.c_int(value))

    def copy(
        self, source: torch.Tensor, target: torch.Tensor, from_: int, to: int, size: int
    ) -> None:
        """Copies bytes from one tensor's storage to that of the other."""
        storages = [ctypes.c_void_p(untyped_storage(x)._cdata) for x in (source, target)]
        number = ctypes.c_size_t
        self._call("unseen_copy", storages[0], number(from_), storages[1], number(to), number(size))


class Memory:
    """What a correct program knows about a storage: the streams that use it."""

    def __init__(self, home: torch.cuda.Stream) -> None:
        self.home = home
        self.written: dict[torch.cuda.Stream, torch.cuda.Event] = {}
        self.read: dict[torch.cuda.Stream, torch.cuda.Event] = {}

    def begin(self, stream: torch.cuda.Stream, write: bool) -> None:
        """Makes the stream wait for the uses that have to end before a use of this kind."""
        for uses in (self.written, self.read) if write else (self.written,):
            for other, event in uses.items():
                if other != stream:
                    stream.wait_event(event)

    def end(self, stream: torch.cuda.Stream, write: bool) -> None:
        if write:
            self.written.clear()
            self.read.clear()
        (self.written if write else self.read)[stream] = stream.record_event()


@dataclasses.dataclass(eq=False)
class Value:
    """A tensor on the device, and its expected value."""

    cuda: torch.Tensor
    cpu: torch.Tensor
    memory: Memory


# int32, so that every operator is exact, and any bytes are valid numbers.
IN_PLACE: dict[str, Callable[[torch.Tensor], Any]] = {
    "add": lambda x: x.add_(1),
    "mul": lambda x: x.mul_(3),
    "neg": lambda x: x.neg_(),
    "xor": lambda x: x.bitwise_xor_(0x55),
    "zero": lambda x: x.zero_(),
    "flip": lambda x: x.copy_(x.flip(0)),
    "even": lambda x: x[::2].add_(5),
}
OUT_OF_PLACE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "clone": torch.clone,
    "add": lambda x: x + 7,
    "roll": lambda x: x.roll(3),
    "where": lambda x: torch.where(x > 0, x, -x),
    "cat": lambda x: torch.cat([x[len(x) // 2 :], x[: len(x) // 2]]),
    "select": lambda x: x[torch.arange(0, len(x), 2, device=x.device)],
}
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "half": lambda x: x[: (len(x) + 1) // 2],
    "even": lambda x: x[::2],
    "last": lambda x: x[-1:],
    "alias": lambda x: x.view_as(x),
}


def unrepaired(races: Sequence[str], writer: Extension | None = None) -> list[str]:
    """Leaves out races of page-outs with writes of the extension that the release check repairs.

    A page-out may hash or copy bytes that the extension is still writing, or writes later.
    """
    if "release_caught" not in torch.cuda.lms.stats():
        return list(races)
    optimistic = ("from device to host", "read after write): a kernel of the runtime")
    return [
        race
        for race in races
        if not any(text in race for text in optimistic) and not _written_later(race, writer)
    ]


def _written_later(race: str, writer: Extension | None) -> bool:
    later = re.match(
        r"race \(write after read\): a (?:fill|copy) .*, (\d+) bytes at (0x[0-9a-f]+),"
        " is not ordered after a kernel of the runtime ",
        race,
    )
    if later is None or writer is None:
        return False
    return writer.has_written(int(later[2], 16), int(later[1]))


def storage_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(untyped_storage(tensor))


def brought(*tensors: torch.Tensor) -> None:
    """Uses all of them in one operator, so that they are resident at the same time."""
    torch.cat([storage_bytes(tensor)[:1] for tensor in tensors])


class Doubled(torch.autograd.Function):
    """Doubles its input, with an extension whose results are not written by an operator."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, program: Programs) -> torch.Tensor:
        context.program = program
        return program.copied(x * 2)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return context.program.copied(gradient * 2), None


class Programs:
    """One random program. No tensor is larger than `largest` bytes; together they have `total`."""

    def __init__(
        self,
        extension: Extension,
        *,
        seed: int,
        limit: int,
        largest: int,
        modes: Sequence[str] = MODES,
        streams: int = 3,
        at_home: bool = False,
        delay: int = 0,
    ) -> None:
        self.extension = extension
        self.draw = random.Random(seed)
        self.limit = limit
        self.largest = largest
        self.total = 4 * limit
        self.modes = modes
        # Older versions of LMS have no wrap(), but the function behind it.
        self.wrap = getattr(torch.cuda.lms, "wrap", None) or torch.cuda.lms._as_operator
        # Whether the extension writes on the home stream of the memory.
        self.at_home = at_home
        # GPU cycles that it waits before half of its writes, so that other work is queued first.
        self.delay = delay
        current = torch.cuda.current_stream()
        self.streams = [current, *(torch.cuda.Stream() for _ in range(streams - 1))]
        self.live: list[Value] = []
        self.memories: dict[int, Memory] = {}
        self.log: collections.deque[str] = collections.deque(maxlen=30)
        self.counts: collections.Counter[str] = collections.Counter()

    # What a correct program does ---------------------------------------------------------------

    def new(self, cuda: torch.Tensor, cpu: torch.Tensor, stream: torch.cuda.Stream) -> None:
        if not cpu.numel():
            return
        key = untyped_storage(cuda)._cdata
        if key not in self.memories:
            self.memories[key] = Memory(stream)
            self.memories[key].end(stream, write=True)
        self.live.append(Value(cuda, cpu, self.memories[key]))

    def drop(self, value: Value) -> None:
        memory = value.memory
        self.live.remove(value)
        if all(other.memory is not memory for other in self.live):
            memory.begin(memory.home, write=True)
            del self.memories[untyped_storage(value.cuda)._cdata]

    def run(
        self, function: Callable[..., Any], stream: torch.cuda.Stream, *values: Value, write: bool
    ) -> tuple[Any, Any]:
        """Runs an operator on both devices. It writes its first operand, or none."""
        written = values[0].memory if write else None
        used = list({id(value.memory): value.memory for value in values}.values())
        for memory in used:
            memory.begin(stream, memory is written)
        with torch.cuda.stream(stream):
            found = function(*[value.cuda for value in values])
        for memory in used:
            memory.end(stream, memory is written)
        return found, function(*[value.cpu for value in values])

    # Steps -------------------------------------------------------------------------------------

    def any_stream(self) -> torch.cuda.Stream:
        return self.draw.choice(self.streams)

    def any_value(self) -> Value:
        return self.draw.choice(self.live)

    def make(self) -> None:
        count = self.draw.randint(self.largest // 64, self.largest) // 4
        cpu = torch.arange(count, dtype=torch.int32) % 1021 + self.draw.randrange(100)
        stream = self.any_stream()
        with torch.cuda.stream(stream):
            self.new(cpu.cuda(), cpu, stream)

    def delete(self) -> None:
        self.drop(self.any_value())

    def view(self) -> None:
        value = self.any_value()
        function = VIEWS[self.draw.choice(list(VIEWS))]
        self.new(function(value.cuda), function(value.cpu), value.memory.home)

    def in_place(self) -> None:
        function = IN_PLACE[self.draw.choice(list(IN_PLACE))]
        self.run(function, self.any_stream(), self.any_value(), write=True)

    def out_of_place(self) -> None:
        function = OUT_OF_PLACE[self.draw.choice(list(OUT_OF_PLACE))]
        stream = self.any_stream()
        self.new(*self.run(function, stream, self.any_value(), write=False), stream)

    def pair(self) -> None:
        x, y = self.any_value(), self.any_value()

        def add(a: torch.Tensor, b: torch.Tensor) -> None:
            shared = min(len(a), len(b))
            a[:shared].add_(b[:shared].clone())

        self.run(add, self.any_stream(), x, y, write=True)

    def compare(self) -> None:
        self.check(self.any_value())

    def check(self, value: Value) -> None:
        found, _ = self.run(torch.Tensor.cpu, self.any_stream(), value, write=False)
        if not torch.equal(found, value.cpu):
            places = (found != value.cpu).nonzero().flatten()
            raise Wrong(
                f"{len(places)} of {len(found)} elements differ, from {places[0].item()} on: "
                f"{found[places[0]].item():#x}, not {value.cpu[places[0]].item():#x}"
            )

    def reclaim(self) -> None:
        torch.cuda.reclaim_inactive()

    def empty_cache(self) -> None:
        """Returns memory to the device, which can then be allocated for something else."""
        torch.cuda.empty_cache()

    def change_limit(self) -> None:
        torch.cuda.set_limit_lms(self.draw.choice((self.limit // 2, self.limit, 2 * self.limit)))

    def hold(self) -> None:
        """Lets the extension write to a tensor that the program holds on the device."""
        value = self.any_value()
        with torch.cuda.stream(value.memory.home), torch.cuda.lms.resident(value.cuda):
            self.unseen_fill(value, "bare")

    def backward(self) -> None:
        value, stream = self.any_value(), self.any_stream()

        def gradient(x: torch.Tensor) -> torch.Tensor:
            leaf = x.remainder(5).float().requires_grad_()
            (Doubled.apply(leaf * leaf, self) + leaf).sum().backward()
            return leaf.grad.int()

        self.new(*self.run(gradient, stream, value, write=False), stream)

    # The extension -----------------------------------------------------------------------------

    def piece(self, size: int) -> tuple[int, int]:
        """The offset and the number of bytes to use: all of them, a part, or a few."""
        part = self.draw.choice((size, self.draw.randint(1, size), self.draw.randint(1, 8)))
        length = min(part, size)
        return self.draw.randint(0, size - length), length

    def use(
        self, mode: str, function: Callable[..., None], tensors: list[Any], *numbers: int
    ) -> bool:
        """Calls the extension; returns whether it succeeded."""
        if mode == "wrap":
            self.wrap(function)(*tensors, *numbers)
            return True
        if mode == "operator":
            brought(*tensors)
            function(*tensors, *numbers)
            return True
        try:
            function(*tensors, *numbers)
        except PagedOut:
            self.counts["refused"] += 1
            return False
        return True

    def unseen(
        self, mode: str, function: Callable[..., None], values: list[Value], *numbers: int
    ) -> bool:
        """Calls the extension, which writes the last of the values."""
        written = values[-1].memory
        stream = self.any_stream()
        if self.at_home or mode == "bare":
            stream = written.home
        used = list({id(value.memory): value.memory for value in values}.values())
        for memory in used:
            # It may have been paged in for a reader on another stream.
            memory.begin(stream, True)

        def later(*arguments: Any) -> None:
            if self.delay and self.draw.random() < 0.5:
                torch.cuda._sleep(self.delay)
            function(*arguments)

        with torch.cuda.stream(stream):
            done = self.use(mode, later, [value.cuda for value in values], *numbers)
        for memory in used:
            memory.end(stream, memory is written)
        return done

    def unseen_fill(self, value: Value | None = None, mode: str | None = None) -> None:
        value = value or self.any_value()
        cpu = storage_bytes(value.cpu)
        first, size = self.piece(len(cpu))
        number = self.draw.randrange(256)
        mode = mode or self.draw.choice(self.modes)
        self.log[-1] += f" {mode} {size} of {len(cpu)} bytes"
        if self.unseen(mode, self.extension.fill, [value], first, size, number):
            cpu[first : first + size] = number

    def unseen_copy(self) -> None:
        source, target = self.any_value(), self.any_value()
        if source.memory is target.memory:
            return
        from_, to = storage_bytes(source.cpu), storage_bytes(target.cpu)
        first, size = self.piece(min(len(from_), len(to)))
        place = self.draw.randint(0, len(to) - size)
        mode = self.draw.choice(self.modes)
        self.log[-1] += f" {mode} {size} of {len(to)} bytes"
        values = [source, target]
        if self.unseen(mode, self.extension.copy, values, first, place, size):
            to[place : place + size] = from_[first : first + size]

    def copied(self, x: torch.Tensor) -> torch.Tensor:
        """A clone, made by the extension."""
        if not x.is_cuda:
            return x.clone()
        result = torch.empty_like(x)
        size = untyped_storage(x).nbytes()
        mode = "wrap" if "wrap" in self.modes else "operator"
        self.use(mode, self.extension.copy, [x, result], 0, 0, size)
        return result

    # -------------------------------------------------------------------------------------------

    STEPS = (
        ("make", 10),
        ("delete", 6),
        ("view", 6),
        ("in_place", 14),
        ("out_of_place", 10),
        ("pair", 6),
        ("compare", 10),
        ("unseen_fill", 18),
        ("unseen_copy", 10),
        ("backward", 3),
        ("hold", 3),
        ("reclaim", 2),
        ("empty_cache", 3),
        ("change_limit", 2),
    )

    def step(self) -> None:
        names, weights = zip(*self.STEPS, strict=True)
        name = self.draw.choices(names, weights)[0]
        owned = {id(v.memory): untyped_storage(v.cpu).nbytes() for v in self.live}
        if sum(owned.values()) < self.total // 2 or not self.live:
            name = "make"
        elif sum(owned.values()) > self.total:
            name = "delete"
        self.counts[name] += 1
        self.log.append(name)
        getattr(self, name)()

    def finish(self) -> None:
        for value in self.live:
            self.check(value)
        while self.live:
            self.drop(self.live[-1])


def run(programs: Programs, steps: int, each: Callable[[], None] = lambda: None) -> None:
    """Runs this number of steps, and `each` after each step. Raises Wrong if anything fails."""
    for number in range(steps):
        try:
            programs.step()
            each()
        except Exception as error:
            last = "\n  ".join(programs.log)
            raise Wrong(f"step {number}: {error!r}\nthe last steps:\n  {last}") from error
    programs.log.append("finish")
    programs.finish()
