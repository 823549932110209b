"""ci/release.py: a release is built once, resumed where it stopped, and published whole."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from lmsbuild.registry import load_registry
from toolkit.helpers import small_wheel
from toolkit.helpers.ci_script import load

plan = load("release_plan")
store = load("release_store")
release = load("release")

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "ci" / "release.py"
TAG = load_registry().default
PYTHON = TAG.pythons[-1]
ARCHITECTURE = TAG.architectures[0]
COMMIT = "c" * 40

# Takes the place of lmsbuild: makes small files, writes down what was asked for, fails on demand.
LMSBUILD = """\
import os, pathlib, sys, time
sys.path[:0] = {path!r}
from toolkit.helpers import small_wheel

command, *arguments = sys.argv[1:]
with open(os.environ["CALLS"], "a") as calls:
    print(command, *arguments, file=calls)
option = dict(zip(arguments, arguments[1:]))
print("this is", command)
if command == os.environ.get("WAIT"):
    pathlib.Path(os.environ["CALLS"]).with_name("waits").touch()
    time.sleep(600)
out = pathlib.Path(option.get("--out", "."))
if command == "wheel":
    content = os.environ.get("CONTENT", "")
    name = f"cp{{option['--python']}}-none-{{option['--arch']}}".replace(".", "")
    small_wheel.write(out, "torch", arguments[0][1:] + "+lms1", content=content, tags=name)
elif command == "addon":
    small_wheel.write(out, "torch_lms", "0.1", tags=f"py3-none-{{option['--arch']}}")
elif command == "conda":
    (out / "linux-64").mkdir(parents=True)
    name = pathlib.Path(option["--wheel"]).name + ".conda"
    (out / "linux-64" / name).write_bytes(pathlib.Path(option["--wheel"]).read_bytes()[::-1])
    if name.startswith("torch_lms"):
        (out / "linux-64" / ("another-" + name)).write_bytes(b"another")
elif command == "provenance":
    pathlib.Path(arguments[-1] + ".provenance.json").write_text("{{}}")
elif command == "index" and "LMSBUILD" in os.environ:
    os.execv(sys.executable, [sys.executable, "-m", "lmsbuild", *sys.argv[1:]])
if command in os.environ.get("FAIL", "").split():
    sys.exit("it does not work")
"""


class Site:
    """A release with the fake lmsbuild."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.out = folder / "out"
        self.site = self.out / "site"
        self.script = folder / "fake.py"
        self.script.write_text(LMSBUILD.format(path=[str(ROOT), str(ROOT / "tests")]))
        self.log = folder / "calls"
        self.log.touch()
        monkeypatch.setenv("CALLS", str(self.log))

    def run(self, *arguments: str) -> int:
        """Of one wheel and its conda package, unless the arguments say otherwise."""
        given = arguments if "--arch" in arguments else (*arguments, *ONE)
        program = (sys.executable, "-S", str(self.script))  # it needs no packages
        return int(release.main([*given, "--out", str(self.out)], program))

    def calls(self) -> list[str]:
        """The commands since the last time."""
        found = [line.split()[0] for line in self.log.read_text().splitlines()]
        self.log.write_text("")
        return found

    def files(self) -> list[str]:
        return sorted(
            path.relative_to(self.site).as_posix()
            for path in self.site.rglob("*")
            if path.is_file()
        )


ONE = ("--tag", TAG.name, "--arch", ARCHITECTURE, "--python", PYTHON)
FILE = f"torch-{TAG.version}+lms1-cp{PYTHON.replace('.', '')}-none-{ARCHITECTURE}.whl"
PACKAGE = f"linux-64/{FILE}.conda"
BUILD = ["wheel", "verify", "test", "provenance", "conda"]
INDEX = ["channel", "index"]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(release, "toolkit_commit", lambda: COMMIT)
    monkeypatch.setattr(plan, "untested", lambda made: "" if made.kind == "wheel" else "a reason")
    return Site(tmp_path, monkeypatch)


def test_it_builds_verifies_tests_and_indexes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMSBUILD", "1")
    assert site.run() == 0
    assert site.calls() == BUILD + INDEX
    assert {FILE, f"{FILE}.provenance.json", f"{FILE}.metadata", PACKAGE, "SHA256SUMS"} < set(
        site.files()
    )
    assert "simple/torch/index.html" in site.files()
    done = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=site.site)
    assert done.returncode == 0
    assert len((site.site / "SHA256SUMS").read_text().splitlines()) == 3
    assert not list((site.out / "work").iterdir())


def test_nothing_is_done_twice(site: Site) -> None:
    assert site.run() == 0
    before = {name: (site.site / name).stat().st_mtime_ns for name in site.files()}
    site.calls()
    assert site.run() == 0
    assert site.calls() == INDEX
    assert {name: (site.site / name).stat().st_mtime_ns for name in site.files()} == before


@pytest.mark.parametrize(
    ("failing", "calls"),
    [
        ("wheel", ["wheel"]),
        ("verify", ["wheel", "verify"]),
        ("test", ["wheel", "verify", "test"]),
        ("provenance", ["wheel", "verify", "test", "provenance"]),
        ("conda", BUILD),
    ],
)
def test_what_fails_is_not_published(
    site: Site,
    failing: str,
    calls: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FAIL", failing)
    assert site.run() == 1
    # A conda package is not made from a wheel that failed.
    assert site.calls() == calls
    output = capsys.readouterr().out
    assert f"FAILED: lmsbuild {failing} failed; " in output
    assert output.count("it does not work") == 1
    assert "SHA256SUMS" not in site.files()
    assert (FILE in site.files()) is (failing == "conda")
    monkeypatch.delenv("FAIL")
    assert site.run() == 0
    assert site.calls() == (["conda"] if failing == "conda" else BUILD) + INDEX


def test_the_others_are_built_all_the_same(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAIL", "wheel")
    arguments = ("--tag", TAG.name, "--arch", ARCHITECTURE)
    assert site.run(*arguments) == 1
    assert site.calls().count("wheel") == len(TAG.pythons)
    count = 2 * len(TAG.pythons)
    assert f"{count} of {count} failed" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_ended_while_building(site: Site, number: signal.Signals) -> None:
    """What was finished stays finished; the rest leaves nothing that counts."""
    code = f"""
import sys
sys.path[:0] = {[str(ROOT), str(ROOT / "ci")]!r}
import release
release.signal.signal(release.signal.SIGTERM, release.interrupt)
release.toolkit_commit = lambda: {COMMIT!r}
release.plan.untested = lambda made: "" if made.kind == "wheel" else "a reason"
arguments = {[*ONE, "--out", str(site.out)]!r}
sys.exit(release.main(arguments, (sys.executable, {str(site.script)!r})))
"""
    environment = {**os.environ, "WAIT": "conda"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, start_new_session=True
    )
    waits = site.log.with_name("waits")
    while not waits.exists():
        assert process.poll() is None
        time.sleep(0.05)
    if number == signal.SIGKILL:
        os.killpg(process.pid, number)
        process.wait()
    else:
        process.send_signal(number)
        assert process.wait() == release.INTERRUPTED
        # What it ran has ended, too.
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
    assert site.files() == [FILE, f"{FILE}.provenance.json"]
    site.calls()
    # Half a file of the killed one lies in the work folder.
    half = site.out / "work" / f"conda-{TAG.name}-{ARCHITECTURE}-py{PYTHON}" / "linux-64"
    half.mkdir(parents=True, exist_ok=True)
    (half / "half.conda").write_bytes(b"half")
    assert site.run() == 0
    assert site.calls() == ["conda", *INDEX]
    assert "half" not in " ".join(site.files())


def damaged(site: Site) -> None:
    (site.site / FILE).write_bytes(b"changed")


def gone(site: Site) -> None:
    (site.site / FILE).unlink()


def unreadable(site: Site) -> None:
    (site.out / "records" / f"wheel-{TAG.name}-{ARCHITECTURE}-py{PYTHON}.json").write_text("{")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (damaged, "its file has changed"),
        (gone, "its file is gone"),
        (unreadable, "not built yet"),
    ],
)
def test_what_is_not_as_it_was_verified_is_built_again(
    site: Site, change: Any, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert site.run() == 0
    change(site)
    site.calls()
    capsys.readouterr()
    assert site.run("--dry-run") == 0
    output = capsys.readouterr().out
    assert reason in output
    assert "conda" in output
    assert "its wheel" in output
    assert site.calls() == []
    assert site.run() == 0
    assert site.calls() == BUILD + INDEX


def test_another_commit_builds_everything_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert site.run() == 0
    before = (site.site / "SHA256SUMS").read_text()
    site.calls()
    monkeypatch.setattr(release, "toolkit_commit", lambda: "d" * 40)
    monkeypatch.setenv("CONTENT", "new = 1\n")
    # The old wheel is still there, and gets no new conda package.
    monkeypatch.setenv("FAIL", "wheel")
    assert site.run() == 1
    assert site.calls() == ["wheel"]
    monkeypatch.delenv("FAIL")
    assert site.run() == 0
    assert "built from another commit" in capsys.readouterr().out
    assert site.calls() == BUILD + INDEX
    assert (site.site / "SHA256SUMS").read_text() != before
    # And what was built from the old one is not published together with it.
    assert site.run("--tag", TAG.name, "--arch", ARCHITECTURE, "--python", TAG.pythons[0]) == 0
    monkeypatch.setattr(release, "toolkit_commit", lambda: "e" * 40)
    assert site.run() == 1
    assert "was not built and verified at this commit" in capsys.readouterr().err


@pytest.mark.parametrize("commit", [f"{COMMIT}-dirty", "unknown"])
def test_a_release_is_built_from_a_commit(
    site: Site, commit: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(release, "toolkit_commit", lambda: commit)
    assert site.run("--dry-run") == 0
    assert site.run() == 1
    assert "a release is built from a commit" in capsys.readouterr().err
    assert site.calls() == []
    assert site.run("--allow-changes", "--build-only") == 0
    assert site.calls() == BUILD


def test_choices_add_up(site: Site) -> None:
    """As in a workflow: each job builds a part, and the last one finds them finished."""
    first, last = TAG.pythons[0], TAG.pythons[-1]
    for python in (first, last):
        given = ("--tag", TAG.name, "--arch", ARCHITECTURE, "--python", python)
        assert site.run(*given, "--build-only") == 0
        assert site.calls() == BUILD
    assert site.run("--kind", "addon", "--arch", ARCHITECTURE) == 0
    assert site.calls() == ["addon", "verify", "provenance", *INDEX]
    # Its conda packages, of which there are two.
    assert site.run("--kind", "addon-conda", "--arch", ARCHITECTURE) == 0
    assert site.calls() == ["conda", *INDEX]
    sums = (site.site / "SHA256SUMS").read_text().splitlines()
    assert len(sums) == 3 + 3 + 2 + 2
    assert site.run("--kind", "addon-conda", "--arch", ARCHITECTURE) == 0
    assert site.calls() == INDEX


def test_a_package_of_unknown_origin_is_not_published(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    small_wheel.write(site.site, "stray")
    assert site.run() == 1
    assert "stray-1.0-py3-none-any.whl was not built and verified" in capsys.readouterr().err
    assert "SHA256SUMS" not in site.files()
    assert "index" not in site.calls()


@pytest.mark.skipif(shutil.which("gpg") is None, reason="there is no gpg here")
def test_gpg_signs_the_checksums(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    # A short path: gpg's agent listens on a socket in it.
    home = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    monkeypatch.setenv("GNUPGHOME", str(home))
    try:
        key = ("--batch", "--quiet", "--passphrase", "", "--quick-generate-key")
        subprocess.run(["gpg", *key, "release@example.org", "ed25519", "sign"], check=True)
        assert site.run("--gpg-key", "release@example.org") == 0
        signature = site.site / "SHA256SUMS.asc"
        verify = ["gpg", "--verify", str(signature), str(site.site / "SHA256SUMS")]
        assert subprocess.run(verify).returncode == 0
        before = signature.read_bytes()
        assert site.run("--gpg-key", "release@example.org") == 0
        assert signature.read_bytes() == before
        # Another key signs anew.
        subprocess.run(["gpg", *key, "other@example.org", "ed25519", "sign"], check=True)
        for name in ("other@example.org", "release@example.org"):
            assert site.run("--gpg-key", name) == 0
            done = subprocess.run(verify, capture_output=True, text=True, check=True)
            assert name in done.stderr
            assert signature.read_bytes() != before
            before = signature.read_bytes()
        # A signature of other checksums is worse than none.
        given = ("--tag", TAG.name, "--arch", ARCHITECTURE, "--python", TAG.pythons[0])
        assert site.run(*given) == 0
        assert not signature.exists()
    finally:
        subprocess.run(["gpgconf", "--kill", "all"])
        shutil.rmtree(home, ignore_errors=True)


def test_a_key_that_is_not_there(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "gpg").write_text("#!/bin/sh\necho gpg: no such key >&2\nexit 2\n")
    (programs / "gpg").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    assert site.run("--gpg-key", "nobody") == 1
    assert "gpg did not sign SHA256SUMS: gpg: no such key" in capsys.readouterr().err
    assert not [name for name in site.files() if "asc" in name]
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert site.run("--sigstore") == 1
    assert "cosign is not installed" in capsys.readouterr().err


# --- the registry's release --------------------------------------------------------------------


def test_the_dry_run_of_the_registry(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--dry-run", "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        env={**os.environ, "PIP_NO_INDEX": "1", "PIP_INDEX_URL": "http://127.0.0.1:9/"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    for tag in load_registry():
        assert f"  {tag.name} " in done.stdout
    assert "only built from source" in done.stdout
    assert "no official CUDA wheel" in done.stdout
    assert "not run: " in done.stdout
    assert not (tmp_path / "out").exists()


def test_the_release_has_what_the_registry_lists() -> None:
    registry = load_registry()
    made = list(plan.artifacts(registry, plan.Choice()))
    wheels = {(a.tag, a.architecture, a.python) for a in made if a.kind == "wheel"}
    assert wheels == {
        (tag.name, architecture, python)
        for tag in registry
        if "graft" in tag.strategies
        for architecture in tag.architectures
        for python in tag.pythons
    }
    assert wheels == {(a.tag, a.architecture, a.python) for a in made if a.kind == "conda"}
    for kind in ("addon", "addon-conda"):
        assert [a.architecture for a in made if a.kind == kind] == ["x86_64", "aarch64"]
    skipped = {step.artifact.tag for step in plan.left_out(registry, plan.Choice())}
    assert {tag.name for tag in registry if "graft" not in tag.strategies} <= skipped


def test_why_tests_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan.platform, "machine", lambda: "x86_64")
    running = f"{sys.version_info.major}.{sys.version_info.minor}"

    def untested(**values: str) -> str:
        known = {"kind": "wheel", "tag": TAG.name, "architecture": "x86_64", "python": running}
        return str(plan.untested(plan.Artifact(**(known | values))))

    assert untested() == ""
    assert untested(python="3.99") == "no such Python here"
    assert untested(architecture="aarch64") == "aarch64 does not run here"
    assert untested(kind="conda") == untested(kind="addon-conda") == "made from the wheel"


@pytest.mark.parametrize("kinds", [(), ("wheel",), ("wheel", "addon")])
def test_the_matrix_has_a_job_for_each_wheel(
    kinds: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [option for kind in kinds for option in ("--kind", kind)]
    assert release.main(["--matrix", "--out", "nowhere", *chosen]) == 0
    jobs = json.loads(capsys.readouterr().out)["include"]
    registry = load_registry()
    made = list(plan.artifacts(registry, plan.Choice(kinds=kinds)))
    assert len(jobs) == sum(not artifact.is_conda for artifact in made)
    assert len(jobs) <= 256  # GitHub's limit
    covered = []
    for job in jobs:
        options = release.parser().parse_args(job["arguments"].split())
        choice = plan.Choice(
            kinds=tuple(options.kind),
            tags=tuple(options.tag),
            architectures=tuple(options.arch),
            pythons=tuple(options.python),
        )
        covered += plan.artifacts(registry, choice)
    assert sorted(covered, key=str) == sorted(made, key=str)


def test_the_workflow_calls_it() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    workflow = yaml.safe_load(text)
    jobs = workflow["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = {word for line in commands for word in line.split() if word.startswith("release")}
    makefile = (ROOT / "Makefile").read_text()
    assert {"release", "release-matrix"} <= targets
    for target in ("release", "release-dry", "release-matrix"):
        assert f"\n{target}:" in makefile
    # Each option in it is one of release.py's.
    known = set(release.parser()._option_string_actions)
    for line in commands:
        found = {word for word in line.replace('"', " ").split() if word.startswith("--")}
        assert found <= known | {"--silent"}  # make's own
    assert jobs["build"]["strategy"]["matrix"] == "${{ fromJSON(needs.plan.outputs.matrix) }}"
    assert jobs["build"]["permissions"]["attestations"] == "write"


def test_changes_are_told_from_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "ROOT", tmp_path)
    (tmp_path / "patches").mkdir()
    file = tmp_path / "patches" / "hook.patch"
    states = []
    for text in ("one", "two"):
        file.write_text(text)
        states.append(release.state_of(f"{'0' * 40}-dirty"))
    assert len(set(states)) == 2
    assert states[0].startswith(f"{'0' * 40}-dirty-")
    assert release.state_of("0" * 40) == "0" * 40
