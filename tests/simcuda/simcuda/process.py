"""Runs test scenarios in child processes: each start of the simulated device needs one of its own.

    value = run_sim(scenario, 3, mib=128)      # scenario(device, 3) in a new process

    with Session(mib=128) as session:          # several scenarios in one process, which saves time
        value = session.run(scenario, 3)

A scenario is a function whose first parameter is the simcuda.Device, or the text of a Python
program that finds it as `device` and leaves its value in `result`. A function is sent as source, so
it imports what it needs inside. Arguments and values go through JSON.

The child is $LMS_TEST_PYTHON, or this Python.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import select
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcuda.forkserver import Forked, ForkServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    Scenario = Callable[..., Any] | str

_PACKAGE_PARENT = Path(__file__).resolve().parent.parent
_TIMEOUT = 300.0  # seconds


class ScenarioError(AssertionError):
    """A scenario that raised, crashed or took too long; the message holds the child's output."""


def test_python() -> str:
    """The Python whose torch the tests use."""
    return os.environ.get("LMS_TEST_PYTHON") or sys.executable


def _child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    environment = dict(os.environ)
    paths = [str(_PACKAGE_PARENT), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    # The tests run several processes on few cores, and results must not depend on the split.
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment.update(extra)
    return environment


def _source(scenario: Scenario) -> tuple[str, str]:
    """The scenario's source, and the name of its function or "" for a program."""
    if isinstance(scenario, str):
        return textwrap.dedent(scenario), ""
    source = textwrap.dedent(inspect.getsource(scenario))
    lines = source.splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if line.startswith("def "))
    return "".join(lines[first:]), scenario.__name__


class Session:
    """A child process with the simulated device, for one scenario after another.

    Options are simcuda.start()'s; `start=False` leaves that to the scenario, whose device is None.
    A scenario that crashes the child does not disturb the next: a new child is started for it.
    """

    def __init__(
        self, *, start: bool = True, environment: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        self._options = options if start else None
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._output: Any = None

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _launch(self) -> subprocess.Popen[bytes] | Forked:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close())
        requests_read, requests_write = os.pipe()
        replies_read, replies_write = os.pipe()
        environment = _child_environment(self._environment)
        process: subprocess.Popen[bytes] | Forked | None = None
        if self._may_be_forked():
            process = ForkServer.launch(
                test_python(), requests_read, replies_write, self._output.fileno(), environment
            )
        if process is None:
            process = subprocess.Popen(
                [test_python(), "-m", "simcuda.child", str(requests_read), str(replies_write)],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=(requests_read, replies_write),
            )
        os.close(requests_read)
        os.close(replies_write)
        self._requests = os.fdopen(requests_write, "wb", buffering=0)
        self._replies = os.fdopen(replies_read, "rb", buffering=0)
        self._process = process
        self._send({"options": self._options})
        return process

    def _may_be_forked(self) -> bool:
        """Whether the child is like others until it starts the device with these options."""
        own = {"torch_dir", "operators"}
        return not self._environment and self._options is not None and not own & set(self._options)

    def _send(self, message: object) -> None:
        # When the child is dead, reading its reply finds out why.
        with contextlib.suppress(BrokenPipeError):
            self._requests.write(json.dumps(message).encode() + b"\n")

    def _receive(self, deadline: float) -> dict[str, Any] | None:
        """The child's next message, or None when it is dead; ScenarioError when it is late."""
        line = b""
        while not line.endswith(b"\n"):
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not select.select([self._replies], [], [], remaining)[0]:
                raise ScenarioError(f"no answer in time\n{self._kill()}")
            part = os.read(self._replies.fileno(), 1 << 16)
            if not part:
                return None
            line += part
        message: dict[str, Any] = json.loads(line)
        return message

    def _read_output(self) -> str:
        self._output.seek(0)
        text: str = self._output.read().decode(errors="replace")
        return text[-20000:]

    def _kill(self) -> str:
        if self._process is None:
            return ""
        self._process.kill()
        code = self._process.wait()
        text = f"the child's exit status: {code}\n{self._read_output()}"
        self._dispose()
        return text

    def _dispose(self) -> None:
        self._process = None
        self._requests.close()
        self._replies.close()
        self._output.close()

    def run(self, scenario: Scenario, *arguments: Any, timeout: float = _TIMEOUT) -> Any:
        """Runs the scenario and returns its value; ScenarioError when that fails.

        timeout is in seconds, the start of the child included.
        """
        process = self._process or self._launch()
        source, function = _source(scenario)
        self._send({"source": source, "function": function, "arguments": arguments})
        reply = self._receive(time.monotonic() + timeout)
        if reply is None:
            process.wait()
            raise ScenarioError(f"the child died\n{self._kill()}")
        if "error" in reply:
            raise ScenarioError(f"{reply['error']}\n{self._read_output()}")
        return reply["value"]

    def close(self) -> None:
        """Ends the child. Its exit status is not looked at: scenarios were."""
        if self._process is None:
            return
        self._requests.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._dispose()


def run_sim(
    scenario: Scenario,
    *arguments: Any,
    environment: Mapping[str, str] | None = None,
    timeout: float = _TIMEOUT,
    start: bool = True,
    **options: Any,
) -> Any:
    """Runs one scenario in a process of its own; see the module's description."""
    with Session(start=start, environment=environment, **options) as session:
        return session.run(scenario, *arguments, timeout=timeout)
