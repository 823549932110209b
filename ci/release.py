"""Builds, verifies, tests and indexes a release: every tag, architecture and Python.

    python ci/release.py --dry-run             # print what would be done, and why
    python ci/release.py                       # do it, into build/release
    python ci/release.py --tag TAG --arch x86_64
    python ci/release.py --gpg-key KEY         # also sign the checksums

It can be run again: what was finished and verified at this commit is not done again, and a file
that is not finished never counts. OUT/site is a package index and a conda channel. The indexes and
SHA256SUMS are written when everything that was chosen is finished. The exit code is 1 if something
failed, and 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import release_plan as plan
from release_plan import ADDON, ADDON_CONDA, BUILD, DONE, KINDS, Artifact, Choice, Step
from release_store import SUMS, ReleaseError, Store

from lmsbuild.architecture import architectures
from lmsbuild.errors import LmsbuildError
from lmsbuild.registry import Registry, load_registry
from lmsbuild.tools import lock
from lmsbuild.tools.cache import sha256_of_files
from lmsbuild.wheel.attestation import ENDING, LOCAL_BUILDER
from lmsbuild.wheel.provenance import toolkit_commit

ROOT = Path(__file__).resolve().parent.parent
LMSBUILD = (sys.executable, "-m", "lmsbuild")
INTERRUPTED = 130
_LAST_LINES = 5  # of a log, after a failure


class StepError(ReleaseError):
    """A command of a step failed."""


def steps(registry: Registry, choice: Choice, store: Store, commit: str) -> list[Step]:
    """The plan, in the order in which it is carried out."""
    found: list[Step] = []
    built: set[Artifact] = set()
    for artifact in plan.artifacts(registry, choice):
        reason = store.why_unfinished(artifact, commit)
        if not reason and artifact.is_conda and artifact.wheel in built:
            reason = "its wheel is built"
        if reason:
            built.add(artifact)
            found.append(
                Step(
                    artifact=artifact,
                    action=BUILD,
                    reason=reason,
                    untested=plan.untested(artifact),
                )
            )
        else:
            record = store.record(artifact)
            assert record is not None, "it is finished"
            found.append(
                Step(
                    artifact=artifact,
                    action=DONE,
                    reason="finished and verified",
                    untested=record.untested,
                )
            )
    return [*found, *plan.left_out(registry, choice)]


class Release:
    """Carries a plan out."""

    def __init__(self, store: Store, commit: str, builder: str, lmsbuild: Sequence[str]) -> None:
        self._store = store
        self._commit = commit
        self._builder = builder
        self._lmsbuild = lmsbuild

    def build(self, step: Step) -> None:
        """Build, verify and test an artifact, and move it into the site. Raises StepError."""
        artifact = step.artifact
        work = self._store.work / artifact.name
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        self._store.logs.mkdir(parents=True, exist_ok=True)
        self._log(artifact).unlink(missing_ok=True)
        if artifact.is_conda:
            wheel = self._store.file(artifact.wheel)
            self._run(artifact, "conda", "--wheel", str(wheel), "--out", str(work))
            if artifact.kind == ADDON_CONDA:
                files = sorted(work.glob("*/*.conda"))  # one for each major version of CUDA
            else:
                files = [self._only(artifact, work, "*/*.conda")]
            if len({path.parent for path in files}) != 1:
                raise StepError(f"{artifact.name}: lmsbuild made no package, or for two platforms")
            folder = files[0].parent.name
        else:
            what = [] if artifact.kind == ADDON else [artifact.tag, "--python", artifact.python]
            self._run(artifact, artifact.kind, *what, "--arch", artifact.architecture,
                      "--out", str(work))  # fmt: skip
            made = self._only(artifact, work, "*.whl")
            self._run(artifact, "verify", str(made))
            if not step.untested:
                self._run(artifact, "test", str(made))
            self._run(artifact, "provenance", "--builder", self._builder, str(made))
            files, folder = [made, made.with_name(made.name + ENDING)], ""
        self._store.keep(artifact, files, folder, self._commit, step.untested)
        shutil.rmtree(work)

    def finish(self, artifacts: Sequence[Artifact], gpg_key: str, sigstore: bool) -> None:
        """Write indexes, checksums and signatures of finished artifacts. Raises ReleaseError."""
        site, log = str(self._store.site), self._store.logs / "index.log"
        self._store.check_strays(artifacts)
        if any(artifact.is_conda for artifact in artifacts):
            self._call([*self._lmsbuild, "channel", "index", site], log)
        if not all(artifact.is_conda for artifact in artifacts):
            self._call([*self._lmsbuild, "index", site], log)
        self._store.write_sums(artifacts)
        self._store.sign(gpg_key, sigstore)

    def _only(self, artifact: Artifact, work: Path, pattern: str) -> Path:
        made = list(work.glob(pattern))
        if len(made) != 1:
            raise StepError(f"{artifact.name}: lmsbuild made {len(made)} files, not 1")
        return made[0]

    def _run(self, artifact: Artifact, *arguments: str) -> None:
        self._call([*self._lmsbuild, *arguments], self._log(artifact))

    def _call(self, command: Sequence[str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            file.write(f"$ {' '.join(command)}\n".encode())
            file.flush()
            process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
            try:
                code = process.wait()
            except BaseException:
                process.terminate()  # and not killed, so that it ends what it runs itself
                process.wait()
                raise
        if code:
            lines = log.read_text(errors="replace").strip().splitlines()[-_LAST_LINES:]
            what = " ".join(command[len(self._lmsbuild) :][:1])
            raise StepError(f"lmsbuild {what} failed; {log} ends with", detail="\n".join(lines))

    def _log(self, artifact: Artifact) -> Path:
        return self._store.logs / f"{artifact.name}.log"


def carry_out(found: Sequence[Step], release: Release) -> list[str]:
    """Build what the plan says. Returns the names of what failed; the rest is done all the same."""
    failed: list[str] = []
    todo = [step for step in found if step.action == BUILD]
    for number, step in enumerate(todo, 1):
        artifact = step.artifact
        print(f"[{number}/{len(todo)}] {artifact.name}: {step.reason}", flush=True)
        if artifact.is_conda and artifact.wheel.name in failed:
            print(f"{artifact.name}: not built, because its wheel failed", flush=True)
            failed.append(artifact.name)
            continue
        try:
            release.build(step)
        except LmsbuildError as error:
            print(f"{artifact.name}: FAILED: {error}\n{error.detail}".rstrip(), flush=True)
            failed.append(artifact.name)
    return failed


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """SIGTERM ends it as Ctrl-C does."""
    raise KeyboardInterrupt


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--dry-run", action="store_true", help="print the plan; needs no network")
    made.add_argument("--matrix", action="store_true", help="print the jobs of a workflow as JSON")
    several = {"action": "append", "default": []}
    made.add_argument("--kind", choices=KINDS, help="only this", **several)
    made.add_argument("--tag", help="only this tag", **several)
    made.add_argument("--arch", choices=list(architectures()), help="only this one", **several)
    made.add_argument("--python", metavar="X.Y", help="only this Python", **several)
    made.add_argument("--out", type=Path, default=ROOT / "build" / "release", metavar="DIR")
    made.add_argument("--builder", default=LOCAL_BUILDER, metavar="URI", help="for the provenance")
    made.add_argument("--build-only", action="store_true", help="write no index and no checksums")
    made.add_argument("--gpg-key", default="", metavar="KEY", help="sign the checksums with it")
    made.add_argument("--sigstore", action="store_true", help="sign them with cosign")
    made.add_argument("--allow-changes", action="store_true",
                      help="build from a checkout with changes, or from none")  # fmt: skip
    return made


def state_of(commit: str) -> str:
    """A commit, or what tells one state of changed sources from another."""
    if len(commit) == 40:
        return commit
    folders = ("lmsbuild", "patches", "recipes")
    paths = [p for folder in folders for p in sorted((ROOT / folder).rglob("*")) if p.is_file()]
    files = {str(p.relative_to(ROOT)): p for p in paths if p.suffix != ".pyc"}
    return f"{commit}-{sha256_of_files(files)[:16]}"


def main(arguments: Sequence[str], lmsbuild: Sequence[str] = LMSBUILD) -> int:
    options = parser().parse_args(arguments)
    try:
        registry = load_registry()
        choice = Choice(
            kinds=tuple(options.kind),
            tags=tuple(registry.get(name).name for name in options.tag),
            architectures=tuple(options.arch),
            pythons=tuple(options.python),
        )
        store, commit = Store(options.out.resolve()), state_of(toolkit_commit())
        found = steps(registry, choice, store, commit)
        if options.matrix:
            running = f"{sys.version_info.major}.{sys.version_info.minor}"
            print(json.dumps(plan.matrix(found, running)))
            return 0
        print("\n".join(plan.table(found)), flush=True)
        artifacts = [step.artifact for step in found if step.action in (BUILD, DONE)]
        if not artifacts:
            raise ReleaseError(
                "nothing of what was chosen can be built; --dry-run without other options lists"
                " what can"
            )
        if options.dry_run:
            return 0
        if not (len(commit) == 40 or options.allow_changes):
            raise ReleaseError(
                f"a release is built from a commit, and this checkout is at {commit}; commit the"
                " changes, or give --allow-changes"
            )
        options.out.mkdir(parents=True, exist_ok=True)
        with lock.exclusive(options.out / ".lmsbuild.lock", options.out):
            release = Release(store, commit, options.builder, lmsbuild)
            if failed := carry_out(found, release):
                print(f"{len(failed)} of {len(artifacts)} failed: {', '.join(failed)}")
                return 1
            if not options.build_only:
                # Also what earlier runs with other choices have finished.
                finished = [
                    artifact
                    for artifact in plan.artifacts(registry, Choice())
                    if not store.why_unfinished(artifact, commit)
                ]
                release.finish(finished, options.gpg_key, options.sigstore)
                print(f"{store.site}: {len(finished)} packages, their indexes, and {SUMS}")
    except LmsbuildError as error:
        print(f"release.py: {error}\n{error.detail}".rstrip(), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; run it again to go on", file=sys.stderr)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupt)
    sys.exit(main(sys.argv[1:]))
