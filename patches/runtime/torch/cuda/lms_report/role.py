r"""What the blocks of an iteration are for, as far as their uses tell."""

from .phase import BACKWARD, FORWARD, OPTIMIZER

PARAMETERS = "parameters"
STATES = "optimizer state"
GRADIENTS = "gradients"
ACTIVATIONS = "activations"
CONSTANTS = "inputs and constants"
TEMPORARY = "temporary"
UNUSED = "not used"
UNMANAGED = "not managed"
ROLES = (PARAMETERS, STATES, GRADIENTS, ACTIVATIONS, CONSTANTS, TEMPORARY, UNUSED, UNMANAGED)

MEANINGS = {
    PARAMETERS: "live across iterations, are used in the forward or backward pass, and are written"
    " by the optimizer; without an optimizer, are only read",
    STATES: "live across iterations, and only the optimizer uses them",
    GRADIENTS: "the backward pass writes them, and the optimizer uses them or they live on",
    ACTIVATIONS: "are allocated in the forward pass, and are still there in the backward pass",
    CONSTANTS: "live across iterations, and nothing but the forward pass writes them",
    TEMPORARY: "live in one phase only",
    UNUSED: "no operator of the iteration uses them",
    UNMANAGED: "smaller than the smallest tensor that LMS pages out, or not PyTorch's to move",
}


def roles_of(blocks, accesses, phases):
    r"""The role of each block.

    Args:
        blocks (list of planner.Block): the blocks.
        accesses (list of planner.Access): their uses.
        phases (list of str): of the operators.

    Returns:
        list of str: one of ROLES for each block.
    """
    used = [set() for _ in blocks]
    written = [set() for _ in blocks]
    for access in accesses:
        phase = phases[access.place]
        used[access.block].add(phase)
        if access.writes:
            written[access.block].add(phase)
    trains = OPTIMIZER in phases
    roles = [
        _living_role(used[i], written[i], trains)
        if block.allocated < 0
        else _passing_role(block, used[i], phases)
        for i, block in enumerate(blocks)
    ]
    # A gradient that lives until the next iteration's zero_grad() is two blocks: the second one is
    # there from the beginning, and nothing uses it.
    sizes = {blocks[i].bytes for i, role in enumerate(roles) if role == GRADIENTS}
    for i, block in enumerate(blocks):
        if block.allocated == 0 and not used[i] and block.bytes in sizes:
            roles[i] = GRADIENTS
    return roles


def _living_role(used, written, trains):
    if not used:
        return UNUSED
    if BACKWARD in written and OPTIMIZER in used:
        return GRADIENTS
    if used == {OPTIMIZER}:
        return STATES
    if OPTIMIZER in written or not (trains or written):
        return PARAMETERS
    return CONSTANTS


def _passing_role(block, used, phases):
    born, dies = phases[block.allocated], phases[block.freed]
    if born == BACKWARD and (dies == OPTIMIZER or OPTIMIZER in used):
        return GRADIENTS
    if born == FORWARD and dies != FORWARD:
        return ACTIVATIONS
    return TEMPORARY
