"""Where the project's data lies: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

from lmsbuild.errors import RegistryError

_PACKAGE = Path(__file__).resolve().parent


def _tree(name: str, landmark: str) -> Path:
    # The packaged copy goes first: beside an installed package lies all of site-packages,
    # where a directory called "tests" may be anyone's.
    for root in (_PACKAGE, _PACKAGE.parent):
        if (root / name / landmark).exists():
            return root / name
    raise RegistryError(
        f"lmsbuild's own {name}/ is missing from {_PACKAGE} and its parent; reinstall lmsbuild"
    )


def patches_dir() -> Path:
    """Directory with tags.toml, the runtime and the hooks.

    Raises:
        RegistryError: the installation is incomplete.
    """
    return _tree("patches", "tags.toml")


def tests_dir() -> Path:
    """Directory with the simulated device (simcuda) and the out-of-memory suite (suite).

    Raises:
        RegistryError: the installation is incomplete.
    """
    return _tree("tests", "suite")


def recipes_dir() -> Path:
    """Directory with the conda recipes.

    Raises:
        RegistryError: the installation is incomplete.
    """
    return _tree("recipes", "meta.yaml")


def data_file(name: str) -> Path:
    """A file of the package's own data, such as manylinux.toml.

    Raises:
        RegistryError: the installation is incomplete.
    """
    path = _PACKAGE / "data" / name
    if not path.is_file():
        raise RegistryError(f"lmsbuild's own data/{name} is missing; reinstall lmsbuild")
    return path


def license_files() -> list[Path]:
    """The project's LICENSE and NOTICE.

    Raises:
        RegistryError: the installation is incomplete.
    """
    root = _tree(".", "LICENSE")
    return [root / "LICENSE", root / "NOTICE"]


def data_folder(name: str) -> Path:
    """A folder of the package's own data, such as torch_lms.

    Raises:
        RegistryError: the installation is incomplete.
    """
    path = _PACKAGE / "data" / name
    if not path.is_dir():
        raise RegistryError(f"lmsbuild's own data/{name}/ is missing; reinstall lmsbuild")
    return path
