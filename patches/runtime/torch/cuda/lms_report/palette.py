r"""Colors. Those of one chart can be told apart with every common kind of color vision."""

from .phase import BACKWARD, FORWARD, OPTIMIZER
from .role import (
    ACTIVATIONS,
    CONSTANTS,
    GRADIENTS,
    PARAMETERS,
    STATES,
    TEMPORARY,
    UNMANAGED,
    UNUSED,
)

LIGHT = {
    "page": "#fcfcfb",
    "ink": "#0b0b0b",
    "muted": "#62615d",
    "axis": "#c3c2b7",
    "grid": "#e6e5e0",
    "gpu": "#2a78d6",
    "host": "#eb6834",
    "limit": "#d03b3b",
    "out": "#eb6834",
    "in": "#1baf7a",
}
DARK = dict(
    LIGHT,
    page="#1a1a19",
    ink="#ffffff",
    muted="#b3b1a8",
    axis="#4b4a46",
    grid="#2c2c2a",
    gpu="#5598e7",
    host="#ee8457",
    limit="#e66767",
)

COMPUTE = {FORWARD: "#86b6ef", BACKWARD: "#2a78d6", OPTIMIZER: "#4a3aa7"}
STALL = "#e34948"
ROLE = {
    PARAMETERS: "#2a78d6",
    STATES: "#7a6ad0",
    GRADIENTS: "#eb6834",
    ACTIVATIONS: "#1baf7a",
    CONSTANTS: "#eda100",
    TEMPORARY: "#e87ba4",
    UNUSED: "#898781",
    UNMANAGED: "#b5b3a8",
}
