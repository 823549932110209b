"""Where each command of the documentation runs: commands.toml."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pages import Command, commands_of

from lmsbuild._compat import tomllib

FILE = Path(__file__).with_name("commands.toml")


@dataclass(frozen=True)
class Scene:
    """How the commands of a page are run; commands.toml says what the fields mean."""

    folder: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    change: dict[str, str] = field(default_factory=dict)
    append: dict[str, str] = field(default_factory=dict)
    servers: tuple[str, ...] = ()

    def line(self, command: Command) -> str:
        """What the shell runs for a command."""
        text = command.text
        for old, new in self.change.items():
            text = text.replace(old, new)
        for beginning, arguments in self.append.items():
            if command.text.startswith(beginning):
                text += f" {arguments}"
        return f"serve {text}" if command.text.startswith(self.servers or "\n") else text


@dataclass(frozen=True)
class Book:
    """commands.toml.

    Attributes:
        scenes: by page.
        elsewhere: what runs a command that is not run here, by the command.
        never: why nothing runs a command, by the command.
    """

    scenes: dict[str, Scene]
    elsewhere: dict[str, tuple[str, ...]]
    never: dict[str, str]

    def run(self, page: str) -> list[Command]:
        """The commands of a page that are run here."""
        if page not in self.scenes:
            return []
        others = self.elsewhere.keys() | self.never.keys()
        return [command for command in commands_of(page) if command.text not in others]


def load() -> Book:
    document = tomllib.loads(FILE.read_text(encoding="utf-8"))
    scenes = {}
    for page, values in document["run"].items():
        values["servers"] = tuple(values.get("servers", ()))
        scenes[page] = Scene(**values)
    return Book(
        scenes=scenes,
        elsewhere={c: tuple(e["by"]) for e in document["elsewhere"] for c in e["commands"]},
        never={c: e["why"] for e in document["never"] for c in e["commands"]},
    )
