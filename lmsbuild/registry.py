"""The tag registry: what lmsbuild knows about each PyTorch release (patches/tags.toml)."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from lmsbuild._compat import tomllib
from lmsbuild.errors import RegistryError, UnknownTagError, UnportedTagError
from lmsbuild.resources import patches_dir


@dataclass(frozen=True, kw_only=True)
class Verified:
    """How far a tag has been proven.

    Attributes:
        hooks_wheel: the hooks applied to the official wheel's files.
        hooks_source: the hooks applied to the tag's real sources.
        simulated: tested on the simulated device.
        gpu: model of the GPU it was tested on; empty when on none.
    """

    hooks_wheel: bool
    hooks_source: bool
    simulated: bool
    gpu: str


@dataclass(frozen=True, kw_only=True)
class Tag:
    """One PyTorch release.

    Attributes:
        name: upstream's name for the tag, with its "v".
        version: the same without the "v".
        git_commit: the commit of the official wheel: the tag's, or one before it in its branch.
        hooks: directory under patches/ that holds the series and its hooks.
        variant: directory under patches/ whose files take the place of the runtime's of the same
            path, or join them; None when the runtime is as it is.
        pythons: CPython versions with an official wheel, such as "3.12".
        architectures: machine names with an official CUDA wheel, such as "x86_64".
        strategies: "graft" (from the official wheel), "source".
        cuda: CUDA version of the official wheel, such as "12.4".
        header_packages: pinned PyPI packages with the CUDA headers.
        cxx_standard: 17 or 20.
        cxx11_abi: value of _GLIBCXX_USE_CXX11_ABI in the official wheel.
        abi_version: value for -fabi-version; None when the compiler's own will do.
        manylinux: policy whose symbol versions the runtime library must stay within.
        verified: how far the tag has been proven.
    """

    name: str
    git_commit: str
    hooks: str
    variant: str | None = None
    pythons: tuple[str, ...]
    architectures: tuple[str, ...]
    strategies: tuple[str, ...]
    cuda: str
    header_packages: tuple[str, ...]
    cxx_standard: int
    cxx11_abi: int
    abi_version: int | None = None
    manylinux: str
    verified: Verified

    @property
    def version(self) -> str:
        return self.name.removeprefix("v")

    def has_wheel(self, python: str) -> bool:
        """Whether LMS can be grafted onto an official wheel for a CPython version ("3.12")."""
        return "graft" in self.strategies and python in self.pythons


@dataclass(frozen=True, kw_only=True)
class Registry:
    """All tags, oldest first, and where upstream's repository is.

    Attributes:
        upstream_url: repository that is cloned when no source is given.
        tags: every tag, oldest first.
    """

    upstream_url: str
    tags: tuple[Tag, ...]

    def __iter__(self) -> Iterator[Tag]:
        return iter(self.tags)

    def get(self, name: str) -> Tag:
        """The tag called ``name``, with or without its "v".

        Raises:
            UnknownTagError: there is none; the message names the nearest ones.
            UnportedTagError: the same, when it may well be a release of PyTorch.
        """
        wanted = "v" + name.strip().removeprefix("v")
        for tag in self.tags:
            if tag.name == wanted:
                return tag
        nearest = self._nearest(wanted)
        near = ", ".join(nearest)
        if re.fullmatch(r"v\d+\.\d+\.\d+", wanted):
            raise UnportedTagError(
                f"there are no patches for {wanted}; nearest: {near} (`lmsbuild tags` lists them "
                f"all). Take one of these, or port it: lmsbuild dev port {nearest[0]} {wanted}"
            )
        raise UnknownTagError(
            f"unknown tag {name!r}; nearest: {near} (`lmsbuild tags` lists them all)"
        )

    @property
    def default(self) -> Tag:
        """The newest GPU-verified tag; while there is none, the newest of the best verified."""
        return max(
            self.tags,
            key=lambda tag: (
                bool(tag.verified.gpu),
                tag.verified.simulated,
                tag.verified.hooks_wheel,
                Version(tag.version),
            ),
        )

    def landmarks(self, python: str) -> tuple[Tag, ...]:
        """The oldest and the newest tag with a wheel for a CPython version, and the default tag.

        Between them they have what differs most and what is used most: checked at each change.
        """
        wheels = [tag for tag in self.tags if tag.has_wheel(python)]
        chosen = {*wheels[:1], *wheels[-1:], self.default} & set(wheels)
        return tuple(tag for tag in wheels if tag in chosen)

    def _nearest(self, wanted: str, count: int = 2) -> list[str]:
        names = [tag.name for tag in self.tags]
        try:
            asked = Version(wanted)
        except InvalidVersion:
            # Not a version at all: a slip of the keyboard, so compare the spelling.
            return difflib.get_close_matches(wanted, names, n=count, cutoff=0.0)

        def distance(tag: Tag) -> tuple[int, ...]:
            have = Version(tag.version)
            return (
                abs(have.major - asked.major),
                abs(have.minor - asked.minor),
                abs(have.micro - asked.micro),
            )

        return [tag.name for tag in sorted(self.tags, key=distance)[:count]]


def load_registry(directory: Path | None = None) -> Registry:
    """Reads tags.toml of ``directory`` (default: the project's own patches).

    Raises:
        RegistryError: the file is missing or malformed.
    """
    path = (directory or patches_dir()) / "tags.toml"
    document = _read(path)
    try:
        tags = tuple(sorted((_tag(row) for row in document["tag"]), key=_age))
        registry = Registry(upstream_url=document["upstream"]["url"], tags=tags)
    except (KeyError, TypeError, ValueError) as error:
        raise RegistryError(f"{path}: malformed ({error!r}); see tags.schema.json") from error
    if not registry.tags:
        raise RegistryError(f"{path}: holds no tag")
    return registry


def validate_registry(directory: Path | None = None) -> None:
    """Checks tags.toml against its schema.

    Apart from :func:`load_registry` because the schema library takes longer to import than
    everything else that a command needs.

    Raises:
        RegistryError: the first violation, with its place in the file.
    """
    import jsonschema

    directory = directory or patches_dir()
    path = directory / "tags.toml"
    document = _read(path)
    try:
        schema = json.loads((directory / "tags.schema.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RegistryError(f"{directory / 'tags.schema.json'}: unreadable ({error})") from error
    violation = jsonschema.exceptions.best_match(
        jsonschema.Draft202012Validator(schema).iter_errors(document)
    )
    if violation is not None:
        raise RegistryError(f"{path}: {violation.json_path}: {violation.message}")
    names = [row["name"] for row in document["tag"]]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RegistryError(f"{path}: listed twice: {', '.join(twice)}")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise RegistryError(f"{path}: no such file; reinstall lmsbuild") from error
    except (OSError, ValueError) as error:
        raise RegistryError(f"{path}: unreadable ({error})") from error


def _tag(row: Mapping[str, Any]) -> Tag:
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in row.items()
    }
    values["verified"] = Verified(**row["verified"])
    return Tag(**values)


def _age(tag: Tag) -> Version:
    return Version(tag.version)
