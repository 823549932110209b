"""The command line: what it prints where, and what it exits with."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import lmsbuild
from lmsbuild import errors, resources
from lmsbuild.cli.main import CommandGroup, main
from lmsbuild.registry import load_registry
from toolkit.helpers.fake_upstream import MEMORY, NAME, Upstream, commit, git, tree
from toolkit.helpers.fake_upstream import upstream as upstream

ROOT = Path(lmsbuild.__file__).parent.parent


@pytest.fixture
def project(upstream: Upstream, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Upstream:
    """Commands use the stand-in's patches, and run in a directory of their own."""
    monkeypatch.setattr(resources, "_PACKAGE", upstream.patches.parent)
    workplace = tmp_path / "workplace"
    workplace.mkdir()
    monkeypatch.chdir(workplace)
    return upstream


def lmsbuild_command(
    *arguments: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lmsbuild", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def failed(result: Result, kind: type[errors.LmsbuildError]) -> str:
    """The one line on standard error of a command that failed as it should."""
    assert result.exit_code == kind.exit_code, result.output
    lines = [line for line in result.stderr.splitlines() if line.startswith("lmsbuild: error: ")]
    assert len(lines) == 1
    assert "Traceback" not in result.output
    return lines[0]


# --- the group ------------------------------------------------------------------------------


def test_version() -> None:
    assert lmsbuild.__version__ in invoke("--version").stdout


def test_help_names_every_command() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    for command in ("apply", "export", "tags"):
        assert command in result.stdout


def test_every_command_has_help() -> None:
    context = click.Context(main)
    names = main.list_commands(context)
    assert len(names) >= 3
    for name in names:
        command = main.get_command(context, name)
        assert command is not None
        assert command.help, name
        assert invoke(name, "--help").exit_code == 0


def test_an_unknown_command_is_wrong_usage() -> None:
    result = invoke("aply")
    assert result.exit_code == 2
    assert "aply" in result.stderr


def test_a_command_is_imported_only_when_it_is_used() -> None:
    code = (
        "import sys; from lmsbuild.cli.main import main;"
        "main(['tags', '--json'], standalone_mode=False);"
        "sys.exit('git' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """A command, "fail", that raises what the test puts into the list."""
    raised: list[BaseException] = []

    @click.command()
    def fail() -> None:
        raise raised[0]

    monkeypatch.setattr(CommandGroup, "get_command", lambda *_: fail)
    return raised


def test_an_error_is_one_line(failing: list[BaseException]) -> None:
    failing.append(errors.HookError("it [bold]broke[/]", detail="git's own words"))
    result = invoke("fail")
    assert failed(result, errors.HookError) == "lmsbuild: error: it [bold]broke[/]"
    assert result.stdout == ""
    assert "git's own words" not in result.stderr


def test_verbose_gives_the_rest(failing: list[BaseException]) -> None:
    failing.append(errors.HookError("it broke", detail="git's own words"))
    result = invoke("--verbose", "fail")
    assert result.exit_code == errors.HookError.exit_code
    assert "git's own words" in result.stderr
    assert "Traceback" in result.stderr


def test_a_long_line_stays_one_line(failing: list[BaseException]) -> None:
    failing.append(errors.HookError("word " * 100))
    line = failed(invoke("fail"), errors.HookError)
    assert line.count("word") == 100


def test_a_full_disk(failing: list[BaseException]) -> None:
    failing.append(OSError(errno.ENOSPC, "No space left on device", "dist/x.whl"))
    assert "no disk space left while writing dist/x.whl" in failed(
        invoke("fail"), errors.NoSpaceError
    )


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_copy_to_a_full_disk_names_what_is_written(
    failing: list[BaseException], number: int
) -> None:
    failing.append(OSError(number, "full", "from/x.whl", None, "to/x.whl"))
    assert "while writing to/x.whl;" in failed(invoke("fail"), errors.NoSpaceError)
    failing[0] = OSError(errno.ENOENT, "No such file", "from/x.whl", None, "to/x.whl")
    assert "from/x.whl: No such file" in failed(invoke("fail"), errors.FileAccessError)


def test_an_interrupt_is_quiet(failing: list[BaseException]) -> None:
    failing.append(KeyboardInterrupt())
    result = invoke("fail")
    assert result.exit_code == 130
    assert result.stderr == "lmsbuild: interrupted\n"


def test_being_terminated_cleans_up(project: Upstream, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    tools = tmp_path / "tools"
    tools.mkdir()
    # A git that never finishes cloning, and says when it has begun.
    (tools / "git").write_text(
        f'#!/bin/sh\ncase "$*" in *clone*) : > {tmp_path}/begun; exec sleep 60;; esac\n'
        f'exec {shutil.which("git")} "$@"\n'
    )
    (tools / "git").chmod(0o755)
    package = tmp_path / "lmsbuild"
    code = (
        "import sys, pathlib; from lmsbuild import resources; from lmsbuild.cli.main import main;"
        f"resources._PACKAGE = pathlib.Path({str(package)!r});"
        "main(sys.argv[1:])"
    )
    url = project.checkout.as_uri()
    process = subprocess.Popen(
        [sys.executable, "-c", code, "apply", NAME, "--source", url, "--into", "new"],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{tools}:{os.environ['PATH']}"},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while not (tmp_path / "begun").exists():
            assert process.poll() is None
            time.sleep(0.02)
        assert len(os.listdir(place)) == 2
        process.terminate()
        assert process.wait(timeout=30) == 128 + signal.SIGTERM
        assert os.listdir(place) == []
    finally:
        # Whatever is left of it, its git too: that is what a session of its own is for.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_bug_says_that_it_is_one(failing: list[BaseException]) -> None:
    failing.append(ZeroDivisionError("oops"))
    result = invoke("fail")
    assert result.exit_code == 70
    assert "bug in lmsbuild" in result.stderr
    assert "oops" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Traceback" in invoke("--verbose", "fail").stderr


# --- tags -----------------------------------------------------------------------------------


def test_tags_prints_every_tag() -> None:
    result = invoke("tags")
    assert result.exit_code == 0
    for tag in load_registry():
        assert tag.name in result.stdout


def test_tags_fits_a_screen_of_100_columns() -> None:
    done = lmsbuild_command("tags", COLUMNS="100")
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "…" not in done.stdout


def test_tags_as_json() -> None:
    records = json.loads(invoke("tags", "--json").stdout)
    registry = load_registry()
    assert [record["name"] for record in records] == [tag.name for tag in registry]
    assert [record["version"] for record in records if record["default"]] == [
        registry.default.version
    ]


def test_tags_in_two_formats_at_once() -> None:
    assert invoke("tags", "--markdown", "--json").exit_code == 2


def test_tags_of_a_registry_that_breaks_its_schema(project: Upstream) -> None:
    path = project.patches / "tags.toml"
    path.write_text(path.read_text().replace("cxx_standard = 17", "cxx_standard = 11"))
    assert "11 is not one of" in failed(invoke("tags"), errors.RegistryError)


# --- apply and export -----------------------------------------------------------------------


def test_apply_again_reverse_and_export(project: Upstream) -> None:
    source = str(project.checkout)
    check = invoke("apply", NAME, "--source", source, "--check")
    assert check.exit_code == 0
    assert check.stdout.count("would apply: ") == 4
    assert git(project.checkout, "rev-parse", "HEAD") == project.tag.git_commit

    first = invoke("apply", NAME, "--source", source)
    assert first.exit_code == 0
    assert first.stdout.count("applied: ") == 4
    patched = tree(project.checkout)

    again = invoke("apply", NAME.removeprefix("v"), "--source", source)
    assert again.exit_code == 0
    assert "already applied" in again.stdout

    back = invoke("apply", NAME, "--source", source, "--reverse")
    assert back.exit_code == 0
    assert git(project.checkout, "rev-parse", "HEAD") == project.tag.git_commit

    exported = invoke("export", NAME)
    assert exported.exit_code == 0
    patch = Path(f"pytorch_{NAME}_large_model_support.patch").absolute()
    git(project.checkout, "am", "--quiet", str(patch))
    assert tree(project.checkout) == patched


def test_drift_is_a_warning(project: Upstream) -> None:
    path = project.checkout / MEMORY
    path.write_text("# new\n" + path.read_text())
    commit(project.checkout, "drift")
    result = invoke("apply", NAME, "--source", str(project.checkout), "--check")
    assert result.exit_code == 0
    assert f"warning: {MEMORY} is not the file that 0001-" in result.stderr


def test_an_unknown_tag(project: Upstream) -> None:
    for command in ("apply", "export"):
        line = failed(invoke(command, "main"), errors.UnknownTagError)
        assert f"nearest: {NAME}" in line


def test_a_release_without_patches(project: Upstream) -> None:
    for command in ("apply", "export", "wheel"):
        line = failed(invoke(command, "v9.8.6"), errors.UnportedTagError)
        assert line.endswith(f"lmsbuild dev port {NAME} v9.8.6")


def test_export_into_a_missing_directory(project: Upstream) -> None:
    result = invoke("export", NAME, "--output", "no/such/place")
    assert "no/such" in failed(result, errors.FileAccessError)


def test_a_wrong_checkout(project: Upstream) -> None:
    (project.checkout / "version.txt").write_text("1.0.0\n")
    commit(project.checkout, "old")
    line = failed(invoke("apply", NAME, "--source", str(project.checkout)), errors.WrongSourceError)
    assert "1.0.0" in line
    assert NAME in line


def test_a_machine_without_git(project: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(project.patches))
    line = failed(invoke("apply", NAME, "--source", str(project.checkout)), errors.ToolMissingError)
    assert "git is not installed" in line


def test_without_git_other_commands_work() -> None:
    done = lmsbuild_command("tags", PATH="/nowhere")
    assert done.returncode == 0, done.stderr


def test_what_is_printed_is_as_it_is(tmp_path: Path) -> None:
    """No emoji for a part of a path, and no failure for a letter that the terminal has not."""
    for name in ("data:100:", "iä"):
        (tmp_path / name).mkdir()
        done = lmsbuild_command("cache", "dir", XDG_CACHE_HOME=str(tmp_path / name))
        assert done.stdout == f"{tmp_path / name / 'lmsbuild'}\n"
    environment = {"XDG_CACHE_HOME": str(tmp_path / "iä"), "PYTHONIOENCODING": "ascii"}
    done = lmsbuild_command("cache", "dir", **environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("i\\xe4/lmsbuild\n")
