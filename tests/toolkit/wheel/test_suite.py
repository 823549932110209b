"""`lmsbuild test`: the environment that the suite gets."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import lmsbuild.cli.commands.test as test_command
from lmsbuild.cli.main import main
from lmsbuild.errors import DamagedWheelError, ForeignWheelError, SuiteError, WrongPythonError
from lmsbuild.wheel import markers, suite
from lmsbuild.wheel.suite import Device, find_interpreter, plain_requirements, run_suite, uses_gpu
from toolkit.helpers.fake_torch import (
    MACHINE,
    PYTHON,
    WHEEL_NAME,
    FakeTorch,
    Wheel,
)
from toolkit.helpers.fake_torch import fake as fake

# Stands in for pytest: says how it was called.
PYTEST = """\
import importlib.util, json, os, pathlib, sys
suite = pathlib.Path(sys.argv[1])
print("the suite's own output", flush=True)
(suite / "called.json").write_text(json.dumps({
    "arguments": sys.argv[2:],
    "device": os.environ.get("LMS_TEST_DEVICE"),
    "python": os.environ.get("LMS_TEST_PYTHON"),
    "pythonpath": os.environ.get("PYTHONPATH"),
    "inherited": [name for name in os.environ if name.startswith(("PYTORCH_", "PYTEST_"))],
    "modules": [name for name in ("torch", "filelock", "nvidia_cudnn", "click")
                if importlib.util.find_spec(name)],
    "prefix": sys.prefix,
    "directory": os.getcwd(),
}))
sys.exit(int((suite / "exit").read_text()))
"""


def plain_wheel(name: str, module: str, members: dict[str, bytes]) -> tuple[str, Wheel]:
    info = f"{module}-9.0.dist-info"
    return f"{module}-9.0-py3-none-any.whl", Wheel(
        {
            **members,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.0\n".encode(),
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: fake\nRoot-Is-Purelib: true\n"
            b"Tag: py3-none-any\n",
        },
        info,
    )


@pytest.fixture
def tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tests folder with a suite, and an index with what it needs."""
    links = tmp_path / "links"
    links.mkdir()
    for name, module, member, text in (
        ("pytest", "pytest", "pytest/__main__.py", PYTEST),
        ("filelock", "filelock", "filelock/__init__.py", ""),
        ("nvidia-cudnn-cu13", "nvidia_cudnn_cu13", "nvidia_cudnn/__init__.py", ""),
    ):
        file, wheel = plain_wheel(name, module, {member: text.encode()})
        wheel.write(links / file)
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    suite = tmp_path / "tests" / "suite"
    suite.mkdir(parents=True)
    (suite / "exit").write_text("0")
    return suite.parent


def called(tests: Path) -> dict[str, object]:
    answer = json.loads((tests / "suite" / "called.json").read_text())
    assert isinstance(answer, dict)
    return answer


def test_the_simulated_device_gets_no_gpu_packages(
    fake: FakeTorch,
    tests: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("LMS_TEST_PYTHON", "/some/python")
    for name in [name for name in os.environ if name.startswith(("PYTORCH_", "PYTEST_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTORCH_LMS", "1")
    monkeypatch.setenv("PYTORCH_LMS_ORACLE", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-n auto")
    said: list[str] = []
    cache = tmp_path / "cache"
    run_suite(
        fake.base, Device.SIMULATED, tests, cache, said.append, [("suite", "-x", "-k", "gpt")]
    )
    call = called(tests)
    assert call["device"] == "sim"
    assert call["modules"] == ["torch", "filelock"]
    assert call["arguments"] == ["-p", "no:cacheprovider", "-x", "-k", "gpt"]
    assert call["pythonpath"] is None
    assert call["python"] is None
    assert call["inherited"] == ["PYTORCH_LMS_ORACLE"]
    assert str(call["prefix"]).startswith(str(cache))
    assert str(call["directory"]).startswith(str(cache))
    assert list(cache.iterdir()) == []  # the environment is gone
    assert any("simulated device" in line for line in said)
    assert "the suite's own output" in capfd.readouterr().out


def test_what_comes_first_has_the_environment(fake: FakeTorch, tests: Path, tmp_path: Path) -> None:
    seen: list[bool] = []

    def first(python: Path) -> None:
        seen.append(python.exists() and not (tests / "suite" / "called.json").exists())
        raise SuiteError("not good enough")

    with pytest.raises(SuiteError, match="not good enough"):
        run_suite(
            fake.base, Device.SIMULATED, tests, tmp_path / "cache", lambda _: None, first=first
        )
    assert seen == [True]
    assert list((tmp_path / "cache").iterdir()) == []


# A wheel that needs a GPU package which pip can find here.
GPU_METADATA = (
    "Metadata-Version: 2.1\nName: torch\nVersion: 9.1.0\nRequires-Dist: filelock\n"
    "Requires-Dist: nvidia-cudnn-cu13\n"
)


def test_a_gpu_gets_everything(fake: FakeTorch, tests: Path, tmp_path: Path) -> None:
    wheel = fake.wheel.copy()
    wheel.members[f"{wheel.dist_info}/METADATA"] = GPU_METADATA.encode()
    path = wheel.write(tmp_path / WHEEL_NAME)
    run_suite(path, Device.GPU, tests, tmp_path / "cache", lambda _: None)
    assert called(tests)["device"] == "gpu"
    assert called(tests)["modules"] == ["torch", "filelock", "nvidia_cudnn"]


def test_auto_takes_the_gpu_when_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for there in (True, False):
        monkeypatch.setattr(suite, "has_gpu", lambda there=there: there)
        assert uses_gpu(Device.AUTO) is there
        assert uses_gpu(Device.GPU)
        assert not uses_gpu(Device.SIMULATED)


def test_a_suite_that_runs_no_test_has_failed(fake: FakeTorch, tests: Path, tmp_path: Path) -> None:
    (tests / "suite" / "exit").write_text("5")
    with pytest.raises(SuiteError, match="pytest says 5"):
        run_suite(fake.base, Device.SIMULATED, tests, tmp_path / "cache", lambda _: None)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_requirement_that_cannot_be_had(fake: FakeTorch, tests: Path, tmp_path: Path) -> None:
    wheel = fake.wheel.copy()
    wheel.members[f"{wheel.dist_info}/METADATA"] = GPU_METADATA.replace(
        "filelock", "no-such-thing"
    ).encode()
    path = wheel.write(tmp_path / WHEEL_NAME)
    with pytest.raises(SuiteError, match=r"requirements do not install: ERROR: .*no-such-thing"):
        run_suite(path, Device.SIMULATED, tests, tmp_path / "cache", lambda _: None)


def test_requirements_without_gpu_packages(fake: FakeTorch, tmp_path: Path) -> None:
    lines = [
        "filelock",
        "typing-extensions (>=4.10.0)",
        'setuptools<82; python_version >= "3.0"',
        'tomli; python_version < "3.0"',
        'optree>=0.13; extra == "optree"',
        'nvidia-cudnn-cu13==9.19; platform_system == "Linux"',
        "cuda-toolkit[cudart]==13.0.2",
        "cuda-bindings<14,>=13.0.3",
        "triton==3.6.0",
    ]
    text = "Metadata-Version: 2.1\nName: torch\nVersion: 9.1.0\n"
    text += "".join(f"Requires-Dist: {line}\n" for line in lines)
    wheel = fake.wheel.copy()
    wheel.members[f"{wheel.dist_info}/METADATA"] = text.encode()
    path = wheel.write(tmp_path / WHEEL_NAME)
    assert plain_requirements(path) == ["filelock", "typing-extensions>=4.10.0", "setuptools<82"]
    wheel.members[f"{wheel.dist_info}/METADATA"] = (text + "Requires-Dist: ???\n").encode()
    with pytest.raises(DamagedWheelError, match=r"requires '\?\?\?'"):
        plain_requirements(wheel.write(path))


def test_markers_are_the_wheels(fake: FakeTorch, tmp_path: Path) -> None:
    assert markers.environment_of("torch-1.0-cp39-cp39-manylinux_2_28_ppc64le.whl") == (
        markers.environment("3.9", "ppc64le")
    )
    here = markers.environment_of("thing-1.0-py3-none-any.whl")
    assert here == markers.environment(PYTHON, MACHINE)


def test_interpreters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_interpreter(PYTHON) == sys.executable
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WrongPythonError, match=r"no python3\.99"):
        find_interpreter("3.99")
    other = tmp_path / "python3.99"
    other.write_text("#!/bin/sh\nexit 127\n")
    other.chmod(0o755)
    with pytest.raises(WrongPythonError, match=r"no python3\.99"):
        find_interpreter("3.99")
    other.write_text("#!/bin/sh\nexit 0\n")
    assert find_interpreter("3.99") == str(other)


def test_files_that_are_no_wheel(fake: FakeTorch, tests: Path, tmp_path: Path) -> None:
    with pytest.raises(ForeignWheelError):
        run_suite(tmp_path / "x.whl", Device.SIMULATED, tests, tmp_path / "c", lambda _: None)


def test_the_command(
    fake: FakeTorch, tests: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_command, "tests_dir", lambda: tests)
    monkeypatch.setattr(test_command, "default_cache", lambda: tmp_path / "cache")
    arguments = ["test", str(fake.base), "--device", "simulated", "-k", "gpt", "--", "-v"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert called(tests)["arguments"] == ["-p", "no:cacheprovider", "-k", "gpt", "-v"]
    (tests / "suite" / "exit").write_text("1")
    failed = CliRunner().invoke(main, arguments)
    assert failed.exit_code == SuiteError.exit_code
