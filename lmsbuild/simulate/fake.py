"""Recordings of a user's program with fake tensors, made in the interpreter that has its torch."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from lmsbuild.errors import ProgramError, WrongPythonError
from lmsbuild.resources import data_file, patches_dir
from lmsbuild.simulate import lms_report
from lmsbuild.simulate.gpu import Gpu


class FakeProgram:
    """A function that makes a training, in a process of its own. Use as a context manager.

    Args:
        python: the interpreter.
        name: ``module:function``. The function makes the model and returns a function that runs
            one iteration. Modules are also looked for in the current folder.
        gpu: that the program is to have.
        smallest: bytes of the smallest storage that LMS manages.

    Raises:
        WrongPythonError: the interpreter cannot be run.
    """

    def __init__(self, python: Path, name: str, gpu: Gpu, smallest: int = 1 << 20) -> None:
        self._python, self._name = python, name
        self._gpu, self._smallest = gpu, smallest
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (until __exit__)
        try:
            self._process = self._start()
        except WrongPythonError:
            self._said.close()
            raise

    def _start(self) -> subprocess.Popen[str]:
        runtime = patches_dir() / "runtime" / "torch" / "cuda"
        worker = str(data_file("fake_worker.py"))
        try:
            return subprocess.Popen(
                [str(self._python), worker, str(runtime), self._name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                encoding="utf-8",
            )
        except OSError as error:
            message = f"{self._python} cannot be run: {error.strerror}"
            raise WrongPythonError(message) from error

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):  # what was not written yet
            self._process.stdin.close()
        self._process.stdout.close()

    def __enter__(self) -> FakeProgram:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()
        self._said.close()

    def record(self, arguments: Sequence[int] = ()) -> dict[str, Any]:
        """A trace, as torch.cuda.lms.record() writes it, of the function with these arguments.

        Raises:
            ProgramError: the program failed. It can be tried with other arguments, also if it has
                ended its process, as one does that needs too much of the machine's memory.
        """
        if self._process.poll() is not None:
            self._end()
            self._process = self._start()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {
            "gpu": self._gpu.as_dict(),
            "smallest": self._smallest,
            "arguments": list(arguments),
        }
        given = ", ".join(map(str, arguments))
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        if not line:
            self._process.kill()
            self._process.wait()
            raise ProgramError(
                f"{self._name}({given}): {self._python} ended without an answer; run with --verbose"
                " to see what it said",
                detail=self._output(),
            )
        answer = json.loads(line)
        if "error" in answer:
            raise ProgramError(
                f"{self._name}({given}) failed with fake tensors: {answer['error']}",
                detail=answer["traceback"],
            )
        events = lms_report.module("events")
        return {"format": events.FORMAT, "version": events.VERSION, **answer}

    def _output(self) -> str:
        self._said.seek(0)
        return self._said.read().decode("utf-8", "replace")
