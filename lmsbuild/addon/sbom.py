"""The software bill of materials of the add-on's wheel: a library for each release of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import lmsbuild
from lmsbuild.addon.metadata import DIST_INFO, PROJECT, RELEASES
from lmsbuild.addon.release import Release
from lmsbuild.native.compile import LIBRARY
from lmsbuild.wheel import provenance, sbom

MEMBER = f"{DIST_INFO}/{sbom.FILE_NAME}"


def addon_sbom(releases: Sequence[Release]) -> bytes:
    """The document; see wheel.sbom."""
    origins = [provenance.load(release.files[provenance.FILE_NAME]) for release in releases]
    parts = [
        sbom.library_component(
            f"{RELEASES}/{release.tag.version}/{LIBRARY}", release.files[LIBRARY], origin
        )
        for release, origin in zip(releases, origins, strict=True)
    ]
    return sbom.document(sbom.package(PROJECT, lmsbuild.__version__), parts, origins)
