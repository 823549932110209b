"""``lmsbuild tags``: the registry as a table, for the README, or as JSON for programs."""

from __future__ import annotations

import dataclasses
import json

import click
from rich import box
from rich.table import Table

from lmsbuild import console
from lmsbuild.registry import Registry, Tag, Verified, load_registry, validate_registry


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
def command(as_json: bool, markdown: bool) -> None:
    """List the PyTorch releases that Large Model Support is made for."""
    validate_registry()
    registry = load_registry()
    if as_json and markdown:
        raise click.UsageError("--json or --markdown, not both")
    if as_json:
        click.echo(json.dumps([_record(tag, registry) for tag in registry], indent=2))
    elif markdown:
        click.echo("\n".join(_markdown(registry)))
    else:
        console.table(_table(registry))


def _record(tag: Tag, registry: Registry) -> dict[str, object]:
    return {
        **dataclasses.asdict(tag),
        "version": tag.version,
        "default": tag == registry.default,
        # What `lmsbuild wheel` takes where the architecture is one of these.
        "auto": "graft" if "graft" in tag.strategies else "source",
    }


def _markdown(registry: Registry) -> list[str]:
    rows = [
        [
            f"**{tag.name}**" if tag == registry.default else tag.name,
            f"{tag.pythons[0]} to {tag.pythons[-1]}",
            tag.cuda,
            ", ".join(tag.architectures),
            _proof(tag.verified),
        ]
        for tag in registry
    ]
    headings = ["Tag", "Python", "CUDA", "Architectures", "Verified"]
    return [f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows)]


def _table(registry: Registry) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption="* built when no tag is named. verified: only what was really run",
        caption_justify="left",
    )
    for heading in ("tag", "Pythons", "CUDA", "C++", "architectures", "strategies"):
        table.add_column(heading, no_wrap=True)
    # The one that gives way to a narrow terminal, or to the 80 columns of a pipe.
    table.add_column("verified", overflow="fold")
    for tag in registry:
        table.add_row(
            f"{tag.name} *" if tag == registry.default else tag.name,
            f"{tag.pythons[0]}-{tag.pythons[-1]}",
            tag.cuda,
            str(tag.cxx_standard),
            ", ".join(tag.architectures),
            ", ".join(tag.strategies),
            _proof(tag.verified),
        )
    return table


def _proof(verified: Verified) -> str:
    proofs = {
        "wheel": verified.hooks_wheel,
        "source": verified.hooks_source,
        "simulated": verified.simulated,
        verified.gpu: bool(verified.gpu),
    }
    return ", ".join(name for name, done in proofs.items() if done) or "-"
