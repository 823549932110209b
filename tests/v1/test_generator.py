"""ATen's code generator on the patched tree: what it writes, and that it compiles."""

from __future__ import annotations

import filecmp
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from build import Build, run

from lmsbuild.checkout.state import Outcome
from lmsbuild.patchset.series import load_series
from lmsbuild.registry import Tag

sys.path.append(str(Path(__file__).parents[2] / "ci"))

from syntax import GENERATOR_INPUTS, generate

Compile = Callable[[Path], str]

# Of each kind one: for CUDA, for sparse tensors on it, for all backends, and without CUDA.
FILES = ("CUDAType", "SparseCUDAType", "TypeDefault", "SparseCPUType")
_DEFINITION = re.compile(r"^\S.*? (?:\w+::)?(\w+)\([^;]*\)(?: const)? \{$", re.MULTILINE)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_GUARD = re.compile(r'const c10::lms::Operator lms_operator\("aten::(\w+)"((?:, \w+)*)\);')


@pytest.fixture(scope="module")
def generated(python: str, patched: Outcome, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(python, patched.directory, tmp_path_factory.mktemp("patched"))


@pytest.fixture(scope="module")
def plain(
    python: str, tag: Tag, patched: Outcome, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """What the generator of the untouched tag writes."""
    tree = tmp_path_factory.mktemp("plain") / "tree"
    tree.mkdir()
    base = f"HEAD~{len(load_series(tag).mails)}"
    archive = subprocess.Popen(
        ["git", "archive", base, "aten", "tools"], cwd=patched.directory, stdout=subprocess.PIPE
    )
    subprocess.run(["tar", "-x", "-C", tree], stdin=archive.stdout, check=True)
    assert archive.wait() == 0
    return generate(python, tree, tree.parent)


@pytest.fixture(scope="module")
def include(python: str) -> Path:
    """The official wheel's headers."""
    code = "import os, torch; print(os.path.join(os.path.dirname(torch.__file__), 'include'))"
    return Path(run(python, "-c", code).strip())


def test_no_interface_changes(generated: Path, plain: Path) -> None:
    headers = sorted(path.relative_to(plain) for path in plain.rglob("*.h"))
    assert len(headers) > 10
    for header in [*headers, Path("Declarations.yaml")]:
        assert filecmp.cmp(plain / header, generated / header, shallow=False), header


def test_the_sources_are_the_wheels(plain: Path, include: Path) -> None:
    """Whatever gave the sources: the generator makes the official wheel's headers of them."""
    for header in plain.rglob("*.h"):
        # 1.3 makes these beside the ones that are checked in.
        name = header.relative_to(plain).as_posix().replace("core_tmp/", "core/")
        assert filecmp.cmp(header, include / "ATen" / name, shallow=False), name


def test_only_guards_are_added(generated: Path, plain: Path) -> None:
    for before in plain.glob("*.cpp"):
        text = (generated / before.name).read_text()
        without = [line for line in text.splitlines() if not _GUARD.fullmatch(line.strip())]
        assert without == before.read_text().splitlines(), before.name


@pytest.mark.parametrize("name", FILES)
def test_every_operator_is_guarded(generated: Path, name: str) -> None:
    text = (generated / f"{name}.cpp").read_text()
    bodies = re.split(_DEFINITION, re.sub(_COMMENT, "", text))[1:]
    operators = 0
    for function, body in zip(bodies[::2], bodies[1::2], strict=True):
        guards = _GUARD.findall(body)
        if "at::native::" not in body:
            # 1.1 has more: what only operators call, and what a backend has not.
            assert guards == [], function
            continue
        assert len(guards) == 1, function
        operators += 1
        # Later releases append the overload's name.
        assert function == guards[0][0] or function.startswith(f"{guards[0][0]}_")
    assert operators > 30


def test_the_guards_know_what_is_written(patched: Outcome, generated: Path) -> None:
    """As the schemas have it: an argument that is marked as written, and no other."""
    text = "".join(path.read_text() for path in generated.glob("*.cpp"))
    guards: dict[str, set[tuple[str, ...]]] = {}
    for name, written in _GUARD.findall(text):
        guards.setdefault(name, set()).add(tuple(sorted(written.strip(", ").split(", "))))
    schemas = (patched.directory / GENERATOR_INPUTS[-1]).read_text()
    compared = 0
    for name, overload, arguments in re.findall(r"- func: (\w+)(?:\.(\w+))?\((.*)\) ->", schemas):
        marked = tuple(sorted(re.findall(r"\(\w!\)\S* (\w+)", arguments))) or ("",)
        for function in {name, f"{name}_out"} & guards.keys():
            if marked in guards[function]:
                compared += 1
                break
        else:
            assert name in METADATA or name not in guards, f"{name}.{overload}: {marked}"
    assert compared > 900


# Their argument is marked, and keeps its bytes; the generator makes it a constant.
METADATA = {"set_data", "retain_grad"}


@pytest.fixture(scope="module")
def compile_aten(
    patched: Outcome,
    generated: Path,
    include: Path,
    cuda: tuple[Path, ...],
    tmp_path_factory: pytest.TempPathFactory,
) -> Compile:
    """Compiles against the patched c10, and the wheel's headers for the rest; returns symbols."""
    shim = Path(__file__).parent / "cuda_shim"
    output = tmp_path_factory.mktemp("objects") / "object.o"
    api = include / "torch" / "csrc" / "api" / "include"
    # What CMake would generate for the whole of PyTorch is in the wheel, which in 1.1 lacks others.
    folders = [generated.parent, patched.directory, include, include / "TH", api, *cuda, shim]
    folders += [patched.directory / "aten" / "src"]
    flags = ["-w", "-O0", "-DNDEBUG", "-D_GLIBCXX_USE_CXX11_ABI=0"]
    flags += [Build(patched.directory, cuda, output.parent).standard()]
    flags += [f"-I{folder}" for folder in folders]

    def compile_one(source: Path) -> str:
        run("g++", *flags, "-c", source, "-o", output)
        return run("nm", "-C", output)

    return compile_one


@pytest.mark.parametrize("name", FILES)
def test_it_compiles(generated: Path, compile_aten: Compile, name: str) -> None:
    assert "U c10::lms::hooks" in compile_aten(generated / f"{name}.cpp")


def test_the_other_files_that_the_hooks_change_compile(
    tag: Tag, patched: Outcome, compile_aten: Compile
) -> None:
    """Those of c10 are built whole by test_swap.py."""
    changed = {file.path for mail in load_series(tag).mails[1:] for file in mail.files}
    others = [path for path in changed if path.endswith(".cpp") and not path.startswith("c10/")]
    assert others
    for path in others:
        assert "U c10::lms::hooks" in compile_aten(patched.directory / path), path
