"""lmsbuild wheel --strategy source: the plan, and the way up to the container engine's door."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import platform
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from packaging.version import Version

from lmsbuild.cli.main import main
from lmsbuild.container import build as container_build
from lmsbuild.container import cibuildwheel, engine
from lmsbuild.container.build import BuildPlan, BuildRequest, build, load_data, plan_build
from lmsbuild.container.cibuildwheel import find_builder
from lmsbuild.errors import (
    BuildConfigError,
    BuilderError,
    NetworkError,
    NoEngineError,
    NoIdentifierError,
    SourceBuildError,
    WrongPlatformError,
    WrongPythonError,
)
from lmsbuild.registry import Tag, load_registry
from toolkit.helpers import fake_source_build
from toolkit.helpers.fake_upstream import Upstream, commit, git
from toolkit.helpers.fake_upstream import upstream as upstream

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("cibuildwheel") is None,
    reason="there is no cibuildwheel, which needs Python 3.11",
)

MACHINE = platform.machine()
PODMAN = """\
#!/bin/sh
echo "$@" >> "$PODMAN_LOG"
case "$1" in
  info|--version) exit 0;;
  version) echo '{"Client": {"Version": "4.3.1"}}'; exit 0;;
  *) echo "the door is shut" >&2; exit 125;;
esac
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with git and no container engine."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("git", "tar", "sh"):
        (folder / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def podman(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A podman that says that it works, and does not. The file has what it was asked."""
    (path / "podman").write_text(PODMAN)
    (path / "podman").chmod(0o755)
    log = tmp_path / "podman.log"
    monkeypatch.setenv("PODMAN_LOG", str(log))
    return log


def registry_tag(name: str) -> Tag:
    return load_registry().get(name)


def plan(tag: Tag, **changes: object) -> BuildPlan:
    values: dict[str, object] = {
        "tag": tag,
        "architecture": MACHINE,
        "python": None,
        "source": None,
        "upstream_url": "https://upstream.invalid/pytorch",
        "into": None,
        "out": Path("dist"),
        "engine": "podman",
        **changes,
    }
    return plan_build(BuildRequest(**values))  # type: ignore[arg-type]


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64", "ppc64le"])
def test_a_plan(architecture: str) -> None:
    made = plan(registry_tag("2.6.0"), architecture=architecture, python="3.12")
    assert made.identifier == f"cp312-manylinux_{architecture}"
    assert made.image.startswith(f"quay.io/pypa/manylinux_2_28_{architecture}")
    assert made.environment["PYTORCH_BUILD_VERSION"] == "2.6.0+lms1"
    assert made.environment["USE_LMS"] == "1"
    assert made.environment["CUDA_HOME"] == "/usr/local/cuda-12.4"
    assert "gcc-toolset-13 cuda-toolkit-12-4" in made.config
    words = "\n".join(made.lines())
    for part in (made.identifier, made.image, "podman", "pytorch-v2.6.0", made.estimate):
        assert part in words
    for line in made.config.splitlines():
        assert line in words


def test_cuda_of_each_architecture() -> None:
    folders = {"x86_64": "rhel8/x86_64/", "aarch64": "rhel8/sbsa/", "ppc64le": "rhel8/ppc64le/"}
    for architecture, folder in folders.items():
        assert folder in plan(registry_tag("2.6.0"), architecture=architecture).config


@pytest.mark.parametrize("tag", list(load_registry()), ids=lambda tag: str(tag.name))
def test_every_release_has_a_plan_or_says_what_is_missing(tag: Tag) -> None:
    if "graft" in tag.strategies:
        assert plan(tag).identifier.startswith("cp3")
    elif Version(tag.cuda) < Version("10.1"):
        with pytest.raises(WrongPlatformError, match=r"begin with 10\.1; name an image .* --image"):
            plan(tag)
        with pytest.raises(NoIdentifierError, match=r"pip install 'cibuildwheel<3'"):
            plan(tag, image="example.org/cuda:1")
    else:
        with pytest.raises(NoIdentifierError, match=r"pip install 'cibuildwheel<3'"):
            plan(tag)


def test_the_newest_python_where_the_running_one_has_no_build() -> None:
    tag = dataclasses.replace(registry_tag("2.6.0"), pythons=("3.9",))
    assert plan(tag).identifier == f"cp39-manylinux_{MACHINE}"


def test_an_image_of_ones_own() -> None:
    made = plan(registry_tag("2.6.0"), image="example.org/cuda:1")
    assert made.image == "example.org/cuda:1"
    assert "dnf" not in made.config
    assert "CUDA_HOME" not in made.environment


def test_what_there_is_no_build_of() -> None:
    with pytest.raises(WrongPythonError, match=r"not 3\.8"):
        plan(registry_tag("2.6.0"), python="3.8")
    with pytest.raises(WrongPlatformError, match="no CUDA for s390x"):
        plan(registry_tag("2.6.0"), architecture="s390x")
    with pytest.raises(WrongPlatformError, match=r"last CUDA for ppc64le is 12\.4"):
        plan(registry_tag("2.7.1"), architecture="ppc64le")
    with pytest.raises(NoIdentifierError, match="choose a newer one with --python"):
        plan(dataclasses.replace(registry_tag("1.4.0"), pythons=("3.5",)), python="3.5")
    other = dataclasses.replace(registry_tag("2.6.0"), cuda="12.5")
    with pytest.raises(BuildConfigError, match=r"no compiler for CUDA 12\.5"):
        plan(other)


def test_an_empty_match_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = find_builder("")
    config = plan(registry_tag("2.6.0")).config
    builder.require("cp312-manylinux_x86_64", config, "")
    with pytest.raises(NoIdentifierError, match=r"cannot build cp312-manylinux_vax; advice"):
        builder.require("cp312-manylinux_vax", config, "advice")
    # It prints nothing, and is content.
    monkeypatch.setattr(
        cibuildwheel.Builder, "command", lambda *_: [sys.executable, "-c", ""], raising=True
    )
    with pytest.raises(NoIdentifierError):
        builder.require("cp312-manylinux_x86_64", config, "")


def test_variables_of_the_user_do_not_change_what_was_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CIBW_SKIP", "*")
    monkeypatch.setenv("CIBW_ENABLE", "nonsense")
    assert plan(registry_tag("2.6.0")).identifier


def test_the_configuration_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BuildConfigError, match=r"container-engine.*'lxc'"):
        plan(registry_tag("2.6.0"), engine="lxc")
    true = container_build._settings

    def mistaken(*arguments: object) -> dict[str, object]:
        return {**true(*arguments), "before-al": "x"}  # type: ignore[arg-type]

    monkeypatch.setattr(container_build, "_settings", mistaken)
    with pytest.raises(BuildConfigError, match="'before-al' was unexpected"):
        plan(registry_tag("2.6.0"))


def test_without_cibuildwheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BuilderError, match=r"run: pip install 'cibuildwheel>=4\.3'"):
        plan(registry_tag("2.6.0"))


def test_data_that_is_malformed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true = container_build.data_file
    (tmp_path / "source.toml").write_text('image = "x"\n')
    monkeypatch.setattr(
        container_build,
        "data_file",
        lambda name: tmp_path / name if name == "source.toml" else true(name),
    )
    with pytest.raises(BuildConfigError, match=r"source\.toml: 'cuda_packages' is a required"):
        load_data()


@pytest.mark.parametrize("emulated", [True, False])
def test_estimates(monkeypatch: pytest.MonkeyPatch, emulated: bool) -> None:
    monkeypatch.setattr(container_build, "is_emulated", lambda architecture: emulated)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    (known,) = load_data()["estimate"]
    told = plan(registry_tag("2.6.0"), architecture="ppc64le").estimate
    assert known["source"] in told
    assert ("5.0 to 7.0 h on 4 cores" in told) != emulated
    assert plan(registry_tag("2.6.0"), architecture="x86_64").estimate == "unknown"


def test_no_engine_is_one_clear_line(path: Path) -> None:
    made = plan(registry_tag("2.6.0"), engine=None)
    assert made.engine is None
    assert "none: a build from source needs a container engine" in "\n".join(made.lines())
    with pytest.raises(
        NoEngineError, match="docker is not installed; podman is not installed; install"
    ):
        build(made)


def test_an_engine_that_does_not_work(path: Path) -> None:
    docker = path / "docker"
    docker.write_text("#!/bin/sh\necho first >&2\necho Cannot connect >&2\nexit 1\n")
    docker.chmod(0o755)
    with pytest.raises(NoEngineError, match="docker says Cannot connect; podman is not installed"):
        engine.find_engine(MACHINE)


def test_an_architecture_that_the_machine_does_not_run(podman: Path, tmp_path: Path) -> None:
    assert engine.find_engine(MACHINE, tmp_path).name == "podman"
    with pytest.raises(NoEngineError, match="does not run vax containers"):
        engine.find_engine("vax", tmp_path)
    (tmp_path / "qemu-vax").touch()
    assert engine.find_engine("vax", tmp_path).name == "podman"


def test_up_to_the_engines_door(upstream: Upstream, podman: Path, tmp_path: Path) -> None:
    fake_source_build.add_build(upstream.checkout)
    commit(upstream.checkout, "upstream: a build")
    out = tmp_path / "out"
    tag = dataclasses.replace(upstream.tag, pythons=(fake_source_build.PYTHON,))
    made = plan(tag, engine=None, source=str(upstream.checkout), out=out, patches=upstream.patches)
    assert made.checkout == upstream.checkout
    with pytest.raises(SourceBuildError, match="built no wheel"):
        build(made)
    asked = podman.read_text().splitlines()
    assert any(line.startswith("create ") and made.image in line for line in asked)
    assert list(out.iterdir()) == []
    # The sources are patched; the next build goes on from there.
    assert "import the new module" in git(upstream.checkout, "log", "-1", "--format=%s")


def test_submodules_that_cannot_be_fetched(upstream: Upstream, path: Path, podman: Path) -> None:
    for name in ("basename", "sed", "uname"):  # git-submodule is a shell script
        (path / name).symlink_to(shutil.which(name, path=os.defpath) or "")
    where = upstream.checkout
    (where / ".gitmodules").write_text('[submodule "x"]\npath = x\nurl = http://127.0.0.1:1/x\n')
    (where / "x").mkdir()
    git(where, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},x")
    commit(where, "upstream: a submodule")
    tag = dataclasses.replace(upstream.tag, pythons=(fake_source_build.PYTHON,))
    made = plan(tag, source=str(where), patches=upstream.patches)
    with pytest.raises(NetworkError, match=r"fetching the submodules failed: .*check the network"):
        build(made)


def test_sources_whose_build_would_lack_lms(upstream: Upstream, podman: Path) -> None:
    hook = "0004-cmake.patch"
    (upstream.hooks / hook).write_text(
        f"From {'0' * 40} Mon Sep 17 00:00:00 2001\nFrom: A <a@example.org>\n"
        "Date: Thu, 1 Jan 2026 00:00:00 +0000\nSubject: [PATCH] cmake\n\nWhy.\n\n"
        "diff --git a/torch/CMakeLists.txt b/torch/CMakeLists.txt\n"
        "--- a/torch/CMakeLists.txt\n+++ b/torch/CMakeLists.txt\n@@ -1 +1,2 @@\n old\n+new\n"
    )
    with (upstream.hooks / "series").open("a") as series:
        series.write(f"{hook}\n")
    (upstream.checkout / "CMakeLists.txt").touch()
    commit(upstream.checkout, "upstream: cmake")
    tag = dataclasses.replace(upstream.tag, pythons=(fake_source_build.PYTHON,))
    made = plan(tag, source=str(upstream.checkout), patches=upstream.patches)
    for _ in range(2):  # at first, and when the patches are there
        with pytest.raises(SourceBuildError, match=f"{hook} is left out.*would have no LMS"):
            build(made)


@pytest.mark.parametrize("with_lms", [True, False])
def test_a_wheel_is_looked_at_before_it_is_handed_out(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, with_lms: bool
) -> None:
    def built(self: object, identifier: str, config: Path, project: Path, out: Path) -> Path:
        assert config.read_text() == made.config
        with zipfile.ZipFile(out / "torch.whl", "w") as wheel:
            wheel.writestr("torch/lib/libtorch_lms.so" if with_lms else "torch/x", "")
        return out / "torch.whl"

    monkeypatch.setattr(cibuildwheel.Builder, "build", built)
    out = tmp_path / "out"
    tag = dataclasses.replace(upstream.tag, pythons=(fake_source_build.PYTHON,))
    made = plan(tag, source=str(upstream.checkout), out=out, patches=upstream.patches)
    if with_lms:
        assert build(made) == out / "torch.whl"
        assert list(out.iterdir()) == [out / "torch.whl"]
    else:
        with pytest.raises(SourceBuildError, match="built without LMS"):
            build(made)
        assert list(out.iterdir()) == []


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["wheel", *arguments])
    return result.exit_code, result.output


def test_the_command(path: Path) -> None:
    code, output = run("v2.6.0", "--strategy", "source", "--dry-run", "--python", "3.12")
    assert code == 0
    assert f"cp312-manylinux_{MACHINE}" in output
    arguments = ["wheel", "v2.6.0", "--strategy", "source", "--dry-run", "--json"]
    document = json.loads(CliRunner().invoke(main, arguments).stdout)
    assert (document["tag"], document["strategy"]) == ("v2.6.0", "source")
    assert document["identifier"].endswith(f"-manylinux_{MACHINE}")
    code, output = run("v2.6.0", "--strategy", "source", "--python", "3.12")
    assert code == NoEngineError.exit_code
    assert not Path("dist").exists() or not list(Path("dist").glob(".unfinished*"))


@pytest.mark.parametrize(
    "arguments", [["--json"], ["--image", "x"], ["--strategy", "source", "--base", __file__]]
)
def test_options_of_the_other_strategy(arguments: list[str]) -> None:
    code, output = run("v2.6.0", *arguments)
    assert code == 2
    assert ("--dry-run" if arguments == ["--json"] else "--strategy") in output
