"""The CUDA allocator's settings. Each is read when a process starts."""

import pytest
from releases import since
from simcuda.process import run_sim

NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # before torch 2.9, and since


def more_than_the_device_holds(device):
    import torch

    torch.cuda.set_enabled_lms(True)
    kept = [torch.full((1 << 21,), float(i), device="cuda").mul_(1) for i in range(12)]  # 96 MiB
    same = all(bool((tensor == i).all()) for i, tensor in enumerate(kept))
    return same, torch.cuda.lms.stats()["page_out_bytes"] > 0, device.races()


def enabling(device):
    import torch

    try:
        torch.cuda.set_enabled_lms(True)
    except RuntimeError as error:
        return str(error), torch.cuda.get_enabled_lms()
    return "", torch.cuda.get_enabled_lms()


def run(scenario, settings):
    return run_sim(scenario, mib=64, environment=dict.fromkeys(NAMES, settings))


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(
            "expandable_segments:True", marks=since((2, 1), "expandable segments"), id="expandable"
        ),
        "max_split_size_mb:32,garbage_collection_threshold:0.5,roundup_power2_divisions:4",
    ],
)
def test_settings_of_the_native_allocator(settings):
    assert run(more_than_the_device_holds, settings) == [True, True, []]


@since((2, 0), "other allocator")
def test_another_allocator_is_refused():
    message, enabled = run(enabling, "backend:cudaMallocAsync")
    assert "LMS needs PyTorch's native CUDA caching allocator" in message
    assert "Unset PYTORCH_CUDA_ALLOC_CONF=backend:" in message
    assert enabled is False
