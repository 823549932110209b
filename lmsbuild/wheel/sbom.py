"""The software bill of materials in a wheel (PEP 770), in the format CycloneDX 1.6.

It is made from the provenance, and has nothing that a second build would not have: no time, and a
serial number that is derived from the content.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from email.message import Message
from email.parser import BytesHeaderParser
from typing import Any
from urllib.parse import quote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import lmsbuild
from lmsbuild.wheel.base import LIBRARY_FOLDER
from lmsbuild.wheel.provenance import Provenance

FILE_NAME = "sboms/lmsbuild.cdx.json"  # in dist-info
FORMAT, SPEC_VERSION = "CycloneDX", "1.6"
_LICENSE = "BSD-3-Clause"  # LMS's own

Component = dict[str, Any]


def wheel_sbom(origin: Provenance, metadata: bytes, libraries: Mapping[str, bytes]) -> bytes:
    """The document of a grafted wheel: upstream's wheel, the patches, LMS's libraries.

    ``metadata`` is the wheel's METADATA, and ``libraries`` are LMS's, by name in torch/lib. What
    upstream's wheel consists of is not listed.
    """
    header = BytesHeaderParser().parsebytes(metadata)
    main = _package(header["Name"], header["Version"])
    main["licenses"] = _licenses(header)
    main["pedigree"] = {
        "ancestors": [_base(origin)],
        "patches": [{"type": "unofficial", "diff": {"url": quote(name)}} for name in origin.hooks],
        "notes": "Large Model Support, grafted onto the ancestor, whose binaries are unchanged.",
    }
    main["properties"] = properties_of(origin)
    parts = [
        library_component(f"{LIBRARY_FOLDER}{name}", data, origin)
        for name, data in libraries.items()
    ]
    return document(main, parts, [origin])


def document(main: Component, parts: Sequence[Component], origins: Sequence[Provenance]) -> bytes:
    """The JSON of a bill with a package, the parts that it consists of, and what they were compiled
    with. Equal arguments give equal bytes."""
    tools = [{"type": "application", "name": "lmsbuild", "version": lmsbuild.__version__}]
    compilers = sorted({origin.compiler for origin in origins})
    tools += [{"type": "application", "name": compiler} for compiler in compilers]
    headers = {name: sha for origin in origins for name, sha in origin.header_packages.items()}
    bill: dict[str, Any] = {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC_VERSION}.schema.json",
        "bomFormat": FORMAT,
        "specVersion": SPEC_VERSION,
        "version": 1,
        "metadata": {
            "lifecycles": [{"phase": "build"}],
            "tools": {"components": tools},
            "component": main,
        },
        "components": [*parts, *(_header_package(*row) for row in sorted(headers.items()))],
        "dependencies": [
            {"ref": main["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]},
            *({"ref": part["bom-ref"]} for part in parts),
        ],
        # Neither what upstream put into its wheel nor what the package requires.
        "compositions": [{"aggregate": "incomplete", "assemblies": [main["bom-ref"]]}],
    }
    digest = hashlib.sha256(json.dumps(bill, sort_keys=True).encode()).hexdigest()
    bill["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, f"{main['bom-ref']}#{digest}").urn
    return (json.dumps(bill, indent=1) + "\n").encode()


def package(name: str, version: str) -> Component:
    """One of this project's packages on the index."""
    return {**_package(name, version), "licenses": [{"license": {"id": _LICENSE}}]}


def library_component(path: str, data: bytes, origin: Provenance) -> Component:
    """A library of LMS at a path in the wheel."""
    return {
        "type": "library",
        "bom-ref": path,
        "name": path,
        "version": origin.lmsbuild,
        "description": f"Large Model Support for PyTorch {origin.tag.removeprefix('v')}",
        "hashes": _sha256(hashlib.sha256(data).hexdigest()),
        "licenses": [{"license": {"id": _LICENSE}}],
        "properties": properties_of(origin),
    }


def properties_of(origin: Provenance) -> list[dict[str, str]]:
    """What CycloneDX has no field for. The hashes are those of lms.json."""
    values = {
        "tag": origin.tag,
        "commit": origin.commit,
        "hooks_sha256": origin.hooks_sha256,
        "runtime_sha256": origin.runtime_sha256,
        "flags": " ".join(origin.flags),
        "manylinux": origin.manylinux,
    }
    return [{"name": f"lmsbuild:{name}", "value": value} for name, value in values.items()]


def package_url(name: str, version: str) -> str:
    """Of a package on PyPI: pkg:pypi/torch@9.1.0%2Blms1."""
    return f"pkg:pypi/{canonicalize_name(name)}@{quote(version, safe='')}"


def pinned_url(requirement: str) -> str:
    """The same for a requirement with one version, "name==1.0"."""
    pinned = Requirement(requirement)
    return package_url(pinned.name, next(iter(pinned.specifier)).version)


def problems(data: bytes, version: str, base_sha256: str, members: Mapping[str, str]) -> list[str]:
    """What is wrong with the bill of a wheel: it has to be of this version of the wheel, of what
    was made from this base (empty: any), and of the members ("sha256=…" by path) that it names."""
    try:
        bill = json.loads(data)
        found = [
            *_differs("format", [bill["bomFormat"], bill["specVersion"]], [FORMAT, SPEC_VERSION]),
            *_differs("version", bill["metadata"]["component"]["version"], version),
        ]
        ancestors = bill["metadata"]["component"].get("pedigree", {}).get("ancestors", [])
        if base_sha256:
            hashes = [_content(ancestor) for ancestor in ancestors]
            found += _differs("base", hashes, [base_sha256])
        for part in bill["components"]:
            if part.get("scope") != "excluded" and _content(part) != members.get(part["name"]):
                found.append(f"{part['name']} is not the file that it describes")
        return found
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        return [f"it cannot be read: {error!r}"]


def _differs(what: str, found: object, expected: object) -> Iterable[str]:
    if found != expected:
        yield f"its {what} is {found}, not {expected}"


def _content(component: Mapping[str, Any]) -> str:
    return str(component["hashes"][0]["content"])


def _package(name: str, version: str) -> Component:
    url = package_url(name, version)
    return {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}


def _base(origin: Provenance) -> Component:
    # A build of one's own is the same project and the same version, too; the hash says which.
    base = _package("torch", origin.tag.removeprefix("v"))
    base["bom-ref"] = origin.base
    base["description"] = origin.base
    return {**base, "hashes": _sha256(origin.base_sha256)}


def _header_package(requirement: str, sha256: str) -> Component:
    pinned = Requirement(requirement)
    found = _package(pinned.name, next(iter(pinned.specifier)).version)
    # Compiled with, and not part of the wheel.
    return {**found, "scope": "excluded", "hashes": _sha256(sha256)}


def _sha256(content: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": content}]


def _licenses(header: Message) -> list[dict[str, Any]]:
    if expression := header["License-Expression"]:
        return [{"expression": expression}]
    # Some write the whole text there.
    if (name := header["License"]) and "\n" not in name:
        return [{"license": {"name": name}}]
    return []
