"""lmsbuild conda: a conda package from an LMS wheel."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.version import Version
from rattler.package_streaming import extract

from lmsbuild.cli.main import main
from lmsbuild.conda import package, recipe
from lmsbuild.conda.extra import require
from lmsbuild.conda.metadata import promised_glibc, python_specs, used_specs
from lmsbuild.conda.package import Packager, PackageResult, render, require_packager
from lmsbuild.conda.stage import console_scripts, stage
from lmsbuild.errors import (
    CondaError,
    DamagedWheelError,
    PackagerError,
    PackagingError,
    TargetExistsError,
    WrongPlatformError,
)
from lmsbuild.resources import recipes_dir
from lmsbuild.wheel.base import identify
from toolkit.helpers.fake_conda import LMS_INFO, for_machine, lms_wheel, package_of
from toolkit.helpers.fake_torch import (
    CP,
    MACHINE,
    PYTHON,
    VERSION,
    FakeTorch,
    digest,
    members_of,
    shared_library,
)
from toolkit.helpers.fake_torch import fake as fake

SITE = "site-packages"
STEM = f"pytorch-{VERSION}-cuda130_py{CP[2:]}_lms1_0"

EXPORTS = ["pytorch >=9.1.0,<9.2.0a0"]


@pytest.fixture
def made(fake: FakeTorch, tmp_path: Path) -> PackageResult:
    return package_of(lms_wheel(fake, tmp_path / "wheels"), tmp_path)


def unpacked(package: Path, into: Path) -> Path:
    extract(package, into)
    return into


def index_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "info" / "index.json").read_text()))


def test_the_metadata_says_what_the_wheel_is(made: PackageResult, tmp_path: Path) -> None:
    assert made.path.name == f"{STEM}.conda"
    assert made.path.parent.name == made.metadata.subdir
    index = index_of(unpacked(made.path, tmp_path / "x"))
    minor = int(PYTHON.split(".")[1])
    depends = index["depends"]
    assert f"python >=3.{minor},<3.{minor + 1}.0a0" in depends
    assert f"python_abi {PYTHON}.* *_{CP}" in depends
    assert "__cuda >=13" in depends
    assert "libcudnn >=9.0,<10.0a0" in depends
    assert {"filelock", "sympy ==1.13.1", "triton >=3.9.0,<3.10a0"} <= set(depends)
    assert "__glibc >=2.28,<3.0.a0" in depends
    assert not [spec for spec in depends if "nvidia" in spec or "optree" in spec]
    assert index["constrains"] == ["libtorch <0.0a0", "pytorch-cpu <0.0a0"]
    assert (index["name"], index["version"], index["build_number"]) == ("pytorch", VERSION, 0)
    assert "numpy >=1.19,<3.0a0" in depends
    assert index["track_features"] == "pytorch-p-0"
    # The wheel's date, not today's; milliseconds.
    assert index["timestamp"] == 1741064768000


def test_the_files_are_the_wheels(fake: FakeTorch, tmp_path: Path) -> None:
    wheel = lms_wheel(fake, tmp_path / "wheels")
    files = unpacked(package_of(wheel, tmp_path).path, tmp_path / "x")
    changed = {f"{LMS_INFO}/{name}" for name in ("METADATA", "RECORD")}
    for name, data in members_of(wheel).items():
        if name not in changed:
            assert (files / SITE / name).read_bytes() == data, name
    listed = json.loads((files / "info" / "paths.json").read_text())["paths"]
    own = {
        path.relative_to(files).as_posix()
        for path in files.rglob("*")
        if path.is_file() and "info" not in path.relative_to(files).parts[:1]
    }
    assert {row["_path"] for row in listed} == own
    assert not [row for row in listed if "prefix_placeholder" in row]
    library = files / SITE / "torch" / "lib" / "libc10.so"
    assert stat.S_IMODE(library.stat().st_mode) == 0o755
    assert stat.S_IMODE((files / SITE / "torch" / "version.py").stat().st_mode) == 0o644


def test_record_is_true_and_pip_fetches_no_cuda(made: PackageResult, tmp_path: Path) -> None:
    site = unpacked(made.path, tmp_path / "x") / SITE
    text = (site / LMS_INFO / "RECORD").read_text()
    rows = {path: (hashed, size) for path, hashed, size in csv.reader(io.StringIO(text))}
    assert rows.pop(f"{LMS_INFO}/RECORD") == ("", "")
    for name, (hashed, size) in rows.items():
        script = name.removeprefix("../../../bin/")
        file = site / name if script == name else site.parent / "python-scripts" / script
        data = file.read_bytes()
        assert (hashed, size) == (digest(data), str(len(data))), name
    assert "../../../bin/torchrun" in rows
    assert (site / LMS_INFO / "INSTALLER").read_text() == "conda"
    metadata = (site / LMS_INFO / "METADATA").read_text()
    assert "nvidia" not in metadata
    assert "Requires-Dist: filelock\n" in metadata


def test_what_is_built_with_it_needs_its_version(made: PackageResult, tmp_path: Path) -> None:
    files = unpacked(made.path, tmp_path / "x")
    exports = json.loads((files / "info" / "run_exports.json").read_text())
    assert exports == {"weak": EXPORTS}


def test_it_has_the_wheels_licences(made: PackageResult, tmp_path: Path) -> None:
    licenses = unpacked(made.path, tmp_path / "x") / "info" / "licenses"
    assert (licenses / "LICENSE").read_bytes() == b"License\n"
    assert (licenses / "third_party" / "NOTICE").read_bytes() == b"Notice\n"


def test_a_licence_elsewhere_is_not_taken(fake: FakeTorch, tmp_path: Path) -> None:
    text = b"Metadata-Version: 2.4\nName: torch\nVersion: 9.1.0+lms1\nLicense-File: ../RECORD\n"
    changes: dict[str, bytes | None] = {f"{LMS_INFO}/METADATA": text}
    wheel = lms_wheel(fake, tmp_path / "wheels", changes=changes)
    assert package_of(wheel, tmp_path).metadata.license_files == ()


def test_numpy_is_one_that_the_release_works_with() -> None:
    assert [used_specs(Version(v)) for v in ("1.13.1", "2.2.2", "2.3.0", "2.15.0")] == [
        ["numpy >=1.19,<2.0a0"],
        ["numpy >=1.19,<2.0a0"],
        ["numpy >=1.19,<3.0a0"],
        ["numpy >=1.19,<3.0a0"],
    ]


def test_a_later_lms_has_a_higher_build_number(fake: FakeTorch, tmp_path: Path) -> None:
    wheel = lms_wheel(fake, tmp_path / "wheels", lms="lms2")
    made = package_of(wheel, tmp_path)
    assert made.path.name == f"pytorch-{VERSION}-cuda130_py{CP[2:]}_lms2_100.conda"


def test_two_builds_are_the_same(fake: FakeTorch, tmp_path: Path) -> None:
    wheel = lms_wheel(fake, tmp_path / "wheels")
    first = package_of(wheel, tmp_path, name="one").path.read_bytes()
    time.sleep(1.1)  # zip's clock has two seconds, tar's one
    before = os.umask(0o077)
    try:
        second = package_of(wheel, tmp_path, name="two").path.read_bytes()
    finally:
        os.umask(before)
    assert first == second


def test_modes_do_not_depend_on_the_umask(fake: FakeTorch, tmp_path: Path) -> None:
    wheel = identify(lms_wheel(fake, tmp_path / "wheels"))
    (tmp_path / "stage").mkdir()
    before = os.umask(0o077)
    try:
        stage(wheel, tmp_path / "stage")
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "stage").rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o644, 0o755}


def test_another_build_number_is_another_name(fake: FakeTorch, tmp_path: Path) -> None:
    wheel = lms_wheel(fake, tmp_path / "wheels")
    made = package_of(wheel, tmp_path, build_number=7)
    assert made.path.name == f"pytorch-{VERSION}-cuda130_py{CP[2:]}_lms1_7.conda"
    assert index_of(unpacked(made.path, tmp_path / "x"))["build_number"] == 7


@pytest.mark.parametrize(
    ("architecture", "subdir"),
    [("x86_64", "linux-64"), ("aarch64", "linux-aarch64"), ("ppc64le", "linux-ppc64le")],
)
def test_every_architecture(
    fake: FakeTorch, tmp_path: Path, architecture: str, subdir: str
) -> None:
    wheel = lms_wheel(fake, tmp_path / "wheels", architecture=architecture)
    made = package_of(wheel, tmp_path)
    assert made.path == tmp_path / "dist" / subdir / f"{STEM}.conda"
    index = index_of(unpacked(made.path, tmp_path / "x"))
    assert (index["subdir"], index["platform"]) == (subdir, "linux")


def test_the_scripts_run_the_python_beside_them(fake: FakeTorch, tmp_path: Path) -> None:
    torch = {"torch/__init__.py": b"def main():\n    print('ran', __file__)\n"}
    wheel = lms_wheel(fake, tmp_path / "wheels", changes=torch)
    prefix = unpacked(package_of(wheel, tmp_path).path, tmp_path / "x")
    installed = prefix / "lib" / f"python{PYTHON}" / "site-packages"
    installed.parent.mkdir(parents=True)
    (prefix / SITE).rename(installed)
    (prefix / "python-scripts").rename(prefix / "bin")
    (prefix / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    (prefix / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    (tmp_path / "elsewhere").symlink_to(prefix / "bin" / "torchrun")
    result = subprocess.run([tmp_path / "elsewhere"], capture_output=True, text=True)
    assert result.stdout == f"ran {installed / 'torch' / '__init__.py'}\n", result.stderr


def test_both_recipes_say_the_same(fake: FakeTorch, tmp_path: Path) -> None:
    folder = tmp_path / "rec"
    wheel = lms_wheel(fake, tmp_path / "wheels")
    result = CliRunner().invoke(main, ["conda", "--wheel", str(wheel), "--recipe", str(folder)])
    assert result.exit_code == 0, result.output
    assert result.stdout.split() == [str(folder / "recipe")]
    one = rendered_by_rattler(folder / "recipe")
    other = rendered_as_conda_build_does(folder / "recipe")
    assert one == other
    assert one["depends"]
    assert (one["features"], one["each Python"]) == (["pytorch-p-0"], True)
    assert one["script"] == 'cp -a python-scripts site-packages "$PREFIX"'
    assert one["exports"] == EXPORTS
    assert one["about"]["license_file"] == ["LICENSE", "third_party/NOTICE"]
    assert (folder / "recipe" / "third_party" / "NOTICE").read_bytes() == b"Notice\n"
    assert (folder / "stage" / SITE / "torch" / "version.py").is_file()
    # Packagers copy the recipe's folder into the package.
    size = sum(path.stat().st_size for path in (folder / "recipe").rglob("*"))
    assert size < 1 << 20
    # Nothing is overwritten.
    again = CliRunner().invoke(main, ["conda", "--wheel", str(wheel), "--recipe", str(folder)])
    assert again.exit_code == TargetExistsError.exit_code
    assert (folder / "stage").is_dir()


def rendered_by_rattler(folder: Path) -> dict[str, Any]:
    found = render(folder, "linux-64").to_dict()
    build = found["build"]
    name = found["package"]["name"]
    tracked = build.get("variant", {}).get("down_prioritize_variant", 0)
    return {
        "package": found["package"],
        "number": build["number"],
        "string": build["string"],
        "script": build["script"],
        "relocation": build["dynamic_linking"]["binary_relocation"],
        "features": [f"{name}-p-{number}" for number in range(tracked)],
        "exports": found["requirements"].get("run_exports", {}).get("weak", []),
        "compiled": build["python"]["skip_pyc_compilation"],
        "each Python": build["python"].get("version_independent", False),
        "source": [source["path"] for source in found["source"]],
        "depends": found["requirements"]["run"],
        "constrains": found["requirements"]["run_constraints"],
        "about": {
            "home": found["about"]["homepage"].rstrip("/"),
            "license": found["about"]["license"],
            "license_file": found["about"].get("license_file", []),
            "summary": found["about"]["summary"],
        },
    }


def rendered_as_conda_build_does(folder: Path) -> dict[str, Any]:
    """conda-build's own steps, which is not on PyPI: Jinja with load_file_data, then YAML."""

    def load_file_data(name: str, from_recipe_dir: bool) -> Any:
        assert from_recipe_dir
        return json.loads((folder / name).read_text())

    template = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(
        (folder / recipe.CONDA_BUILD).read_text()
    )
    found = yaml.safe_load(template.render(load_file_data=load_file_data))
    build = found["build"]
    return {
        "package": found["package"],
        "number": build["number"],
        "string": build["string"],
        "script": build["script"],
        "relocation": build["binary_relocation"],
        "features": build.get("track_features", []),
        "exports": build.get("run_exports", []),
        "compiled": ["**" if glob == "*" else glob for glob in build["skip_compile_pyc"]],
        "each Python": build.get("python_version_independent", False),
        "source": [found["source"]["path"]],
        "depends": found["requirements"]["run"],
        "constrains": found["requirements"]["run_constrained"],
        "about": {
            "home": found["about"]["home"].rstrip("/"),
            "license": found["about"]["license"],
            "license_file": found["about"].get("license_file", []),
            "summary": found["about"]["summary"],
        },
    }


# As conda-build leaves a package: the clock's time, its own modes, its machine described.
CONDA_BUILD = """\
#!{python}
import datetime, json, pathlib, subprocess, sys
import rattler_build
if {fails}:
    sys.exit("ValueError: no such thing")
recipe = pathlib.Path(sys.argv[1])
assert recipe.name == "meta.yaml", recipe
data = json.loads((recipe.parent / "package.json").read_text())
stage = recipe.parent / "../stage"
subprocess.run(["/bin/chmod", "-R", "g+w", stage], check=True)
rattler_build.assemble_package(
    name=data["name"],
    version=data["version"],
    target_platform=data["subdir"],
    build_string=data["build_string"],
    build_number=data["build_number"],
    output_dir=pathlib.Path(sys.argv[sys.argv.index("--output-folder") + 1]) / data["subdir"],
    files_dir=stage,
    homepage=data["home"],
    license=data["license"],
    description=f"built at {{datetime.datetime.now()}}",
    depends=data["depends"],
    constrains=data["constrains"],
    noarch="python",
    detect_prefix=False,
)
"""


@pytest.fixture
def conda_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(*, fails: bool = False) -> None:
        path = tmp_path / "bin" / "conda-build"
        path.parent.mkdir()
        path.write_text(CONDA_BUILD.format(python=sys.executable, fails=fails))
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(path.parent))

    return install


def test_the_path_makes_no_difference(fake: FakeTorch, tmp_path: Path, conda_build: Any) -> None:
    wheel = lms_wheel(fake, tmp_path / "wheels")
    conda_build()
    out = tmp_path / "dist"
    result = CliRunner().invoke(main, ["conda", "--wheel", str(wheel), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "made with rattler-build" in result.output


def test_conda_build_is_taken_on_request(fake: FakeTorch, tmp_path: Path, conda_build: Any) -> None:
    wheel = lms_wheel(fake, tmp_path / "wheels")
    conda_build()
    out = tmp_path / "dist"
    arguments = ["conda", "--wheel", str(wheel), "--packager", "conda-build"]
    result = CliRunner().invoke(main, [*arguments, "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "made with conda-build" in result.output
    (path,) = out.glob("*/*.conda")
    assert path.name == f"{STEM}.conda"
    # What it made is as reproducible as what rattler-build's library makes.
    time.sleep(1.1)
    again = tmp_path / "again"
    result = CliRunner().invoke(main, [*arguments, "--out", str(again)])
    assert result.exit_code == 0, result.output
    assert (again / path.relative_to(out)).read_bytes() == path.read_bytes()
    one = unpacked(path, tmp_path / "one")
    other = unpacked(package_of(wheel, tmp_path, name="other").path, tmp_path / "two")
    ours = index_of(other)
    assert ours.pop("track_features") == "pytorch-p-0"  # which the stand-in does not know
    assert index_of(one) == ours
    assert files_of(one) == files_of(other)


def files_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        path.relative_to(folder).as_posix(): (stat.S_IMODE(path.stat().st_mode), path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file() and path.relative_to(folder).parts[0] != "info"
    }


def test_a_failing_conda_build_leaves_nothing(
    fake: FakeTorch, tmp_path: Path, conda_build: Any
) -> None:
    wheel = lms_wheel(fake, tmp_path / "wheels")
    conda_build(fails=True)
    out = tmp_path / "dist"
    arguments = ["conda", "--wheel", str(wheel), "--packager", "conda-build"]
    result = CliRunner().invoke(main, [*arguments, "--out", str(out)])
    assert result.exit_code == PackagingError.exit_code
    assert "ValueError: no such thing" in result.output
    assert not list(out.rglob("*.*"))


def test_without_conda_build_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PackagerError, match="conda-build is not installed"):
        require_packager(Packager.CONDA_BUILD)


def test_without_the_extra_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rattler_build", None)
    with pytest.raises(PackagerError, match=r"-m pip install '\.\[conda\]'"):
        require("rattler_build")


def test_a_wheel_without_lms_is_refused(fake: FakeTorch, tmp_path: Path) -> None:
    wheel = lms_wheel(fake, tmp_path / "wheels", changes={"torch/cuda/lms/__init__.py": None})
    refuse(wheel, tmp_path, CondaError, "has no LMS")


def test_a_wheel_without_cuda_is_refused(fake: FakeTorch, tmp_path: Path) -> None:
    changes: dict[str, bytes | None] = {"torch/version.py": b"cuda: Optional[str] = None\n"}
    wheel = lms_wheel(fake, tmp_path / "wheels", changes=changes)
    refuse(wheel, tmp_path, CondaError, "without CUDA")


def test_a_wheel_for_another_architecture_than_it_says_is_refused(
    fake: FakeTorch, tmp_path: Path
) -> None:
    wheel = lms_wheel(
        fake, tmp_path / "wheels", architecture="aarch64", platform="manylinux_2_28_ppc64le"
    )
    refuse(wheel, tmp_path, CondaError, "is for aarch64, but the wheel is for ppc64le")


@pytest.mark.parametrize("platform", ["manylinux_2_28_riscv64", "win_amd64", "macosx_11_0_arm64"])
def test_a_platform_that_conda_does_not_have_is_refused(
    fake: FakeTorch, tmp_path: Path, platform: str
) -> None:
    wheel = lms_wheel(fake, tmp_path / "wheels", platform=platform)
    refuse(wheel, tmp_path, WrongPlatformError, "x86_64, aarch64, ppc64le")


def test_a_library_that_no_conda_package_has_is_named(fake: FakeTorch, tmp_path: Path) -> None:
    new = tmp_path / "libnew.so.3"
    shared_library(new, 'extern "C" int f() { return 0; }')
    data = shared_library(tmp_path / "libuser.so", "int u;", "-Wl,--no-as-needed", str(new))
    changes: dict[str, bytes | None] = {"torch/lib/libuser.so": for_machine(data, MACHINE)}
    wheel = lms_wheel(fake, tmp_path / "wheels", changes=changes)
    refuse(wheel, tmp_path, CondaError, "libnew.so.3")


def test_a_damaged_wheel_is_refused(fake: FakeTorch, tmp_path: Path) -> None:
    wheel = lms_wheel(fake, tmp_path / "wheels")
    data = bytearray(wheel.read_bytes())
    data[len(data) // 3] ^= 0xFF
    wheel.write_bytes(bytes(data))
    refuse(wheel, tmp_path, DamagedWheelError, "")


def test_files_outside_of_site_packages_are_refused(fake: FakeTorch, tmp_path: Path) -> None:
    data = f"{LMS_INFO.removesuffix('.dist-info')}.data/scripts/convert"
    wheel = lms_wheel(fake, tmp_path / "wheels", changes={data: b"#!python\n"})
    refuse(wheel, tmp_path, CondaError, "data/scripts/convert")


def refuse(wheel: Path, folder: Path, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind) as caught:
        package_of(wheel, folder)
    assert words in str(caught.value)
    assert not list((folder / "dist").rglob("*.conda*"))


def test_a_requirement_of_pep_440_becomes_condas() -> None:
    lines = ["typing-extensions>=4.10", "triton~=3.9.0", "sympy==1.13.*", "networkx", "a!=2,<3"]
    assert python_specs([Requirement(line) for line in lines]) == [
        "typing_extensions >=4.10",
        "triton >=3.9.0,<3.10a0",
        "sympy 1.13.*",
        "networkx",
        "a !=2,<3",
    ]
    with pytest.raises(CondaError, match="a===1"):
        python_specs([Requirement("a===1")])


@pytest.mark.parametrize(
    ("tag", "glibc"),
    [
        ("manylinux_2_28_x86_64", (2, 28)),
        ("manylinux1_x86_64", (2, 5)),
        ("manylinux2014_aarch64.manylinux_2_17_aarch64", (2, 17)),
        ("linux_ppc64le", ()),
    ],
)
def test_a_platform_tag_promises_a_glibc(tag: str, glibc: tuple[int, ...]) -> None:
    assert promised_glibc(tag) == glibc


def test_glibc_is_what_the_libraries_need_where_that_is_more(
    fake: FakeTorch, tmp_path: Path
) -> None:
    source = "#include <cmath>\ndouble f(double x) { return std::exp(x); }"  # GLIBC_2.29
    data = shared_library(tmp_path / "libc10.so", source)
    changes: dict[str, bytes | None] = {"torch/lib/libc10.so": data}
    wheel = lms_wheel(fake, tmp_path / "wheels", platform=f"manylinux1_{MACHINE}", changes=changes)
    (spec,) = [s for s in package_of(wheel, tmp_path).metadata.depends if s.startswith("__glibc")]
    assert spec == "__glibc >=2.29,<3.0.a0"


@pytest.mark.parametrize(
    "text", ["[console_scripts]\nx = torch\n", "[console_scripts]\n../x = a:b"]
)
def test_scripts_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(DamagedWheelError, match="entry_points"):
        console_scripts(text, "torch.whl")


def test_wheel_and_tag_exclude_each_other(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["conda", "v1.0.0", "--wheel", str(tmp_path / "x.whl")])
    assert result.exit_code == 2


def test_a_tag_is_built_first(
    fake: FakeTorch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def build(request: Any, _report: Any) -> Any:
        asked.append(request)
        path = lms_wheel(fake, request.out)
        return type("Result", (), {"path": path})

    monkeypatch.setattr("lmsbuild.wheel.graft.build_wheel", build)
    monkeypatch.setattr(package, "LEVEL", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out = tmp_path / "dist"
    arguments = ["conda", "--python", PYTHON, "--out", str(out), "--packager", "rattler-build"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert [request.python for request in asked] == [PYTHON]
    assert [path.name for path in out.rglob("*.conda")] == [f"{STEM}.conda"]
    # The wheel was a means, and is gone.
    assert not list(tmp_path.rglob("*.whl"))
    assert recipes_dir().joinpath("meta.yaml").is_file()


def test_what_cannot_be_written_is_said_before_it_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: object) -> Path:
        raise AssertionError("built")

    monkeypatch.setattr("lmsbuild.cli.commands.conda._build", build)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("")
    for arguments, message in (
        (["--recipe", str(tmp_path / "full")], "is not empty; name a new folder"),
        (["--out", str(tmp_path / "full/file/out")], "Not a directory"),
        (["--recipe", "new", "--out", "here"], "leave --packager and --out out"),
    ):
        result = CliRunner().invoke(main, ["conda", *arguments])
        assert result.exit_code not in (0, 70), result.output
        assert message in result.output
