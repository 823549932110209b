"""The pages of a package index: HTML (PEP 503) and JSON (PEP 691), as of version 1.1 (PEP 700)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.version import Version

from lmsbuild.index.entry import Entry, name_of

API_VERSION = "1.1"
JSON_TYPE = "application/vnd.pypi.simple.v1+json"
# What a browser understands, too; clients take it for the HTML of PEP 503.
HTML_TYPE = "text/html"

_UP = "../../"  # from a project's page to the wheels
_META = {"api-version": API_VERSION}


def root_html(projects: Iterable[str]) -> str:
    """The list of projects."""
    links = [f'<a href="{quote(name)}/">{escape(name)}</a>' for name in projects]
    return _html("Simple index", links)


def root_json(projects: Iterable[str]) -> str:
    """The list of projects."""
    return _json({"meta": _META, "projects": [{"name": name} for name in projects]})


def project_html(project: str, entries: Sequence[Entry]) -> str:
    """A project's files."""
    return _html(f"Links for {project}", [_link(entry) for entry in entries])


def project_json(project: str, entries: Sequence[Entry]) -> str:
    """A project's files."""
    versions = sorted({entry.version for entry in entries}, key=Version)
    files = [_file(entry) for entry in entries]
    return _json({"meta": _META, "name": project, "versions": versions, "files": files})


def read_project(text: str) -> list[Entry]:
    """The entries of a page that project_json wrote.

    Raises ValueError, KeyError, TypeError, WheelIndexError.
    """
    page = json.loads(text)
    return [
        Entry(
            file=file["filename"],
            project=page["name"],
            version=str(name_of(Path(file["filename"]))[1]),
            sha256=file["hashes"]["sha256"],
            size=file["size"],
            requires_python=file.get("requires-python", ""),
            metadata_sha256=file["core-metadata"]["sha256"],
            upload_time=file["upload-time"],
        )
        for file in page["files"]
    ]


def read_root(text: str) -> list[str]:
    """The projects of a page that root_json wrote. Raises ValueError, KeyError, TypeError."""
    return [str(project["name"]) for project in json.loads(text)["projects"]]


def _url(entry: Entry) -> str:
    # A "+" in a path means itself, but some object stores take it for a space.
    return _UP + quote(entry.file)


def _link(entry: Entry) -> str:
    attributes = {
        "href": f"{_url(entry)}#sha256={entry.sha256}",
        **({"data-requires-python": entry.requires_python} if entry.requires_python else {}),
        "data-core-metadata": f"sha256={entry.metadata_sha256}",
    }
    written = " ".join(f'{name}="{escape(value)}"' for name, value in attributes.items())
    return f"<a {written}>{escape(entry.file)}</a>"


def _file(entry: Entry) -> dict[str, Any]:
    return {
        "filename": entry.file,
        "url": _url(entry),
        "hashes": {"sha256": entry.sha256},
        **({"requires-python": entry.requires_python} if entry.requires_python else {}),
        "core-metadata": {"sha256": entry.metadata_sha256},
        "size": entry.size,
        "upload-time": entry.upload_time,
    }


def _html(title: str, links: Sequence[str]) -> str:
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta name="pypi:repository-version" content="{API_VERSION}">',
        f"<title>{escape(title)}</title>",
        "</head>",
        "<body>",
        f"<h1>{escape(title)}</h1>",
        *(f"{link}<br>" for link in links),
        "</body>",
        "</html>",
    ]
    return "\n".join(lines) + "\n"


def _json(page: Mapping[str, Any]) -> str:
    return json.dumps(page, indent=1) + "\n"
