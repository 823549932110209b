"""What no operator shows is written to memory that is about to be given up."""

import contextlib
import warnings

import pytest
import torch
from conftest import MIB
from past import write_unseen
from releases import since
from tensors import evict, is_resident, managed, pattern, stat


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def resident_source(start):
    """Stays, so that to read its address is allowed."""
    source = managed(pattern(1, start=start))
    torch.cuda.lms.exclude(source)
    return source


def test_a_write_to_a_clean_block_is_kept():
    y = managed(torch.zeros_like(pattern(1)))
    evict()
    y.sum()  # on the device again, and its host copy is true
    write_unseen(y, resident_source(7))
    evict()
    assert not is_resident(y)
    assert torch.equal(y.cpu(), pattern(1, start=7, device="cpu"))


def test_a_write_to_a_dirty_block_is_kept(device):
    other = managed(pattern(1))
    evict()  # under pressure from here
    assert not is_resident(other)
    source = resident_source(7)
    y = torch.zeros_like(source)
    y.add_(1)  # changed, and its last use that was seen is marked
    write_unseen(y, source)
    evict()
    # The copy to the host did not wait for the write. What it read is not believed.
    device.clear_races()
    assert not is_resident(y)
    assert torch.equal(y.cpu(), pattern(1, start=7, device="cpu"))


def test_a_write_on_another_stream_that_used_the_block(device):
    other = managed(pattern(1))
    evict()
    assert not is_resident(other)
    source = resident_source(7)
    y = torch.zeros_like(source)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y.add_(1)
        write_unseen(y, source)
    evict()
    device.clear_races()
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(y.cpu(), pattern(1, start=7, device="cpu"))


@pytest.mark.parametrize("offset", [0, 1 << 17, (1 << 18) - 1])
def test_one_number_is_enough(offset):
    y = managed(pattern(1))
    evict()
    y.sum()
    source = torch.full((1,), 3.5, device="cuda")
    torch.cuda.lms.exclude(source)
    write_unseen(y[offset : offset + 1], source)
    evict()
    expected = pattern(1, device="cpu")
    expected[offset] = 3.5
    assert torch.equal(y.cpu(), expected)


def test_again_and_again():
    y = managed(pattern(1))
    for round_ in range(5):
        evict()
        assert torch.equal(y.cpu(), pattern(1, start=round_, device="cpu"))
        write_unseen(y, resident_source(round_ + 1))
        torch.cuda.lms.release(y)


@since((2, 0), "writes that no operator shows: the seam and the hooks see every access")
def test_it_is_counted():
    y = managed(pattern(1))
    evict()
    y.sum()
    evict()
    torch.cuda.synchronize()
    assert stat("release_caught") == 0, "nothing was written"
    y.sum()
    write_unseen(y, resident_source(7))
    evict()
    torch.cuda.synchronize()
    assert stat("release_caught") == 1
    assert "where no operator showed it" in torch.cuda.lms.explain()
    torch.cuda.reset_accumulated_memory_stats()
    assert stat("release_caught") == 0
    assert "where no operator showed it" not in torch.cuda.lms.explain()
    managed(y)
    write_unseen(y, resident_source(8))
    evict()
    torch.cuda.synchronize()
    assert stat("release_caught") == 1


def test_without_kernels(device):
    """Then everything is copied, behind all that is queued."""
    device.fault("cuModuleGetFunction", 1, 999, True)
    y = managed(torch.zeros_like(pattern(1)))
    evict()
    y.sum()
    write_unseen(y, resident_source(7))
    evict()
    assert device.races() == []
    assert torch.equal(y.cpu(), pattern(1, start=7, device="cpu"))


def under_a_limit(count):
    """So many blocks that one more pages out the first and hashes the others; which they are."""
    blocks = [managed(pattern(1, start=i)) for i in range(count)]
    torch.cuda.set_limit_lms(int((count + 0.5) * MIB))
    managed(pattern(1)).add_(1)  # and it dies
    assert [is_resident(block) for block in blocks] == [False] + [True] * (count - 1)
    return blocks


def test_what_goes_next_is_hashed_ahead(device):
    blocks = under_a_limit(4)
    torch.cuda.set_limit_lms(0)
    device.reset_counts()
    evict()
    # Each block's check, and what would write it to the host. No hash.
    assert device.count("cuLaunchKernel") == 2 * 3
    for i, block in enumerate(blocks):
        assert torch.equal(block.cpu(), pattern(1, start=i, device="cpu"))


@since((2, 0), "writes that no operator shows: the seam and the hooks see every access")
def test_a_write_after_the_hash_is_found(device):
    blocks = under_a_limit(4)
    source = resident_source(7)
    for block in blocks[1:]:
        write_unseen(block, source)
    torch.cuda.set_limit_lms(1)
    torch.cuda.set_limit_lms(0)
    evict()
    device.clear_races()  # a copy and an unseen write
    for block in blocks[1:]:
        assert not is_resident(block)
        assert torch.equal(block.cpu(), pattern(1, start=7, device="cpu"))


def test_an_operator_that_writes_makes_another_hash(device):
    blocks = under_a_limit(4)
    torch.cuda.set_limit_lms(0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        blocks[1].add_(1)  # behind the kernel that reads it
    torch.cuda.current_stream().wait_stream(side)
    blocks[2].add_(1)
    before = stat("release_caught")
    evict()
    for i, block in enumerate(blocks):
        expected = pattern(1, start=i + (i in (1, 2)), device="cpu")
        assert torch.equal(block.cpu(), expected)
    assert stat("release_caught") == before, "an old hash was believed"


def test_a_block_that_was_hashed_may_die(device):
    blocks = under_a_limit(4)
    del blocks[1:]
    again = torch.zeros(3 * MIB, dtype=torch.uint8, device="cuda")  # on the same memory
    assert not again.any()


def test_a_block_that_was_hashed_may_be_used_by_a_graph(device):
    blocks = under_a_limit(4)
    torch.cuda.set_limit_lms(0)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    waits = device.count("cudaStreamWaitEvent")
    with torch.cuda.stream(side):
        graph.capture_begin()
        blocks[1].add_(1)
        during = device.count("cudaStreamWaitEvent")
        with contextlib.suppress(RuntimeError):  # the simulated device records no graph
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(side)
    assert during == waits, "the graph waits for what is outside of it"
