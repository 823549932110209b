"""Is Large Model Support usable in an installed torch, and what would keep it from paging out?"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmsbuild.errors import UnknownTagError, WrongPythonError
from lmsbuild.registry import Registry
from lmsbuild.resources import data_file

# What decides how PyTorch allocates, and which devices there are. LMS's own have a prefix.
_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PYTHONPATH",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
)
_PROBE_SECONDS = 300  # importing torch from a slow disk takes minutes
_GIB = 1 << 30
_NO_LIMIT = 1 << 62  # version 1 of cgroups says it with a huge number


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report.

    Attributes:
        topic: what it is about, in a word or two.
        text: what was found, and what to do when it is wrong.
        wrong: it keeps LMS from being used.
    """

    topic: str
    text: str
    wrong: bool = False


@dataclass(frozen=True, kw_only=True)
class Host:
    """The machine's memory. Bytes; None where the system does not tell, or sets no limit.

    Attributes:
        available: what the machine has left, without the part that the runtime leaves free.
        allowed: what the process's memory cgroups have left, without this part.
        lockable: RLIMIT_MEMLOCK.
    """

    available: int | None
    allowed: int | None
    lockable: int | None

    @property
    def left(self) -> int | None:
        known = [value for value in (self.available, self.allowed) if value is not None]
        return min(known) if known else None


def find_python(given: str | None) -> str:
    """The interpreter to look at: ``given``, the one of an active environment, or PATH's.

    Raises:
        WrongPythonError: it cannot be run.
    """
    named = given or shutil.which("python") or sys.executable
    found = shutil.which(named)
    if found is None:
        raise WrongPythonError(f"{named} is no program that can be run; name one with --python")
    return found


def ask(python: str) -> dict[str, Any]:
    """What data/probe.py finds out in an interpreter.

    Raises:
        WrongPythonError: it does not run, or crashes.
    """
    probe = data_file("probe.py").read_text(encoding="utf-8")
    try:
        done = subprocess.run(
            [python, "-c", probe],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise WrongPythonError(
            f"{python} did not import torch within {_PROBE_SECONDS} s; try it by hand"
        ) from error
    lines = done.stdout.strip().splitlines()
    try:
        told = json.loads(lines[-1]) if lines else None
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise WrongPythonError(
            f"{python} ends with {done.returncode} when it imports torch; try it by hand",
            detail=done.stdout + done.stderr,
        )
    return told


def examine(
    told: Mapping[str, Any], registry: Registry, host: Host, environment: Mapping[str, str]
) -> tuple[Finding, ...]:
    """The report on what an interpreter told."""
    return tuple(_examine(told, registry, host, environment))


def read_host(root: Path = Path("/")) -> Host:
    """The memory of the machine and of the process's cgroup; ``root`` stands in for / in tests."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return Host(
        available=_available(root / "proc/meminfo"),
        allowed=_allowed(root),
        lockable=None if soft == resource.RLIM_INFINITY else soft,
    )


def _examine(
    told: Mapping[str, Any], registry: Registry, host: Host, environment: Mapping[str, str]
) -> Iterator[Finding]:
    yield Finding(topic="Python", text=f"{told['python']}, {told['executable']}")
    torch = told["torch"]
    if torch is None:
        yield Finding(
            topic="torch",
            text=f"cannot be imported ({told['error']}); install it with its requirements",
            wrong=True,
        )
        return
    yield Finding(
        topic="torch", text=f"{torch['version']}, CUDA {torch['cuda'] or 'none'}, {torch['path']}"
    )
    yield from _library(told, registry)
    yield from _device(told)
    yield from _environment(told, environment)
    yield from _memory(told, host)
    yield from _trial(told)


def _library(told: Mapping[str, Any], registry: Registry) -> Iterator[Finding]:
    lms = told["lms"]
    if lms is None:
        yield Finding(topic="LMS", text=_how_to_get(told, registry), wrong=True)
        return
    if lms["unsupported"]:
        yield Finding(topic="LMS", text=f"has no effect: {lms['unsupported']}", wrong=True)
        return
    if lms["error"]:
        yield Finding(
            topic="library", text=f"does not load: {lms['error']}; reinstall this torch", wrong=True
        )
        return
    same = lms["abi"] == lms["wanted"]
    yield Finding(
        topic="library",
        text=f"interface version {lms['abi']}, {lms['path']}"
        if same
        else f"has interface version {lms['abi']}, and torch.cuda.lms needs {lms['wanted']}:"
        " the two come from different builds; reinstall this torch",
        wrong=not same,
    )
    origin = told["provenance"]
    yield Finding(
        topic="made from",
        text=f"{origin.get('base')} ({origin.get('tag')}) by lmsbuild {origin.get('lmsbuild')},"
        f" commit {origin.get('commit')}"
        if origin
        else "unknown: it has no lms.json (not a wheel of lmsbuild's)",
    )


def _how_to_get(told: Mapping[str, Any], registry: Registry) -> str:
    torch = told["torch"]
    if torch["cuda"] is None:
        return "this torch is built without CUDA: install the CUDA build of this release"
    version = str(torch["version"]).partition("+")[0]
    try:
        tag = registry.get(version)
    except UnknownTagError as error:
        return f"this torch has none; {error}"
    if "graft" not in tag.strategies:
        return "this torch has none; build one that has, from source (docs/v1.md)"
    build = f"build one that has: lmsbuild wheel {tag.name}"
    wanted = tag.cuda.partition(".")[0]
    if torch["cuda"].partition(".")[0] != wanted:
        return f"this torch has none; install its build for CUDA {wanted}, or {build}"
    ways = "`lmsbuild overlay`"
    if tag.variant is None and told["machine"] in tag.architectures:
        ways += f" or torch-lms (`lmsbuild addon --tag {tag.name}`)"
    return f"this torch has none; add it with {ways}, or {build}"


def _device(told: Mapping[str, Any]) -> Iterator[Finding]:
    if told["torch"]["cuda"] is None:
        text = "none that can be used, because this torch is built without CUDA"
        yield Finding(topic="GPU", text=text, wrong=True)
        return
    if not told["devices"]:
        reason = told["cuda_error"] or "torch finds none"
        yield Finding(
            topic="GPU",
            text=f"none that can be used ({reason}); see nvidia-smi, and CUDA_VISIBLE_DEVICES",
            wrong=True,
        )
        return
    for number, device in enumerate(told["devices"]):
        yield Finding(
            topic=f"GPU {number}",
            text=f"{device['name']}, {_size(device['free'])} of {_size(device['total'])} free",
        )
    native = told["backend"] == "native"
    yield Finding(
        topic="allocator",
        text=told["backend"]
        if native
        else f"{told['backend']}, and LMS works with PyTorch's native one only;"
        " take backend:cudaMallocAsync out of PYTORCH_ALLOC_CONF",
        wrong=not native,
    )


def _environment(told: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[Finding]:
    for name in sorted(environment):
        if name in _VARIABLES or name.startswith("PYTORCH_LMS"):
            yield Finding(topic="environment", text=f"{name}={environment[name]}")
    if "PYTORCH_NO_CUDA_MEMORY_CACHING" in environment and told["devices"]:
        yield Finding(
            topic="environment",
            text="PYTORCH_NO_CUDA_MEMORY_CACHING turns the allocator's cache off: each page-in"
            " then waits for the driver",
        )


def _memory(told: Mapping[str, Any], host: Host) -> Iterator[Finding]:
    parts = []
    if host.available is not None:
        parts.append(f"{_size(host.available)} available")
    if host.allowed is not None:
        parts.append(f"{_size(host.allowed)} left in the container or cgroup")
    locked = "no limit" if host.lockable is None else _size(host.lockable)
    parts.append(f"ulimit -l: {locked} (CUDA's pinned memory does not count)")
    yield Finding(topic="host memory", text="; ".join(parts))
    largest = max((device["total"] for device in told["devices"]), default=0)
    if host.left is not None and 0 < host.left < largest:
        yield Finding(
            topic="host memory",
            text=f"less is left than the GPU has: what is paged out has to fit into"
            f" {_size(host.left)}",
        )
    settings = told["settings"]
    if settings:
        yield Finding(
            topic="settings",
            text=f"at the start of a program: LMS {'on' if settings['enabled'] else 'off'}, limit"
            f" {_size(settings['limit']) if settings['limit'] else 'automatic'}, smallest storage"
            f" {_size(settings['size'])}, host limit"
            f" {_size(settings['host_limit']) if settings['host_limit'] else 'none'}",
        )


def _trial(told: Mapping[str, Any]) -> Iterator[Finding]:
    trial = told["trial"]
    if trial is not None:
        yield Finding(
            topic="trial",
            text=f"failed: {trial['error']}"
            if trial["error"]
            else "4 MiB went to the host and came back unchanged",
            wrong=bool(trial["error"]),
        )


def _size(value: int) -> str:
    for unit, factor in (("GiB", _GIB), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= factor:
            return f"{value / factor:.1f} {unit}"
    return f"{value} bytes"


# The memory that is left is what the runtime would say, which decides how much it may pin:
# patches/runtime/torch/csrc/cuda/lms/host/host.cpp.


def _available(meminfo: Path) -> int | None:
    total, available = (1024 * _field(meminfo, name) for name in ("MemTotal:", "MemAvailable:"))
    return max(0, available - _reserve(total)) if total else None


def _allowed(root: Path) -> int | None:
    """The smallest rest of the process's memory cgroups (version 1 or 2) and those above them."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    rests = []
    for line in lines:
        _, _, rest = line.partition(":")
        names, _, group = rest.partition(":")
        if names and "memory" not in names.split(","):
            continue
        base = root / "sys/fs/cgroup" / ("memory" if names else "")
        while group:
            folder = base / group.strip("/")
            rests.append(_rest_of_version_1(folder) if names else _rest_of_version_2(folder))
            group = group.rpartition("/")[0] or ("/" if group != "/" else "")
    return min((rest for rest in rests if rest is not None), default=None)


def _rest_of_version_1(folder: Path) -> int | None:
    limit = _number(folder / "memory.limit_in_bytes")
    if limit is None or limit >= _NO_LIMIT:
        return None
    return _rest(folder, limit, "memory.usage_in_bytes", "total_")  # with the groups below


def _rest_of_version_2(folder: Path) -> int | None:
    # Above memory.high, the kernel slows the group down until it frees memory.
    limits = [_number(folder / name) for name in ("memory.max", "memory.high")]
    known = [limit for limit in limits if limit is not None]
    return _rest(folder, min(known), "memory.current", "") if known else None


def _rest(folder: Path, limit: int, usage: str, prefix: str) -> int:
    # Pages that only cache files are reclaimed before the limit is enforced.
    stat = folder / "memory.stat"
    files = sum(_field(stat, f"{prefix}{name}") for name in ("inactive_file", "active_file"))
    used = max(0, (_number(folder / usage) or 0) - files)
    return max(0, limit - used - _reserve(limit))


def _reserve(total: int) -> int:
    """Kept free: the kernel kills processes before an allocation fails."""
    return total // 64


def _number(path: Path) -> int | None:
    """The number in a file; None if it has a word ("max"), or is not there."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _field(path: Path, name: str) -> int:
    """The number after a word, in a file with lines of the form "word number"; 0 without one."""
    try:
        for line in path.read_text().splitlines():
            if line.split()[:1] == [name]:
                return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return 0
