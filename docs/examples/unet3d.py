"""Trains a 3D U-Net on volumes that do not fit in GPU memory, with Large Model Support (LMS).

    python unet3d.py --size 192 --limit 12
    python unet3d.py --size 192 --limit 12 --no-lms

The volumes are synthetic: noise with a ball in it, which the model learns to segment. Activations
of a 3D U-Net grow with the third power of the size, and most of the memory is needed for them.
"""

from __future__ import annotations

import argparse
import itertools
import sys

import torch
from lms_stats import StepLogger
from torch import nn
from torch.nn import functional as F

GIB = 1 << 30


def level(channels: int, out: int) -> nn.Sequential:
    """Two convolutions. Norms of groups do not depend on the batch, which is small."""
    layers = []
    for inputs in (channels, out):
        layers += [nn.Conv3d(inputs, out, 3, padding=1), nn.GroupNorm(8, out), nn.ReLU(True)]
    return nn.Sequential(*layers)


class UNet3d(nn.Module):
    """Scores of the voxels of volumes: (batch, 1, size, size, size) to the same shape.

    Args:
        width: channels of the first level; a multiple of 8. Each level has twice as many.
        levels: the size has to be a multiple of ``2 ** (levels - 1)``.
    """

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        widths = [width << k for k in range(levels)]
        pairs = list(itertools.pairwise(widths))
        self.first = level(1, width)
        self.down = nn.ModuleList(
            nn.Sequential(nn.MaxPool3d(2), level(fine, coarse)) for fine, coarse in pairs
        )
        self.grow = nn.ModuleList(
            nn.ConvTranspose3d(coarse, fine, 2, stride=2) for fine, coarse in reversed(pairs)
        )
        self.up = nn.ModuleList(level(2 * fine, fine) for fine, _ in reversed(pairs))
        self.head = nn.Conv3d(width, 1, 1)

    def forward(self, volumes: torch.Tensor) -> torch.Tensor:
        x = self.first(volumes)
        skipped = []
        for down in self.down:
            skipped.append(x)
            x = down(x)
        for grow, up in zip(self.grow, self.up, strict=True):
            x = up(torch.cat([skipped.pop(), grow(x)], dim=1))
        return self.head(x)


def balls(batch: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Volumes with a ball each, and where it is: two tensors (batch, 1, size, size, size)."""
    axis = torch.linspace(-1, 1, size, device="cuda")
    centers = torch.rand(batch, 3, 1, device="cuda") - 0.5
    x, y, z = (axis - centers).square().unbind(1)  # (batch, size) each
    distances = x[:, :, None, None] + y[:, None, :, None] + z[:, None, None, :]
    masks = (distances < 0.25).float()[:, None]
    return masks + torch.randn_like(masks), masks


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    model = UNet3d(args.width, args.levels).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)
    with StepLogger(args.log) as log:
        for step in range(args.steps):
            with log.step():
                volumes, masks = balls(args.batch_size, args.size)
                optimizer.zero_grad()
                loss = F.binary_cross_entropy_with_logits(model(volumes), masks)
                loss.backward()
                optimizer.step()
            row = log.rows[-1]
            print(
                f"step {step}: loss {loss.item():.4f}, {row['seconds']:.3f} s, "
                f"{row['peak_reserved_bytes'] / GIB:.3f} GiB on the GPU, "
                f"{row['page_out_bytes'] / GIB:.3f} GiB paged out",
                flush=True,
            )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--size", type=int, default=128, help="voxels along each edge (default: 128)")
    add("--batch-size", type=int, default=1, metavar="N", help="volumes (default: 1)")
    add("--width", type=int, default=32, help="channels of the first level (default: 32)")
    add("--levels", type=int, default=4, help="default: 4")
    add("--steps", type=int, default=10, metavar="N", help="training steps (default: 10)")
    add("--lms", action=argparse.BooleanOptionalAction, default=True, help="use LMS (default)")
    add("--limit", type=float, default=0, metavar="GIB", help="GPU memory (default: all of it)")
    add("--log", metavar="FILE.csv", help="write a row of statistics for each step")
    args = parser.parse_args(arguments)
    if args.size % (1 << args.levels - 1):
        parser.error(f"--size has to be a multiple of {1 << args.levels - 1}")
    if args.width % 8:
        parser.error("--width has to be a multiple of 8")
    if not torch.cuda.is_available():
        parser.error("there is no GPU that this PyTorch can use")
    if args.lms and not hasattr(torch.cuda, "lms"):
        parser.error("this PyTorch has no Large Model Support; install one that has, or --no-lms")
    if args.lms:
        torch.cuda.set_limit_lms(int(args.limit * GIB))
        torch.cuda.set_enabled_lms(True)
    elif args.limit:
        # As if the GPU were smaller.
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, args.limit * GIB / total))
    try:
        train(args)
    except torch.cuda.OutOfMemoryError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
