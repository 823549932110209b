"""The changes between two releases in the upstream interfaces that the runtime uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmsbuild._compat import tomllib
from lmsbuild.port.cpp_header import Declarations, declarations
from lmsbuild.resources import data_file

# Returns the text of a header ("c10/core/Device.h") of a release, or None if it has no such header.
Headers = Callable[[str], "str | None"]


@dataclass(frozen=True, kw_only=True)
class Watched:
    """The declarations of one header that the runtime uses.

    Attributes:
        path: the path in an #include.
        overridden: classes whose virtual methods the runtime's allocator forwards.
        classes: classes of which all members are compared.
        names: other declarations; members as "Class::member".
        old: those that the newest release does not have in this header.
    """

    path: str
    overridden: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    old: tuple[str, ...] = ()

    def covers(self, name: str) -> bool:
        owner = name.rpartition("::")[0]
        whole = (*self.overridden, *self.classes)
        return name in (*self.names, *self.old, *whole) or owner in whole


@dataclass(frozen=True, kw_only=True)
class Change:
    """One declaration that differs.

    Attributes:
        path: the header; the old and the new one if the declaration has moved.
        name: the declared name; members as "Class::member".
        before, after: the texts of its declarations; empty if there are none.
        forwarded: whether it is a virtual method that the runtime's allocator has to forward.
    """

    path: str
    name: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    forwarded: bool


def load_watched() -> tuple[Watched, ...]:
    """The headers of data/watch.toml. Raises RegistryError if the file is missing."""
    document = tomllib.loads(data_file("watch.toml").read_text(encoding="utf-8"))
    return tuple(_watched(row) for row in document["header"])


def compare(before: Headers, after: Headers) -> tuple[Change, ...]:
    """The watched declarations that differ between two releases, in the order of watch.toml.

    Only declarations are compared. A change in the body of a function is not found.
    """
    return _joined(
        [
            change
            for watched in load_watched()
            for change in _compare(watched, _read(before, watched.path), _read(after, watched.path))
        ]
    )


def _joined(changes: Sequence[Change]) -> tuple[Change, ...]:
    """Merge the two changes of a declaration that moved to another header into one, or none."""
    joined = []
    came = {change.name: change for change in changes if not change.before}
    left = {change.name: change for change in changes if not change.after}
    for change in changes:
        if change.name not in came.keys() & left.keys():
            joined.append(change)
        elif change is came[change.name]:
            old = left[change.name]
            if old.before != change.after:
                path = f"{old.path}, now {change.path}"
                joined.append(replace(change, path=path, before=old.before))
    return tuple(joined)


def _watched(row: dict[str, Any]) -> Watched:
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in row.items()
    }
    return Watched(**values)


def _read(headers: Headers, path: str) -> Declarations:
    return declarations(headers(path) or "")


def _compare(watched: Watched, old: Declarations, new: Declarations) -> Iterator[Change]:
    names = dict.fromkeys([*old, *new])
    for name in names:
        before, after = old.get(name, ()), new.get(name, ())
        if watched.covers(name) and before != after:
            yield Change(
                path=watched.path,
                name=name,
                before=tuple(text for text in before if text not in after),
                after=tuple(text for text in after if text not in before),
                forwarded=name.rpartition("::")[0] in watched.overridden
                and any("virtual " in text for text in (*before, *after)),
            )
