"""`lmsbuild dev port`: a new tag from an old one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lmsbuild._compat import tomllib
from lmsbuild.errors import (
    CompileError,
    ForeignWheelError,
    HookError,
    LmsbuildError,
    NotAppliedError,
    PortConflictError,
    RefreshError,
    SourceError,
    TargetExistsError,
)
from lmsbuild.patchset.series import load_hooks
from lmsbuild.port.port import Ported, port
from lmsbuild.port.request import PortRequest
from lmsbuild.registry import load_registry, validate_registry
from lmsbuild.tools.cache import default_cache
from toolkit.helpers.fake_release import (
    INIT,
    NEW,
    NEW_COMMIT,
    OLD,
    Releases,
)
from toolkit.helpers.fake_release import releases as releases
from toolkit.helpers.fake_torch import CUDA_INIT, MACHINE, PYTHON
from toolkit.helpers.fake_torch import fake as fake
from toolkit.helpers.fake_torch import offline as offline
from toolkit.helpers.fake_upstream import git


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def ported(releases: Releases, tmp_path: Path, **changes: object) -> Ported:
    registry = load_registry(releases.patches)
    values: dict[str, object] = {
        "old": registry.get(OLD),
        "name": f"v{NEW}",
        "python": PYTHON,
        "architecture": MACHINE,
        "old_base": None,
        "base": None,
        "old_source": None,
        "given_source": None,
        "work": tmp_path / "a work folder",
        "resumed": False,
        "patches": releases.patches,
        "cache": default_cache(),
        **changes,
    }
    return port(registry, PortRequest(**values), lambda stage, done, total: None)  # type: ignore[arg-type]


def refused(
    releases: Releases,
    tmp_path: Path,
    kind: type[LmsbuildError],
    match: str,
    *,
    stays: bool = False,
    **changes: object,
) -> None:
    before = files(releases.patches)
    with pytest.raises(kind, match=match) as caught:
        ported(releases, tmp_path, **changes)
    assert "\n" not in str(caught.value)
    assert files(releases.patches) == before
    assert (tmp_path / "a work folder").exists() == stays


def test_hooks_move_to_where_they_belong(releases: Releases, tmp_path: Path) -> None:
    result = ported(releases, tmp_path)
    assert result.hooks == (("0001-offer-LMS.patch", False),)
    (hook,) = load_hooks(result.tag, releases.patches)
    assert [hunk.old_start for hunk in hook.files[0].hunks] == [9]
    assert hook.body == "Why."
    assert not (tmp_path / "a work folder").exists()
    assert result.skipped == ()
    assert result.compiled is None


def test_the_registrys_entry_is_read_from_the_wheel(releases: Releases, tmp_path: Path) -> None:
    old = (releases.patches / "tags.toml").read_text()
    tag = ported(releases, tmp_path).tag
    text = (releases.patches / "tags.toml").read_text()
    assert text.startswith(old)
    validate_registry(releases.patches)
    (row,) = [row for row in tomllib.loads(text)["tag"] if row["name"] == f"v{NEW}"]
    assert row == {
        "name": f"v{NEW}",
        "git_commit": NEW_COMMIT,
        "hooks": f"v{NEW}",
        "pythons": [PYTHON],
        "architectures": ["x86_64", "aarch64"],
        "strategies": ["graft"],
        "cuda": "13.0",
        "header_packages": ["nvidia-cuda-runtime==13.0.96", "nvidia-cuda-crt==13.0.88"],
        "cxx_standard": 17,
        "cxx11_abi": 1,
        "manylinux": "manylinux_2_28",
        "verified": {"hooks_wheel": True, "hooks_source": False, "simulated": False, "gpu": ""},
    }
    assert load_registry(releases.patches).get(NEW) == tag


def test_a_variant_and_its_strategies_go_with_the_hooks(releases: Releases, tmp_path: Path) -> None:
    registry = releases.patches / "tags.toml"
    text = registry.read_text().replace('["graft"]', '["source"]')
    hooks = f'hooks = "v{OLD}"'
    registry.write_text(text.replace(hooks, f'{hooks}\nvariant = "runtime-v9"'))
    variant = releases.patches / "runtime-v9" / "torch"
    variant.mkdir(parents=True)
    (variant / "of_its_own.txt").write_text("x\n")
    ported(releases, tmp_path)
    new = load_registry(releases.patches).get(NEW)
    assert (new.variant, new.strategies) == ("runtime-v9", ("source",))


def test_an_older_release_is_entered_before(releases: Releases, tmp_path: Path) -> None:
    text = (releases.patches / "tags.toml").read_text()
    head, entry = text.split("[[tag]]")
    newer = entry.replace(OLD, "9.10.0")
    (releases.patches / "tags.toml").write_text(f"{head}[[tag]]{newer}\n# Keep.\n[[tag]]{entry}")
    ported(releases, tmp_path)
    names = [
        row["name"] for row in tomllib.loads((releases.patches / "tags.toml").read_text())["tag"]
    ]
    assert names == [f"v{NEW}", "v9.10.0", f"v{OLD}"]


def test_what_changed_in_the_headers_is_told(releases: Releases, tmp_path: Path) -> None:
    changes = {change.name: change for change in ported(releases, tmp_path).changes}
    assert set(changes) == {"CUDAAllocator::raw_alloc", "CUDAAllocator::novelty"}
    assert changes["CUDAAllocator::novelty"].after == ("virtual bool novelty()",)
    assert changes["CUDAAllocator::novelty"].forwarded
    assert changes["CUDAAllocator::raw_alloc"].before == (
        "virtual void* raw_alloc(size_t nbytes) = 0",
    )


def test_a_runtime_that_does_not_compile_is_told(releases: Releases, tmp_path: Path) -> None:
    releases.change_new({"torch/include/c10/util/Exception.h": b"namespace c10 {}\n"})
    result = ported(releases, tmp_path)
    assert isinstance(result.compiled, CompileError)
    # The hooks are done all the same.
    assert load_hooks(result.tag, releases.patches)


CONFLICT = CUDA_INIT.replace("from .memory", "from .other import *\nfrom .newer_memory")


def test_a_conflict_is_left_to_be_resolved(releases: Releases, tmp_path: Path) -> None:
    releases.change_new({INIT: CONFLICT.encode()})
    work = tmp_path / "a work folder"
    refused(releases, tmp_path, PortConflictError, f"offer LMS.*{INIT}.*--continue", stays=True)
    refused(releases, tmp_path, PortConflictError, INIT, stays=True, resumed=True)
    refused(releases, tmp_path, TargetExistsError, "--continue", stays=True)
    assert "<<<<<<<" in (work / INIT).read_text()
    (work / INIT).write_text(CONFLICT + "from .lms import *  # noqa: F403\n")
    git(work, "add", "--all")
    # By someone without an identity.
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    clean |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_EDITOR": "true"}
    subprocess.run(["git", "cherry-pick", "--continue"], cwd=work, env=clean, check=True)
    result = ported(releases, tmp_path, resumed=True)
    assert result.hooks == (("0001-offer-LMS.patch", True),)
    assert "from .newer_memory" in (releases.patches / f"v{NEW}/0001-offer-LMS.patch").read_text()
    assert work.exists()


def test_a_resolution_that_is_no_patch(releases: Releases, tmp_path: Path) -> None:
    releases.change_new({INIT: CONFLICT.encode()})
    work = tmp_path / "a work folder"
    refused(releases, tmp_path, PortConflictError, "conflicts", stays=True)
    git(work, "cherry-pick", "--skip")
    refused(releases, tmp_path, RefreshError, "no commit above", stays=True, resumed=True)


def test_a_hook_that_upstream_took(releases: Releases, tmp_path: Path) -> None:
    releases.change_new({INIT: (CUDA_INIT + "from .lms import *  # noqa: F403\n").encode()})
    refused(releases, tmp_path, RefreshError, "changes nothing; drop it", stays=True)


def test_a_file_that_moved(releases: Releases, tmp_path: Path) -> None:
    moved = "torch/cuda/api.py"
    releases.change_new({moved: CUDA_INIT.encode(), INIT: b"from .api import *\n"})
    refused(releases, tmp_path, PortConflictError, INIT, stays=True)


def source_tree(tree: Path, version: str, text: str) -> Path:
    (tree / "torch/cuda").mkdir(parents=True)
    (tree / INIT).write_text(text)
    (tree / "version.txt").write_text(version)
    git(tree, "init", "--quiet", "--initial-branch=main")
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "base")
    return tree


def test_from_sources(releases: Releases, tmp_path: Path) -> None:
    sources = [
        str(source_tree(tmp_path / f"source {version}", version, text))
        for version, text in ((OLD, CUDA_INIT), (NEW, "\n\n" + CUDA_INIT))
    ]
    releases.change_new({INIT: ("\n\n" + CUDA_INIT).encode()})
    tag = ported(releases, tmp_path, old_source=sources[0], given_source=sources[1]).tag
    assert tag.verified.hooks_source
    # The sources are somebody's: nothing is done in them.
    for tree in sources:
        assert git(Path(tree), "log", "--format=%s") == "base"


@pytest.mark.parametrize("how", ["plain", "--depth=1", "autocrlf"])
def test_from_a_checkout_as_people_have_them(releases: Releases, tmp_path: Path, how: str) -> None:
    origin = source_tree(tmp_path / "origin", NEW, "\n" + CUDA_INIT)
    git(origin, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},third_party/x")
    git(origin, "commit", "--quiet", "--message", "a submodule that nobody fetched")
    tree = tmp_path / "a source with spaces"
    option = "--config=core.autocrlf=true" if how == "autocrlf" else how
    options = [] if how == "plain" else [option]
    git(tmp_path, "clone", "--quiet", *options, origin.as_uri(), str(tree))
    assert (b"\r\n" in (tree / INIT).read_bytes()) == (how == "autocrlf")
    releases.change_new({INIT: ("\n" + CUDA_INIT).encode()})
    result = ported(releases, tmp_path, given_source=str(tree))
    (hook,) = load_hooks(result.tag, releases.patches)
    assert [hunk.old_start for hunk in hook.files[0].hunks] == [6]
    assert "\r" not in hook.text()


def test_sources_with_local_commits_are_taken_as_they_are_checked_out(
    releases: Releases, tmp_path: Path
) -> None:
    tree = source_tree(tmp_path / "source", NEW, CUDA_INIT)
    (tree / INIT).write_text("import mine\n" + CUDA_INIT)
    git(tree, "commit", "--quiet", "--all", "--message", "local: mine")
    releases.change_new({INIT: CUDA_INIT.encode()})
    # The hooks are for the release: what was made against local changes does not fit its wheel.
    refused(releases, tmp_path, HookError, "line 6 is not what", given_source=str(tree))
    # With the tag in it, the tag is what is taken.
    git(tree, "tag", f"v{NEW}", "HEAD~1")
    assert ported(releases, tmp_path, given_source=str(tree)).tag.verified.hooks_source


def test_sources_that_are_not_the_wheels(releases: Releases, tmp_path: Path) -> None:
    tree = source_tree(tmp_path / "source", NEW, "# other\n" + CUDA_INIT)
    refused(releases, tmp_path, HookError, "does not apply", given_source=str(tree))


def test_hooks_of_files_that_no_wheel_carries(releases: Releases, tmp_path: Path) -> None:
    hook = releases.patches / f"v{OLD}/0001-offer-LMS.patch"
    hook.write_text(hook.read_text().replace("torch/cuda/__init__.py", "c10/core/thing.cpp"))
    refused(releases, tmp_path, SourceError, "--from-source and --source")


def test_what_is_there_already(releases: Releases, tmp_path: Path) -> None:
    refused(releases, tmp_path, TargetExistsError, "in the registry", name=f"v{OLD}")
    (releases.patches / f"v{NEW}").mkdir()
    refused(releases, tmp_path, TargetExistsError, "already exists")


def test_a_wheel_of_another_release(releases: Releases, tmp_path: Path) -> None:
    refused(releases, tmp_path, ForeignWheelError, f"not {NEW}", base=releases.old)


def test_nothing_to_continue(releases: Releases, tmp_path: Path) -> None:
    refused(releases, tmp_path, NotAppliedError, "does not exist", resumed=True)
