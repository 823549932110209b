"""Large Model Support in the Trainer of Hugging Face's transformers."""

import torch
import transformers
from torch.cuda.lms import integrations


class LargeModelSupport(transformers.TrainerCallback):
    r"""Trains with LMS, and logs what it moves.

    ::

        trainer = Trainer(..., callbacks=[LargeModelSupport(limit="12GiB")])

    LMS is on from here on. What is logged with the loss has, besides,
    :class:`torch.cuda.lms.Metrics` of the process's own GPU. ``report_to``'s
    callbacks get it only from :func:`attach`, because they come before others.

    Args:
        **settings: those of :func:`torch.cuda.lms.integrations.turn_on`.

    Raises:
        ValueError, RuntimeError: as ``turn_on``.
    """

    def __init__(self, **settings):
        integrations.turn_on(**settings)
        self._metrics = torch.cuda.lms.Metrics()

    def on_train_begin(self, args, state, control, **kwargs):
        self._metrics()

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is None or "loss" not in logs:
            return
        found = self._metrics()
        logs.update(found)
        if state.log_history:
            state.log_history[-1].update(found)


def attach(trainer, **settings):
    r"""Turns LMS on for a trainer, and logs what it moves to all that it reports to.

    Args:
        trainer (transformers.Trainer): gets a :class:`LargeModelSupport` as its first
            callback.
        **settings: those of :func:`torch.cuda.lms.integrations.turn_on`.

    Raises:
        ValueError, RuntimeError: as ``turn_on``.
    """
    trainer.callback_handler.callbacks.insert(0, LargeModelSupport(**settings))
