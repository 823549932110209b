"""GPUs by name, and how fast they are: data/gpus.toml."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

from lmsbuild._compat import tomllib
from lmsbuild.errors import RegistryError
from lmsbuild.resources import data_file


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU, as the runtime's lms_fake/cost.py has it.

    Attributes:
        title: what it is.
        capability: its compute capability.
        memory: bytes.
        bandwidth: of its memory, in bytes per second, at most.
        flops: floating-point operations per second at most, by dtype.
        compute_part: the part of ``flops`` that programs reach, 0 to 1.
        bandwidth_part: the same of ``bandwidth``.
        seconds: that an operator takes at least.
    """

    title: str
    capability: tuple[int, int]
    memory: int
    bandwidth: float
    flops: dict[str, float]
    compute_part: float
    bandwidth_part: float
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON, and for torch.cuda.lms.record_fake()."""
        return dataclasses.asdict(self)


@functools.cache
def gpus() -> dict[str, Gpu]:
    """All of them by name. Raises RegistryError when the data is malformed."""
    path = data_file("gpus.toml")
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        reached = document["efficiency"]
        return {
            name: Gpu(
                title=row["title"],
                capability=(row["capability"][0], row["capability"][1]),
                memory=int(row["memory"] * 1e9),
                bandwidth=row["bandwidth"] * 1e9,
                flops={dtype: rate * 1e12 for dtype, rate in row["flops"].items()},
                compute_part=reached["compute"],
                bandwidth_part=reached["bandwidth"],
                seconds=reached["seconds"],
            )
            for name, row in document["gpus"].items()
        }
    except (KeyError, TypeError, ValueError) as error:
        raise RegistryError(f"{path}: malformed ({error!r}); reinstall lmsbuild") from error
