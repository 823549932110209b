"""Prints a table, and writes it as JSON and Markdown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def markdown(title: str, machine: dict[str, str], tables: dict[str, list[dict[str, str]]]) -> str:
    lines = [f"# {title}", ""]
    lines += [f"- {name}: {value}" for name, value in machine.items()]
    for heading, rows in tables.items():
        columns = list(rows[0])
        lines += ["", f"## {heading}", "", row_of(columns), row_of(["---"] * len(columns))]
        lines += [row_of(row.values()) for row in rows]
    return "\n".join(lines) + "\n"


def row_of(cells: Any) -> str:
    return "| " + " | ".join(cells) + " |"


def show(title: str, machine: dict[str, str], tables: dict[str, list[dict[str, str]]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=160)
    console.print(title)
    for name, value in machine.items():
        console.print(f"  {name}: {value}", highlight=False)
    for heading, rows in tables.items():
        table = Table(title=heading, title_justify="left")
        for index, column in enumerate(rows[0]):
            table.add_column(column, justify="left" if index == 0 else "right")
        for row in rows:
            table.add_row(*row.values())
        console.print(table)


def write(
    folder: Path,
    name: str,
    title: str,
    machine: dict[str, str],
    tables: dict[str, list[dict[str, str]]],
    data: Any,
    *,
    shown: bool = True,
) -> None:
    """Leaves NAME.json (everything measured) and NAME.md (the tables) in the folder.

    Shows the tables, too, unless `shown` is false.
    """
    if shown:
        show(title, machine, tables)
    folder.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine, "results": data}
    (folder / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    (folder / f"{name}.md").write_text(markdown(title, machine, tables))
