"""``lmsbuild dev port``: a new tag from an old one."""

from __future__ import annotations

import platform
import re
import sys
from itertools import groupby
from pathlib import Path

import click

from lmsbuild import console
from lmsbuild.cli.maintained import maintained_patches, patches_option
from lmsbuild.cli.progress import StageDisplay
from lmsbuild.cli.types import EXISTING_FILE, PYTHON, TAG
from lmsbuild.port.port import Ported, port
from lmsbuild.port.request import PortRequest
from lmsbuild.registry import load_registry
from lmsbuild.tools.cache import default_cache
from lmsbuild.tools.cache_content import in_use


@click.command()
@click.argument("old", type=TAG, metavar="FROM")
@click.argument("new", metavar="TO")
@click.option(
    "--source",
    metavar="SOURCE",
    help="TO's sources, as for apply  [default: the Python files of its official wheel]",
)
@click.option(
    "--from-source", "old_source", metavar="SOURCE", help="FROM's sources  [default: likewise]"
)
@click.option(
    "--base",
    type=EXISTING_FILE,
    help="Official wheel of TO  [default: fetched with pip]",
)
@click.option(
    "--from-base",
    "old_base",
    type=EXISTING_FILE,
    help="Official wheel of FROM  [default: fetched with pip]",
)
@click.option(
    "--python",
    type=PYTHON,
    metavar="X.Y",
    help="CPython version of the wheels  [default: the running one]",
)
@click.option(
    "--work",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder to make for merging; it stays when there are conflicts  [default: ./port-TO]",
)
@click.option("--continue", "resumed", is_flag=True, help="The conflicts in DIR are resolved.")
@patches_option
def command(
    old: str,
    new: str,
    source: str | None,
    old_source: str | None,
    base: Path | None,
    old_base: Path | None,
    python: str | None,
    work: Path | None,
    resumed: bool,
    patches: Path | None,
) -> None:
    """Make the patches of tag TO from those of tag FROM.

    FROM's hooks are merged into TO's files; TO's registry entry is read from its official wheel.
    Says what changed in the upstream interfaces that the runtime uses, tries to compile the
    runtime, and says what is left to do.
    """
    name = f"v{new.removeprefix('v')}"
    if not re.fullmatch(r"v\d+\.\d+\.\d+", name):
        raise click.UsageError(f"{new} is not the name of a release, such as v1.2.3")
    chosen = maintained_patches(patches)
    registry = load_registry(chosen)
    request = PortRequest(
        old=registry.get(old),
        name=name,
        python=python or f"{sys.version_info.major}.{sys.version_info.minor}",
        architecture=platform.machine(),
        old_base=old_base,
        base=base,
        old_source=old_source,
        given_source=source,
        work=work or Path(f"port-{name}"),
        resumed=resumed,
        patches=chosen,
        cache=default_cache(),
    )
    with in_use(request.cache), StageDisplay() as display:
        ported = port(registry, request, display.report)
    _tell(ported, request, chosen)
    if ported.compiled is not None:
        raise ported.compiled


def _tell(ported: Ported, request: PortRequest, patches: Path) -> None:
    say = console.out.print
    tag = ported.tag
    say(f"{tag.name} from {request.old.name}")
    for name, refitted in ported.hooks:
        say(f"  {'merged anew' if refitted else 'same change'}: {patches / tag.hooks / name}")
    say(f"  entered: {patches / 'tags.toml'} (CUDA {tag.cuda}, C++{tag.cxx_standard})")
    say("")
    say(f"Interfaces that the runtime uses, {request.old.name} to {tag.name}:")
    for path, changes in groupby(ported.changes, key=lambda change: change.path):
        say(f"  {path}")
        for change in changes:
            say(f"    {change.name}{'  (forwarded)' if change.forwarded else ''}")
            for text in change.before:
                say(f"      - {text}")
            for text in change.after:
                say(f"      + {text}")
    if not ported.changes:
        say("  no difference")
    say("")
    say("Checked")
    say("  the hooks fit the official wheel's files, each where it says")
    if ported.skipped:
        say(f"  not checked, because no wheel carries it: {', '.join(ported.skipped)}")
    say(
        "  the runtime compiles against the wheel's headers"
        if ported.compiled is None
        else "  the runtime does NOT compile against the wheel's headers"
    )
    say("")
    say("Left to do (docs/porting.md)")
    for number, step in enumerate(_steps(ported), start=1):
        say(f"  {number}. {step}")


def _steps(ported: Ported) -> list[str]:
    steps = []
    name = ported.tag.name
    if any(change.forwarded for change in ported.changes):
        steps.append(
            "forward the allocator's virtual methods above as this release has them: "
            f"python ci/forwarding.py --refresh {name}"
        )
    if ported.compiled is not None:
        steps.append("mend compat.h until it compiles: lmsbuild wheel " + name)
    if ported.hooks and any(refitted for _, refitted in ported.hooks):
        steps.append("read the hooks that were merged anew")
    steps.append(f"test it on the simulated device: python ci/torch_tests.py {name}")
    steps.append("set verified.simulated in tags.toml, and commit")
    return steps
