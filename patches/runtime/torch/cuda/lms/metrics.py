"""Large Model Support's statistics, as programs log them."""

# This file runs on every Python that a supported PyTorch runs on: see torch.cuda.lms.

import torch

_LEVELS = ("resident_bytes", "paged_out_bytes", "host_bytes")
_COUNTS = (
    "page_out_count",
    "page_out_bytes",
    "page_in_count",
    "page_in_bytes",
    "planned_iterations",
    "out_of_memory_retries",
)


class Metrics:
    r"""What LMS has moved since the last call, and where memory is now, for a log.

    ::

        metrics = torch.cuda.lms.Metrics()
        for step, batch in enumerate(loader):
            train(batch)
            accelerator.log(metrics(), step=step)  # or wandb.log(metrics(), step=step)

    Args:
        device (torch.device or int, optional): Default: the device that is current
            at each call.
        prefix (str): of all names.
    """

    def __init__(self, device=None, prefix="lms/"):
        self._device = device
        self._prefix = prefix
        self._before = {}

    def __call__(self):
        r"""Returns the metrics.

        Returns:
            dict: numbers (int) by name. ``resident_bytes``, ``paged_out_bytes`` and
            ``host_bytes`` as of now; ``page_out_count``, ``page_out_bytes``,
            ``page_in_count``, ``page_in_bytes``, ``planned_iterations`` and
            ``out_of_memory_retries`` since the last call, or since LMS was turned on.
            :func:`torch.cuda.lms.stats` explains them. All are 0 as long as LMS is not
            in use.
        """
        now = torch.cuda.lms.stats(self._device) if torch.cuda.is_available() else {}
        found = {name: now.get(name, 0) for name in _LEVELS}
        for name in _COUNTS:
            # Counts begin again with reset_accumulated_stats().
            change = now.get(name, 0) - self._before.get(name, 0)
            found[name] = change if change >= 0 else now.get(name, 0)
        self._before = now
        return {self._prefix + name: value for name, value in found.items()}
