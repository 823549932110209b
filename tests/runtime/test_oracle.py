"""PYTORCH_LMS_ORACLE: any program with everything idle paged out, and its exit code."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from child import python

pytestmark = pytest.mark.any_tag

FOUND = 86
LINE = "LMS oracle: 1 storages were given up with a wrong host copy"

# clean() is a tensor whose host copy is true; spoil() writes it as no operator does.
PROGRAM = """\
import ctypes, multiprocessing, os, sys
import torch

def clean():
    x = torch.arange(100.0, device="cuda")
    y = x + 1
    torch.ones(1, device="cuda")
    assert not torch.cuda.lms.is_resident(x)
    assert torch.equal(x.cpu() + 1, y.cpu())
    return x

def spoil(x):
    x.sum()
    base = getattr(torch._C, "TensorBase", None) or torch._C._TensorBase
    address = base.data_ptr(x)
    assert ctypes.CDLL(None).cudaMemset(ctypes.c_void_p(address), 7, ctypes.c_size_t(4)) == 0

def bad():
    x = clean()
    spoil(x)
    torch.ones(1, device="cuda")

def run(how, target):
    context = multiprocessing.get_context(how)
    process = context.Process(target=target)
    process.start()
    process.join()
    print(process.exitcode)

if __name__ == "__main__":
"""


def run(tmp_path: Path, *lines: str, oracle: str = "1") -> subprocess.CompletedProcess[str]:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM + "".join(f"    {line}\n" for line in lines))
    return python(str(script), PYTORCH_LMS_ORACLE=oracle)


def test_what_is_sound_ends_as_ever(tmp_path):
    done = run(
        tmp_path,
        "x = clean()",
        "assert torch.cuda.get_enabled_lms()",
        "torch.cuda.set_size_lms(1 << 20)  # it is remembered, and everything is managed",
        "assert torch.cuda.get_size_lms() == 1 << 20",
        "clean()",
        "print('fine')",
        "sys.exit(3)",
    )
    assert (done.returncode, done.stdout, "LMS" in done.stderr) == (3, "fine\n", False), done.stderr


@pytest.mark.parametrize("oracle", ["", "0"])
def test_not_asked_for(tmp_path, oracle):
    done = run(
        tmp_path,
        "torch.ones(1, device='cuda')",
        "assert not torch.cuda.get_enabled_lms()",
        oracle=oracle,
    )
    assert done.returncode == 0, done.stderr


def test_cuda_is_left_alone_until_it_is_used(tmp_path):
    done = run(tmp_path, "assert not torch.cuda.is_initialized()", "torch.ones(2) + 1")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "then",
    [
        "pass  # the last look is at the end",
        "torch.ones(1, device='cuda')",
        "torch.ones(1, device='cuda'); torch.cuda.reset_accumulated_memory_stats()",
        "torch.ones(1, device='cuda'); sys.exit(1)",
    ],
)
def test_a_write_that_nobody_saw(tmp_path, then):
    done = run(tmp_path, "print('said before')", "x = clean()", "spoil(x)", then)
    assert done.returncode == FOUND, done.stderr
    assert done.stdout == "said before\n"
    assert LINE in done.stderr.splitlines()


@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_processes_that_use_cuda_first(tmp_path, how):
    done = run(tmp_path, f"run({how!r}, bad)", f"run({how!r}, clean)")
    assert done.stdout.split() == [str(FOUND), "0"], done.stderr
    assert done.returncode == 0


def test_a_fork_of_a_process_that_uses_cuda(tmp_path):
    done = run(tmp_path, "x = clean()", "spoil(x)", "run('fork', os.getpid)", "os.fork()")
    # The child that leaves by itself finds nothing, and neither does the other.
    assert done.stdout.split()[0] == "0"
    assert done.stderr.splitlines().count(LINE) == 1, done.stderr
    assert done.returncode == FOUND


@pytest.mark.parametrize("runner", ["pytest", "unittest"])
def test_runners(tmp_path, runner):
    run(tmp_path, "pass")  # makes program.py
    (tmp_path / "test_it.py").write_text(
        "import program, unittest\n"
        "class TestIt(unittest.TestCase):\n"
        "    def test_it(self): program.bad()\n"
    )
    pytest_arguments = ["-p", "no:cacheprovider", "--rootdir", "."]
    arguments = {"pytest": pytest_arguments, "unittest": ["test_it"]}[runner]
    done = python("-m", runner, *arguments, cwd=tmp_path, PYTORCH_LMS_ORACLE="1")
    assert done.returncode == FOUND, done.stdout + done.stderr
    assert LINE in done.stderr.splitlines()
