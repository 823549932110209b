"""Requests that fit by bytes, but not by the pages of expandable segments."""

from releases import since
from simcuda.process import run_sim
from test_allocators import NAMES

EXPANDABLE = dict.fromkeys(NAMES, "expandable_segments:True")


def scattered(device):
    """One large idle tensor, and small ones with holes between them, which are no whole pages."""
    import torch

    mib = 1 << 20

    def full(size, value):
        return torch.full((size * mib // 4,), float(value), device="cuda")

    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._set_late(True)  # nothing is moved on the device before the request fails
    torch.cuda.set_limit_lms(400 * mib)
    large = full(120, 99)
    rows = [full(25, i) for i in range(10)]  # 250 MiB behind it, in pages of 20 MiB
    kept = dict(list(enumerate(rows))[::2])
    del rows
    torch.cuda.set_limit_lms(torch.cuda.memory_reserved())
    before = torch.cuda.lms.stats()["page_out_bytes"]
    # Of the five pages that it needs, three are free.
    wide = full(100, 7)
    moved = (torch.cuda.lms.stats()["page_out_bytes"] - before) / mib
    same = bool((wide == 7).all()) and torch.cuda.lms.is_resident(large)
    same = same and all(bool((tensor == i).all()) for i, tensor in kept.items())
    return moved, same, bool((large == 99).all()), device.races()


def beside_chosen_pages(device):
    """A small idle tensor lies beside one that makes two whole pages free, but adds no third."""
    import torch

    mib = 1 << 20
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._set_late(True)
    torch.cuda.set_limit_lms(400 * mib)
    # In MiB, and in pages of 20. What is free is no whole page.
    sizes = {"held 1": 5, "free 1": 30, "held 2": 10, "free 2": 30, "held 3": 30}
    sizes |= {"small": 10, "large": 45, "middle": 30, "held 4": 15, "free 3": 25, "last": 15}
    sizes |= {"held 5": 15}
    rows = {
        name: torch.full((size * mib // 4,), float(size), device="cuda")
        for name, size in sizes.items()
    }
    for name in sizes:
        if name.startswith("free"):
            del rows[name]
    held = [tensor for name, tensor in rows.items() if name.startswith("held")]
    torch.cuda.set_limit_lms(torch.cuda.memory_reserved())
    before = torch.cuda.lms.stats()["page_out_bytes"]
    with torch.cuda.lms.resident(*held):
        wide = torch.full((60 * mib // 4,), 7.0, device="cuda")  # three pages
    moved = (torch.cuda.lms.stats()["page_out_bytes"] - before) / mib
    out = [name for name, tensor in rows.items() if not torch.cuda.lms.is_resident(tensor)]
    same = bool((wide == 7).all())
    del wide
    same = same and all(bool((tensor == sizes[name]).all()) for name, tensor in rows.items())
    return moved, out, same, device.races()


@since((2, 1), "expandable segments")
def test_only_the_missing_pages_are_paged_out():
    moved, same, large, races = run_sim(scattered, mib=2048, environment=EXPANDABLE)
    assert (moved, same, large, races) == (25, True, True, [])


@since((2, 1), "expandable segments")
def test_pages_that_another_block_makes_free_are_not_counted_twice():
    moved, out, same, races = run_sim(beside_chosen_pages, mib=2048, environment=EXPANDABLE)
    assert (moved, out, same, races) == (60, ["large", "last"], True, [])
