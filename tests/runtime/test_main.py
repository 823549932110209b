"""python -m torch.cuda.lms: a program with LMS, run as Python runs it."""

from __future__ import annotations

import json
import os
import sys
import zipapp

import pytest
from child import output, python
from releases import since
from torch.cuda.lms.environment import VARIABLES

pytestmark = pytest.mark.any_tag

COMMAND = ("-W", "error", "-m", "torch.cuda.lms")

SAYS = """\
import json, os, sys, __main__
import torch

class Here:
    pass

lms = [torch.cuda.get_enabled_lms(), torch.cuda.get_limit_lms(), torch.cuda.is_initialized()]
path = [sys.path[0], os.getcwd() in sys.path]
print(json.dumps([sys.argv, path, __name__, __main__.Here is Here, __file__, lms]))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "there/package").mkdir(parents=True)
    for name in ("says.py", "package/__init__.py", "package/__main__.py", "__main__.py"):
        (tmp_path / "there" / name).write_text("" if name.endswith("__init__.py") else SAYS)
    return tmp_path


def said(*arguments, **how):
    return json.loads(output(*COMMAND, *arguments, **how))


def test_a_script(folder):
    script = os.path.join("..", "there", "says.py")
    arguments = ("-m", "--limit", "--", "x y")
    told = said("--limit", "12M", script, *arguments, cwd=folder / "work")
    there = str(folder / "there")
    lms = [True, 12000000, False]
    assert told == [[script, *arguments], [there, False], "__main__", True, script, lms]


def test_a_module(folder):
    there = folder / "there"
    main = str(there / "package/__main__.py")
    told = said("--limit=7", "-m", "package", "--limit", "8", cwd=there)
    path = [str(there), True]
    assert told == [[main, "--limit", "8"], path, "__main__", True, main, [True, 7, False]]


def test_the_programs_own_dashes(folder):
    script = str(folder / "there/says.py")
    assert said(script, "--", "--limit", "--")[0] == [script, "--", "--limit", "--"]
    assert said("-m", "package", "--", "b", cwd=folder / "there")[0][1:] == ["--", "b"]


def test_a_folder_and_a_zip_file(folder):
    zipapp.create_archive(folder / "there", folder / "says.pyz")
    for program in (str(folder / "there"), str(folder / "says.pyz")):
        argv, path, name, here, file, _ = said(program, "1", cwd=folder / "work")
        assert (argv, path, name, here) == ([program, "1"], [program, False], "__main__", True)
        assert file == os.path.join(program, "__main__.py")


def test_without_the_scripts_folder_if_python_is_told_so(folder):
    if sys.version_info < (3, 11):
        pytest.skip("this Python has no option -P")
    told = output("-P", *COMMAND, str(folder / "there/says.py"), cwd=folder / "work")
    first, current = json.loads(told)[1]
    assert first not in (str(folder / "there"), str(folder / "work"))
    assert not current


def test_classes_of_the_program_in_other_processes(tmp_path):
    (tmp_path / "program.py").write_text(
        "import multiprocessing\n"
        "class Here:\n"
        "    pass\n"
        "def send(pipe):\n"
        "    pipe.send(Here())\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    here, there = context.Pipe()\n"
        "    context.Process(target=send, args=(there,)).start()\n"
        "    print(type(here.recv()) is Here)\n"
    )
    for arguments in (["program.py"], ["-m", "program"]):
        assert output(*COMMAND, *arguments, cwd=tmp_path) == "True\n"


def test_how_it_ends(tmp_path):
    script = tmp_path / "program.py"
    script.write_text("import sys\nif sys.argv[1:]:\n    sys.exit(int(sys.argv[1]))\n1 / 0\n")
    done = python(*COMMAND, str(script), "5")
    assert (done.returncode, done.stdout, done.stderr) == (5, "", "")
    done = python(*COMMAND, str(script))
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert 'program.py", line 4, in <module>\n' in done.stderr
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_options_are_variables(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import json, os, subprocess, sys\n"
        "code = 'import json, os; print(json.dumps(dict(os.environ)))'\n"
        "print(subprocess.check_output([sys.executable, '-c', code]).decode())\n"
    )
    values = {"SIZE": "3GiB", "SETTING": "auto", None: "1"}
    wanted = {variable.name: values[variable.metavar] for variable in VARIABLES}
    wanted["PYTORCH_LMS_PLANNING"] = "0"
    options = []
    for variable in VARIABLES:
        if variable.option:
            options += [variable.option, *([values[variable.metavar]] if variable.metavar else [])]
    told = json.loads(output(*COMMAND, *options, str(script), PYTORCH_LMS="0"))
    assert {name: told.get(name) for name in wanted} == wanted
    assert len(wanted) == 8


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "1")


@since((2, 0), "torchrun that works with each Python that has a wheel of it")
@pytest.mark.parametrize(
    "command",
    [
        (*TORCHRUN, "-m", "torch.cuda.lms", "--limit", "12M"),
        (*COMMAND[2:], "--limit=12M", *TORCHRUN),
    ],
    ids=["torchrun runs LMS", "LMS runs torchrun"],
)
def test_torchrun(tmp_path, command):
    script = tmp_path / "program.py"
    script.write_text(
        "import os, sys, torch\n"
        "lms = [torch.cuda.get_enabled_lms(), torch.cuda.get_limit_lms()]\n"
        "os.write(1, (str([os.environ['RANK'], sys.argv[1:], *lms]) + '\\n').encode())\n"
    )
    lines = output(*command, str(script), "--limit", "1", OMP_NUM_THREADS="1").splitlines()
    assert "['0', ['--limit', '1'], True, 12000000]" in lines


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "the following arguments are required: script.py"),
        (("--limit", "12X", "x.py"), "argument --limit: '12X' is not a number of bytes such as"),
        (("missing.py",), "there is no file missing.py"),
        (("--lim", "12", "x.py"), "unrecognized arguments: --lim"),
    ],
)
def test_wrong_usage(tmp_path, arguments, says):
    done = python(*COMMAND, *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: python -m torch.cuda.lms [options] (script.py | -m mod")
    assert says in done.stderr


def test_a_program_that_is_not_there(tmp_path):
    (tmp_path / "package").mkdir()
    for arguments, name in (
        (("-m", "missing.inside"), "missing.inside"),
        (("-m", "package"), "package.__main__"),
        (("package",), "__main__ in package"),
    ):
        done = python(*COMMAND, *arguments, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (1, f"{sys.executable}: No module named {name}\n")
    (tmp_path / "package/__init__.py").write_text("import missing\n")
    done = python(*COMMAND, "-m", "package", cwd=tmp_path)
    assert done.returncode == 1
    assert 'package/__init__.py", line 1, in <module>\n' in done.stderr
