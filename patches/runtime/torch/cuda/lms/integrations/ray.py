"""Large Model Support in Ray Train."""

# This file runs on every Python that a supported PyTorch runs on: see torch.cuda.lms.

import functools

from torch.cuda.lms.integrations import turn_on


def large_model_support(train_loop, **settings):
    r"""Turns Large Model Support (LMS) on in each worker, before it trains.

    ::

        from ray.train.torch import TorchTrainer
        from torch.cuda.lms.integrations.ray import large_model_support

        trainer = TorchTrainer(large_model_support(train_loop, limit="12GiB"), ...)

    What LMS moves is logged with what the loop reports::

        metrics = torch.cuda.lms.Metrics()
        ...
        ray.train.report({"loss": loss, **metrics()})

    Args:
        train_loop (callable): Ray Train's ``train_loop_per_worker``, with or without a
            parameter.
        settings: as of :func:`torch.cuda.lms.integrations.turn_on`.

    Returns:
        callable: the loop, with the same parameters.

    Raises:
        RuntimeError: in the worker, if LMS cannot be turned on.
        ValueError: in the worker, if a setting is none.
    """

    @functools.wraps(train_loop)
    def loop(*args, **kwargs):
        turn_on(**settings)
        return train_loop(*args, **kwargs)

    return loop
