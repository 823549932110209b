"""lmsbuild provenance: what a wheel was made from, in the format that others check."""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild import console
from lmsbuild.cli.types import EXISTING_FILE
from lmsbuild.tools.atomic import write_bytes
from lmsbuild.tools.cache import sha256_of
from lmsbuild.wheel import attestation


@click.command("provenance")
@click.argument("wheels", metavar="WHEEL...", nargs=-1, required=True, type=EXISTING_FILE)
@click.option(
    "--builder",
    metavar="URI",
    default=attestation.LOCAL_BUILDER,
    help="What ran the build, such as the address of a workflow. [default: a machine about which"
    " nothing is known]",
)
def command(wheels: tuple[Path, ...], builder: str) -> None:
    """Write the provenance of each WHEEL into a file beside it, as an in-toto statement with
    SLSA's predicate (version 1).

    It says what the wheel was made from, and is not signed.
    """
    found = {wheel: attestation.origins_of(wheel) for wheel in wheels}
    for wheel, origins in found.items():
        path = wheel.with_name(wheel.name + attestation.ENDING)
        write_bytes(path, attestation.statement(wheel, sha256_of(wheel), origins, builder))
        console.out.print(str(path))
