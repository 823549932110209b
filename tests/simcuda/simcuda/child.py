"""The child process of simcuda.process: python -m simcuda.child REQUESTS_FD REPLIES_FD."""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

import simcuda

if TYPE_CHECKING:
    from collections.abc import Callable


def _run(request: dict[str, Any], device: simcuda.Device | None) -> Any:
    scope: dict[str, Any] = {"__name__": "scenario", "device": device}
    exec(compile(request["source"], "<scenario>", "exec"), scope)
    if not request["function"]:
        return scope.get("result")
    return scope[request["function"]](device, *request["arguments"])


def serve(requests_fd: int, replies_fd: int, start: Callable[..., simcuda.Device]) -> NoReturn:
    """Runs scenarios until there are no more. start() gets the options."""
    requests = os.fdopen(requests_fd, "rb")
    replies = os.fdopen(replies_fd, "wb", buffering=0)
    options = json.loads(requests.readline())["options"]
    device = None if options is None else start(**options)
    for line in requests:
        try:
            reply = {"value": _run(json.loads(line), device)}
            text = json.dumps(reply)
        except BaseException:  # whatever it is, the test is told
            text = json.dumps({"error": traceback.format_exc()})
        sys.stdout.flush()
        sys.stderr.flush()
        replies.write(text.encode() + b"\n")
    # Nobody looks at how it ends, and to tear torch down takes longer than most scenarios.
    os._exit(0)


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]), simcuda.start)
