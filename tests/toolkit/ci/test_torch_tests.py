"""ci/torch_tests.py: which tags are tested, and what is said about them."""

from __future__ import annotations

import dataclasses
import zipfile
from pathlib import Path

import pytest

from lmsbuild.errors import SuiteError
from lmsbuild.registry import Registry, Tag
from toolkit.helpers.ci_script import load
from toolkit.helpers.fake_upstream import make_tag

torch_tests = load("torch_tests")
OLD, SEEN, NEXT, NEW = (
    make_tag("v1.0.0"),
    make_tag("v1.1.0", gpu="X1"),
    make_tag("v1.2.0"),
    make_tag("v1.3.0"),
)
REGISTRY = Registry(upstream_url="", tags=(OLD, SEEN, NEXT, NEW))
# One test passed, one failed, one could not be set up, two were skipped.
REPORT = """\
<?xml version="1.0" encoding="utf-8"?>
<testsuites name="pytest tests">
<testsuite name="pytest" errors="1" failures="1" skipped="2" tests="5" time="0.1"></testsuite>
</testsuites>
"""


METADATA = """\
Name: torch
Requires-Dist: sympy>=1.13.3
Requires-Dist: triton==3.6.0; platform_system == "Linux"

Requires-Dist: triton==1.0
"""


def write_wheel(path: Path, metadata: str = METADATA) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("torch/lib/library.so", bytes(2_000_000))
        archive.writestr("torch-1.0.dist-info/METADATA", metadata)


@pytest.fixture(autouse=True)
def python_of_the_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_tests, "PYTHON", "3.12")
    monkeypatch.setattr(torch_tests, "load_registry", lambda: REGISTRY)


def names(tags: list[Tag]) -> list[str]:
    return [tag.name for tag in tags]


def test_ci_takes_the_ends_and_the_default_last() -> None:
    assert names(torch_tests.chosen(REGISTRY, [], matrix=False)) == ["v1.0.0", "v1.3.0", "v1.1.0"]


def test_the_matrix_takes_all() -> None:
    tags = names(torch_tests.chosen(REGISTRY, [], matrix=True))
    assert sorted(tags) == ["v1.0.0", "v1.1.0", "v1.2.0", "v1.3.0"]


def test_a_tag_without_a_wheel_is_named_and_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    newer = dataclasses.replace(NEW, pythons=("3.13",))
    source = dataclasses.replace(OLD, strategies=("source",))
    registry = Registry(upstream_url="", tags=(source, SEEN, NEXT, newer))
    assert names(torch_tests.chosen(registry, ["v1.3.0", "v1.0.0"], matrix=False)) == []
    assert capsys.readouterr().out.count("has no wheel for Python 3.12") == 2
    # The ends are those that can be tested.
    assert names(torch_tests.chosen(registry, [], matrix=False)) == ["v1.2.0", "v1.1.0"]


@pytest.fixture
def tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """Wheels and suites that were tested. v1.2.0's wheel is not built; a test of v1.3.0 fails."""
    calls: list[tuple[str, list[str]]] = []

    class Result:
        returncode = 0

    def build(command: list[str]) -> Result:
        result = Result()
        name, folder = command[4], Path(command[6])
        folder.mkdir(parents=True, exist_ok=True)
        if name == "v1.2.0":
            result.returncode = 36
        else:
            write_wheel(folder / f"torch-{name}.whl")
        return result

    def run_suite(wheel: Path, *arguments: object) -> None:
        suites = [list(suite) for suite in arguments[4]]  # type: ignore[call-overload]
        calls.append((wheel.name, [suite[0] for suite in suites]))
        for suite in suites[:1]:
            Path(suite[-1].removeprefix("--junitxml=")).write_text(REPORT)
        if "v1.3.0" in wheel.name:
            raise SuiteError("tests fail")

    monkeypatch.setattr(torch_tests, "ROOT", tmp_path)
    monkeypatch.setattr(torch_tests.subprocess, "run", build)
    monkeypatch.setattr(torch_tests, "run_suite", run_suite)
    return calls


def test_the_matrix_goes_on_and_writes_all_it_knows(
    tested: list[tuple[str, list[str]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "some" / "table.md"
    assert torch_tests.main(["--matrix", str(path)]) == 1
    rows = [line.strip("| ").split(" | ") for line in path.read_text().splitlines()]
    assert [[*row[:2], *row[3:6], row[7]] for row in rows[2:]] == [
        ["v1.0.0", "2 MB", "1", "2", "2", "ok"],
        ["v1.2.0", "-", "0", "0", "0", "the wheel of v1.2.0 cannot be built (lmsbuild says 36)"],
        ["v1.3.0", "2 MB", "1", "2", "2", "tests fail"],
        ["v1.1.0", "2 MB", "1", "2", "2", "ok"],
    ]
    out = capsys.readouterr().out
    assert path.read_text() in out
    assert out.endswith("failed: v1.2.0, v1.3.0\n")


EVERYTHING = ("torch-v1.1.0.whl", ["simcuda", "runtime", "suite"])
PARTS = [
    ("torch-v1.0.0.whl", ["runtime", "suite"]),
    ("torch-v1.3.0.whl", ["runtime", "suite"]),
]


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["v1.0.0"], 0, [("torch-v1.0.0.whl", ["simcuda", "runtime", "suite"])]),
        (["--default"], 0, [EVERYTHING]),
        (["--oldest"], 0, PARTS[:1]),
        (["--newest"], 1, PARTS[1:]),
        ([], 1, [*PARTS, EVERYTHING]),
    ],
)
def test_only_the_default_tag_gets_everything(
    tested: list[tuple[str, list[str]]], arguments: list[str], code: int, expected: object
) -> None:
    assert torch_tests.main(arguments) == code
    assert tested == expected


@pytest.mark.parametrize("option", [["--matrix", "x.md"], ["--default"], ["--oldest"]])
def test_names_and_matrix_exclude_each_other(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        torch_tests.main(["v1.0.0", *option])
    assert "name tags, or ask for the matrix" in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, 1])
def test_a_sanitizers_report_is_a_failure(
    code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands = []

    class Result:
        returncode = code

    def run(command: list[str]) -> Result:
        commands.append(command[2:5])
        return Result()

    monkeypatch.setattr(torch_tests.subprocess, "run", run)
    if code:
        with pytest.raises(SuiteError, match="the address sanitizer"):
            torch_tests.sanitize(tmp_path)
    else:
        torch_tests.sanitize(tmp_path)
        assert [command[:2] for command in commands] == [
            [str(tmp_path), "address"],
            [str(tmp_path), "thread"],
        ]
        assert all(Path(command[2]).is_file() for command in commands)


def test_examples_run_on_2_x_with_its_torchvision(
    tested: list[tuple[str, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tag = make_tag("v2.11.0")
    registry = Registry(upstream_url="", tags=(SEEN, tag))
    monkeypatch.setattr(torch_tests, "load_registry", lambda: registry)
    assert torch_tests.main([tag.name, SEEN.name]) == 0
    assert [runs for _, runs in tested] == [
        ["simcuda", "runtime", "suite", "examples"],
        ["simcuda", "runtime", "suite"],
    ]
    assert torch_tests.companions(tag) == (*torch_tests.COMPANIONS, "torchvision==0.26.*")


def test_commands_run_on_the_default_tag(
    tested: list[tuple[str, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(upstream_url="", tags=(SEEN, make_tag("v2.11.0", gpu="X1")))
    monkeypatch.setattr(torch_tests, "load_registry", lambda: registry)
    assert torch_tests.main(["--default"]) == 0
    assert [runs for _, runs in tested] == [["simcuda", "runtime", "suite", "examples", "commands"]]


@pytest.mark.parametrize("code", [0, 1])
def test_companions_come_without_their_requirements(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = []

    class Result:
        returncode = code

    def run(command: list[str]) -> Result:
        commands.append(command)
        return Result()

    monkeypatch.setattr(torch_tests.subprocess, "run", run)
    if code:
        with pytest.raises(SuiteError, match="what the examples need does not install"):
            torch_tests.install_companions(Path("python"), make_tag("v2.11.0"))
    else:
        torch_tests.install_companions(Path("python"), make_tag("v2.11.0"))
    ((python, *options),) = commands
    assert python == "python"
    assert options[options.index("--no-deps") + 1 :] == [
        *torch_tests.COMPANIONS,
        "torchvision==0.26.*",
    ]


def test_the_triton_that_a_wheel_requires(tmp_path: Path) -> None:
    write_wheel(tmp_path / "torch.whl")
    assert torch_tests.triton(tmp_path / "torch.whl") == ("triton==3.6.0",)
    write_wheel(tmp_path / "torch.whl", "Name: torch\n\n")
    assert torch_tests.triton(tmp_path / "torch.whl") == ()
