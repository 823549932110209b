r"""The parts of a training iteration that its operators belong to."""

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
PHASES = (FORWARD, BACKWARD, OPTIMIZER)

# What RecordFunction calls the nodes that autograd runs.
_NODE = "autograd::engine::evaluate_function: "


def short(name):
    r"""An operator's name as it is shown."""
    return name[len(_NODE) :] if name.startswith(_NODE) else name


def uses_all_of(name):
    r"""What uses all parameters or gradients at once in an operator of this name.

    Returns:
        str: "the optimizer" or "clip_grad_norm_()", which have an argument ``foreach``; or "".
    """
    if "_foreach_norm" in name:
        return "clip_grad_norm_()"
    return "the optimizer" if "_foreach_" in name or "_fused_" in name else ""


def phases_of(names):
    r"""The phases of an iteration's operators.

    The backward pass consists of autograd's nodes. Releases that report none (1.x) report
    operators whose names say so. What follows the last one is the optimizer, because an iteration
    ends with its step. In an iteration without a backward pass, everything is forward.

    Args:
        names (list of str): the operators', in the order of their issue.

    Returns:
        list of str: a phase for each.
    """
    backward = [name.startswith(_NODE) for name in names]
    if not any(backward):
        backward = ["_backward" in name for name in names]
    last = max([place for place, found in enumerate(backward) if found] or [len(names)])
    return [
        BACKWARD if backward[place] else OPTIMIZER if place > last else FORWARD
        for place in range(len(names))
    ]
