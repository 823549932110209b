"""Free memory in pieces: idle storages are moved on the device, so that a request fits."""

import contextlib
import ctypes
import threading

import pytest
import torch
from conftest import CAPACITY, DEVICE, MIB
from faults import NOT_READY
from hardware import simulated
from releases import scoped_library, since
from simcuda.process import run_sim
from tensors import evict, floats, managed, pattern, raw_address, stat
from test_pages import EXPANDABLE

SIZE = 4  # MiB: five of them fill a segment


@pytest.fixture(autouse=True)
def whole_device() -> None:
    torch.cuda.set_limit_lms(CAPACITY)  # the automatic limit leaves some for libraries
    assert torch.cuda.memory_reserved() == 0


def fill(count: int = 15) -> list[torch.Tensor]:
    """Tensors that lie side by side, five in each segment of 20 MiB."""
    tensors = [managed(pattern(SIZE, start=i)) for i in range(count)]
    return sorted(tensors, key=raw_address)


def intact(tensors: list[torch.Tensor], starts: list[int]) -> bool:
    return all(
        torch.equal(tensor.cpu(), pattern(SIZE, start=start, device="cpu"))
        for tensor, start in zip(tensors, starts, strict=True)
    )


class Counts:
    """What happened since it was made."""

    def __init__(self) -> None:
        self.before = self.now()

    @staticmethod
    def now() -> tuple[int, ...]:
        names = ("compacted_count", "page_out_count", "out_of_memory_retries")
        return tuple(map(stat, names))

    def __call__(self) -> tuple[int, ...]:
        return tuple(now - before for now, before in zip(self.now(), self.before, strict=True))


def scatter(tensors: list[torch.Tensor], starts: list[int]) -> None:
    """Leaves 12 of 15 tensors: in each segment, one is missing between others. 4 MiB more are free
    on the device, and a request of 8 MiB needs two places side by side."""
    for i in (12, 7, 2):
        del tensors[i], starts[i]


def scattered() -> tuple[list[torch.Tensor], list[int]]:
    tensors = fill()
    starts = [int(tensor[0]) for tensor in tensors]
    scatter(tensors, starts)
    return tensors, starts


def test_free_memory_is_joined():
    tensors, starts = scattered()
    counts = Counts()
    wide = torch.full((floats(2 * SIZE),), 7.0, device="cuda")
    assert counts() == (1, 0, 0)
    assert stat("compacted_bytes") == SIZE * MIB
    assert all(torch.cuda.lms.is_resident(tensor) for tensor in tensors)
    assert bool((wide == 7).all())
    assert intact(tensors, starts)


def test_nothing_moves_if_a_piece_is_large_enough():
    tensors, starts = scattered()
    del tensors[2], starts[2]  # beside a free place
    counts = Counts()
    wide = torch.full((floats(2 * SIZE),), 7.0, device="cuda")
    assert counts() == (0, 0, 0)
    assert bool((wide == 7).all())
    assert intact(tensors, starts)


def test_what_moves_is_brought_for_later_uses():
    """On its own stream, on another one, and as a write."""
    tensors, starts = scattered()
    places = [raw_address(tensor) for tensor in tensors]
    wide = torch.full((floats(2 * SIZE),), 7.0, device="cuda")
    moved = [i for i, tensor in enumerate(tensors) if raw_address(tensor) != places[i]]
    assert len(moved) == 1
    other = torch.cuda.Stream()
    x = tensors[moved[0]]
    with torch.cuda.stream(other):
        x.add_(1)  # the program has nothing to wait for
    torch.cuda.current_stream().wait_stream(other)
    starts[moved[0]] += 1
    del wide
    assert intact(tensors, starts)


def test_old_memory_is_used_again_after_the_move():
    tensors, starts = scattered()
    wide = torch.zeros(floats(2 * SIZE), device="cuda")
    wide.fill_(7)
    del wide
    again = [managed(pattern(SIZE, start=50 + i)) for i in range(2)]
    assert intact(tensors + again, [*starts, 50, 51])


@pytest.mark.parametrize("why", ["held", "another stream", "record_stream"])
def test_what_cannot_move_is_left_alone(why):
    tensors, starts = scattered()
    other = torch.cuda.Stream()
    hold = torch.cuda.lms.resident(*tensors if why == "held" else [])
    for tensor in tensors:
        if why == "another stream":
            with torch.cuda.stream(other):
                tensor.sum()
        elif why == "record_stream":
            tensor.record_stream(other)
    torch.cuda.current_stream().wait_stream(other)
    counts = Counts()
    places = [raw_address(tensor) for tensor in tensors]
    with hold:
        if why == "held":
            with pytest.raises(torch.cuda.OutOfMemoryError):
                torch.full((floats(2 * SIZE),), 7.0, device="cuda")
        else:
            torch.full((floats(2 * SIZE),), 7.0, device="cuda")
    assert counts()[0] == 0
    here = [torch.cuda.lms.is_resident(tensor) for tensor in tensors]
    assert [raw_address(t) for t, stays in zip(tensors, here, strict=True) if stays] == [
        place for place, stays in zip(places, here, strict=True) if stays
    ]
    assert intact(tensors, starts)


@simulated
def test_what_is_held_while_memory_is_found_for_it_stays():
    """By another thread, while the native allocator asks for an event: LMS holds no lock then."""
    tensors, starts = scattered()
    places = [raw_address(tensor) for tensor in tensors]
    recorded = torch.empty(256, device="cuda")
    recorded.record_stream(torch.cuda.Stream())
    del recorded  # until its event is complete, each allocation asks for it
    counts, held = Counts(), contextlib.ExitStack()

    def hold() -> None:
        assert DEVICE.wait_for("cudaEventQuery")
        held.enter_context(torch.cuda.lms.resident(*tensors))
        DEVICE.release("cudaEventQuery")

    other = threading.Thread(target=hold)
    DEVICE.hold("cudaEventQuery", seconds=60)
    other.start()
    with held, pytest.raises(torch.cuda.OutOfMemoryError):
        torch.full((floats(2 * SIZE),), 7.0, device="cuda")
    other.join()
    assert counts()[:2] == (0, 0)
    assert [raw_address(tensor) for tensor in tensors] == places
    assert intact(tensors, starts)


def test_a_place_that_another_stream_has_used():
    """A page-in for one stream moves a storage to memory of which a second stream still reads."""
    reader, other = torch.cuda.Stream(), torch.cuda.Stream()
    wide = managed(pattern(2 * SIZE, start=90))
    evict()
    tensors, starts = scattered()
    places = [raw_address(tensor) for tensor in tensors]
    gone = managed(torch.empty(floats(SIZE), device="cuda"))  # takes one of the places
    reader.wait_stream(torch.cuda.current_stream())
    other.wait_stream(torch.cuda.current_stream())
    place = raw_address(gone)
    with torch.cuda.stream(reader):
        gone.sum()
    del gone  # the program allocates nothing on the current stream before it has waited
    counts = Counts()
    with torch.cuda.stream(other):
        total = wide.sum()
    assert counts() == (1, 0, 0)
    now = [raw_address(tensor) for tensor in tensors]
    assert [new for old, new in zip(places, now, strict=True) if new != old] == [place]
    torch.cuda.current_stream().wait_stream(other)
    assert total.cpu() == wide.cpu().sum()
    assert intact(tensors, starts)


def test_what_is_still_being_paged_in_moves_if_nothing_else_can(device):
    tensors = fill()
    starts = [int(tensor[0]) for tensor in tensors]
    torch.cuda.lms.reclaim_inactive()
    device.fault("cudaEventSynchronize", from_=True)  # the host does not wait for the copies
    with torch.cuda.stream(torch.cuda.Stream()):
        for tensor in tensors:
            with pytest.raises(RuntimeError), torch.cuda.lms.resident(tensor):
                pass
    device.clear_faults()
    order = sorted(range(15), key=lambda i: raw_address(tensors[i]))
    tensors, starts = [tensors[i] for i in order], [starts[i] for i in order]
    scatter(tensors, starts)
    counts = Counts()
    device.fault("cudaEventQuery", error=NOT_READY, from_=True)
    wide = torch.full((floats(2 * SIZE),), 7.0, device="cuda")
    device.clear_faults()
    assert counts() == (1, 0, 0)
    assert bool((wide == 7).all())
    assert intact(tensors, starts)


def test_it_does_not_move_into_the_gap_itself():
    """The native allocator prefers the place that fits best, which is part of the gap."""
    tensors = fill(10)
    kept = [torch.empty(floats(size), device="cuda") for size in (7, 6, 7)]  # a third segment
    del tensors[2], kept[1]
    starts = [int(tensor[0]) for tensor in tensors]
    counts = Counts()
    wide = torch.full((floats(2 * SIZE),), 7.0, device="cuda")
    assert counts() == (1, 0, 0)
    assert bool((wide == 7).all())
    assert intact(tensors, starts)


def lay_out(*segments: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Segments of 20 MiB, by the MiB of what is in them: "7" can move, "7x" is held, "7f" is free.

    Returns what can move, and what is held. Each tensor is filled with its MiB.
    """
    tensors, names = [], " ".join(segments).split()
    for name in names:
        size = int(name.rstrip("xf"))
        tensors.append(managed(torch.full((floats(size),), float(size), device="cuda")))
    movable, held = (
        [t for t, name in zip(tensors, names, strict=True) if test(name)]
        for test in (str.isdigit, lambda name: name.endswith("x"))
    )
    del tensors
    return movable, held


@pytest.mark.parametrize(
    ("segments", "size", "moves"),
    [
        (("6f 8 6x", "6f 2 6x 6x", "3f 8x 9x"), 12, 2),
        # The piece that is made for the 4 is beside the place that the 7 has left.
        (("2 2f 7 4 5f", "7f 6x 7x", "3f 8x 9x"), 16, 3),
    ],
)
def test_what_is_smaller_moves_first(segments, size, moves):
    """What is in the way fits nowhere before other free memory is joined in the same way."""
    assert request(segments, size) == ((moves, 0, 0), [])


@pytest.mark.parametrize(
    ("segments", "size", "moves", "out"),
    [
        # There is no place for the 2, which would have to move before the 8.
        (("6f 8 6x", "6f 2 6x 6x", "3x 8x 9x"), 12, 0, [8]),
        # The 2 moves.
        (("6f 8 2 4x", "4f 10x 6x", "3x 8x 9x"), 16, 1, [8]),
        # The 7 is smaller.
        (("6f 8 6x", "6f 7 7x", "3x 8x 9x"), 12, 0, [7]),
    ],
)
def test_what_can_move_nowhere_is_paged_out(segments, size, moves, out):
    """The native allocator does not fail first."""
    assert request(segments, size) == ((moves, len(out), 0), out)


def test_nothing_as_large_as_the_request_is_paged_out_for_it():
    """The native allocator can do better."""
    (_, _, failures), _ = request(("2f 9 9x", "6f 6x 8x", "3x 8x 9x"), 8)
    assert failures > 0


@since((2, 1), "hooks of all optimizers")
@pytest.mark.parametrize("soon", [False, True])
def test_what_is_needed_soon_stays(soon):
    """If a plan says so. Otherwise what is smaller leaves."""
    (eight, seven), held = lay_out("6f 8 6x", "6f 7 7x", "3x 8x 9x")

    def iteration() -> None:
        (seven if soon else eight).add_(1)
        for _ in range(20):
            held[0].add_(1)
        (eight if soon else seven).add_(1)

    with torch.cuda.lms.resident(*held):
        evict()  # how fast that is has to be known for a plan
        for _ in range(6):
            iteration()
            torch.cuda.lms.step()
            torch.cuda.lms._wait_for_plans()
        assert stat("planned_iterations") > 0
        counts = Counts()
        wide = torch.full((floats(12),), 0.5, device="cuda")
        assert counts() == (0, 1, 0)
        assert torch.cuda.lms.is_resident(seven) == soon
        assert bool((wide == 0.5).all())


@simulated
@since((2, 1), "hooks of all optimizers")
def test_a_plan_takes_less_if_something_is_always_in_the_way():
    """So that there is more free memory into which it can be moved."""
    (eight, seven), held = lay_out("6f 8 6x", "6f 7 7x", "3x 8x 9x")
    torch.cuda.lms._keep_plans(True)
    with torch.cuda.lms.resident(*held):
        evict()
        for _ in range(24):
            seven.add_(1)
            wide = torch.full((floats(12),), 0.5, device="cuda")
            del wide
            for _ in range(20):
                held[0].add_(1)
            eight.add_(1)
            torch.cuda.lms.step()
            torch.cuda.lms._wait_for_plans()
    torch.cuda.lms._keep_plans(False)
    assert stat("out_of_memory_retries") == 0
    assert stat("plans") > 3


def request(segments: tuple[str, ...], size: int) -> tuple[tuple[int, ...], list[int]]:
    """What happened in a request of this number of MiB, and the MiB of what was paged out."""
    movable, held = lay_out(*segments)
    values = [int(tensor[0]) for tensor in movable]
    counts = Counts()
    with torch.cuda.lms.resident(*held):
        wide = torch.full((floats(size),), 0.5, device="cuda")
    counted = counts()
    here = [torch.cuda.lms.is_resident(tensor) for tensor in movable]
    assert bool((wide == 0.5).all())
    assert all(bool((t == value).all()) for t, value in zip(movable, values, strict=True))
    assert all(bool((tensor == tensor[0]).all()) for tensor in held)
    return counted, [value for value, stays in zip(values, here, strict=True) if not stays]


def in_pages(device, sizes, gaps, gone, left, wanted):
    """Serves a request with expandable segments.

    sizes: of tensors that lie side by side, in MiB. Pages have 20 MiB.
    gaps: which of them are freed, and their pages unmapped.
    gone: which of them are freed after that.
    left: so many MiB can still be mapped.
    wanted: size of the request, in MiB.

    Returns what LMS and the native allocator did, and whether all values are right.
    """
    import torch

    mib = 1 << 20

    def full(size):
        return torch.full((size * mib // 4,), float(size), device="cuda")

    def now():
        native, lms = torch.cuda.memory_stats(), torch.cuda.lms.stats()
        names = ("compacted_count", "page_out_count", "out_of_memory_retries")
        return [native["num_alloc_retries"], *(lms[name] for name in names)]

    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    torch.cuda.set_limit_lms(1000 * mib)
    rows = dict(enumerate([full(size) for size in sizes]))
    for number in gaps:
        del rows[number]
    torch.cuda.empty_cache()
    for number in gone:
        del rows[number]
    limit = torch.cuda.memory_reserved() + left * mib
    torch.cuda.set_limit_lms(limit)
    before = now()
    wide = full(wanted)
    did = [after - before for after, before in zip(now(), before, strict=True)]
    within = torch.cuda.memory_reserved() <= limit
    with torch.cuda.lms.resident(*rows.values(), wide):
        more = full(wanted)
    within = within and torch.cuda.lms.stats()["over_limit_count"] == 1  # it was kept until then
    values = [
        *((sizes[number], row) for number, row in rows.items()),
        (wanted, wide),
        (wanted, more),
    ]
    same = all(bool((tensor == value).all()) for value, tensor in values)
    return did, within, same, device.races()


@since((2, 1), "expandable segments")
@pytest.mark.parametrize(
    ("sizes", "gaps", "gone", "left", "wanted", "moves"),
    [
        # Four of five pages are mapped already, behind the last tensor.
        ([40, 40, 300, 80], [], [1, 3], 20, 100, 0),
        # The page between two tensors, and the place of the second one, which moves.
        ([60, 20, 40, 60, 40, 60, 20, 60], [1], [4, 6], 20, 60, 1),
        # Each gap is smaller than the request, and there are pages for it at the end.
        ([20, 200, 40, 40, 40, 40], [2, 4], [0], 100, 100, 0),
    ],
)
def test_missing_pages_are_mapped(sizes, gaps, gone, left, wanted, moves):
    did, within, same, races = run_sim(
        in_pages, sizes, gaps, gone, left, wanted, mib=2048, environment=EXPANDABLE
    )
    assert (did, within, same, races) == ([0, moves, 0, 0], True, True, [])


def adopted(device):
    """A request behind page-outs of tensors that are older than LMS."""
    import torch

    mib = 1 << 20
    rows = [torch.full((4 * mib,), float(i), device="cuda") for i in range(3)]  # 16 MiB each
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    for row in rows:
        row.add_(1)
    torch.cuda.set_limit_lms(torch.cuda.memory_reserved() + 4 * mib)
    wide = torch.full((6 * mib,), 7.0, device="cuda")
    stats = torch.cuda.lms.stats()
    did = [stats[name] for name in ("page_out_count", "out_of_memory_retries")]
    same = bool((wide == 7).all())
    return did, same and all(bool((row == i + 1).all()) for i, row in enumerate(rows))


def test_the_host_waits_for_memory_of_an_unknown_stream():
    """No stream orders its next use after the page-out, so it is given back when that has ended."""
    did, same = run_sim(adopted, mib=64, query_notready=1)
    assert (did, same) == ([2, 0], True)


@since((2, 0), "library of operators that extends another")
def test_what_a_collective_may_use_does_not_move():
    """It may run on after an operator has read the storage."""
    side = torch.cuda.Stream()
    tensors, starts = scattered()
    rows = torch.empty(len(tensors), 256, device="cuda")
    device_to_device = 3

    def peek(x: torch.Tensor, out: torch.Tensor) -> None:
        side.wait_stream(torch.cuda.current_stream())
        addresses = ctypes.c_void_p(raw_address(out)), ctypes.c_void_p(raw_address(x))
        size, handle = ctypes.c_size_t(1024), ctypes.c_void_p(side.cuda_stream)
        assert ctypes.CDLL(None).cudaMemcpyAsync(*addresses, size, device_to_device, handle) == 0

    with scoped_library("c10d", "FRAGMENT") as library:
        library.define("lms_peek(Tensor x, Tensor(a!) out) -> ()")
        library.impl("lms_peek", peek, "CUDA")
        for tensor, row in zip(tensors, rows, strict=True):
            torch.ops.c10d.lms_peek(tensor, row)
    for tensor in tensors:
        managed(tensor)  # the program may read it meanwhile
    counts = Counts()
    wide = torch.full((floats(2 * SIZE),), 7.0, device="cuda")
    assert counts()[0] == 0
    torch.cuda.current_stream().wait_stream(side)
    assert bool((wide == 7).all())
    seen = [pattern(SIZE, start=start, device="cpu")[:256] for start in starts]
    assert torch.equal(rows.cpu(), torch.stack(seen))
    assert intact(tensors, starts)
