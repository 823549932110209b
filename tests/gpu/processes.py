"""Processes that begin with libraries already imported, which takes them some 12 s otherwise."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any


class Server:
    """Runs functions in processes of their own, one at a time, with these variables set.

    Each is forked from a process that has imported the libraries and has not used the GPU. A
    library that is not there is left out.
    """

    def __init__(self, environment: Mapping[str, str], libraries: Sequence[str]) -> None:
        self._before = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(libraries))

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the function returns; None if its process fails."""
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_send, args=(sender, function, arguments))
        process.start()
        sender.close()  # so that the receiver sees the end if the process fails
        try:
            result = receiver.recv()
        except EOFError:
            result = None
        process.join()
        return result


def _send(sender: Connection, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    sender.send(function(*arguments))
    sender.close()
