"""A process that has torch and the simulated device loaded, and forks itself for each child.

    child = ForkServer.launch(python, requests, replies, output, environment)

A new process takes more than a second for that, and most scenarios take less. Nothing has used the
device before the fork, so a child is as good as new; one that needs an environment of its own has
to be a new process, because libraries read it when they are loaded.

The other side is `python -m simcuda.forkserver FD`. (multiprocessing's forkserver starts Python
functions; these children need an exit status, an output and pipes of their own.)
"""

from __future__ import annotations

import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping

_LARGEST = 1 << 20  # bytes of a request, which are mostly the environment
_CHANGES = "PYTEST_CURRENT_TEST"


class ForkServer:
    """The server of this process, and how to reach it."""

    _only: ForkServer | None = None

    def __init__(self, python: str, environment: Mapping[str, str]) -> None:
        self._python = python
        self._environment = _lasting(environment)
        self._connection, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [python, "-m", "simcuda.forkserver", str(other.fileno())],
                stdin=subprocess.DEVNULL,
                env=dict(environment),
                pass_fds=[other.fileno()],
            )
        self._ready = bool(self._connection.recv(1))

    @classmethod
    def launch(
        cls, python: str, requests: int, replies: int, output: int, environment: Mapping[str, str]
    ) -> Forked | None:
        """A child with these descriptors; None if it has to be a new process."""
        if cls._only is None:
            cls._only = cls(python, environment)
        server = cls._only
        if not server._ready or (python, _lasting(environment)) != (
            server._python,
            server._environment,
        ):
            return None
        reader, writer = os.pipe()
        try:
            socket.send_fds(
                server._connection,
                [json.dumps(dict(environment)).encode()],
                [requests, replies, output, writer],
            )
        finally:
            os.close(writer)
        return Forked(reader)


def _lasting(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name != _CHANGES}


class Forked:
    """What subprocess.Popen is for a process that was forked elsewhere."""

    def __init__(self, status: int) -> None:
        self._status = os.fdopen(status, "rb", buffering=0)
        self._pid = int(self._status.readline())
        self._code: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, negative for a signal. Raises subprocess.TimeoutExpired."""
        if self._code is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a forked child", timeout or 0)
            self._code = int(self._status.readline())
            self._status.close()
        return self._code

    def kill(self) -> None:
        if self._code is None and not select.select([self._status], [], [], 0)[0]:
            os.kill(self._pid, signal.SIGKILL)


def _keep(descriptors: list[int], environment: dict[str, str], device: Any) -> NoReturn:
    """Forks the child, waits for it, and tells its status."""
    requests, replies, output, status = descriptors
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        from simcuda import child
        from simcuda.device import restart

        os.close(status)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        os.environ.clear()
        os.environ.update(environment)
        child.serve(requests, replies, functools.partial(restart, device))
    for descriptor in (requests, replies, output):
        os.close(descriptor)
    os.write(status, f"{pid}\n".encode())
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(status, f"{code}\n".encode())
    os._exit(0)


def main(connection: socket.socket) -> NoReturn:
    import simcuda

    device = simcuda.start()
    gc.collect()
    gc.freeze()  # the children need not look through what is loaded
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for keepers
    if len(os.listdir("/proc/self/task")) > 1:  # a fork would lose the other threads
        os._exit(0)
    connection.sendall(b"+")
    while True:
        message, descriptors, *_ = socket.recv_fds(connection, _LARGEST, 4)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            connection.close()
            _keep(descriptors, json.loads(message), device)
        for descriptor in descriptors:
            os.close(descriptor)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
