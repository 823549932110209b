"""What a solver makes of the packages: chosen, left alone, refused."""

from __future__ import annotations

import compileall
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import rattler
from rattler.exceptions import SolverError

from lmsbuild.conda.channel import Channel
from lmsbuild.conda.platforms import SUBDIRS
from toolkit.helpers.fake_conda import (
    lms_wheel,
    package_of,
    run,
    solve,
    stub,
    stub_channel,
    virtual,
)
from toolkit.helpers.fake_torch import CP, PYTHON, VERSION, FakeTorch
from toolkit.helpers.fake_torch import fake as fake

LMS = "pytorch[build=*lms*]"
BUILD = f"cuda130_py{CP[2:]}_lms1_0"


@dataclass(frozen=True)
class World:
    """A channel with PyTorch for every architecture, and one with everything else."""

    channel: Path
    others: Path
    cache: Path


@pytest.fixture(scope="module")
def world(fake: FakeTorch, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    made = [
        package_of(lms_wheel(fake, folder / "wheels", architecture=architecture), folder)
        for architecture in SUBDIRS
    ]
    Channel(folder / "channel").add([result.path for result in made], lambda _: None)
    stubs = stub_channel(folder / "stubs", made[0].metadata.depends, SUBDIRS.values())
    # conda-forge's own PyTorch, a newer one than ours.
    stubs.append(stub(folder / "stubs", "pytorch", "9.2.0", build="cuda130_generic_h0_200"))
    Channel(folder / "others").add(stubs, lambda _: None)
    return World(channel=folder / "channel", others=folder / "others", cache=folder / "cache")


@pytest.mark.parametrize("subdir", SUBDIRS.values())
def test_it_solves_on_every_architecture(world: World, subdir: str) -> None:
    found = solve([world.channel, world.others], [LMS], world.cache, subdir=subdir)
    assert (found["pytorch"].subdir, str(found["pytorch"].build)) == (subdir, BUILD)
    assert {"python", "libcudnn", "cuda-version", "filelock"} <= found.keys()


def test_the_first_channel_decides(world: World) -> None:
    found = solve([world.channel, world.others], ["pytorch"], world.cache)
    assert str(found["pytorch"].build) == BUILD


def test_in_one_channel_it_is_chosen_when_it_is_asked_for(
    fake: FakeTorch, world: World, tmp_path: Path
) -> None:
    plain = stub(tmp_path / "plain", "pytorch", VERSION, subdir="linux-64", build="cpu_generic_0")
    mixed = tmp_path / "mixed"
    Channel(mixed).add([plain, *world.channel.glob("linux-64/*.conda")], lambda _: None)
    chosen = solve([mixed, world.others], ["pytorch"], tmp_path / "cache")
    assert str(chosen["pytorch"].build) == "cpu_generic_0"
    chosen = solve([mixed, world.others], [LMS], tmp_path / "cache")
    assert str(chosen["pytorch"].build) == BUILD


@pytest.mark.parametrize(
    ("machine", "named"),
    [
        (virtual(glibc="2.27"), "__glibc"),
        (virtual(cuda=None), "__cuda"),
        (virtual(cuda="12.9"), "__cuda"),
    ],
    ids=["old glibc", "no GPU", "old driver"],
)
@pytest.mark.parametrize("subdir", SUBDIRS.values())
def test_machines_that_cannot_run_it_are_refused(
    world: World, subdir: str, machine: list[object], named: str
) -> None:
    with pytest.raises(SolverError, match=named):
        solve([world.channel, world.others], [LMS], world.cache, subdir=subdir, machine=machine)


def test_another_python_is_refused(world: World) -> None:
    with pytest.raises(SolverError, match="python"):
        solve([world.channel, world.others], [LMS, "python 3.8.*"], world.cache)


def test_nothing_of_it_stays_behind(world: World, tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"
    found = solve([world.channel, world.others], [LMS], world.cache)

    def install(records: list[Any]) -> None:
        cache = tmp_path / "packages"
        run(rattler.install(records, prefix, cache_dir=cache, show_progress=False))

    install(list(found.values()))
    site = prefix / f"lib/python{PYTHON}/site-packages"
    assert (site / "torch" / "version.py").is_file()
    assert (prefix / "bin" / "torchrun").stat().st_mode & 0o111
    assert not (prefix / "python-scripts").exists()
    # What Python compiles when it imports it.
    compileall.compile_dir(site, quiet=1)
    assert (site / "torch" / "__pycache__").is_dir()
    install([record for name, record in found.items() if name != "pytorch"])
    assert not list(prefix.glob("lib/python*/site-packages/torch*"))
    assert not (prefix / "bin" / "torchrun").exists()


def test_another_torch_beside_it_is_refused(world: World, tmp_path: Path) -> None:
    rival = stub(tmp_path / "rival", "libtorch", "9.1.0")
    Channel(tmp_path / "rivals").add([rival], lambda _: None)
    channels = [world.channel, world.others, tmp_path / "rivals"]
    with pytest.raises(SolverError, match="libtorch"):
        solve(channels, [LMS, "libtorch"], tmp_path / "cache")


def test_a_cuda_of_another_major_version_is_refused(world: World, tmp_path: Path) -> None:
    newer = stub(tmp_path / "newer", "cuda-version", "14.0")
    Channel(tmp_path / "channel").add([newer], lambda _: None)
    channels = [tmp_path / "channel", world.channel, world.others]
    with pytest.raises(SolverError, match="cuda-version"):
        solve(channels, [LMS], tmp_path / "cache")
