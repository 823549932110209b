"""Large Model Support in Lightning's Trainer."""

import importlib.util
import sys

import torch
from torch.cuda.lms import integrations

# The same library has two names. A trainer of the one does not take callbacks of the other.
if "lightning.pytorch" not in sys.modules and (
    "pytorch_lightning" in sys.modules or importlib.util.find_spec("lightning") is None
):
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback


class LargeModelSupport(Callback):
    r"""Trains with LMS, and logs what it moves.

    ::

        trainer = Trainer(..., callbacks=[LargeModelSupport(limit="12GiB")])

    LMS is turned on before the model goes to its GPU. The trainer's loggers get
    :class:`torch.cuda.lms.Metrics` of the process's own GPU every
    ``log_every_n_steps``. If both ``lightning`` and ``pytorch_lightning`` are installed,
    import the one that you use before this module.

    Args:
        **settings: those of :func:`torch.cuda.lms.integrations.turn_on`, which says what
            ``Trainer.fit()`` can raise.
    """

    def __init__(self, **settings):
        super().__init__()
        self._settings = settings
        self._metrics = torch.cuda.lms.Metrics()
        self._stepped = 0  # how many times an optimizer had stepped when the last batch ended

    def setup(self, trainer, pl_module, stage):
        integrations.turn_on(**self._settings)

    def on_train_start(self, trainer, pl_module):
        self._metrics()
        self._stepped = trainer.global_step

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        # With accumulated gradients, not each batch ends with a step. With manual optimization, the
        # trainer sees few of the steps, or none, and logs batches.
        before, self._stepped = self._stepped, trainer.global_step
        ended = self._stepped != before or not pl_module.automatic_optimization
        # As the trainer's own logs have it: batches, however many optimizers have stepped in one.
        batches = getattr(trainer.fit_loop.epoch_loop, "_batches_that_stepped", None)
        step = trainer.global_step - 1 if batches is None else batches
        every = trainer.log_every_n_steps  # 0: nothing is logged
        if not ended or not every or (step + 1) % every:
            return
        found = self._metrics()
        for logger in trainer.loggers:
            logger.log_metrics(found, step=step)
