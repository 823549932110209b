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


@since((2, 1), "expandable segments")
def test_only_the_missing_pages_are_paged_out():
    moved, same, large, races = run_sim(scattered, mib=2048, environment=EXPANDABLE)
    assert (moved, same, large, races) == (25, True, True, [])
