"""Pages of the site that are files outside of docs/, such as CONTRIBUTING.md.

Such a file is shown where a page of docs/ consists of an `{include}` of it, and links to it lead
to that page. A link to a file that is no page, such as a test, offers the file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent

INCLUDE = re.compile(r"```\{include\} (\S+)\n```\s*")
# Code first, because what is in it is no link.
LINK = re.compile(r"(?P<code>^```.*?^```|`[^`]+`)|\]\((?P<target>[^)\s]+)\)", re.M | re.S)


def included(page: Path) -> Path | None:
    """The file that a page of docs/ consists of, or None."""
    found = INCLUDE.fullmatch(page.read_text(encoding="utf-8"))
    return (page.parent / found[1]).resolve() if found else None


def outside() -> dict[Path, Path]:
    """The files outside of docs/ that are pages, with the pages that show them."""
    pages = {page: included(page) for page in DOCS.rglob("*.md")}
    return {file: page for page, file in pages.items() if file}


def relink(text: str, file: Path, page: Path) -> str:
    """The text of a file, with its links changed for where it is shown: at a page of docs/."""
    shown = outside()

    def link(found: re.Match[str]) -> str:
        target = found["target"]
        if found["code"] or target.startswith("#") or re.match(r"[a-z]+:", target):
            return found[0]
        name, hash, anchor = target.partition("#")
        path = (file.parent / name).resolve()
        path = shown.get(path, path)
        return f"]({os.path.relpath(path, page.parent)}{hash}{anchor})"

    return LINK.sub(link, text)


def read(app: Sphinx, name: str, source: list[str]) -> None:
    page = Path(app.env.doc2path(name))
    file = included(page)
    if file:
        app.env.note_dependency(str(file))
        source[0] = file.read_text(encoding="utf-8")
    source[0] = relink(source[0], file or page, page)


def setup(app: Sphinx) -> ExtensionMetadata:
    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
