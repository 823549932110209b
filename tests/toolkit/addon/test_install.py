"""The package torch_lms beside a torch of a few files: what `import torch` does then."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lmsbuild.addon.edits import derive
from lmsbuild.addon.metadata import ENTRY_POINTS
from lmsbuild.resources import data_folder, patches_dir

TORCH = """\
import os
__version__ = {version!r}
from . import cuda, utils, version
from .utils import export
def compiled_with_cxx11_abi():
    return {abi}
if os.getenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1":
    from importlib.metadata import entry_points
    for extension in entry_points(group="torch.backends"):
        extension.load()()
"""
CUDA = """\
from .memory import *
__all__ = ["memory_stats"]
def device_count():
    return {devices}
"""
FILES = {
    "torch/__init__.py": TORCH.format(version="9.1.0+cu130", abi=True),
    "torch/version.py": "cuda = '13.0'\n",
    "torch/cuda/__init__.py": CUDA.format(devices=1),
    "torch/cuda/memory.py": "def memory_stats():\n    stats = {}\n    return stats\n",
    "torch/utils.py": "def export(value):\n    return value\n",
    "torch/late/__init__.py": "class Code:\n    def __call__(self):\n        return 'called'\n",
    "torch/_dynamo/__init__.py": "",
    "torch/_dynamo/trace_rules.py": "names = []\nadd = names.append\n",
}
HOOKS = {
    "torch/cuda/__init__.py": (
        "from .memory import *\n",
        "from .memory import *\nfrom .lms import *\n",
    ),
    "torch/cuda/memory.py": ("    return stats\n", "    return dict(stats, lms=1)\n"),
    "torch/utils.py": (
        "    return value\n",
        "    return value\nexport = torch.cuda.lms.takes_address(export)\n",
    ),
    "torch/late/__init__.py": ("    def", "    @torch.cuda.lms.region\n    def"),
}
MODULES = {
    "torch/cuda/__init__.py": "torch.cuda",
    "torch/cuda/memory.py": "torch.cuda.memory",
    "torch/utils.py": "torch.utils",
    "torch/late/__init__.py": "torch.late",
}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH with torch, torch_lms and its entry point."""
    files = dict(FILES)
    files["torch/utils.py"] = "import torch\n" + files["torch/utils.py"]
    files["torch/late/__init__.py"] = "import torch\n" + files["torch/late/__init__.py"]
    modules = []
    for path, (old, new) in HOOKS.items():
        changed = files[path].replace(old, new)
        modules.append([MODULES[path], derive(path, files[path].encode(), changed.encode())])
    release = {"cuda": "13.0", "cxx11_abi": 1, "modules": modules}
    files["torch_lms/package.json"] = json.dumps({"extends": ["torch.cuda"]})
    for version in ("9.1.0", "8.10.0"):
        files[f"torch_lms/releases/{version}/release.json"] = json.dumps(release)
    files["torch_lms-1.dist-info/METADATA"] = "Name: torch-lms\nVersion: 1\n"
    files["torch_lms-1.dist-info/entry_points.txt"] = ENTRY_POINTS
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    shutil.copytree(data_folder("torch_lms"), tmp_path / "torch_lms", dirs_exist_ok=True)
    shutil.copytree(patches_dir() / "runtime/torch/cuda", tmp_path / "torch_lms/runtime/cuda")
    return tmp_path


def change(site: Path, path: str, old: str, new: str) -> None:
    text = (site / path).read_text()
    assert old in text
    (site / path).write_text(text.replace(old, new))


def python(site: Path, code: str, *options: str, **environment: str) -> str:
    """Output and errors of code that succeeds. Each line of it is a statement."""
    result = subprocess.run(
        [sys.executable, *options, "-c", code],
        env={**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout.strip()


def test_import_torch_is_enough(site: Path) -> None:
    code = (
        "import torch; print(torch.cuda.set_enabled_lms.__module__, torch.cuda.lms.__name__,"
        " torch.cuda.memory_stats(), torch.cuda.lms._path())"
    )
    library = site / "torch_lms/releases/9.1.0/libtorch_lms.so"
    said = python(site, code)
    assert said == f"torch.cuda.lms torch.cuda.lms {{'lms': 1}} {library}"


def test_the_modules_are_imported_like_torchs_own(site: Path) -> None:
    code = (
        "from torch.cuda.lms_report import planner; import torch, pickle;"
        "from torch.cuda.memory import set_enabled_lms as first;"
        "print(planner.__name__, first is torch.cuda.set_enabled_lms,"
        " pickle.loads(pickle.dumps(torch.cuda.lms.step)) is torch.cuda.lms.step)"
    )
    assert python(site, code) == "torch.cuda.lms_report.planner True True"


def test_what_torch_has_imported_by_name_changes_too(site: Path) -> None:
    code = "import torch; print(torch.export is torch.utils.export, torch.export.__wrapped__(3))"
    assert python(site, code) == "True 3"


def test_a_module_that_is_imported_later_gets_its_edits(site: Path) -> None:
    code = (
        "import sys, torch; assert 'torch.late' not in sys.modules\n"
        "from torch.late import Code; print(Code.__call__.__wrapped__(None))"
    )
    assert python(site, code) == "called"


def test_dynamo_traces_no_code_of_lms(site: Path) -> None:
    code = "import torch, torch._dynamo.trace_rules as rules; print(rules.names)"
    assert python(site, code) == "['torch_lms']"


def test_another_package_may_have_imported_the_module_first(site: Path) -> None:
    change(site, "torch/__init__.py", "if os", "from . import late\nif os")
    code = "import torch; print(torch.late.Code.__call__.__wrapped__(None))"
    assert python(site, code) == "called"


def test_without_loading_of_packages_it_is_imported_by_name(site: Path) -> None:
    code = "import torch; print(hasattr(torch.cuda, 'set_enabled_lms')); import torch_lms;"
    code += "print(torch.cuda.get_enabled_lms(), torch.cuda.memory_stats())"
    said = python(site, code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert said == "False\nFalse {'lms': 1}"


def test_it_may_be_imported_before_torch(site: Path) -> None:
    code = "import sys, torch_lms; print('torch' in sys.modules);"
    code += "import torch; print(torch.cuda.memory_stats())"
    assert python(site, code) == "False\n{'lms': 1}"
    code = "import torch_lms; torch_lms.autoload(); import torch; print(torch.cuda.memory_stats())"
    assert python(site, code, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "{'lms': 1}"


def test_a_torch_that_has_lms_stays_as_it_is(site: Path) -> None:
    change(site, "torch/cuda/__init__.py", "__all__", "set_enabled_lms = print\n__all__")
    code = "import sys, torch; torch.cuda.set_enabled_lms('its own'); print(torch.cuda.__path__,"
    code += "torch.cuda.memory_stats(), 'torch.cuda.lms' in sys.modules)"
    assert python(site, code) == f"its own\n['{site / 'torch/cuda'}'] {{}} False"


USE = (
    "import torch; print('imported')\n"
    "torch.cuda.set_limit_lms(7)\n"
    "torch.cuda.set_enabled_lms(True)\n"
    "print(torch.cuda.get_limit_lms(), torch.cuda.lms.explain(), torch.cuda.memory_stats())"
)


@pytest.mark.parametrize(
    ("path", "old", "new", "why"),
    [
        (
            "torch/__init__.py",
            "9.1.0+cu130",
            "9.2.0",
            "torch-lms has no library for PyTorch 9.2.0. It has one for 8.10.0, 9.1.0. Install one"
            " of these, or a newer torch-lms.",
        ),
        (
            "torch/version.py",
            "'13.0'",
            "None",
            "PyTorch 9.1.0+cu130 is a build without CUDA",
        ),
        (
            "torch/version.py",
            "13.0",
            "12.8",
            "PyTorch 9.1.0+cu130 is built for CUDA 12.8, and torch-lms has a library for CUDA 13.0."
            " Install a build of PyTorch 9.1.0 for CUDA 13, such as that on PyPI.",
        ),
        (
            "torch/__init__.py",
            "return True",
            "return False",
            "PyTorch 9.1.0+cu130 is built with another C++ ABI than the library of torch-lms."
            " Install PyTorch 9.1.0 from PyPI.",
        ),
        (
            "torch/cuda/memory.py",
            "stats = {}",
            "stats = dict()",
            "memory_stats of torch.cuda.memory is not PyTorch's own",
        ),
    ],
)
def test_a_torch_that_it_does_not_know(site: Path, path: str, old: str, new: str, why: str) -> None:
    change(site, path, old, new)
    # The same place in a program warns once anyway; here each call would.
    said = python(site, USE, "-Walways").splitlines()
    assert said == [
        "imported",
        f"<string>:2: UserWarning: LMS has no effect: {why}",
        f"7 LMS has no effect: {why} {{}}",
    ]


def test_a_late_module_that_differs_is_reported(site: Path) -> None:
    change(site, "torch/late/__init__.py", "__call__", "call")
    said = python(site, "import torch, torch.late; print(torch.late.Code().call())")
    assert "torch-lms: torch.late has no Code.__call__. Do not use this module while LMS" in said
    assert said.endswith("called")


def test_a_damaged_package_does_not_keep_torch_from_working(site: Path) -> None:
    (site / "torch_lms/package.json").write_text("{")
    said = python(site, "import torch; print(torch.cuda.memory_stats())")
    assert "UserWarning: torch-lms cannot be used with this PyTorch, which works without" in said
    assert "JSONDecodeError" in said
    assert said.endswith("{}")


def test_threads_may_import_both_at_once(site: Path) -> None:
    # Long enough for the threads to meet.
    change(site, "torch/__init__.py", "from .utils", "import time; time.sleep(0.2)\nfrom .utils")
    code = (
        "import threading\n"
        "call = 'import torch_lms; torch_lms.autoload()'\n"
        "work = ['import torch', 'import torch_lms', call] * 3\n"
        "threads = [threading.Thread(target=exec, args=(line, {})) for line in work]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "import torch; print(torch.cuda.memory_stats())"
    )
    assert python(site, code) == "{'lms': 1}"


LAZY_CALL = """\
def _lazy_call(function):
    import sys
    print(function.__name__, sys.modules["torch.cuda.lms"]._library_path)
"""


def test_the_environment_turns_lms_on_once_the_library_is_known(site: Path) -> None:
    change(site, "torch/cuda/__init__.py", "def device", f"{LAZY_CALL}def device")
    code = "import torch; print(torch.cuda.get_enabled_lms(), torch.cuda.get_limit_lms())"
    said = python(site, code, PYTORCH_LMS="1", PYTORCH_LMS_LIMIT="12G")
    library = site / "torch_lms/releases/9.1.0/libtorch_lms.so"
    assert said == f"_turn_on {library}\nTrue 12000000000"


def test_the_environment_asks_for_lms_where_there_is_none(site: Path) -> None:
    change(site, "torch/__init__.py", "9.1.0+cu130", "9.2.0")
    change(site, "torch/cuda/__init__.py", "def device", f"{LAZY_CALL}def device")
    said = python(site, "import torch; print('runs')", PYTORCH_LMS="1")
    assert said.count("UserWarning: LMS has no effect: torch-lms has no library for PyTorch 9") == 1
    assert said.endswith("runs")


def test_torch_can_be_imported_where_warnings_are_errors(site: Path) -> None:
    change(site, "torch/__init__.py", "9.1.0+cu130", "9.2.0")
    change(site, "torch/cuda/__init__.py", "def device", f"{LAZY_CALL}def device")
    said = python(site, "import torch; print('runs')", "-Werror", PYTORCH_LMS="1")
    assert "torch-lms: LMS has no effect: torch-lms has no library for PyTorch 9.2.0" in said
    assert "Reinstall" not in said
    assert "runs" in said
    # The program's own call of LMS is an error there, as any other warning.
    use = "import torch\ntry: torch.cuda.set_enabled_lms(True)\nexcept UserWarning: print('raised')"
    assert python(site, use, "-Werror") == "raised"


def test_a_damaged_package_where_warnings_are_errors(site: Path) -> None:
    (site / "torch_lms/package.json").write_text("{")
    said = python(site, "import torch; print(torch.cuda.memory_stats())", "-Werror")
    assert "torch-lms cannot be used with this PyTorch, which works without it" in said
    assert "{}" in said.splitlines()


def test_the_oracle_says_that_it_cannot_watch(site: Path) -> None:
    change(site, "torch/__init__.py", "9.1.0+cu130", "9.2.0")
    change(site, "torch/cuda/__init__.py", "def device", "def _lazy_call(f):\n    f()\ndef device")
    said = python(site, "import torch; print('runs')", PYTORCH_LMS_ORACLE="1")
    assert said.endswith("runs")
