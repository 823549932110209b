"""What `lmsbuild trace` and `lmsbuild tune` run in the interpreter whose torch and model are used.

It runs there without lmsbuild: one line of JSON is a request, and one line is the answer. What the
model prints goes to standard error, and if it reads standard input, that is at its end.
"""

import gc
import importlib
import json
import os
import sys
import traceback

_ITERATIONS = 3  # the first ones differ: optimizers allocate their state
_OF_NO_BLOCK = ("operator", "mark", "step")  # events


def main():
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    runtime, name = sys.argv[1:]
    del sys.argv[1:]  # a program that parses its arguments got none
    # Modules beside this file are not the program's.
    beside = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [os.getcwd()] + [p for p in sys.path if os.path.abspath(p) != beside]
    for line in requests:
        try:
            answer = _answer(runtime, name, json.loads(line))
        except (Exception, SystemExit) as error:
            words = " ".join("{}: {}".format(type(error).__name__, error).split())
            answer = {"error": words[:500], "traceback": traceback.format_exc()}
        gc.collect()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _answer(runtime, name, request):
    import torch

    if runtime not in sys.path:
        sys.path.append(runtime)
    from lms_fake.cost import Gpu
    from lms_fake.device import gpu_in_sight
    from lms_fake.recording import recording

    gpu = Gpu(**request["gpu"])
    # Before the recording, so that nothing is imported with fake tensors on.
    with gpu_in_sight(gpu):
        function = _function(name)
    recorder = _record(recording, gpu, request["smallest"], name, function, request["arguments"])
    trace = recorder.trace()
    if not recorder.manages:
        # A planner wants operators, and only those that use something are recorded. What they use
        # stays where it is: LMS would move none of it.
        all_used = _record(recording, gpu, 1, name, function, request["arguments"]).trace()
        trace["names"] = all_used["names"]
        trace["events"] = [event for event in all_used["events"] if event[0] in _OF_NO_BLOCK]
    return dict(
        trace,
        torch=str(torch.__version__),
        gpu=gpu.title,
        gpu_bytes=gpu.memory,
        limit_bytes=gpu.memory,
        page_out_bytes=0,
        page_in_bytes=0,
        estimated=True,
    )


def _record(recording, gpu, smallest, name, function, arguments):
    with recording(gpu, smallest, find_steps=False) as recorder:
        iteration = function(*arguments)
        if not callable(iteration):
            raise TypeError(
                "{} has to return a function that runs one iteration, and returned {!r}".format(
                    name, type(iteration).__name__
                )
            )
        for _ in range(_ITERATIONS):
            iteration()
            recorder.step()
        del iteration
    if not recorder.uses_gpu:
        raise ValueError("{} puts nothing on the GPU; use device='cuda'".format(name))
    return recorder


def _function(name):
    module, _, path = name.partition(":")
    found = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


if __name__ == "__main__":
    main()
