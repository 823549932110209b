"""What a release consists of: every tag, architecture and Python of the registry."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from lmsbuild.addon.release import suitable
from lmsbuild.architecture import architectures
from lmsbuild.errors import WrongPythonError
from lmsbuild.registry import Registry
from lmsbuild.wheel.suite import find_interpreter

WHEEL, CONDA, ADDON, ADDON_CONDA = KINDS = ("wheel", "conda", "addon", "addon-conda")

BUILD, DONE, SKIP = "build", "done", "skip"


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A file to publish, or several that one command makes.

    Attributes:
        kind: a wheel, the conda package that is made from it, the wheel torch-lms, or its conda
            packages.
        tag, python: empty for torch-lms, which is for all of them.
    """

    kind: str
    tag: str = ""
    architecture: str
    python: str = ""

    @property
    def name(self) -> str:
        """Of its record and its log."""
        parts = (self.kind, self.tag, self.architecture, self.python and f"py{self.python}")
        return "-".join(part for part in parts if part)

    @property
    def is_conda(self) -> bool:
        """Whether it is made from a wheel."""
        return self.kind in (CONDA, ADDON_CONDA)

    @property
    def wheel(self) -> Artifact:
        """The wheel that a conda package is made from."""
        return replace(self, kind=ADDON if self.kind == ADDON_CONDA else WHEEL)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which part of the release is asked for; an empty tuple means all."""

    kinds: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()

    def has(self, artifact: Artifact) -> bool:
        # torch-lms is for all tags and Pythons, so it is none of those that were named.
        return all(
            not wanted or value in wanted
            for wanted, value in (
                (self.kinds, artifact.kind),
                (self.tags, artifact.tag),
                (self.architectures, artifact.architecture),
                (self.pythons, artifact.python),
            )
        )


@dataclass(frozen=True, kw_only=True)
class Step:
    """What is done about an artifact: ``action`` is BUILD, DONE or SKIP.

    Attributes:
        reason: why.
        untested: why its tests are not run; empty if they are.
    """

    artifact: Artifact
    action: str
    reason: str
    untested: str = ""


def artifacts(registry: Registry, choice: Choice) -> Iterator[Artifact]:
    """The artifacts that can be made, a conda package after its wheel."""
    for tag in registry:
        if "graft" not in tag.strategies:
            continue
        for architecture in tag.architectures:
            for python in tag.pythons:
                for kind in (WHEEL, CONDA):
                    artifact = Artifact(
                        kind=kind, tag=tag.name, architecture=architecture, python=python
                    )
                    if choice.has(artifact):
                        yield artifact
    for architecture in architectures():
        for kind in (ADDON, ADDON_CONDA):
            artifact = Artifact(kind=kind, architecture=architecture)
            if choice.has(artifact) and suitable(registry, architecture):
                yield artifact


def left_out(registry: Registry, choice: Choice) -> Iterator[Step]:
    """What the registry knows and a release does not have, with the reasons."""
    for tag in registry:
        graft = "graft" in tag.strategies
        for architecture in architectures():
            if graft is (architecture in tag.architectures):
                continue
            reason = (
                "no official CUDA wheel: lmsbuild wheel --base"
                if graft
                else "only built from source: docs/v1.md"
            )
            artifact = Artifact(kind=WHEEL, tag=tag.name, architecture=architecture)
            if choice.has(artifact):
                yield Step(artifact=artifact, action=SKIP, reason=reason)


def untested(artifact: Artifact) -> str:
    """Why the tests of an artifact cannot be run here; empty if they can."""
    if artifact.is_conda:
        return "made from the wheel"
    if artifact.kind == ADDON:
        return "see ci/addon_tests.py"
    if artifact.architecture != platform.machine():
        return f"{artifact.architecture} does not run here"
    return "" if _has_python(artifact.python) else "no such Python here"


@cache  # a wrapper of a version manager takes half a second to say so
def _has_python(version: str) -> bool:
    try:
        find_interpreter(version)
    except WrongPythonError:
        return False
    return True


def table(steps: Iterable[Step]) -> list[str]:
    """The plan as lines of text; the Pythons of which the same is true are in one line."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for step in steps:
        made = step.artifact
        tested = f"not run: {step.untested}" if step.untested else "run"
        if step.action == SKIP:
            tested = ""
        key = (made.kind, made.tag or "all", made.architecture, step.action, step.reason, tested)
        rows.setdefault(key, []).append(made.python or "all")
    header = ("what", "tag", "architecture", "Python", "action", "reason", "tests")
    cells = [header] + [(*key[:3], " ".join(pythons), *key[3:]) for key, pythons in rows.items()]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]


def matrix(steps: Sequence[Step], running: str) -> dict[str, list[dict[str, str]]]:
    """The jobs of a workflow that make the artifacts, each with the arguments for release.py.

    A wheel and its conda package are one job. ``running`` is the Python for jobs that need none in
    particular.
    """
    jobs: dict[str, dict[str, str]] = {}
    for step in steps:
        if step.action != BUILD:
            continue
        made = step.artifact
        name = (made.wheel if made.is_conda else made).name
        arguments = f"--arch {made.architecture}"
        if made.tag:
            arguments += f" --tag {made.tag} --python {made.python}"
        job = {
            "name": name,
            "arguments": arguments,
            "architecture": made.architecture,
            "python": made.python or running,
        }
        jobs.setdefault(name, job)["arguments"] += f" --kind {made.kind}"
    return {"include": list(jobs.values())}
