"""lmsbuild channel: a conda channel of one's own."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import click
from rich.table import Table

from lmsbuild import console
from lmsbuild.cli.options import json_option
from lmsbuild.cli.types import EXISTING_FILE, EXISTING_FOLDER
from lmsbuild.conda import extra
from lmsbuild.conda.channel import Channel
from lmsbuild.errors import ChannelError, StaleIndexError
from lmsbuild.index.package_index import PackageIndex

EXISTING = click.argument("folder", metavar="DIR", type=EXISTING_FOLDER)
FOLDER = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))


@click.group("channel")
def command() -> None:
    """Keep a conda channel in a folder: add packages, index them, list and serve them."""


@command.command("add")
@FOLDER
@click.argument("packages", nargs=-1, required=True, type=EXISTING_FILE)
def add(folder: Path, packages: tuple[Path, ...]) -> None:
    """Copy PACKAGES into the channel in DIR, which is made when it is not there, and index it.

    A package with the name of another one that is there is refused: its name says which build
    it is.
    """
    for path in Channel(folder).add(packages, console.say):
        console.out.print(str(path))


@command.command("index")
@EXISTING
def index(folder: Path) -> None:
    """Write the index of the channel in DIR anew, from the packages that lie there."""
    channel = Channel(folder)
    channel.index()
    console.say(f"{folder}: {len(channel.packages())} packages")


@command.command("list")
@EXISTING
@json_option
def list_packages(folder: Path, as_json: bool) -> None:
    """List the packages of the channel in DIR. The exit code is 1 if its index is stale."""
    channel = Channel(folder)
    if as_json:
        _print_json(channel)
        channel.check()
        return
    table = Table("package", "version", "build", "platform", "MB")
    for package in channel.packages():
        size = f"{package.size / 1e6:.1f}"
        table.add_row(package.name, package.version, package.build, package.subdir, size)
    console.table(table)
    try:
        channel.check()
    except StaleIndexError as error:
        for line in error.detail.splitlines():
            console.out.print(line)
        raise


def _print_json(channel: Channel) -> None:
    try:
        channel.check()
        stale: list[str] = []
    except StaleIndexError as error:
        stale = error.detail.splitlines()
    document = {
        "channel": str(channel.folder),
        "packages": [dataclasses.asdict(package) for package in channel.packages()],
        "stale": stale,
    }
    click.echo(json.dumps(document, indent=2))


@command.command("serve")
@EXISTING
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; with the default, only this machine can connect.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen on; 0 chooses a free one.",
)
def serve(folder: Path, host: str, port: int) -> None:
    """Serve the channel in DIR over HTTP, read-only, until interrupted.

    If DIR is a package index (see `lmsbuild index`), that is served, too, and DIR need not be a
    channel. For one's own network: there are no passwords and no encryption. A stale index is
    refused.
    """
    extra.require("werkzeug")
    from lmsbuild.conda.server import Server

    channel, index = Channel(folder), PackageIndex(folder)
    if index.exists:
        index.check()
    if channel.exists or not index.exists:
        channel.check()
    try:
        made = Server((host, port), channel, console.say)
    except OSError as error:
        raise ChannelError(
            f"nothing can listen on {host}, port {port} ({_reason(error)}); "
            "name another --port, or an address of this machine as --host"
        ) from error
    with made as server:
        console.say("serving; Ctrl-C ends it")
        # Of the socket, not of the request: the port may have been 0.
        shown = f"[{host}]" if ":" in host else host
        console.out.print(f"http://{shown}:{server.server_address[1]}")
        server.serve_forever()


def _reason(error: OSError) -> str:
    # Python's own text names the address again.
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
