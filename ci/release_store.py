"""The folder of a release: finished files, and records that say so."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from release_plan import Artifact

from lmsbuild.errors import CheckError
from lmsbuild.tools.atomic import draft, write_bytes
from lmsbuild.tools.hashes import Hashes

SUMS = "SHA256SUMS"
SIGNATURES = (f"{SUMS}.asc", f"{SUMS}.sigstore.json")
_KEY_FILE = "gpg-key"  # among the records


class ReleaseError(CheckError):
    """The release cannot be made, or not be published."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """What was finished.

    Attributes:
        commit: lmsbuild's, at which it was built.
        source: for a conda package, the SHA-256 of its wheel.
        files: SHA-256 by path in the site; the first is the artifact itself. Each is, of several
            conda packages.
        untested: why it was not tested; empty if it was.
    """

    commit: str
    source: str
    files: Mapping[str, str]
    untested: str


class Store:
    """``site`` is what is published. ``work`` has what is not finished yet, and never counts."""

    def __init__(self, out: Path) -> None:
        self.site = out / "site"
        self.work = out / "work"
        self.logs = out / "logs"
        self._records = out / "records"
        self._hashes = Hashes()

    def record(self, artifact: Artifact) -> Record | None:
        """The record of an artifact; None if there is none that can be read."""
        try:
            return Record(**json.loads(self._path(artifact).read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def why_unfinished(self, artifact: Artifact, commit: str) -> str:
        """Why an artifact has to be built; empty if it is there as it was verified."""
        record = self.record(artifact)
        if record is None:
            return "not built yet"
        if record.commit != commit:
            return "built from another commit"
        for name, sha256 in record.files.items():
            path = self.site / name
            if not path.is_file():
                return "its file is gone"
            if self._hashes.sha256(path) != sha256:
                return "its file has changed"
        if artifact.is_conda and record.source != self.sha256(artifact.wheel):
            return "its wheel has changed"
        return ""

    def file(self, artifact: Artifact) -> Path:
        """The file of a finished artifact. Raises ReleaseError if there is none."""
        record = self.record(artifact)
        if record is None:
            raise ReleaseError(f"{artifact.name} is not built; build it first, or leave out --kind")
        return self.site / next(iter(record.files))

    def sha256(self, artifact: Artifact) -> str:
        """Of a finished artifact's file; empty if there is none."""
        record = self.record(artifact)
        return next(iter(record.files.values())) if record else ""

    def keep(
        self, artifact: Artifact, files: Sequence[Path], folder: str, commit: str, untested: str
    ) -> None:
        """Move verified files into a folder of the site. From then on they count."""
        old = self.record(artifact)
        self._path(artifact).unlink(missing_ok=True)
        for name in old.files if old else ():
            (self.site / name).unlink(missing_ok=True)
        (self.site / folder).mkdir(parents=True, exist_ok=True)
        hashes = {}
        for path in files:
            target = self.site / folder / path.name
            os.replace(path, target)
            hashes[target.relative_to(self.site).as_posix()] = self._hashes.sha256(target)
        source = self.sha256(artifact.wheel) if artifact.is_conda else ""
        record = Record(commit=commit, source=source, files=hashes, untested=untested)
        self._records.mkdir(parents=True, exist_ok=True)
        write_bytes(self._path(artifact), (json.dumps(asdict(record), indent=1) + "\n").encode())

    def check_strays(self, artifacts: Sequence[Artifact]) -> None:
        """Raise ReleaseError if the site has a package besides these finished artifacts."""
        present = [*self.site.glob("*.whl"), *self.site.glob("*/*.conda")]
        names = {path.relative_to(self.site).as_posix() for path in present}
        if strays := names - self._sums(artifacts).keys():
            raise ReleaseError(
                f"{self.site / min(strays)} was not built and verified at this commit; delete it,"
                " or build it again"
            )

    def write_sums(self, artifacts: Sequence[Artifact]) -> None:
        """Write the checksums of finished artifacts, as sha256sum does.

        If they are not the same as before, their signatures are removed.
        """
        sums = self._sums(artifacts)
        data = "".join(f"{sums[name]}  {name}\n" for name in sorted(sums)).encode()
        path = self.site / SUMS
        if path.is_file() and path.read_bytes() == data:
            return
        for name in SIGNATURES:
            (self.site / name).unlink(missing_ok=True)
        write_bytes(path, data)

    def _sums(self, artifacts: Sequence[Artifact]) -> dict[str, str]:
        sums: dict[str, str] = {}
        for artifact in artifacts:
            record = self.record(artifact)
            assert record is not None, "it is finished"
            sums |= record.files
        return sums

    def sign(self, gpg_key: str, sigstore: bool) -> None:
        """Sign the checksums with what is asked for, unless this signature is there.

        Raises ReleaseError.
        """
        asc, bundle = (self.site / name for name in SIGNATURES)
        if gpg_key and not (asc.exists() and self._signed_with() == gpg_key):
            gpg = ("gpg", "--batch", "--yes", "--local-user", gpg_key, "--armor", "--detach-sign")
            self._sign((*gpg, "--output"), asc)
            self._records.mkdir(parents=True, exist_ok=True)
            write_bytes(self._records / _KEY_FILE, gpg_key.encode())
        if sigstore and not bundle.exists():
            self._sign(("cosign", "sign-blob", "--yes", "--bundle"), bundle)

    def _signed_with(self) -> str:
        """The key of the last gpg signature, as it was named; empty if it is not known."""
        try:
            return (self._records / _KEY_FILE).read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    def _sign(self, command: Sequence[str], signature: Path) -> None:
        if shutil.which(command[0]) is None:
            raise ReleaseError(f"{command[0]} is not installed, so {SUMS} is not signed")
        with draft(signature) as unfinished:
            done = subprocess.run(
                [*command, unfinished.name, SUMS], cwd=self.site, capture_output=True
            )
            if done.returncode or not unfinished.is_file():
                said = done.stderr.decode(errors="replace").strip().splitlines() or [
                    "it said nothing"
                ]
                raise ReleaseError(f"{command[0]} did not sign {SUMS}: {said[-1]}")

    def _path(self, artifact: Artifact) -> Path:
        return self._records / f"{artifact.name}.json"
