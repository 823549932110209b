"""Bases that are not the official wheel, for architectures that have none."""

from __future__ import annotations

import dataclasses
import zipfile
from pathlib import Path

import pytest

from lmsbuild.architecture import architectures
from lmsbuild.errors import (
    ForeignWheelError,
    IncompleteBaseError,
    MissingBaseError,
    RenamedLibrariesError,
    WrongPlatformError,
)
from lmsbuild.native import link_stubs, manylinux
from lmsbuild.registry import Tag
from lmsbuild.tools import elf
from lmsbuild.tools.download import Target
from lmsbuild.wheel import provenance, record, runtime_library, unofficial_base
from lmsbuild.wheel.base import CpuOnlyWheelError
from lmsbuild.wheel.graft import build_wheel
from lmsbuild.wheel.header_packages import packages_target
from lmsbuild.wheel.request import GraftRequest
from lmsbuild.wheel.request import check_request as check
from lmsbuild.wheel.verify import verify
from toolkit.helpers.fake_torch import (
    COMMIT,
    MACHINE,
    PYTHON,
    VERSION_PY,
    FakeTorch,
    members_of,
    shared_library,
)
from toolkit.helpers.fake_torch import fake as fake
from toolkit.helpers.fake_torch import offline as offline
from toolkit.helpers.fake_torch import shared_cache as shared_cache

OTHER = next(name for name in architectures() if name != MACHINE)


@pytest.fixture
def orphan(fake: FakeTorch) -> Tag:
    """The tag, if it had no official wheel for this machine."""
    return dataclasses.replace(fake.tag, architectures=(OTHER,))


def none_newer(requirement: str) -> Path:
    raise AssertionError(f"{requirement} was asked for")


def build(tag: Tag, fake: FakeTorch, base: Path | None, out: Path, cache: Path) -> Path:
    request = GraftRequest(
        tag=tag,
        architecture=MACHINE,
        python=PYTHON,
        base=base,
        out=out,
        patches=fake.patches,
        cache=cache,
    )
    return build_wheel(request, lambda *_: None).path


def test_without_a_base_it_says_what_to_do(fake: FakeTorch, orphan: Tag, tmp_path: Path) -> None:
    with pytest.raises(MissingBaseError) as caught:
        build(orphan, fake, None, tmp_path / "out", tmp_path / "cache")
    for words in (MACHINE, "--base", "Open-CE", "conda", "--strategy source"):
        assert words in caught.value.message
    check(orphan, MACHINE, PYTHON, Path("given"))
    with pytest.raises(WrongPlatformError, match="no architecture sparc"):
        check(orphan, "sparc", PYTHON, Path("given"))


def test_a_build_of_ones_own_is_grafted(
    fake: FakeTorch, orphan: Tag, offline: None, shared_cache: Path, tmp_path: Path
) -> None:
    own = fake.wheel.copy()
    own.members["torch/version.py"] = VERSION_PY.replace(COMMIT, "Unknown").encode()
    path = own.write(tmp_path / fake.base.name.replace("manylinux_2_28", "linux"))
    made = build(orphan, fake, path, tmp_path / "out", shared_cache)
    assert made.name.endswith(f"-linux_{MACHINE}.whl")
    assert [check.name for check in verify(made) if check.problems] == []
    # The official wheel of an architecture stays the only one that will do there.
    with pytest.raises(ForeignWheelError, match="built from commit Unknown"):
        build(fake.tag, fake, path, tmp_path / "other", shared_cache)


def test_what_differs_from_the_registry_is_read_from_the_base(
    fake: FakeTorch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def newest(requirement: str) -> Path:
        asked.append(requirement)
        return tmp_path / f"{requirement.split('==')[0].replace('-', '_')}-12.4.9-py3-none-any.whl"

    files = dict(members_of(fake.base))
    files["torch/version.py"] = b"cuda = '12.4.1'\n"
    old_strings = "#include <string>\nnamespace c10 { struct Error { Error(std::string); };"
    files["torch/lib/libc10.so"] = shared_library(
        tmp_path / "libc10.so",
        old_strings + "Error::Error(std::string) {} }",
        "-D_GLIBCXX_USE_CXX11_ABI=0",
    )
    tag = unofficial_base.adapted(fake.tag, "x", files.get, newest)
    assert asked == ["nvidia-cuda-runtime-cu12==12.4.*", "nvidia-cuda-nvcc-cu12==12.4.*"]
    assert tag.header_packages == (
        "nvidia-cuda-runtime-cu12==12.4.9",
        "nvidia-cuda-nvcc-cu12==12.4.9",
    )
    assert (tag.cuda, tag.cxx11_abi, tag.abi_version) == ("12.4", 0, None)
    # These libraries ask for little.
    assert tag.manylinux == manylinux.policy_names()[0]


def test_with_the_tags_cuda_its_own_header_packages_serve(fake: FakeTorch) -> None:
    tag = unofficial_base.adapted(fake.tag, "x", members_of(fake.base).get, none_newer)
    assert tag.header_packages == fake.tag.header_packages
    # std::string with the new ABI is younger than the oldest policy.
    limits = manylinux.load_policy(tag.manylinux, MACHINE).limits
    assert limits["GLIBCXX"] >= (3, 4, 21)


def test_bases_that_will_not_do(fake: FakeTorch, tmp_path: Path) -> None:
    files = members_of(fake.base)
    with pytest.raises(CpuOnlyWheelError, match="names no CUDA"):
        unofficial_base.adapted(fake.tag, "x", {**files, "torch/version.py": b""}.get, none_newer)
    others = {name: data for name, data in files.items() if "libc10_cuda" not in name}
    with pytest.raises(IncompleteBaseError, match=r"no torch/lib/libc10_cuda\.so"):
        unofficial_base.adapted(fake.tag, "x", others.get, none_newer)
    repaired = shared_library(
        tmp_path / "libcudart-1a2b3c4d.so.13", 'extern "C" int cudaFree(void*) { return 0; }'
    )
    assert repaired
    linked = shared_library(
        tmp_path / "libc10_cuda.so",
        "int x;",
        "-Wl,--no-as-needed",
        str(tmp_path / "libcudart-1a2b3c4d.so.13"),
    )
    with pytest.raises(RenamedLibrariesError, match=r"needs libcudart-1a2b3c4d\.so\.13"):
        unofficial_base.adapted(
            fake.tag, "x", {**files, "torch/lib/libc10_cuda.so": linked}.get, none_newer
        )


def test_a_wheel_that_auditwheel_repaired_is_refused(
    fake: FakeTorch, orphan: Tag, tmp_path: Path
) -> None:
    repaired = fake.wheel.copy()
    repaired.members["torch.libs/libcudart-1a2b3c4d.so.13.0.96"] = b"x"
    path = repaired.write(tmp_path / fake.base.name)
    with pytest.raises(RenamedLibrariesError, match=r"\(torch\.libs/libcudart-1a2b3c4d"):
        build(orphan, fake, path, tmp_path / "out", tmp_path / "cache")


@pytest.mark.parametrize(
    ("platform", "policy"),
    [
        ("manylinux_2_17", "manylinux_2_17"),
        ("manylinux2014", "manylinux_2_17"),
        ("manylinux_2_34", "manylinux_2_28"),  # the registry's is older
        ("linux", "manylinux_2_28"),
        ("manylinux1", "manylinux_2_28"),
    ],
)
def test_the_promise_of_a_wheels_name_is_kept(fake: FakeTorch, platform: str, policy: str) -> None:
    assert unofficial_base.within(fake.tag, f"{platform}_{MACHINE}", MACHINE).manylinux == policy


def test_a_stub_stands_in_for_another_architectures_library(
    fake: FakeTorch, tmp_path: Path
) -> None:
    with zipfile.ZipFile(next(fake.links.glob("fake_cuda*"))) as packed:
        packed.extract("nvidia/cu13/lib/libcudart.so.13", tmp_path)
    real = tmp_path / "nvidia/cu13/lib/libcudart.so.13"
    stubs = tmp_path / "stubs"
    assert link_stubs.for_machine(["g++"], MACHINE, real, stubs) == real
    stub = link_stubs.for_machine(["g++"], OTHER, real, stubs)
    found = elf.read(stub)
    assert (stub.parent, found.soname) == (stubs, "libcudart.so.13")
    functions = [(s.name, s.version) for s in found.symbols if s.defined]
    assert functions == [("cudaFree", "libcudart.so.13")]


def test_header_packages_of_another_architecture_serve() -> None:
    for name, known in architectures().items():
        target = packages_target(Target(python=PYTHON, architecture=name))
        assert (target.python, target.architecture) == (PYTHON, known.cuda_packages)


def test_the_wheels_of_a_release_share_one_library(
    fake: FakeTorch, offline: None, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    first = build(fake.tag, fake, fake.base, tmp_path / "first", cache)
    other = fake.wheel.copy()
    other.members["torch/lib/libtorch_cuda.so"] += b"built once more"
    path = other.write(tmp_path / fake.base.name)
    second = build(fake.tag, fake, path, tmp_path / "second", cache)
    assert len(list((cache / "libraries").iterdir())) == 1
    member = "torch/lib/libtorch_lms.so"
    assert members_of(first)[member] == members_of(second)[member]
    told = [
        provenance.load(data).base_sha256
        for wheel in (first, second)
        for name, data in members_of(wheel).items()
        if name.endswith(provenance.FILE_NAME)
    ]
    assert len(set(told)) == 2


def test_what_makes_a_release_another_one(fake: FakeTorch) -> None:
    rows = [record.Row(path="torch/include/a.h", hash="sha256=1"), record.Row(path="torch/x.py")]
    same = runtime_library.release_identity(fake.tag, MACHINE, rows)
    assert runtime_library.release_identity(fake.tag, MACHINE, [*reversed(rows)]) == same
    assert runtime_library.release_identity(fake.tag, MACHINE, rows[:1]) == same
    changed = [record.Row(path="torch/include/a.h", hash="sha256=2")]
    others = [
        runtime_library.release_identity(fake.tag, OTHER, rows),
        runtime_library.release_identity(fake.tag, MACHINE, changed),
        runtime_library.release_identity(dataclasses.replace(fake.tag, cuda="1.0"), MACHINE, rows),
    ]
    assert len({same, *others}) == 4
