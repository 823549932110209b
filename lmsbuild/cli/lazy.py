"""Groups of commands, each command a module of one package."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import Any

import click

from lmsbuild.cli.common import add_common_options


class LazyGroup(click.Group):
    """Imports a command's module when the command is used, not before.

    ``lmsbuild tags`` should not pay for importing what ``lmsbuild wheel`` needs.
    """

    package: ModuleType

    def __init__(self, *arguments: Any, package: ModuleType, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.package = package

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(module.name for module in pkgutil.iter_modules(self.package.__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"{self.package.__name__}.{cmd_name}")
        command = module.command
        assert isinstance(command, click.Command)
        return with_common_options(command)


def with_common_options(command: click.Command) -> click.Command:
    """The command, and those of the group that it is, with the options that all have."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            with_common_options(inner)
    return add_common_options(command)
