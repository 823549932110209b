"""Random programs under LMS, and the same on CPU tensors: the bytes must be equal.

A program is one run of the state machine below. It orders its streams as a correct program must,
and no more than that: what LMS forgets to order, the race checker sees. CI runs the same few
programs each time. LMS_PROGRAMS=2000 runs that many new ones. What hypothesis prints of a failure
is a program that can be pasted into a test.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
import unseen
from conftest import CAPACITY, DEVICE, DEVICES, MIB, ON_HARDWARE, SMALL
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)
from releases import size_of, untyped_storage
from tensors import evict, floats, managed, pattern, raw_address, turn_on
from torch.utils.checkpoint import checkpoint
from unseen import brought, storage_bytes, unrepaired

HIDDEN_STEPS = ("unseen write", "backward over streams", "capture")
"""The kinds of steps, of those that operators do not show, that programs have."""

if DEVICES < 2:
    pytest.skip("programs use two GPUs, and there is one", allow_module_level=True)

PROGRAMS = int(os.environ.get("LMS_PROGRAMS", "0"))
STEPS = 40

STREAMS = [
    [torch.cuda.default_stream(index), torch.cuda.Stream(index), torch.cuda.Stream(index)]
    for index in range(2)
]
# int32: every operator is exact, whatever the order of its sums. The first two are too small to be
# managed.
SHAPES = [(2, 2), (16, 16), (32, 64), (64, 64), (64, 128), (8, 16384)]
LIMITS = [1, 64 << 10, 128 << 10, 4 * MIB]
CAPTURES = [torch.cuda.Stream(index) for index in range(2)]
# With what LMS itself takes there: the table of its hashes.
CAP = (16 if ON_HARDWARE else 8) * MIB + MIB // 2
"""Device memory where there is no limit but that. The native allocator takes 2 MiB at a time, for
each stream and for each of its workspaces that cuBLAS has on hardware."""

VIEWS = {
    "alias": lambda x: x.view_as(x),
    "detach": lambda x: x.detach(),
    "even": lambda x: x[::2],
    "transpose": lambda x: x.transpose(0, -1),
    "half": lambda x: x[: (len(x) + 1) // 2],
    "last": lambda x: x.narrow(0, len(x) - 1, 1),
    "flat": lambda x: x.view(-1) if x.is_contiguous() else x[...],
    "chunk": lambda x: x.chunk(2, -1)[-1],
    "strided": lambda x: x.as_strided((1,), (1,)),
    "unsqueezed": lambda x: x.unsqueeze(0).squeeze(0),
}
MAKERS = {
    "clone": torch.clone,
    "contiguous": lambda x: x.contiguous().view_as(x),  # never the same object
    "neg": torch.neg,
    "thrice": lambda x: x * 3,
    "cumsum": lambda x: x.cumsum(0, dtype=torch.int32),
    "sort": lambda x: x.sort(-1).values,
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0),
    "long": lambda x: x.long().int(),
    "where": lambda x: torch.where(x > 0, x, -x),
    "select": lambda x: x.index_select(0, torch.tensor([len(x) - 1, 0], device=x.device)),
    "take": lambda x: x[torch.arange(0, len(x), 2, device=x.device)],
    "masked": lambda x: x[x > 3],
    "sum": lambda x: x.sum(0, keepdim=True, dtype=torch.int32),
    "empty_then_fill": lambda x: torch.empty_like(x).fill_(5),
    "split": lambda x: torch.cat([part + 1 for part in x.chunk(5)]),
    "matmul": lambda x: matmul(x, x),
}
WRITERS = {
    "add": lambda x: x.add_(1),
    "zero": lambda x: x.zero_(),
    "neg": lambda x: x.neg_(),
    "fill": lambda x: x.fill_(7),
    "clamp": lambda x: x.clamp_(-9, 99),
    "masked_fill": lambda x: x.masked_fill_(x > 5, 3),
    "item": lambda x: x[:1].fill_(9),
    "column": lambda x: x.select(-1, 0).mul_(2),
    "own_flip": lambda x: x.copy_(x.flip(0)),
    "out": lambda x: torch.mul(x, 3, out=x),
    "index_put": lambda x: x.index_put_(
        (torch.arange(0, len(x), 3, device=x.device),), torch.tensor(4, dtype=x.dtype).to(x.device)
    ),
    "index_fill": lambda x: x.index_fill_(0, torch.tensor([0], device=x.device), 8),
}
PAIRS = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "maximum": torch.maximum,
    "where": lambda x, y: torch.where(x > y, x, y),
    "stack": lambda x, y: torch.stack([x, y.expand_as(x)])[-1],
    "matmul": lambda x, y: matmul(x, y),
    "addcmul": lambda x, y: torch.addcmul(x, x, y),
}
PAIR_WRITERS = {
    "add": lambda x, y: x.add_(y),
    "copy": lambda x, y: x.copy_(y),
    "out": lambda x, y: torch.sub(x, y, out=x),
    "where": lambda x, y: torch.where(x > y, x, y, out=x),
    "index_add": lambda x, y: x.index_put_(
        (torch.zeros(1, dtype=torch.int64, device=x.device),), y.flatten()[0], accumulate=True
    ),
    "slice": lambda x, y: x[:1].copy_(y.expand_as(x)[:1]),
    "masked_scatter": lambda x, y: x.masked_scatter_(x > 1, y.expand_as(x)),
}
LISTS = {
    "cat": lambda *xs: torch.cat([x.reshape(-1)[:8192] for x in xs]),
    "stack": lambda *xs: torch.stack([x.reshape(-1)[:4] for x in xs if x.numel() >= 4] or [xs[0]]),
    "block_diag": lambda *xs: torch.block_diag(*[x.reshape(-1)[:9].view(1, -1) for x in xs]),
}


def steps(x: torch.Tensor) -> list[int]:
    """The strides that mean something: where a dimension has one element, devices differ."""
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]


def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A product of small matrices, in floats that are exact."""
    a = x.reshape(-1)[: 16 * 16].remainder(5).float()
    b = y.reshape(-1)[: len(a)].remainder(7).float()
    return (a[: len(b)].view(-1, 1) @ b[:16].view(1, -1)).int()


def fitted(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Elements of y in the shape of x; or one, to be broadcast."""
    flat = y.reshape(-1)
    return flat[: x.numel()].view(x.shape) if len(flat) >= x.numel() else flat[0]


class Memory(unseen.Memory):
    """What a correct program knows of a storage: where it comes from, and who uses it."""

    def __init__(self, home: torch.cuda.Stream) -> None:
        super().__init__(home)
        self.recorded: set[torch.cuda.Stream] = set()
        self.holds: list = []
        self.address: int | None = None
        self.exported = False

    def kept(self) -> bool:
        return self.exported or bool(self.holds)


@dataclasses.dataclass(eq=False)
class Value:
    """A tensor on the device, and what it must be."""

    cuda: torch.Tensor
    cpu: torch.Tensor
    memory: Memory

    def device(self) -> int:
        return self.cuda.device.index


@dataclasses.dataclass(eq=False)
class Pinned:
    """A copy in pinned host memory, and what it must be."""

    host: torch.Tensor
    cpu: torch.Tensor
    arrived: torch.cuda.Event


@dataclasses.dataclass(eq=False)
class Graph:
    """Sums of which a backward pass has not been run yet, and the tensors whose gradients count."""

    cuda: tuple[torch.Tensor, torch.Tensor]
    cpu: tuple[torch.Tensor, torch.Tensor]
    stream: torch.cuda.Stream


def forward(x: torch.Tensor, y: torch.Tensor, again: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """A leaf and a sum, in floats that are exact."""
    leaf = x.reshape(-1)[:4096].remainder(5).float().requires_grad_()
    other = y.reshape(-1)[: len(leaf)].remainder(3).float()

    def layer(part: torch.Tensor) -> torch.Tensor:
        return (part * other + part).relu() * part

    part = leaf[: len(other)]
    hidden = checkpoint(layer, part, use_reentrant=False) if again else layer(part)
    return leaf, (hidden + torch.cat([part[1:], part[:1]])).sum()


values = Bundle("values")
pinned = Bundle("pinned")
graphs = Bundle("graphs")
streams = st.integers(0, 2)


def names(table: dict[str, Callable]) -> st.SearchStrategy[str]:
    return st.sampled_from(list(table))


class Programs(RuleBasedStateMachine):
    with_lms = True

    def __init__(self) -> None:
        super().__init__()
        self.live: list[Value] = []
        self.memories: dict[int, Memory] = {}
        self.graphs: list[Graph] = []
        self.capped = False
        self.wrote_unseen = False
        torch.cuda.set_limit_lms(LIMITS[1])
        torch.cuda.set_enabled_lms(self.with_lms)

    def teardown(self) -> None:
        _, error, trace = sys.exc_info()
        try:
            if error is None:
                self.finish()
        finally:
            # The next program starts as this one did, or a failure could not be reproduced.
            # hypothesis keeps machines, and errors with all that their frames refer to.
            traceback.clear_frames(trace)
            for memory in self.memories.values():
                self.let_go(memory)
            for value in self.live:
                del value.cuda
            for graph in self.graphs:
                del graph.cuda
            gc.collect()
            gc.freeze()  # the next collection need not look at all of PyTorch
            torch.cuda.synchronize(0)
            torch.cuda.synchronize(1)
            torch.cuda.lms._set_stress(False)
            torch.cuda.lms._set_shuffle(False)
            torch.cuda.lms._set_verify_clean(False)
            torch.cuda.set_limit_lms(0)
            torch.cuda.set_enabled_lms(False)
            torch.cuda.set_size_lms(SMALL)
            DEVICE.set_cap(CAPACITY)
            torch.cuda.empty_cache()
            torch.cuda.lms.trim_host()
            for index in range(2):
                torch.cuda.reset_accumulated_memory_stats(index)
            DEVICE.clear_races()

    def finish(self) -> None:
        for value in self.live:
            self.compare(value, value.memory.home)
        while self.live:
            self.drop(self.live[-1], wait=True)
        while self.graphs:
            del self.graphs.pop().cuda
        self.no_races()
        for index in range(2):
            numbers = torch.cuda.lms.stats(index)
            assert torch.cuda.lms._values(index)["pinned.all.current"] == 0
            for name in ("resident", "paged_out", "held", "host_used"):
                assert numbers[f"{name}_bytes"] == 0, name
            # Nothing marks an unseen write.
            assert self.wrote_unseen or numbers["clean_violations"] == 0

    @invariant()
    def no_races(self) -> None:
        races = unrepaired(DEVICE.races()) if self.wrote_unseen else DEVICE.races()
        assert races == [], races

    # What a correct program does ---------------------------------------------------------------

    def free(self, memory: Memory, wait: bool) -> None:
        """Makes the uses on other streams known to the allocator, before the memory dies."""
        self.let_go(memory)
        for stream, event in {**memory.written, **memory.read}.items():
            if stream not in (memory.home, *memory.recorded):
                if wait:
                    memory.home.wait_event(event)
                else:
                    self.owner(memory).cuda.record_stream(stream)

    def let_go(self, memory: Memory) -> None:
        while memory.holds:
            memory.holds.pop().__exit__(None, None, None)

    def owner(self, memory: Memory) -> Value:
        return next(value for value in self.live if value.memory is memory)

    def sharers(self, memory: Memory) -> int:
        return sum(value.memory is memory for value in self.live)

    def new(self, cuda: torch.Tensor, cpu: torch.Tensor, stream: torch.cuda.Stream) -> Value:
        assert (cuda.shape, steps(cuda)) == (cpu.shape, steps(cpu))
        key = untyped_storage(cuda)._cdata
        if key not in self.memories:
            self.memories[key] = Memory(stream)
            self.memories[key].end(stream, write=True)
        value = Value(cuda, cpu, self.memories[key])
        self.live.append(value)
        return value

    def forget(self, memory: Memory) -> None:
        self.memories = {key: known for key, known in self.memories.items() if known is not memory}

    def drop(self, value: Value, wait: bool) -> None:
        if self.sharers(value.memory) == 1:
            self.free(value.memory, wait)
            self.forget(value.memory)
        self.live.remove(value)
        del value.cuda, value.cpu

    def replace(self, value: Value, stream: torch.cuda.Stream) -> None:
        """The storage has other memory now."""
        old = value.memory
        memory = Memory(stream)
        memory.end(stream, write=True)
        for sharer in self.live:
            if sharer.memory is old:
                sharer.memory = memory
        self.forget(old)
        self.memories[untyped_storage(value.cuda)._cdata] = memory

    def near(self, value: Value, device: int, stream: int) -> Value:
        """The value, or a copy of it on this device that nobody else has."""
        if value.device() == device:
            return value
        from_, to = STREAMS[1 - device][stream], STREAMS[device][stream]
        value.memory.begin(from_, write=False)
        with torch.cuda.stream(to), torch.cuda.stream(from_):
            # A copy that changes the strides runs, simulated, on the other device's stream.
            cuda = value.cuda.contiguous().to(f"cuda:{device}")
        copy = Value(cuda, value.cpu.contiguous().clone(), Memory(to))
        value.memory.end(from_, write=False)
        return copy

    def run(
        self, function: Callable, stream: int, operands: Sequence[Value], writes: int = 0
    ) -> tuple:
        """Runs an operator that writes so many of its operands, the first ones."""
        home = STREAMS[operands[0].device()][stream]
        written = {operand.memory for operand in operands[:writes]}
        used = {operand.memory for operand in operands}
        for memory in used:
            memory.begin(home, memory in written)
        with torch.cuda.stream(home):
            results = function(*[operand.cuda for operand in operands])
        for memory in used:
            memory.end(home, memory in written)
        return results, function(*[operand.cpu for operand in operands])

    def compare(self, value: Value, stream: torch.cuda.Stream) -> None:
        value.memory.begin(stream, write=False)
        with torch.cuda.stream(stream):
            copy = value.cuda.cpu()
        value.memory.end(stream, write=False)
        assert torch.equal(copy, value.cpu)

    # Tensors -----------------------------------------------------------------------------------

    @initialize(
        regime=st.sampled_from(("limit", "stress", "verify", "cap", "shuffle")),
        late=st.booleans(),
        limit=st.sampled_from(LIMITS),
    )
    def start(self, regime: str, late: bool, limit: int) -> None:
        if late and self.with_lms:
            # Operators are only counted, until a setting or the use of memory calls for more.
            torch.cuda.set_enabled_lms(False)
            torch.cuda.set_limit_lms(0)
            torch.cuda.set_enabled_lms(True)
            if regime == "limit":
                return
        torch.cuda.set_limit_lms(limit)
        torch.cuda.lms._set_stress(regime == "stress")
        torch.cuda.lms._set_shuffle(regime == "shuffle")
        torch.cuda.lms._set_verify_clean(regime == "verify")
        if regime == "cap" and self.with_lms:
            self.capped = True
            torch.cuda.set_limit_lms(0)
            DEVICE.set_cap(CAP)

    @rule(
        target=values,
        shape=st.sampled_from(SHAPES),
        first=st.integers(0, 9),
        device=st.integers(0, 1),
        stream=streams,
    )
    def make(self, shape: tuple[int, int], first: int, device: int, stream: int) -> Value:
        home = STREAMS[device][stream]
        cpu = torch.arange(shape[0] * shape[1], dtype=torch.int32).view(shape) % 1021 + first
        with torch.cuda.stream(home):
            return self.new(cpu.to(f"cuda:{device}"), cpu, home)

    @rule(target=values, x=values, how=names(VIEWS))
    def view(self, x: Value, how: str) -> Value:
        function = VIEWS[how] if x.cpu.dim() and x.cpu.numel() else VIEWS["alias"]
        return self.new(function(x.cuda), function(x.cpu), x.memory.home)

    @rule(target=values, x=values, how=names(MAKERS), stream=streams)
    def unary(self, x: Value, how: str, stream: int) -> Value:
        function = MAKERS[how] if x.cpu.dim() and x.cpu.numel() else torch.clone
        results = self.run(function, stream, [x])
        return self.new(*results, STREAMS[x.device()][stream])

    @rule(x=values, how=names(WRITERS), stream=streams)
    def unary_(self, x: Value, how: str, stream: int) -> None:
        self.run(
            WRITERS[how] if x.cpu.dim() and x.cpu.numel() else torch.neg_, stream, [x], writes=1
        )

    @rule(target=values, x=values, y=values, how=names(PAIRS), stream=streams)
    def binary(self, x: Value, y: Value, how: str, stream: int) -> Value:
        if not y.cpu.numel() or not x.cpu.numel():
            return multiple()
        y = self.near(y, x.device(), stream)
        results = self.run(lambda a, b: PAIRS[how](a, fitted(b, a)), stream, [x, y])
        return self.new(*results, STREAMS[x.device()][stream])

    @rule(x=values, y=values, how=names(PAIR_WRITERS), stream=streams)
    def binary_(self, x: Value, y: Value, how: str, stream: int) -> None:
        if not y.cpu.numel() or not x.cpu.numel() or not x.cpu.dim():
            return
        same = x.memory is y.memory  # an operator refuses operands that overlap in part
        y = self.near(y, x.device(), stream)

        def function(a: torch.Tensor, b: torch.Tensor) -> None:
            PAIR_WRITERS[how](a, fitted(b.clone() if same else b, a))

        self.run(function, stream, [x, y], writes=1)

    @rule(
        target=values,
        xs=st.lists(values, min_size=1, max_size=5),
        how=names(LISTS),
        stream=streams,
    )
    def join(self, xs: list[Value], how: str, stream: int) -> Value:
        xs = [self.near(x, xs[0].device(), stream) for x in xs]
        results = self.run(LISTS[how], stream, xs)
        return self.new(*results, STREAMS[xs[0].device()][stream])

    @rule(target=values, xs=st.lists(values, min_size=1, max_size=4), stream=streams)
    def foreach(self, xs: list[Value], stream: int) -> Value:
        xs = [x for x in xs if x.device() == xs[0].device()]
        results, expected = self.run(lambda *xs: torch._foreach_mul(xs, 2), stream, xs)
        home = STREAMS[xs[0].device()][stream]
        return multiple(*[self.new(*pair, home) for pair in zip(results, expected, strict=True)])

    @rule(xs=st.lists(values, min_size=1, max_size=4), stream=streams)
    def foreach_(self, xs: list[Value], stream: int) -> None:
        one_each = {x.memory: x for x in xs if x.device() == xs[0].device()}
        xs = list(one_each.values())
        self.run(lambda *xs: torch._foreach_add_(xs, 3), stream, xs, writes=len(xs))

    @rule(target=values, x=values, stream=streams)
    def to_the_other_device(self, x: Value, stream: int) -> Value:
        copy = self.near(x, 1 - x.device(), stream)
        return self.new(copy.cuda, copy.cpu, copy.memory.home)

    # Lifetimes ---------------------------------------------------------------------------------

    @rule(x=consumes(values), wait=st.booleans())
    def delete(self, x: Value, wait: bool) -> None:
        self.drop(x, wait)

    @rule(x=values, stream=streams)
    def record_stream(self, x: Value, stream: int) -> None:
        home = STREAMS[x.device()][stream]
        x.cuda.record_stream(home)
        x.memory.recorded.add(home)

    @rule(x=values, y=values, wait=st.booleans())
    def set_(self, x: Value, y: Value, wait: bool) -> None:
        if x.device() != y.device() or x.memory is y.memory:
            return
        if self.sharers(x.memory) == 1:
            self.free(x.memory, wait)
            self.forget(x.memory)
        x.cuda.set_(y.cuda)
        x.cpu.set_(y.cpu)
        x.memory = y.memory

    @rule(x=values, y=values)
    def swap_data(self, x: Value, y: Value) -> None:
        if x.device() == y.device():
            x.cuda.data, y.cuda.data = y.cuda.data, x.cuda.data
            x.cpu.data, y.cpu.data = y.cpu.data, x.cpu.data
            x.memory, y.memory = y.memory, x.memory

    @rule(x=values, stream=streams, wait=st.booleans(), reclaim=st.booleans())
    def free_and_refill(self, x: Value, stream: int, wait: bool, reclaim: bool) -> None:
        """As FSDP does with the storages of its parameters."""
        if x.memory.kept():
            return
        home = STREAMS[x.device()][stream]
        self.free(x.memory, wait)

        def resize(tensor: torch.Tensor, size: int) -> None:
            untyped_storage(tensor).resize_(size)

        def refill(tensor: torch.Tensor) -> None:
            whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            whole.set_(untyped_storage(tensor))
            whole.copy_(torch.arange(len(whole), dtype=tensor.dtype) % 509)

        size = untyped_storage(x.cpu).nbytes()
        resize(x.cuda, 0)
        resize(x.cpu, 0)
        if reclaim:
            torch.cuda.reclaim_inactive()
        with torch.cuda.stream(home):
            resize(x.cuda, size)
            refill(x.cuda)
        resize(x.cpu, size)
        refill(x.cpu)
        self.replace(x, home)

    @rule(x=values, stream=streams)
    def grow(self, x: Value, stream: int) -> None:
        """The storage gets new memory, with its bytes and room for more behind them."""
        size = untyped_storage(x.cpu).nbytes()
        if x.memory.kept() or size == 0 or size > MIB:
            return
        home = STREAMS[x.device()][stream]
        x.memory.begin(home, write=True)
        x.memory.read[home] = home.record_event()
        self.free(x.memory, wait=False)
        with torch.cuda.stream(home):
            untyped_storage(x.cuda).resize_(size + 64)
        untyped_storage(x.cpu).resize_(size + 64)
        self.replace(x, home)

    # The host ----------------------------------------------------------------------------------

    @rule(target=pinned, x=values, stream=streams)
    def to_pinned(self, x: Value, stream: int) -> Pinned:
        home = STREAMS[x.device()][stream]
        x.memory.begin(home, write=False)
        with torch.cuda.stream(home):
            host = torch.empty(x.cpu.shape, dtype=x.cpu.dtype, pin_memory=True)
            host.copy_(x.cuda, non_blocking=True)
        x.memory.end(home, write=False)
        return Pinned(host, x.cpu.clone(), home.record_event())

    @rule(target=values, p=pinned, device=st.integers(0, 1), stream=streams)
    def from_pinned(self, p: Pinned, device: int, stream: int) -> Value:
        home = STREAMS[device][stream]
        home.wait_event(p.arrived)
        with torch.cuda.stream(home):
            cuda = p.host.to(f"cuda:{device}", non_blocking=True)
            return self.new(cuda, p.cpu.contiguous().clone(), home)

    @rule(p=consumes(pinned))
    def compare_pinned(self, p: Pinned) -> None:
        p.arrived.synchronize()
        DEVICE.host_access(p.host.data_ptr(), size_of(p.host))
        assert torch.equal(p.host, p.cpu)

    @rule(x=values, stream=streams)
    def compare_now(self, x: Value, stream: int) -> None:
        self.compare(x, STREAMS[x.device()][stream])

    # Autograd ----------------------------------------------------------------------------------

    @rule(target=graphs, x=values, y=values, again=st.booleans(), stream=streams)
    def forward(self, x: Value, y: Value, again: bool, stream: int) -> Graph:
        if not y.cpu.numel() or not x.cpu.numel():
            return multiple()
        y = self.near(y, x.device(), stream)
        results = self.run(lambda a, b: forward(a, b, again), stream, [x, y])
        self.graphs.append(Graph(*results, STREAMS[x.device()][stream]))
        return self.graphs[-1]

    @rule(target=values, g=consumes(graphs), stream=streams)
    def backward(self, g: Graph, stream: int) -> Value:
        home = STREAMS[g.stream.device.index][stream]
        home.wait_stream(g.stream)
        with torch.cuda.stream(home):
            for _, total in (g.cuda, g.cpu):
                total.backward()
            gradient = g.cuda[0].grad.int()
        expected = g.cpu[0].grad.int()
        g.stream.wait_stream(home)  # the graph's memory goes back in the order of that stream
        self.graphs.remove(g)
        del g.cuda, g.cpu
        return self.new(gradient, expected, home)

    # LMS ---------------------------------------------------------------------------------------

    @rule()
    def reclaim(self) -> None:
        torch.cuda.reclaim_inactive()

    @precondition(lambda self: self.with_lms and not self.capped)
    @rule(limit=st.sampled_from(LIMITS), size=st.sampled_from((1, SMALL, 1 << 15)))
    def change_settings(self, limit: int, size: int) -> None:
        torch.cuda.set_limit_lms(limit)
        torch.cuda.set_size_lms(size)

    @precondition(lambda self: self.with_lms and not self.capped)
    @rule()
    def toggle(self) -> None:
        torch.cuda.set_enabled_lms(not torch.cuda.get_enabled_lms())

    @precondition(lambda self: torch.cuda.get_enabled_lms())
    @rule(x=values, stream=streams)
    def hold(self, x: Value, stream: int) -> None:
        with torch.cuda.stream(STREAMS[x.device()][stream]):
            context = torch.cuda.lms.resident(x.cuda)
            context.__enter__()
        x.memory.holds.append(context)
        self.remember_address(x)

    @precondition(lambda self: torch.cuda.get_enabled_lms())
    @rule(x=values)
    def take_address(self, x: Value) -> None:
        x.cuda.data_ptr()
        x.memory.exported = True
        self.remember_address(x)

    @rule(x=values)
    def release(self, x: Value) -> None:
        self.let_go(x.memory)
        torch.cuda.lms.release(x.cuda)
        x.memory.exported = False

    def remember_address(self, x: Value) -> None:
        x.memory.address = raw_address(x.cuda.new_empty(0).set_(untyped_storage(x.cuda)))

    def kept(self) -> Iterator[Value]:
        return (value for value in self.live if value.memory.kept())

    @invariant()
    def what_is_held_stays(self) -> None:
        for value in self.kept():
            first = value.memory.address
            offset = value.cuda.storage_offset() * value.cuda.element_size()
            if value.cuda.numel():
                assert raw_address(value.cuda) == first + offset

    @rule(x=values, stream=streams)
    def write_unseen(self, x: Value, stream: int) -> None:
        """What a kernel does that is launched with an address and no operator."""
        size = untyped_storage(x.cpu).nbytes()
        if not x.memory.kept() or not size:
            return
        home = STREAMS[x.device()][stream]
        x.memory.begin(home, write=True)
        with torch.cuda.device(x.device()):
            address = ctypes.c_void_p(x.memory.address)
            runtime = ctypes.CDLL(None)
            handle = ctypes.c_void_p(home.cuda_stream)
            assert runtime.cudaMemsetAsync(address, 1, ctypes.c_size_t(size), handle) == 0
        x.memory.end(home, write=True)
        x.cpu.new_empty(0).set_(untyped_storage(x.cpu)).fill_(0x01010101)

    # What operators do not show ----------------------------------------------------------------

    @precondition(lambda self: "unseen write" in HIDDEN_STEPS)
    @rule(
        x=values,
        first=st.integers(0, 1 << 16),
        size=st.sampled_from((1, 7, 1 << 12, 1 << 30)),
        byte=st.integers(0, 255),
    )
    def write_past_the_dispatcher(self, x: Value, first: int, size: int, byte: int) -> None:
        """As C++ does that is called with a tensor which an operator has just used."""
        target = storage_bytes(x.cpu)
        if not len(target):
            return
        self.wrote_unseen = True
        first %= len(target)
        size = min(size, len(target) - first)
        home = x.memory.home
        x.memory.begin(home, write=True)
        with torch.cuda.stream(home):
            whole = storage_bytes(x.cuda)
            brought(whole)
            status = ctypes.CDLL(None).cudaMemsetAsync(
                ctypes.c_void_p(raw_address(whole) + first),
                byte,
                ctypes.c_size_t(size),
                ctypes.c_void_p(home.cuda_stream),
            )
        assert status == 0
        x.memory.end(home, write=True)
        target[first : first + size] = byte

    @precondition(lambda self: "backward over streams" in HIDDEN_STEPS)
    @rule(target=values, x=values, stream=streams, side=streams)
    def backward_over_streams(self, x: Value, stream: int, side: int) -> Value:
        """A part of the forward pass has another stream, and so has its backward pass."""
        if not x.cpu.numel():
            return multiple()
        home, other = STREAMS[x.device()][stream], STREAMS[x.device()][side]

        def gradient(tensor: torch.Tensor) -> torch.Tensor:
            leaf = tensor.reshape(-1)[:4096].remainder(5).float().requires_grad_()
            a = leaf * 2
            other.wait_stream(home)
            with torch.cuda.stream(other):
                b = leaf.relu() * 3
            home.wait_stream(other)
            if tensor.is_cuda:
                leaf.record_stream(other)
                b.record_stream(home)
            (a * b).sum().backward()
            other.wait_stream(home)
            return leaf.grad.int()

        return self.new(*self.run(gradient, stream, [x]), home)

    @precondition(lambda self: "capture" in HIDDEN_STEPS)
    @rule(x=consumes(values))
    def capture(self, x: Value) -> None:
        """The value dies meanwhile.

        One that fails is in test_captures.py, in a process of its own: PyTorch's allocator gives
        its cache back no more after it, so that the next program would run out of memory.
        """
        index = x.device()
        self.free(x.memory, wait=True)
        with torch.cuda.device(index):
            graph = torch.cuda.CUDAGraph()
            CAPTURES[index].wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(CAPTURES[index]):
                graph.capture_begin()
                self.drop(x, wait=True)
                graph.capture_end()
            torch.cuda.current_stream().wait_stream(CAPTURES[index])
            del graph
            self.pages_out()

    def pages_out(self) -> None:
        """LMS goes on."""
        if not torch.cuda.get_enabled_lms():
            return
        torch.cuda.reclaim_inactive()
        fresh = managed(torch.ones(1 << 15, device="cuda"))
        torch.cuda.reclaim_inactive()
        assert not torch.cuda.lms.is_resident(fresh)


class ProgramsWithoutLms(Programs):
    with_lms = False


def options(programs: int) -> settings:
    return settings(
        max_examples=programs,
        stateful_step_count=STEPS,
        derandomize=not PROGRAMS,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )


@pytest.fixture(autouse=True)
def unfreeze() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_programs():
    run_state_machine_as_test(Programs, settings=options(PROGRAMS or 200))


def test_programs_without_lms():
    # What fails here is wrong with the programs.
    run_state_machine_as_test(ProgramsWithoutLms, settings=options(PROGRAMS or 40))


# Found by random programs -------------------------------------------------------------------------


def test_reclaim_with_lms_off():
    # Nothing would bring the bytes back.
    x = managed(pattern(1))
    torch.cuda.set_enabled_lms(False)
    assert torch.cuda.reclaim_inactive() == 0
    assert torch.equal(x.cpu(), pattern(1, device="cpu"))


def test_home_of_a_storage_older_than_lms():
    # Its page-in allocates on the side stream; its user goes by the stream it was made on.
    torch.cuda.set_enabled_lms(False)
    x = pattern(2)
    turn_on()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        managed(x)
        evict()
        managed(x)
    torch.cuda.current_stream().wait_stream(side)
    x.add_(1)
    del x
    with torch.cuda.stream(side):
        fresh = torch.zeros(floats(2), device="cuda")
        assert fresh.sum().item() == 0
    assert DEVICE.races() == []


def test_page_out_waits_for_the_copy_of_a_resize():
    x = managed(pattern(1))
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        x.record_stream(side)
        untyped_storage(x).resize_(2 << 20)
    x.record_stream(main)  # an operator, which leaves the new memory idle
    evict()
    assert DEVICE.races() == []
    main.wait_stream(side)
    assert torch.equal(x.cpu(), pattern(1, device="cpu"))
