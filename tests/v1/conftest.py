"""The releases before 2.0, whose hooks reach into c10 and ATen's code generator.

$LMS_V1_SOURCE is such a release's source: a checkout, a bare repository or a tarball. Nothing of it
is built but c10, c10_cuda and what ATen generates; they run on the simulated device, without a CUDA
toolkit. For the Python files $LMS_V1_PYTHON names a Python with the official wheel and PyYAML.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]

from build import Build  # noqa: E402
from device import Lms  # noqa: E402

from lmsbuild.checkout import origin  # noqa: E402
from lmsbuild.checkout.apply import apply  # noqa: E402
from lmsbuild.checkout.state import Outcome  # noqa: E402
from lmsbuild.registry import Tag, load_registry  # noqa: E402
from lmsbuild.tools import git  # noqa: E402
from lmsbuild.tools.cache import default_cache  # noqa: E402
from lmsbuild.tools.download import Target  # noqa: E402
from lmsbuild.wheel.header_packages import fetch_headers  # noqa: E402


def _from_environment(name: str, what: str) -> str:
    value = os.environ.get(name)
    if not value:
        pytest.skip(f"${name} does not name {what}")
    return value


@pytest.fixture(scope="session")
def given_source() -> str:
    return _from_environment("LMS_V1_SOURCE", "the sources of a release before 2.0")


@pytest.fixture(scope="session")
def python() -> str:
    """A Python with the official wheel of the release."""
    return _from_environment("LMS_V1_PYTHON", "a Python with the official wheel of that release")


@pytest.fixture(scope="session")
def tag(given_source: str) -> Tag:
    """The release that the source is: by git's tag, or by the version that its files name."""
    chosen = origin.classify(given_source)
    candidates = [tag for tag in load_registry() if tag.variant is not None]
    if chosen.kind is origin.Kind.CHECKOUT:
        with git.session(), git.opened(chosen.path) as repo:
            version = origin.version_at_head(repo) or ""
            names = git.tags_at_head(repo)
        candidates = [
            tag for tag in candidates if tag.name in names or version.startswith(tag.version)
        ]
    assert candidates, f"{given_source} is no release that has a variant of the runtime"
    return candidates[-1]


@pytest.fixture(scope="session")
def patched(tag: Tag, given_source: str, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What `lmsbuild apply` makes of the source."""
    into = tmp_path_factory.mktemp("source") / "pytorch"
    return apply(tag, upstream_url="", given_source=given_source, into=into)


@pytest.fixture(scope="session")
def cuda(tag: Tag) -> tuple[Path, ...]:
    """Folders with CUDA's headers."""
    target = Target(architecture=tag.architectures[0], python=tag.pythons[-1])
    found = fetch_headers(tag, target, default_cache(), lambda *_: None)
    folders = [path for one in found.values() for path in one.path.glob("nvidia/*/include")]
    return tuple(folders)


@pytest.fixture(scope="session")
def cmake() -> None:
    if shutil.which("cmake") is None:
        pytest.skip("there is no cmake (pip install cmake)")


@pytest.fixture(scope="session")
def lms(
    cmake: None,
    patched: Outcome,
    cuda: tuple[Path, ...],
    tmp_path_factory: pytest.TempPathFactory,
) -> Lms:
    """The patched c10 and c10_cuda, built and loaded: two devices of 64 MiB."""
    folder = tmp_path_factory.mktemp("build")
    build = Build(patched.directory, cuda, folder)
    libraries = build.make()
    os.environ.update(SIMCUDA_DEVICES="2", SIMCUDA_MIB="64", SIMCUDA_RACE="1")
    return Lms(*libraries, build.storages(libraries))
