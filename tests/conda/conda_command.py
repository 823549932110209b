"""A stand-in for the conda command, for the documentation's lines: its options, rattler's solver.

    conda create -n NAME -c CHANNEL ... SPEC ...
    conda install -c CHANNEL ... SPEC ...
    conda update --all -c CHANNEL ...
    conda config --env --append pinned_packages SPEC
    conda remove NAME
    conda run -n NAME COMMAND ...

Without -n, they are about $CONDA_PREFIX. $LMS_TEST_CHANNELS is what "-c conda-forge" means here,
$LMS_TEST_MACHINE is the machine's virtual packages as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import traceback
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import rattler


def channel_of(name: str) -> rattler.Channel:
    if name == "conda-forge":
        return rattler.Channel(os.environ["LMS_TEST_CHANNELS"])
    if not name.startswith(("./", "/", "file://")):
        sys.exit(f"conda: {name} is a channel of the internet")
    return rattler.Channel(Path(name).resolve().as_uri() if "://" not in name else name)


def virtual() -> list[rattler.GenericVirtualPackage]:
    return [
        rattler.GenericVirtualPackage(
            rattler.PackageName(name), rattler.Version(version), rattler.BuildString("0")
        )
        for name, version in json.loads(os.environ["LMS_TEST_MACHINE"]).items()
    ]


@dataclass(frozen=True)
class Environment:
    """A folder with packages; what was asked for, and what is pinned, are beside their records."""

    prefix: Path

    def lines(self, name: str) -> list[str]:
        file = self.prefix / "conda-meta" / name
        return file.read_text().splitlines() if file.exists() else []

    def append(self, name: str, lines: Sequence[str]) -> None:
        (self.prefix / "conda-meta").mkdir(parents=True, exist_ok=True)
        text = "".join(f"{line}\n" for line in (*self.lines(name), *lines))
        (self.prefix / "conda-meta" / name).write_text(text)

    @property
    def records(self) -> list[rattler.PrefixRecord]:
        files = sorted((self.prefix / "conda-meta").glob("*.json"))
        return [rattler.PrefixRecord.from_path(file) for file in files]

    async def solve(self, channels: Sequence[str], specs: Sequence[str], *, keep: bool) -> None:
        """Install what fits specs and pins; ``keep``: what is installed stays if it can."""
        found = await rattler.solve(
            [channel_of(name) for name in channels],
            specs,
            gateway=rattler.Gateway(cache_dir=cache()),
            platforms=["linux-64", "noarch"],
            virtual_packages=virtual(),
            locked_packages=self.records if keep else [],
            constraints=[rattler.MatchSpec(pin) for pin in self.lines("pinned")],
        )
        await self.link(found)

    async def link(self, records: Sequence[Any]) -> None:
        await rattler.install(records, self.prefix, cache_dir=cache(), show_progress=False)


def cache() -> Path:
    return Path(os.environ["LMS_TEST_ENVIRONMENTS"]) / "cache"


async def work(options: argparse.Namespace, environment: Environment) -> None:
    if options.command == "remove":
        kept = [r for r in environment.records if r.name.normalized not in options.specs]
        await environment.link(kept)
    else:
        specs = [*environment.lines("wanted"), *options.specs]
        keep = options.command == "install"
        await environment.solve(options.channels, specs, keep=keep)
        environment.append("wanted", options.specs)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    commands = made.add_subparsers(dest="command", required=True)
    for name in ("create", "install", "update", "remove", "config", "run"):
        command = commands.add_parser(name)
        command.add_argument("-n", dest="name")
        if name in ("create", "install", "update"):
            command.add_argument("-c", dest="channels", action="append", required=True)
        if name == "config":
            command.add_argument("--env", action="store_true", required=True)
            command.add_argument("--append", nargs=2, metavar=("KEY", "SPEC"), required=True)
        elif name == "run":
            command.add_argument("arguments", nargs=argparse.REMAINDER)
        elif name == "update":
            command.add_argument("--all", action="store_true", required=True)
            command.set_defaults(specs=[])
        else:
            command.add_argument("specs", nargs="+")
    return made


def main() -> None:
    options = parser().parse_args()
    environments = Path(os.environ["LMS_TEST_ENVIRONMENTS"])
    prefix = environments / options.name if options.name else Path(os.environ["CONDA_PREFIX"])
    if options.command == "config":
        key, spec = options.append
        assert key == "pinned_packages", key
        Environment(prefix).append("pinned", [spec])
    elif options.command == "run":
        path = f"{prefix / 'bin'}{os.pathsep}{os.environ['PATH']}"
        program, *rest = options.arguments
        os.execvpe(prefix / "bin" / program, [program, *rest], {**os.environ, "PATH": path})
    else:
        leave(work(options, Environment(prefix)))


def leave(work: Coroutine[Any, Any, None]) -> NoReturn:
    """Does the work and ends the process, without Python's own end: rattler's threads outlive what
    they worked for, and would crash in it."""
    code = 1
    try:
        asyncio.run(work)
        code = 0
    except SystemExit as error:
        print(error, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


main()
