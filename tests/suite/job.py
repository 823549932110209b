"""What the test process and the process that trains tell each other, as JSON."""

from __future__ import annotations

import dataclasses
import enum
import json

# tests/suite/models/ has a module for each.
MODELS = ("resnet", "densenet", "unet3d", "lstm", "gru", "gpt", "diffusion_unet")


class Mode(str, enum.Enum):
    TRAIN = "train"
    INFER = "infer"


class Ending(str, enum.Enum):
    FINISHED = "finished"
    OUT_OF_MEMORY = "out of memory"
    ERROR = "error"  # any other exception
    CRASHED = "crashed"  # no report: killed by a signal, or out of time


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One workload in one configuration. Sizes are bytes."""

    model: str
    mode: Mode
    simulated: bool
    device_bytes: int = 512 << 20  # of the simulated device
    cap_bytes: int = 0  # of set_per_process_memory_fraction; 0 = none
    lms: bool = False
    limit_bytes: int = 0  # of set_limit_lms; 0 = automatic
    expandable_segments: bool = False  # the allocator's setting
    enable_late: bool = False  # LMS on after the model is on the device, not before
    oracle: bool = False  # LMS on from the beginning, everything idle paged out and verified
    measure_operators: bool = False

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        fields = json.loads(text)
        return cls(**{**fields, "mode": Mode(fields["mode"])})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """How a job ended and what it computed. Sizes are bytes."""

    ending: Ending
    message: str = ""
    values: tuple[str, ...] = ()  # losses as hexadecimal floats, or digests of requests
    state_sha256: str = ""  # of parameters, buffers, optimizer state and their names
    cap_share: float = 0.0  # of the peak, that the workload asks to be capped at
    peak_bytes: int = 0
    peak_reserved_bytes: int = 0
    page_out_bytes: int = 0
    page_in_bytes: int = 0
    out_of_memory_caught: int = 0  # operators that went on without memory that they asked for
    pinned_peak_bytes: int = 0  # the most that one operator used at once
    resident_peak_bytes: int = 0  # the most that LMS had on the device
    pinned_blocks: int = 0  # still pinned when no operator runs
    largest_operator_bytes: int = 0  # inputs and outputs; with measure_operators only
    largest_operator: str = ""
    races: tuple[str, ...] = ()  # on the simulated device
    seconds: float = 0.0  # of the workload, without starting Python

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Report:
        fields = json.loads(text)
        fields["ending"] = Ending(fields["ending"])
        for name in ("values", "races"):
            fields[name] = tuple(fields[name])
        return cls(**fields)
