"""Trains a model of torchvision or timm on random images, with Large Model Support (LMS).

    python many_models.py --arch resnet152 --image-size 4000
    python many_models.py --arch resnet152 --image-size 4000 --no-lms
    python many_models.py --arch vit_l_16 --image-size 512 -b 64 --limit 12 --plot vit.html
    python many_models.py --arch convnext_base --find-largest batch-size
    torchrun --nproc-per-node=2 many_models.py --arch densenet201 -b 64

Each run writes ARCH-SIZE.csv, with a row for each step, and adds a row to ARCH-summary.csv. A model
is a name that torchvision or timm knows, for classification or segmentation, or MODULE:FUNCTION.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import torch
import torch.distributed as dist
from lms_stats import StepLogger
from torch import nn
from torch.nn import functional as F

GIB = 1 << 30
MISTAKES = (AssertionError, AttributeError, ImportError, OSError, RuntimeError, ValueError)
# How exactly each is searched. Models halve images about five times.
PRECISION = {"image-size": 32, "batch-size": 1}


def find_builder(arch: str) -> Callable[..., nn.Module]:
    """The function that makes a model. Raises ValueError if there is none of that name."""
    module, _, function = arch.rpartition(":")
    if module:
        sys.path.append(os.getcwd())
        return getattr(importlib.import_module(module), function)
    with contextlib.suppress(ImportError):
        from torchvision import models

        if arch in models.list_models(module=models):
            return functools.partial(models.get_model, arch, weights=None)
        if arch in models.list_models(module=models.segmentation):
            return functools.partial(models.get_model, arch, weights=None, weights_backbone=None)
    with contextlib.suppress(ImportError):
        import timm

        if timm.is_model(arch):
            return functools.partial(timm.create_model, arch)
    raise ValueError(
        f"neither torchvision nor timm has a model {arch!r} for images; "
        "are they installed? MODULE:FUNCTION names another one"
    )


def make_model(arch: str, size: int) -> nn.Module:
    builder = find_builder(arch)
    # Transformers need to know how large images are. Others refuse these options.
    for options in ({"image_size": size}, {"img_size": size}, {"input_size": (size, size)}):
        with contextlib.suppress(TypeError):
            return builder(**options)
    return builder()


def loss_of(outputs: object) -> torch.Tensor:
    """Cross-entropy with random classes, of images or of pixels, for each output of a model."""
    if isinstance(outputs, torch.Tensor):
        outputs = [outputs]
    elif isinstance(outputs, dict):
        outputs = outputs.values()
    losses = []
    for output in filter(lambda output: output is not None, outputs):
        batch, classes, *pixels = output.shape
        labels = torch.randint(classes, (batch, *pixels), device=output.device)
        losses.append(F.cross_entropy(output, labels))
    return torch.stack(losses).sum()


def progress(steps: int, rank: int) -> Iterable[int]:
    try:
        from tqdm import tqdm
    except ImportError:
        return range(steps)
    return tqdm(range(steps), unit="step", leave=False, disable=None if rank == 0 else True)


def train(args: argparse.Namespace) -> dict[str, object]:
    """Trains, and returns the summary. Each process of torchrun calls it."""
    rank, gpus = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", args.gpu)))
    if args.seed is not None:
        torch.manual_seed(args.seed + rank)
        torch.backends.cudnn.deterministic = True
    if args.lms:
        torch.cuda.set_limit_lms(int(args.limit * GIB))
        torch.cuda.set_host_limit_lms(int(args.host_limit * GIB))
        torch.cuda.lms.set_planning(args.plan)
        torch.cuda.set_enabled_lms(True)
    elif args.limit:
        # As if the GPU were smaller.
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, args.limit * GIB / total))
    if gpus > 1:
        dist.init_process_group(args.dist_backend)

    model = make_model(args.arch, args.image_size).cuda()
    if gpus > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(
        model.parameters(),
        args.lr,
        momentum=args.momentum,
        weight_decay=args.weight_decay,
        foreach=False,  # one operator for each parameter: a single one would need all of them
    )

    def step() -> None:
        images = torch.randn(args.batch_size, 3, args.image_size, args.image_size, device="cuda")
        optimizer.zero_grad()
        loss_of(model(images)).backward()
        optimizer.step()

    name = re.sub(r"\W", "_", args.arch)
    of_rank = f"-rank{rank}" if gpus > 1 else ""
    steps_csv = args.out / f"{name}-{args.image_size}{of_rank}.csv" if "steps" in args.log else None
    with StepLogger(steps_csv) as log:
        for _ in progress(args.steps, rank):
            with log.step():
                step()
    about = {
        "arch": args.arch,
        "image_size": args.image_size,
        "batch_size": args.batch_size,
        "gpus": gpus,
        "lms": args.lms,
        "limit_bytes": int(args.limit * GIB),
    }
    if "summary" in args.log and rank == 0:
        summary = log.write_summary(args.out / f"{name}-summary.csv", **about)
    else:
        summary = {**about, **log.summary()}
    if args.plot:
        with torch.cuda.lms.record():
            for _ in range(3):
                step()
        if rank == 0:
            torch.cuda.lms.plot(args.plot)
    return summary


def find_largest(args: argparse.Namespace) -> int:
    """The largest image size or batch size that trains, or 0. Doubles it, and then bisects.

    Each trial has a process of its own: nothing of one that fails is left on the GPU.
    """
    name = args.find_largest.replace("-", "_")
    precision = args.precision or PRECISION[args.find_largest]
    fits, fails = 0, None
    value = getattr(args, name)
    while value > fits:
        trial = argparse.Namespace(**{**vars(args), name: value, "steps": 3, "plot": None})
        try:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                summary = pool.submit(train, trial).result()
            # LMS exceeds a limit that is too low for one operator, or when host memory is full.
            within = not args.limit or summary["peak_reserved_bytes_max"] <= args.limit * GIB
            trains = "trains" if within else "needs more than the limit"
            print(f"{args.find_largest} {value} {trains}: {describe(summary)}", flush=True)
            if within:
                fits = value
            else:
                fails = value
        except (AssertionError, RuntimeError, ValueError) as error:
            if not fits and not isinstance(error, (torch.cuda.OutOfMemoryError, BrokenProcessPool)):
                raise  # no matter how small
            print(f"{args.find_largest} {value} does not train: {reason(error)}", flush=True)
            fails = value
        value = 2 * fits if fails is None else (fits + fails) // 2 // precision * precision
    return fits


def describe(summary: dict[str, object]) -> str:
    return (
        f"{summary['seconds_median']:.4g} s per step, "
        f"{summary['peak_reserved_bytes_max'] / GIB:.3f} GiB on the GPU, "
        f"{summary['page_out_bytes_mean'] / GIB:.3f} GiB paged out per step"
    )


def reason(error: BaseException) -> str:
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "out of GPU memory"
    if isinstance(error, BrokenProcessPool):
        return "its process was killed, perhaps because host memory was full"
    return str(error).strip().split("\n")[0]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("-a", "--arch", default="resnet18", help="model (default: resnet18)")
    add("--image-size", type=int, default=500, metavar="N", help="pixels (default: 500)")
    add("-b", "--batch-size", type=int, default=1, metavar="N", help="images per GPU (default: 1)")
    add("--steps", type=int, default=10, metavar="N", help="training steps (default: 10)")
    add("--lr", "--learning-rate", type=float, default=0.1, metavar="LR", help="default: 0.1")
    add("--momentum", type=float, default=0.9, metavar="M", help="of SGD (default: 0.9)")
    add(
        "--wd",
        "--weight-decay",
        type=float,
        default=1e-4,
        metavar="W",
        dest="weight_decay",
        help="default: 0.0001",
    )
    add("--seed", type=int, metavar="N", help="repeatable, with cuDNN's deterministic algorithms")
    add("--gpu", type=int, default=0, metavar="N", help="which one, without torchrun (default: 0)")
    add("--dist-backend", default="nccl", help="with torchrun (default: nccl)")
    add("--lms", action=argparse.BooleanOptionalAction, default=True, help="use LMS (default)")
    add("--limit", type=float, default=0, metavar="GIB", help="GPU memory (default: all of it)")
    add(
        "--lms-limit",
        type=lambda mib: int(mib) / 1024,
        dest="limit",
        metavar="MIB",
        help="--limit in MiB",
    )
    add("--host-limit", type=float, default=0, metavar="GIB", help="pinned memory of each process")
    add("--plan", action="store_true", default=True, help="move tensors ahead (default)")
    add("--on-demand", action="store_false", dest="plan", help="move tensors when needed")
    add("--find-largest", choices=PRECISION, help="search the largest one that trains")
    add("--precision", type=int, metavar="N", help="of the search (default: 32 pixels, 1 image)")
    add(
        "--log",
        nargs="*",
        choices=("steps", "summary"),
        default=("steps", "summary"),
        help="the CSV files to write (default: both)",
    )
    add("--out", type=Path, default=Path(), metavar="DIR", help="of the CSV files (default: .)")
    add("--plot", metavar="FILE", help="draw the memory of a step: .html, .png, .txt or .json")
    args = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("there is no GPU that this PyTorch can use")
    if args.lms and not hasattr(torch.cuda, "lms"):
        parser.error("this PyTorch has no Large Model Support; install one that has, or --no-lms")
    if args.plot and not args.lms:
        parser.error("--plot needs --lms")
    if args.plot and not Path(args.plot).absolute().parent.is_dir():
        parser.error(f"--plot: there is no folder {Path(args.plot).parent}")
    if args.find_largest and "WORLD_SIZE" in os.environ:
        parser.error("--find-largest uses one GPU; run it without torchrun")
    args.out.mkdir(parents=True, exist_ok=True)
    return args


def main(arguments: list[str] | None = None) -> int:
    args = parse(arguments)
    try:
        if args.find_largest:
            largest = find_largest(args)
            print(f"largest {args.find_largest}: {largest or 'none trains'}")
            return int(not largest)
        summary = train(args)
    except MISTAKES as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    if int(os.environ.get("RANK", 0)) == 0:
        print(f"{args.arch}, image size {args.image_size}: {describe(summary)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
