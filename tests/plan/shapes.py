"""Traces that are shaped like the training of known models, and random ones."""

from __future__ import annotations

import random
from collections.abc import Sequence

from planner import NONE, Block, Trace

GB = 10**9


class Recorder:
    """Builds a trace operator by operator."""

    def __init__(self) -> None:
        self.trace = Trace([], [], [])
        self._life: dict[int, list[int]] = {}

    def persistent(self, size: float) -> int:
        self.trace.blocks.append(Block(int(size)))
        return len(self.trace.blocks) - 1

    def new(self, size: float) -> int:
        """A block that the next operator allocates."""
        self.trace.blocks.append(Block(int(size), 0, 0))
        block = len(self.trace.blocks) - 1
        self._life[block] = [len(self.trace.seconds), len(self.trace.seconds)]
        return block

    def run(self, seconds: float, reads: Sequence[int] = (), writes: Sequence[int] = ()) -> None:
        place = len(self.trace.seconds)
        self.trace.seconds.append(seconds)
        for block in dict.fromkeys([*reads, *writes]):
            self.trace.accesses.append((place, block, block in writes))
            if block in self._life:
                self._life[block][1] = place

    def keep(self, block: int) -> None:
        """The block lives until the last operator so far."""
        self._life[block][1] = len(self.trace.seconds) - 1

    def finish(self) -> Trace:
        for block, (allocated, freed) in self._life.items():
            self.trace.blocks[block] = Block(self.trace.blocks[block].bytes, allocated, freed)
        return self.trace


def chain(
    activations: Sequence[float],
    seconds: Sequence[float],
    *,
    parameters: Sequence[float] = (),
    states: int = 0,
    optimizer_rate: float = 2e12,
    kept: int = 1,
) -> Trace:
    """Forward through layers, backward in reverse, and an optimizer's step parameter by parameter.

    Args:
        activations: bytes that each layer saves for its backward.
        seconds: of each layer's forward. Its backward takes twice as long.
        parameters: bytes of each layer's parameters.
        states: blocks that the optimizer keeps for each parameter, of its size.
        optimizer_rate: bytes per second that the optimizer reads and writes.
        kept: blocks of equal size that a layer's activations consist of.
    """
    recorder = Recorder()
    layers = len(activations)
    weights = [recorder.persistent(size) for size in parameters]
    moments = [[recorder.persistent(size) for _ in range(states)] for size in parameters]
    saved: list[list[int]] = []
    for i in range(layers):
        used = [weights[i]] if weights else []
        before = saved[-1] if saved else []
        blocks = []
        for _ in range(kept):
            block = recorder.new(activations[i] / kept)
            recorder.run(seconds[i] / kept, [*used, *(blocks[-1:] or before[-1:])], [block])
            blocks.append(block)
        saved.append(blocks)
    gradient = recorder.new(activations[-1] / kept)
    recorder.run(0, saved[-1][-1:], [gradient])
    gradients: list[int] = []
    for i in reversed(range(layers)):
        used = [weights[i]] if weights else []
        if weights:
            gradients.append(recorder.new(parameters[i]))
        for n in reversed(range(kept)):
            below = recorder.new(activations[i] / kept)
            written = [below, *gradients[-1:]]
            recorder.run(2 * seconds[i] / kept, [*used, gradient, saved[i][n]], written)
            gradient = below
    for i, parameter in zip(reversed(range(layers)), gradients, strict=False):
        blocks = [weights[i], *moments[i]]
        moved = (2 + 2 * states) * parameters[i]
        recorder.run(moved / optimizer_rate, [parameter], blocks)
    for parameter in gradients:
        recorder.keep(parameter)
    return recorder.finish()


def resnet(scale: float = 1.0) -> Trace:
    """Like ResNet-50 at a batch of 512: 22 GB, nearly all of it activations, in 104 ms."""
    stages = [(4, 0.10), (12, 0.36), (16, 0.28), (24, 0.2), (12, 0.06)]
    activations = [22.0 * GB * scale * share / n for n, share in stages for _ in range(n)]
    seconds = [0.104 / 3 * share / n for n, share in stages for _ in range(n)]
    parameters = [0.1 * GB / len(activations)] * len(activations)
    return chain(activations, seconds, parameters=parameters, states=1, kept=3)


def llama(scale: float = 1.0) -> Trace:
    """Like a Llama of 1.6 billion parameters, AdamW: 73 GB, 22 of them persistent, in 427 ms."""
    layers = 24
    activations = [50.0 * GB * scale / layers] * layers
    seconds = [0.405 / 3 / layers] * layers
    parameters = [21.9 * GB / 3 / layers] * layers
    return chain(activations, seconds, parameters=parameters, states=2, kept=12)


def unet(levels: int = 4, largest: float = 0.27 * GB) -> Trace:
    """Like a 3D U-Net: 4 GB in 98 ms, whose largest blocks live longest.

    Args:
        levels: of resolution. A block has a quarter of the bytes of one on the level above.
        largest: bytes of a block on the first level.
    """
    recorder = Recorder()
    tape: list[tuple[list[int], int, float]] = []  # what each operator reads, writes, and its time

    def run(size: float, seconds: float, *reads: int) -> int:
        written = recorder.new(size)
        recorder.run(seconds, reads, [written])
        tape.append((list(reads), written, seconds))
        return written

    def level(depth: int, *reads: int) -> int:
        size = largest / 4**depth
        block = reads[0]
        for n in range(2):
            block = run(size, 2.4e-3 / 2**depth, *(reads if n == 0 else [block]))  # a convolution
            for _ in range(2):  # its normalization and activation
                block = run(size, 0.3e-3 / 4**depth, block)
        return block

    block = run(largest / 8, 0, recorder.persistent(largest / 8))
    kept = []
    for depth in range(levels):
        block = level(depth, block)
        kept.append(block)
        if depth + 1 < levels:
            block = run(largest / 4 ** (depth + 1), 0.3e-3 / 2**depth, block)
    kept.pop()
    for depth in reversed(range(levels - 1)):
        block = run(largest / 4**depth, 0.5e-3 / 2**depth, block)
        block = level(depth, run(2 * largest / 4**depth, 0.3e-3 / 4**depth, block, kept.pop()))
    gradients = {block: run(largest, 0, block)}
    tape.pop()
    for reads, written, seconds in reversed(tape):
        gradient = gradients.pop(written)
        for read in reads:
            below = recorder.new(recorder.trace.blocks[read].bytes)
            recorder.run(2 * seconds / len(reads), [gradient, read, written], [below])
            if read in gradients:  # two operators have used it
                recorder.run(0, [below], [gradients[read]])
            else:
                gradients[read] = below
    return recorder.finish()


def random_trace(
    generator: random.Random,
    operators: int,
    blocks: int,
    *,
    largest: int = 20,
    uses: int = 4,
    persistent: float = 0.4,
) -> Trace:
    trace = Trace([generator.choice([0.0, 0.5, 1.0, 2.0, 5.0]) for _ in range(operators)], [], [])
    for block in range(blocks):
        size = generator.randint(0 if generator.random() < 0.1 else 1, largest)
        if generator.random() < persistent:
            trace.blocks.append(Block(size))
            places = range(operators)
        else:
            allocated, freed = sorted(generator.choices(range(operators), k=2))
            trace.blocks.append(Block(size, allocated, freed))
            places = range(allocated, freed + 1)
        count = min(len(places), generator.randint(0, uses))
        for place in sorted(generator.sample(places, count)):
            trace.accesses.append((place, block, generator.random() < 0.4))
    trace.unmanaged = generator.choice([0, 0, 3])
    return trace


def lowest_limit(trace: Trace) -> int:
    """The bytes of the operator that needs most on its own."""
    used = [set() for _ in trace.seconds]  # type: list[set[int]]
    for place, block, _ in trace.accesses:
        used[place].add(block)
    for i, block in enumerate(trace.blocks):
        if block.allocated != NONE:
            used[block.allocated].add(i)
    needs = [sum(trace.blocks[i].bytes for i in blocks) for blocks in used]
    return max(needs, default=0) + trace.unmanaged


def living(trace: Trace) -> list[int]:
    """Bytes that live at each operator, with the unmanaged ones."""
    return [
        trace.unmanaged
        + sum(b.bytes for b in trace.blocks if b.persistent or b.allocated <= i <= b.freed)
        for i in range(len(trace.seconds))
    ]


def events(trace: Trace) -> int:
    """Operators, accesses, allocations and frees."""
    temporary = sum(not block.persistent for block in trace.blocks)
    return len(trace.seconds) + len(trace.accesses) + 2 * temporary
