"""``lmsbuild doctor``: is LMS usable, and what would keep it from paging out?"""

from __future__ import annotations

import dataclasses
import json
import os

import click

from lmsbuild import console
from lmsbuild.cli.options import json_option
from lmsbuild.doctor import ask, examine, find_python, read_host
from lmsbuild.errors import UnusableError
from lmsbuild.registry import load_registry

# In the order of how often each is the answer.
_ANSWERS = (
    ("LMS is off", "it is until the program calls torch.cuda.set_enabled_lms(True)"),
    (
        "there is no pressure",
        "nothing moves while what is in use is below the limit, 95 % of the GPU unless"
        " torch.cuda.set_limit_lms set another",
    ),
    (
        "every storage is small",
        "those below torch.cuda.set_size_lms, 1 MiB at the start, stay on the GPU",
    ),
    (
        "tensors are held",
        "an address that was handed out (data_ptr(), DLPack) keeps its tensor on the GPU until"
        " torch.cuda.lms.release()",
    ),
    (
        "graphs and pools",
        "memory of CUDA graphs and of MemPools stays where it is, and nothing moves during a"
        " capture",
    ),
    (
        "host memory is used up",
        "by torch.cuda.set_host_limit_lms, or because the machine or the container has no more",
    ),
)


@click.command()
@click.option(
    "--python",
    metavar="PATH",
    help="Interpreter whose torch to look at  [default: python on PATH]",
)
@json_option
def command(python: str | None, as_json: bool) -> None:
    """Say whether Large Model Support works here, and why it would not page out.

    Moves one small tensor to the host and back when there is a GPU. From inside a program,
    torch.cuda.lms.explain() gives the answer with that program's own numbers.
    """
    interpreter = find_python(python)
    findings = examine(ask(interpreter), load_registry(), read_host(), os.environ)
    wrong = [finding for finding in findings if finding.wrong]
    if as_json:
        told = [dataclasses.asdict(finding) for finding in findings]
        click.echo(json.dumps({"usable": not wrong, "findings": told}, indent=2))
    else:
        for finding in findings:
            mark = "NO" if finding.wrong else "ok"
            console.out.print(f"{mark}  {finding.topic}: {finding.text}")
    if wrong:
        raise UnusableError(f"LMS cannot be used: {wrong[0].topic}: {wrong[0].text}")
    if as_json:
        return
    console.out.print("")
    console.out.print("LMS can be used. When a program does not page out, ask it itself:")
    console.out.print("  print(torch.cuda.lms.explain())")
    console.out.print("It is one of these:")
    for title, text in _ANSWERS:
        console.out.print(f"  - {title}: {text}")
