"""Fine-tunes a GPT-2 that does not fit in GPU memory, with Large Model Support (LMS).

    python gpt_finetune.py --layers 48 --embedding 1600 --limit 16
    python gpt_finetune.py --layers 48 --embedding 1600 --limit 16 --no-lms

The model comes from transformers. Nothing is downloaded: its weights are random, and the text is
synthetic. Parameters, gradients and AdamW's state take 16 bytes for each parameter, 25 GB here, and
each tensor is needed for a moment only.
"""

from __future__ import annotations

import argparse
import sys

import torch
from lms_stats import StepLogger

GIB = 1 << 30
NUMBERS = 256


def make_model(args: argparse.Namespace) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=args.vocabulary,
        n_positions=args.length,
        n_embd=args.embedding,
        n_layer=args.layers,
        n_head=args.heads,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    # With weights: GPT2LMHeadModel.from_pretrained("gpt2-xl")
    return GPT2LMHeadModel(config)


def text(args: argparse.Namespace) -> torch.Tensor:
    """Tokens (batch, length). Each sequence counts from a random number, so there is one rule."""
    first = torch.randint(NUMBERS, (args.batch_size, 1), device="cuda")
    return (first + torch.arange(args.length, device="cuda")) % NUMBERS


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    model = make_model(args).cuda()
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"{count / 1e6:.0f} million parameters", flush=True)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=1e-4,
        foreach=False,  # one operator for each parameter: a single one would need all of them
    )
    with StepLogger(args.log) as log:
        for step in range(args.steps):
            with log.step():
                tokens = text(args)
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.bfloat16, enabled=args.amp):
                    loss = model(input_ids=tokens, labels=tokens).loss
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
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
    add("--layers", type=int, default=12, metavar="N", help="default: 12")
    add("--embedding", type=int, default=768, metavar="N", help="size (default: 768)")
    add("--heads", type=int, metavar="N", help="of attention (default: embedding / 64)")
    add("--vocabulary", type=int, default=50257, metavar="N", help="default: 50257")
    add("--length", type=int, default=1024, metavar="N", help="tokens (default: 1024)")
    add("--batch-size", type=int, default=4, metavar="N", help="sequences (default: 4)")
    add("--amp", action=argparse.BooleanOptionalAction, default=True, help="compute in bfloat16")
    add("--steps", type=int, default=10, metavar="N", help="training steps (default: 10)")
    add("--lms", action=argparse.BooleanOptionalAction, default=True, help="use LMS (default)")
    add("--limit", type=float, default=0, metavar="GIB", help="GPU memory (default: all of it)")
    add("--log", metavar="FILE.csv", help="write a row of statistics for each step")
    args = parser.parse_args(arguments)
    args.heads = args.heads or max(1, args.embedding // 64)
    if args.vocabulary < NUMBERS:
        parser.error(f"--vocabulary has to be {NUMBERS} or more")
    if args.embedding % args.heads:
        parser.error("--embedding has to be a multiple of --heads")
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
    except ImportError as error:
        print(f"error: {error}; pip install transformers", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
