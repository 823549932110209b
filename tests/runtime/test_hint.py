"""The line about LMS at the end of an out-of-memory error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from child import output

LINE = (
    "\nLarge Model Support (LMS) is off. It would move idle tensors to host memory: call "
    "torch.cuda.set_enabled_lms(True), or set PYTORCH_LMS=1 in the environment."
)
REPORT = "CUDA out of memory. Large Model Support (LMS) could not make room: the request is"
PROGRAM = f"""\
import json, pickle, traceback
import torch

Error = torch.cuda.OutOfMemoryError


def fail():
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    except Error as error:
        return error


error = fail()
told = {{
    "text": str(error),
    "args": error.args,
    "pickled": str(pickle.loads(pickle.dumps(error))),
    "pickled args": pickle.loads(pickle.dumps(error)).args,
    "trace": "".join(traceback.format_exception(type(error), error, error.__traceback__)),
    "again": str(Error(str(error))),
    "other device": str(Error("XPU out of memory. Tried to allocate 2.00 GiB.")),
    "other process": str(Error({REPORT!r})),
    "number": str(Error(7)),
    "empty": str(Error()),
    "loaded": torch.cuda.lms._library is not None,
}}
torch.cuda.set_enabled_lms(True)
told["on"] = str(fail())
told["on now"] = str(error)
torch.cuda.set_enabled_lms(False)
told["after"] = str(fail())
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told() -> Any:
    return json.loads(output("-c", PROGRAM))


def test_the_error_ends_with_it(told):
    (message,) = told["args"]
    assert message.startswith("CUDA out of memory. Tried to allocate")
    assert told["text"] == message + LINE
    assert told["trace"].endswith(LINE + "\n")


def test_what_programs_match_is_as_before(told):
    (message,) = told["args"]
    assert "Large Model Support" not in message
    assert told["pickled args"] == told["args"]
    assert told["pickled"] == told["text"]
    assert not told["loaded"]


def test_it_is_said_once(told):
    assert told["again"] == told["text"]
    assert told["other process"] == REPORT


def test_other_errors_are_as_before(told):
    assert told["other device"] == "XPU out of memory. Tried to allocate 2.00 GiB."
    assert (told["number"], told["empty"]) == ("7", "")


def test_not_once_the_program_has_used_lms(told):
    assert "Large Model Support (LMS) could not make room" in told["on"]
    assert LINE not in told["on"]
    assert told["on now"] == told["args"][0]
    assert "Large Model Support" not in told["after"]
