"""``lmsbuild dev refresh``: patch files from the commits of a worked-on checkout."""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild import console
from lmsbuild.checkout.refresh import refresh
from lmsbuild.cli.maintained import maintained_patches, patches_option
from lmsbuild.errors import StalePatchError
from lmsbuild.registry import load_registry


@click.command(options_metavar="[OPTIONS]")
@click.argument("arguments", metavar="[TAG] CHECKOUT", nargs=-1, required=True)
@click.option("--check", is_flag=True, help="Change nothing; fail when a patch file is stale.")
@patches_option
def command(arguments: tuple[str, ...], check: bool, patches: Path | None) -> None:
    """Rewrite the patch files from the commits of CHECKOUT.

    CHECKOUT is what `lmsbuild apply` made and ordinary git (amend, rebase, new commits) changed.
    Each commit above the runtime's becomes a hook; changes to the runtime's files go back to
    patches/runtime, whichever commit makes them.
    """
    if len(arguments) > 2:
        raise click.UsageError("give one checkout, or a tag and a checkout")
    *tags, checkout = arguments
    chosen = maintained_patches(patches)
    result = refresh(
        load_registry(chosen),
        Path(checkout),
        tag_name=tags[0] if tags else None,
        patches=chosen,
        check=check,
    )
    for path, how in result.changed:
        console.out.print(f"{'would be ' if check else ''}{how}: {path}")
    if not result.changed:
        console.out.print(f"the patches of {result.tag.name} are what {checkout} says")
    elif check:
        raise StalePatchError(
            f"{len(result.changed)} patch file{'s are' if len(result.changed) > 1 else ' is'}"
            f" stale; run: lmsbuild dev refresh {checkout}"
        )
