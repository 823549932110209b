"""Free memory in pieces: idle storages are moved on the device, so that a request fits."""

import pytest
import torch
from conftest import CAPACITY, MIB
from releases import since
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


def scattered() -> tuple[list[torch.Tensor], list[int]]:
    """12 of 15 tensors: in each segment, one is missing between others. 4 MiB more are free on the
    device, and the request of 8 MiB that follows needs two places side by side."""
    tensors = fill()
    starts = [int(tensor[0]) for tensor in tensors]
    for i in (12, 7, 2):
        del tensors[i], starts[i]
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
        # There is no place for the 2.
        (("6f 8 6x", "6f 2 6x 6x", "3x 8x 9x"), 12, 0),
    ],
)
def test_what_is_smaller_moves_first(segments, size, moves):
    """What is in the way fits nowhere before other free memory is joined in the same way."""
    movable, held = lay_out(*segments)
    values = [float(tensor[0]) for tensor in movable]
    counts = Counts()
    with torch.cuda.lms.resident(*held):
        wide = torch.full((floats(size),), 0.5, device="cuda")
    assert counts()[0] == moves
    assert (counts()[1] == 0) == (moves > 0)
    assert bool((wide == 0.5).all())
    assert all(bool((t == value).all()) for t, value in zip(movable, values, strict=True))
    assert all(bool((tensor == tensor[0]).all()) for tensor in held)


def with_small_gaps(device):
    """Gaps between mapped pages that are smaller than a request, and memory for more pages."""
    import torch

    mib = 1 << 20

    def full(size):
        return torch.full((size * mib // 4,), float(size), device="cuda")

    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()
    torch.cuda.set_limit_lms(400 * mib)
    rows = [full(40) for _ in range(8)]
    del rows[6], rows[4], rows[1]
    torch.cuda.empty_cache()  # each was two pages
    torch.cuda.set_limit_lms(400 * mib - 80 * mib)  # 200 are in use, and the device has 120
    before = torch.cuda.lms.stats()
    wide = full(100)
    after = torch.cuda.lms.stats()
    names = ("page_out_count", "out_of_memory_retries")
    same = bool((wide == 100).all()) and all(bool((row == 40).all()) for row in rows)
    return [after[name] - before[name] for name in names], same, device.races()


@since((2, 1), "expandable segments")
def test_the_native_allocator_maps_pages_where_they_fit():
    moved, same, races = run_sim(with_small_gaps, mib=2048, environment=EXPANDABLE)
    assert (moved, same, races) == ([0, 0], True, [])
