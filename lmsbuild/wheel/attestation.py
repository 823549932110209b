"""The provenance of a wheel as others check it: an in-toto statement with SLSA's predicate."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

from lmsbuild.errors import DamagedWheelError, ForeignWheelError
from lmsbuild.wheel import integrity, provenance
from lmsbuild.wheel.provenance import Provenance
from lmsbuild.wheel.sbom import package_url, pinned_url

ENDING = ".provenance.json"  # after the wheel's name
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "pkg:generic/lmsbuild#build/v1"
# Somebody's machine, about which nothing is known.
LOCAL_BUILDER = "pkg:generic/lmsbuild#local"


def statement(
    wheel: Path, sha256: str, origins: Sequence[Provenance], builder: str = LOCAL_BUILDER
) -> bytes:
    """The unsigned statement about a wheel, which consists of one build or more.

    ``builder`` is the URI of what ran the build. Equal arguments give equal bytes: there is no
    time, and no address that something was fetched from.
    """
    architecture = wheel.stem.split("-")[-1].split(".")[-1]
    document = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": wheel.name, "digest": {"sha256": sha256}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "tags": [origin.tag for origin in origins],
                    "pythons": sorted({p for origin in origins for p in origin.pythons}),
                    "platform": architecture,
                },
                "internalParameters": {"builds": [_internal(origin) for origin in origins]},
                "resolvedDependencies": _dependencies(origins),
            },
            "runDetails": {
                "builder": {"id": builder, "version": {"lmsbuild": origins[0].lmsbuild}}
            },
        },
    }
    return (json.dumps(document, indent=1) + "\n").encode()


def _internal(origin: Provenance) -> dict[str, Any]:
    return {
        "tag": origin.tag,
        "hooks": list(origin.hooks),
        "hooksSha256": origin.hooks_sha256,
        "runtimeSha256": origin.runtime_sha256,
        "compiler": origin.compiler,
        "flags": list(origin.flags),
        "manylinux": origin.manylinux,
    }


def _dependencies(origins: Sequence[Provenance]) -> list[dict[str, Any]]:
    """Base wheels, header packages, and lmsbuild itself."""
    found = [_base(origin) for origin in origins]
    headers = {name: sha for origin in origins for name, sha in origin.header_packages.items()}
    found += [
        {"name": name, "uri": pinned_url(name), "digest": {"sha256": sha}}
        for name, sha in sorted(headers.items())
    ]
    commits = {(origin.lmsbuild, origin.commit): None for origin in origins}
    return [*found, *(_toolkit(*commit) for commit in commits)]


def _base(origin: Provenance) -> dict[str, Any]:
    base: dict[str, Any] = {"name": origin.base, "digest": {"sha256": origin.base_sha256}}
    # Only then is it known to be the index's.
    if origin.base_index_sha256 == origin.base_sha256:
        base["uri"] = package_url("torch", origin.tag.removeprefix("v"))
    return base


def _toolkit(version: str, commit: str) -> dict[str, Any]:
    toolkit: dict[str, Any] = {"name": "lmsbuild", "uri": f"pkg:generic/lmsbuild@{version}"}
    # "unknown", or with changes: then no commit has what was run.
    if len(commit) == 40:
        toolkit["digest"] = {"gitCommit": commit}
    else:
        toolkit["annotations"] = {"commit": commit}
    return toolkit


def origins_of(wheel: Path) -> list[Provenance]:
    """The provenances in a wheel: one, or in torch-lms one for each release, oldest first.

    Raises ForeignWheelError if it has none; DamagedWheelError, UnsafeMemberError.
    """
    with integrity.open_wheel(wheel) as archive:
        names = [n for n in archive.namelist() if n.rsplit("/", 1)[-1] == provenance.FILE_NAME]
        try:
            origins = [provenance.load(archive.read(name)) for name in names]
        except (provenance.ProvenanceError, zipfile.BadZipFile) as error:
            raise DamagedWheelError(f"{wheel.name}: {error}; build it again") from error
    if not origins:
        raise ForeignWheelError(
            f"{wheel.name} does not say what it was made from ({provenance.FILE_NAME}): only"
            " wheels of `lmsbuild wheel` and `lmsbuild addon` do, if not built from source"
        )
    return sorted(origins, key=lambda origin: Version(origin.tag))
