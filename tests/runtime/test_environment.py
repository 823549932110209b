"""PYTORCH_LMS and the other variables: LMS for a program that nobody edits."""

from __future__ import annotations

import json

import pytest
from child import output, python
from torch.cuda.lms import environment

pytestmark = pytest.mark.any_tag

PROGRAM = """\
import json, multiprocessing, sys, warnings
import torch


def state():
    lms = torch.cuda.lms
    settings = [torch.cuda.get_enabled_lms(), torch.cuda.get_limit_lms(), torch.cuda.get_size_lms()]
    settings.append(torch.cuda.get_host_limit_lms())
    return [*settings, lms.get_planning(), lms.get_compression()]


def pages():
    # So little that LMS does not watch what operators use.
    x = torch.ones(1 << 18, device="cuda") + 1
    torch.cuda.reclaim_inactive()
    return not torch.cuda.lms.is_resident(x)


class Worker(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return [int(torch.cuda.get_enabled_lms()), int(torch.cuda.is_initialized())]


def send(pipe):
    pipe.send([torch.cuda.is_initialized(), pages()])


def asked(how):
    context = multiprocessing.get_context(how)
    here, there = context.Pipe()
    process = context.Process(target=send, args=(there,))
    process.start()
    there.close()  # so that a child that dies ends recv()
    answer = here.recv()
    process.join()
    return answer


if __name__ == "__main__":
"""
ALL = {
    "PYTORCH_LMS": "1",
    "PYTORCH_LMS_LIMIT": "48MiB",
    "PYTORCH_LMS_SIZE": "4096",
    "PYTORCH_LMS_HOST_LIMIT": "1.5G",
    "PYTORCH_LMS_PLANNING": "off",
    "PYTORCH_LMS_COMPRESSION": "Auto",
}


@pytest.fixture
def run(tmp_path):
    """Runs lines after the ones above, and returns what they leave in `told`."""

    def run(*lines: str, **variables: str):
        script = tmp_path / "program.py"
        end = "print(json.dumps(told))"
        script.write_text(PROGRAM + "".join(f"    {line}\n" for line in (*lines, end)))
        variables = {**dict.fromkeys(ALL, ""), **variables}  # those of the tests have no effect
        return json.loads(output("-W", "error", str(script), **variables).splitlines()[-1])

    return run


def test_each_setting(run):
    state = [True, 48 << 20, 4096, 1500000000, False, "auto"]
    told = run(
        "told = [torch.cuda.is_initialized(), torch.cuda.lms._library is None, state()]",
        "told += [pages(), state(), torch.cuda.lms.stats()['limit_bytes']]",
        "torch.cuda.set_enabled_lms(False)",
        "told += [pages()]",
        **ALL,
    )
    assert told == [False, True, state, True, state, 48 << 20, False]


def test_page_outs_before_anything_is_watched(run):
    assert run("told = pages()", PYTORCH_LMS="1") is True


def test_the_program_has_the_last_word(run):
    told = run(
        "torch.cuda.set_enabled_lms(False)",
        "torch.cuda.set_limit_lms(0)",
        "told = [pages(), state()]",
        **ALL,
    )
    assert told == [False, [False, 0, 4096, 1500000000, False, "auto"]]


def test_settings_wait_for_a_program_that_turns_lms_on(run):
    told = run(
        "told = [state()]",
        "torch.cuda.set_enabled_lms(True)",
        "told += [pages(), torch.cuda.lms.stats()['limit_bytes']]",
        PYTORCH_LMS="0",
        PYTORCH_LMS_LIMIT="48MiB",
    )
    assert told == [[False, 48 << 20, 1 << 20, 0, True, "auto"], True, 48 << 20]


def test_processes_that_the_program_starts(run):
    told = run(
        "loader = torch.utils.data.DataLoader(Worker(), num_workers=1)",
        "told = [torch.stack([*next(iter(loader))]).tolist(), asked('fork'), asked('spawn')]",
        "told += [torch.cuda.is_initialized()]",
        **ALL,
    )
    assert told == [[[1], [0]], [False, True], [False, True], False]


def test_lms_that_cannot_be_turned_on(run):
    told = run(
        "torch.cuda.lms._library_path = '/missing.so'",
        "with warnings.catch_warnings(record=True) as caught:",
        "    warnings.simplefilter('always')",
        "    told = [torch.ones(2, device='cuda').sum().item()]",
        "told += [[str(warning.message) for warning in caught], torch.cuda.get_enabled_lms()]",
        PYTORCH_LMS="1",
    )
    assert told[0] == 2
    (message,) = told[1]
    assert message.startswith("PYTORCH_LMS=1 has no effect: LMS: /missing.so cannot be loaded")
    assert told[2] is False


def test_a_value_without_a_meaning_is_ignored():
    done = python(
        "-c",
        "import torch; print(torch.cuda.get_enabled_lms(), torch.cuda.get_limit_lms())",
        PYTORCH_LMS="yes",
        PYTORCH_LMS_LIMIT="12X",
    )
    assert done.stdout == "True 0\n", done.stderr
    assert "UserWarning: Ignoring PYTORCH_LMS_LIMIT: '12X' is not a number of b" in done.stderr
    assert done.stderr.count("Warning") == 1


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("12", 12),
        ("12k", 12000),
        ("12KiB", 12288),
        ("1.5G", 1500000000),
        ("1.5GiB", 3 << 29),
        ("2 TB", 2 * 10**12),
    ],
)
def test_sizes(text, size):
    assert environment.size(text) == size


@pytest.mark.parametrize("text", ["", "12X", "-1", "12i", "1e9", "12 G B", "G"])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match="is not a number of bytes such as"):
        environment.size(text)


def test_flags():
    assert [environment.flag(text) for text in ("1", "true", "ON", "Yes")] == [True] * 4
    assert [environment.flag(text) for text in ("0", "false", "OFF", "No", "")] == [False] * 5
    with pytest.raises(ValueError, match="'2' is neither 1"):
        environment.flag("2")


def test_an_empty_variable_is_none(recwarn):
    assert environment.settings({"PYTORCH_LMS_LIMIT": "", "PYTORCH_LMS": ""}) == {}
    assert [str(warning.message) for warning in recwarn] == []
