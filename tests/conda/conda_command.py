"""A stand-in for the conda command, for the README's lines: its options, rattler's solver.

    conda create -n NAME -c CHANNEL ... SPEC ...
    conda run -n NAME COMMAND ...

$LMS_TEST_CHANNELS is what "-c conda-forge" means here, $LMS_TEST_MACHINE is the machine's virtual
packages as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path

import rattler


def channel_of(name: str) -> rattler.Channel:
    if name == "conda-forge":
        return rattler.Channel(os.environ["LMS_TEST_CHANNELS"])
    if not name.startswith(("./", "/", "file://")):
        sys.exit(f"conda: {name} is a channel of the internet")
    return rattler.Channel(Path(name).resolve().as_uri() if "://" not in name else name)


async def create(prefix: Path, channels: list[str], specs: list[str]) -> None:
    cache = Path(os.environ["LMS_TEST_ENVIRONMENTS"]) / "cache"
    machine = json.loads(os.environ["LMS_TEST_MACHINE"])
    virtual = [
        rattler.GenericVirtualPackage(
            rattler.PackageName(name), rattler.Version(version), rattler.BuildString("0")
        )
        for name, version in machine.items()
    ]
    try:
        records = await rattler.solve(
            [channel_of(name) for name in channels],
            specs,
            gateway=rattler.Gateway(cache_dir=cache),
            platforms=["linux-64", "noarch"],
            virtual_packages=virtual,
        )
        await rattler.install(records, prefix, cache_dir=cache, show_progress=False)
    finally:
        await asyncio.sleep(0.2)  # rattler's threads outlive what they worked for


def main() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    creating, running = commands.add_parser("create"), commands.add_parser("run")
    for command in (creating, running):
        command.add_argument("-n", dest="name", required=True)
    creating.add_argument("-c", dest="channels", action="append", required=True)
    creating.add_argument("specs", nargs="+")
    running.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    prefix = Path(os.environ["LMS_TEST_ENVIRONMENTS"]) / options.name
    if options.command == "create":
        asyncio.run(create(prefix, options.channels, options.specs))
    else:
        path = f"{prefix / 'bin'}{os.pathsep}{os.environ['PATH']}"
        program, *rest = options.arguments
        os.execvpe(prefix / "bin" / program, [program, *rest], {**os.environ, "PATH": path})


main()
