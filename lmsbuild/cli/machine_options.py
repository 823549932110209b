"""Options that say what an iteration is simulated on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from lmsbuild.cli.types import BYTES, LINK
from lmsbuild.simulate import lms_report
from lmsbuild.simulate.link import Link
from lmsbuild.simulate.planner import Machine

Command = Callable[..., None]


def link_options(command: Command) -> Command:
    """Add --link, --link-out, --link-in and --compressed; the command gets ``link`` of them all."""

    @functools.wraps(command)
    def with_link(
        *,
        link: Link,
        link_out: int | None,
        link_in: int | None,
        compressed: float,
        **arguments: Any,
    ) -> None:
        title = link.title if link_out is None and link_in is None else "given rates"
        given = Link(
            title=title,
            out_rate=link_out or link.out_rate,
            in_rate=link_in or link.in_rate,
            compressed=compressed,
        )
        command(link=given, **arguments)

    for option in reversed(
        (
            click.option(
                "--link",
                type=LINK,
                metavar="LINK",
                default="pcie5",
                show_default=True,
                help="Link between GPU and host: pcie3, pcie4, pcie5, nvlink2 or nvlink-c2c, or"
                " bytes per second in each direction, such as 25G.",
            ),
            click.option(
                "--link-out",
                type=BYTES,
                metavar="BYTES",
                help="Bytes per second to the host, instead of the link's.",
            ),
            click.option(
                "--link-in",
                type=BYTES,
                metavar="BYTES",
                help="Bytes per second to the GPU, instead of the link's.",
            ),
            click.option(
                "--compressed",
                type=click.FloatRange(0, 1, min_open=True),
                metavar="SHARE",
                default=1.0,
                help="What compression leaves of the bytes that planned transfers move, such as"
                " 0.6.  [default: no compression]",
            ),
        )
    ):
        with_link = option(with_link)
    return with_link


def host_option(command: Command) -> Command:
    """Add --host-memory; the command gets ``host_memory``, None unless it is given."""
    return click.option(
        "--host-memory",
        type=BYTES,
        metavar="BYTES",
        help="Host memory that LMS may pin, such as 64G.  [default: as much as is needed]",
    )(command)


def machine(gpu_memory: int, link: Link) -> Machine:
    """A GPU on which PyTorch may reserve so many bytes."""
    found = lms_report.module("planner").machine(
        gpu_memory, link.out_rate, link.in_rate, link.planned_speedup
    )
    return Machine(**found._asdict())
