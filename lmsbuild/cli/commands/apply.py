"""``lmsbuild apply``: the patches on PyTorch's sources."""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild import console
from lmsbuild.checkout.apply import apply
from lmsbuild.checkout.reverse import reverse
from lmsbuild.checkout.state import Outcome, default_directory
from lmsbuild.cli.types import TAG
from lmsbuild.registry import Tag, load_registry


@click.command()
@click.argument("tag", type=TAG, metavar="TAG")
@click.option(
    "--source",
    metavar="SOURCE",
    help="URL, local clone or mirror, checkout, or source tarball  [default: upstream's URL]",
)
@click.option(
    "--into",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Directory to make  [default: the checkout given as source, else ./pytorch-TAG]",
)
@click.option("--check", is_flag=True, help="Change nothing; say what would happen.")
@click.option("--reverse", "backwards", is_flag=True, help="Remove the patches again.")
def command(tag: str, source: str | None, into: Path | None, check: bool, backwards: bool) -> None:
    """Apply the patches of TAG to PyTorch's sources, as commits.

    The runtime is one commit, each hook another; the same base always gives the same commits.
    """
    registry = load_registry()
    chosen = registry.get(tag)
    if backwards:
        directory = into or (Path(source) if source else default_directory(chosen))
        _tell_reverse(reverse(chosen, directory, check=check), chosen, check=check)
        return
    outcome = apply(
        chosen,
        upstream_url=registry.upstream_url,
        given_source=source,
        into=into,
        check=check,
    )
    _tell_apply(outcome, chosen, check=check)


def _tell_apply(outcome: Outcome, tag: Tag, *, check: bool) -> None:
    if outcome.nothing_to_do:
        console.out.print(f"{outcome.directory}: the patches of {tag.name} are already applied")
        return
    for hook, path in outcome.drifted:
        console.warn(f"{path} is not the file that {hook} was made against, though it applies")
    for hook, reason in outcome.left_out:
        console.warn(f"{hook} is left out: {reason}; the build of this checkout will lack LMS")
    verb = "would apply" if check else "applied"
    for subject in outcome.commits:
        console.out.print(f"{verb}: {subject}")
    if not check:
        console.out.print(f"{outcome.directory} is {tag.name} with LMS ({outcome.commit[:12]})")


def _tell_reverse(outcome: Outcome, tag: Tag, *, check: bool) -> None:
    verb = "would take back" if check else "took back"
    for subject in outcome.commits:
        console.out.print(f"{verb}: {subject}")
    if not check:
        console.out.print(f"{outcome.directory} is {tag.name} again ({outcome.commit[:12]})")
