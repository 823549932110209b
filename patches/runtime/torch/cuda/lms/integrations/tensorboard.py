"""Large Model Support's statistics in TensorBoard."""

import torch


class Logger:
    r"""Writes what LMS moves to TensorBoard.

    ::

        log = Logger(SummaryWriter())
        for step, batch in enumerate(loader):
            train(batch)
            log(step)

    Args:
        writer (torch.utils.tensorboard.SummaryWriter): or any other object with its
            ``add_scalar(name, value, step)``.
        device (torch.device or int, optional): Default: the device that is current
            at each call.
    """

    def __init__(self, writer, device=None):
        self._writer = writer
        self._metrics = torch.cuda.lms.Metrics(device)

    def __call__(self, step):
        r"""Writes :class:`torch.cuda.lms.Metrics`.

        Args:
            step (int): the number of the step.
        """
        for name, value in self._metrics().items():
            self._writer.add_scalar(name, value, step)
