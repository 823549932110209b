"""The conda packages of torch-lms: what they say, what solvers and installers make of them."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import rattler
from click.testing import CliRunner
from rattler.exceptions import SolverError
from rattler.package_streaming import extract

import lmsbuild
from lmsbuild.addon.release import suitable
from lmsbuild.addon.request import AddonRequest
from lmsbuild.cli.main import main
from lmsbuild.conda.channel import Channel
from lmsbuild.conda.coroutine import run
from lmsbuild.errors import CondaError, DamagedWheelError, LmsbuildError, WrongPlatformError
from lmsbuild.registry import load_registry
from toolkit.conda.test_package import (
    files_of,
    index_of,
    rendered_as_conda_build_does,
    rendered_by_rattler,
)
from toolkit.helpers.fake_addon import RELEASED, addon_wheel
from toolkit.helpers.fake_conda import packages_of, solve, stub, virtual
from toolkit.helpers.fake_torch import FakeTorch, members_of
from toolkit.helpers.fake_torch import fake as fake

NAMES = [f"torch-lms-{lmsbuild.__version__}-cuda{major}_0.conda" for major in (13, 12)]
SUBDIR = "linux-64"
SITE = "site-packages"


@pytest.fixture(scope="module")
def wheel(fake: FakeTorch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return addon_wheel(fake, tmp_path_factory.mktemp("wheel"), architecture="x86_64")


@pytest.fixture(scope="module")
def made(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [result.path for result in packages_of(wheel, tmp_path_factory.mktemp("made"))]


def unpacked(package: Path, into: Path) -> Path:
    extract(package, into)
    return into


def test_there_is_one_for_each_major_version_of_cuda(made: list[Path], tmp_path: Path) -> None:
    assert [path.name for path in made] == NAMES
    constraints = ["pytorch ==9.1.0 cuda13*", "pytorch ==8.9.0|==8.10.0 cuda12*"]
    features = ["", "torch-lms-p-0"]
    for path, constraint, feature in zip(made, constraints, features, strict=True):
        index = index_of(unpacked(path, tmp_path / path.stem))
        assert index["constrains"] == [constraint]
        assert index["depends"] == ["__glibc >=2.28,<3.0.a0", "libstdcxx", "python >=3.10"]
        assert (index["name"], index["version"]) == ("torch-lms", lmsbuild.__version__)
        # CEP 20: for each Python, on one platform.
        assert (index["noarch"], index["subdir"], index["arch"]) == ("python", SUBDIR, "x86_64")
        assert index.get("track_features", "") == feature
        link = json.loads((tmp_path / path.stem / "info" / "link.json").read_text())
        assert link == {"noarch": {"type": "python"}, "package_metadata_version": 1}


def test_each_has_all_files_of_the_wheel(wheel: Path, made: list[Path], tmp_path: Path) -> None:
    one, other = (unpacked(path, tmp_path / path.stem) for path in made)
    assert files_of(one) == files_of(other)
    for name, data in members_of(wheel).items():
        if not name.endswith("/RECORD"):
            assert (one / SITE / name).read_bytes() == data, name
    listed = json.loads((one / "info" / "paths.json").read_text())["paths"]
    assert {row["_path"] for row in listed} == files_of(one).keys()


def test_two_builds_are_the_same(wheel: Path, made: list[Path], tmp_path: Path) -> None:
    time.sleep(1.1)  # tar's clock has one second
    again = packages_of(wheel, tmp_path)
    assert [result.path.read_bytes() for result in again] == [path.read_bytes() for path in made]


def test_another_build_number_is_another_name(wheel: Path, tmp_path: Path) -> None:
    names = [result.path.name for result in packages_of(wheel, tmp_path, build_number=7)]
    assert names == [name.replace("_0.conda", "_7.conda") for name in NAMES]


def test_another_architecture(fake: FakeTorch, tmp_path: Path) -> None:
    wheel = addon_wheel(fake, tmp_path / "wheel", architecture="aarch64")
    for result in packages_of(wheel, tmp_path):
        assert result.path.parent == tmp_path / "dist" / "linux-aarch64"
        assert index_of(unpacked(result.path, tmp_path / "x"))["noarch"] == "python"


def test_a_release_that_condas_pytorch_has_another_abi_than(
    fake: FakeTorch, tmp_path: Path
) -> None:
    wheel = addon_wheel(fake, tmp_path, released={"8.8.0": RELEASED["8.8.0"]})
    (result,) = packages_of(wheel, tmp_path)
    assert result.metadata.constrains == ("pytorch <0.0a0",)


def test_both_recipes_say_the_same(wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "recipe"
    result = CliRunner().invoke(main, ["conda", "--wheel", str(wheel), "--recipe", str(folder)])
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in folder.iterdir()) == ["cuda12_0", "cuda13_0", "stage"]
    assert (folder / "stage" / SITE / "torch_lms" / "__init__.py").is_file()
    assert (folder / "stage" / "python-scripts").is_dir()
    for path in (folder / "cuda12_0", folder / "cuda13_0"):
        one, other = rendered_by_rattler(path), rendered_as_conda_build_does(path)
        assert one == other
        features = [] if path.name == "cuda13_0" else ["torch-lms-p-0"]
        assert (one["features"], one["each Python"]) == (features, True)
        assert one["exports"] == []
        assert one["about"]["license_file"] == ["LICENSE", "NOTICE"]
        assert one["script"] == 'cp -a python-scripts site-packages "$PREFIX"'


def test_the_commands(wheel: Path, tmp_path: Path) -> None:
    out, channel = tmp_path / "dist", tmp_path / "channel"
    arguments = ["conda", "--wheel", str(wheel), "--out", str(out), "--packager", "rattler-build"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    packages = [str(out / SUBDIR / name) for name in NAMES]
    assert result.stdout.split() == packages
    result = CliRunner().invoke(main, ["channel", "add", str(channel), *packages])
    assert result.exit_code == 0, result.output
    assert {package.file for package in Channel(channel).packages()} == set(NAMES)


def test_a_wheel_is_built_first(
    fake: FakeTorch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    def build(request: AddonRequest, _report: Any) -> Path:
        asked.append(tuple(tag.name for tag in request.tags))
        return addon_wheel(fake, request.out, architecture="x86_64")

    monkeypatch.setattr("lmsbuild.addon.build.build_addon", build)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    registry = load_registry()
    for tag in ([], [registry.default.name]):
        arguments = ["conda", "--addon", *tag, "--out", str(tmp_path / "dist")]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, result.output
        assert result.stdout.split() == [str(tmp_path / "dist" / SUBDIR / name) for name in NAMES]
    every = tuple(tag.name for tag in suitable(registry, "x86_64"))
    assert len(every) > 5
    assert asked == [every, (registry.default.name,)]
    # The wheel was a means, and is gone.
    assert not list(tmp_path.rglob("*.whl"))


@pytest.mark.parametrize("option", [["--python", "3.12"], ["--wheel"], ["--base"]])
def test_what_an_addon_has_no_use_for_is_refused(wheel: Path, option: list[str]) -> None:
    value = [] if len(option) == 2 else [str(wheel)]
    result = CliRunner().invoke(main, ["conda", "--addon", *option, *value])
    assert result.exit_code == 2
    assert "--addon takes no --wheel, --python or --base" in result.output


@pytest.mark.parametrize("option", [["--arch", "aarch64"], ["--python", "3.12"], ["v2.11.0"]])
def test_what_a_wheel_says_itself_is_refused(wheel: Path, option: list[str]) -> None:
    result = CliRunner().invoke(main, ["conda", "--wheel", str(wheel), *option])
    assert result.exit_code == 2
    assert "--wheel says tag, architecture, Python and base itself" in result.output


@dataclass(frozen=True)
class World:
    """A channel with torch-lms, and one with PyTorch as conda-forge has it."""

    channel: Path
    others: Path
    cache: Path

    def solve(self, *specs: str, cuda: str | None = "13.0") -> dict[str, str]:
        """The chosen versions and builds by name."""
        found = solve(
            [self.channel, self.others],
            specs,
            self.cache,
            machine=virtual(cuda=cuda),
        )
        return {name: f"{record.version} {record.build}" for name, record in found.items()}


@pytest.fixture(scope="module")
def world(made: list[Path], tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    Channel(folder / "channel").add(made, lambda _: None)
    stubs = [stub(folder, name) for name in ("libgcc", "libstdcxx")]
    for version in ("3.8", "3.10", "3.14"):
        tag = version.replace(".", "")
        stubs.append(python_stub(folder, version, f"cp{tag}"))
        stubs.append(stub(folder, "python_abi", version, build=f"8_cp{tag}"))
    stubs += [
        stub(
            folder,
            "pytorch",
            version,
            subdir=SUBDIR,
            build=f"{build}_mkl_py310_h0_302",
            depends=[f"__cuda >={build[4:6]}"] if build.startswith("cuda") else [],
        )
        for version in (*RELEASED, "9.2.0")
        for build in ("cpu", "cuda129", "cuda130")
    ]
    Channel(folder / "others").add(stubs, lambda _: None)
    return World(channel=folder / "channel", others=folder / "others", cache=folder / "cache")


def python_stub(folder: Path, version: str, tag: str) -> Path:
    return stub(
        folder,
        "python",
        f"{version}.5",
        subdir=SUBDIR,
        build="0_cpython",
        depends=[f"python_abi {version}.* *_{tag}"],
    )


BUILT = f"{lmsbuild.__version__} cuda"


@pytest.mark.parametrize(
    ("cuda", "wanted", "pytorch", "major"),
    [
        ("13.0", ["pytorch"], "9.1.0 cuda130_mkl_py310_h0_302", 13),
        # A driver for CUDA 12: the newest release that has a library for it.
        ("12.8", ["pytorch"], "8.10.0 cuda129_mkl_py310_h0_302", 12),
        ("13.0", ["pytorch ==8.9.0"], "8.9.0 cuda129_mkl_py310_h0_302", 12),
    ],
)
def test_a_solver_takes_a_pytorch_that_has_a_library(
    world: World, cuda: str, wanted: list[str], pytorch: str, major: int
) -> None:
    found = world.solve("torch-lms", *wanted, cuda=cuda)
    assert (found["pytorch"], found["torch-lms"]) == (pytorch, f"{BUILT}{major}_0")


def test_it_does_not_bring_a_pytorch(world: World) -> None:
    assert "pytorch" not in world.solve("torch-lms")  # but goes with PyPI's torch


@pytest.mark.parametrize(
    "other",
    [
        "pytorch ==9.2.0",  # a newer release
        "pytorch ==9.1.0 cpu*",
        "pytorch ==9.1.0 cuda129*",  # of another CUDA than the library
        "pytorch ==8.10.0 cuda130*",
        "pytorch ==8.8.0",  # of another C++ ABI
        "python 3.8.*",
    ],
)
def test_what_it_cannot_be_beside_is_refused(world: World, other: str) -> None:
    with pytest.raises(SolverError, match="torch-lms"):
        world.solve("torch-lms", other)
    assert world.solve(other)


@pytest.mark.parametrize("version", ["3.10", "3.14"])
def test_it_is_installed_for_each_python(world: World, tmp_path: Path, version: str) -> None:
    prefix = tmp_path / "prefix"
    specs = ["torch-lms", f"python {version}.*"]
    records = solve([world.channel, world.others], specs, world.cache)
    run(
        rattler.install(
            list(records.values()), prefix, cache_dir=tmp_path / "cache", show_progress=False
        )
    )
    site = prefix / f"lib/python{version}/site-packages"
    assert (site / "torch_lms" / "__init__.py").is_file()
    library = site / "torch_lms" / "releases" / "9.1.0" / "libtorch_lms.so"
    assert library.stat().st_mode & 0o444
    assert not (prefix / "site-packages").exists()


def refuse(wheel: Path, folder: Path, kind: type[LmsbuildError], words: str) -> None:
    with pytest.raises(kind, match=words):
        packages_of(wheel, folder)
    assert not list((folder / "dist").rglob("*.conda*"))


def test_a_wheel_without_libraries_is_refused(fake: FakeTorch, tmp_path: Path) -> None:
    wheel = addon_wheel(fake, tmp_path, released={})
    refuse(wheel, tmp_path, CondaError, "has no library for any release; build it with")


@pytest.mark.parametrize("text", [b"{}", b"[]", b"{", b'{"cuda": "x", "cxx11_abi": 1}'])
def test_a_release_that_cannot_be_read_is_refused(
    fake: FakeTorch, tmp_path: Path, text: bytes
) -> None:
    member = "torch_lms/releases/9.1.0/release.json"
    wheel = addon_wheel(fake, tmp_path, changes={member: text})
    refuse(wheel, tmp_path, DamagedWheelError, rf"{member} cannot be read .*; build it again")


def test_a_damaged_wheel_is_refused(wheel: Path, tmp_path: Path) -> None:
    data = bytearray(wheel.read_bytes())
    data[len(data) // 3] ^= 0xFF
    copy = tmp_path / wheel.name
    copy.write_bytes(data)
    refuse(copy, tmp_path, DamagedWheelError, "build it again|download it again")


def test_a_library_for_another_architecture_is_refused(wheel: Path, tmp_path: Path) -> None:
    other = tmp_path / wheel.name.replace("x86_64", "aarch64")
    other.write_bytes(wheel.read_bytes())
    refuse(other, tmp_path, CondaError, "is for x86_64, but the wheel is for aarch64")
    stray = tmp_path / wheel.name.replace("x86_64", "riscv64")
    stray.write_bytes(wheel.read_bytes())
    refuse(stray, tmp_path, WrongPlatformError, "there are no conda packages for riscv64")
