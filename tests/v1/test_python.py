"""The patched Python files with the official wheel for the rest, on the release's own Python.

There is no CUDA device: what needs one has functions of torch._C replaced.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from build import run

from lmsbuild.checkout.state import Outcome
from lmsbuild.patchset.series import load_series
from lmsbuild.registry import Tag


@pytest.fixture(scope="module")
def site(python: str, patched: Outcome, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH: the installed torch, with the patched torch/cuda."""
    code = "import os, torch; print(os.path.dirname(torch.__file__))"
    installed = Path(run(python, "-c", code).strip())
    folder = tmp_path_factory.mktemp("site")
    (folder / "torch").mkdir()
    for path in installed.iterdir():
        if path.name not in ("cuda", "__pycache__"):
            (folder / "torch" / path.name).symlink_to(path)
    shutil.copytree(
        patched.directory / "torch" / "cuda", folder / "torch" / "cuda", dirs_exist_ok=True
    )
    return folder


def evaluate(python: str, site: Path, code: str) -> object:
    """What the program leaves in `result`, in a new process."""
    program = f"import json, torch\n{code}\nprint(json.dumps(result))"
    done = subprocess.run(
        [python, "-W", "error", "-c", program],
        env={**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_official_files_are_the_tags(python: str, site: Path, tag: Tag) -> None:
    """So the wheel stands in for a build of this checkout."""
    version = evaluate(
        python, site, "result = [torch.version.git_version, torch.cuda.lms.__file__]"
    )
    assert version == [tag.git_commit, str(site / "torch/cuda/lms/__init__.py")]


def test_syntax(tag: Tag, patched: Outcome) -> None:
    """Of every Python file that is new or changed, for the oldest Python of the release."""
    oldest = tuple(int(part) for part in tag.pythons[0].split("."))
    names = {file.path for mail in load_series(tag).mails for file in mail.files}
    python = sorted(name for name in names if name.endswith(".py"))
    assert "torch/cuda/lms/__init__.py" in python
    assert "test/test_cuda.py" in python
    for name in python:
        text = (patched.directory / name).read_text("utf-8")
        ast.parse(text, name, feature_version=oldest)


def test_a_machine_without_a_device_remembers_the_settings(python: str, site: Path) -> None:
    code = """
result = []
result.append(torch.cuda.get_enabled_lms())
torch.cuda.set_enabled_lms(True)
torch.cuda.set_limit_lms(1 << 30)
torch.cuda.set_size_lms(4096)
torch.cuda.set_host_limit_lms(1 << 31)
result += [torch.cuda.get_enabled_lms(), torch.cuda.get_limit_lms(), torch.cuda.get_size_lms()]
result += [torch.cuda.get_host_limit_lms(), torch.cuda.reclaim_inactive()]
tensor = torch.arange(6.0, requires_grad=True)
(tensor * 2).sum().backward()
result += [tensor.grad.tolist(), tensor.data_ptr() > 0, torch.cuda.lms.is_resident(tensor)]
with torch.cuda.lms.resident(tensor, torch.nn.Linear(2, 2)):
    result.append(torch.cuda.lms.stats())
with torch.cuda.lms.enabled(False):
    result.append(torch.cuda.get_enabled_lms())
result.append(torch.cuda.get_enabled_lms())
"""
    assert evaluate(python, site, code) == [
        False,
        True,
        1 << 30,
        4096,
        1 << 31,
        0,
        [2.0] * 6,
        True,
        True,
        {},
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("set_limit_lms(-1)", "ValueError"),
        ("set_limit_lms(1.5)", "TypeError"),
        ("set_size_lms(True)", "TypeError"),
        ("set_host_limit_lms('1')", "TypeError"),
    ],
)
def test_sizes_that_are_none(python: str, site: Path, call: str, error: str) -> None:
    code = f"""
try:
    torch.cuda.{call}
except Exception as error:
    result = type(error).__name__
"""
    assert evaluate(python, site, code) == error


# What torch._C says where there is a device; the numbers tell the keys apart.
_DEVICE = """
from collections import OrderedDict
KEYS = ("allocation", "segment", "active", "inactive_split", "allocated_bytes",
        "reserved_bytes", "active_bytes", "inactive_split_bytes")
def native(device):
    stats = {key: {pool: {what: 7 for what in ("current", "peak", "allocated", "freed")}
                   for pool in ("all", "small_pool", "large_pool")} for key in KEYS}
    stats.update(num_alloc_retries=1, num_ooms=2)
    return stats
calls = []
torch._C._cuda_memoryStats = native
for name in ("memoryAllocated", "maxMemoryAllocated", "memoryCached", "maxMemoryCached"):
    setattr(torch._C, "_cuda_" + name, lambda device: 7)
torch._C._cuda_resetPeakMemoryStats = lambda device: calls.append("peak")
torch._C._cuda_resetAccumulatedMemoryStats = lambda device: calls.append("accumulated")
torch.cuda.current_device = lambda: 0
"""


def test_memory_stats_has_the_keys(python: str, site: Path) -> None:
    code = f"""{_DEVICE}
stats = torch.cuda.memory_stats()
pytorch = [stats[name + ".all." + what]
           for name in ("allocated_bytes", "reserved_bytes") for what in ("current", "peak")]
result = [list(stats), pytorch, stats["reclaimed"]]
"""
    keys, pytorch, reclaimed = evaluate(python, site, code)  # type: ignore[misc]
    assert keys == sorted(keys)
    expected = {"reclaimed", "reclaimed_bytes"}
    for pool in ("all", "small_pool", "large_pool"):
        for what in ("current", "peak", "allocated", "freed"):
            expected |= {f"pinned.{pool}.{what}", f"pinned_bytes.{pool}.{what}"}
    sources = ("freelist", "cudamalloc", "reclaim_one", "reclaim_fragments", "reclaim_all")
    expected |= {f"alloc_distribution.{source}" for source in (*sources, "cudamalloc_retry")}
    assert expected <= set(keys)
    assert (pytorch, reclaimed) == ([7] * 4, 0)


def test_pinned_is_all_that_is_allocated_while_lms_is_off(python: str, site: Path) -> None:
    code = f"""{_DEVICE}
result = torch.cuda.memory_stats()["pinned_bytes.all.current"]
"""
    assert evaluate(python, site, code) == 7


def test_functions_have_both_their_homes(summarizes: None, python: str, site: Path) -> None:
    code = """
names = [name for name in dir(torch.cuda.lms) if name in torch.cuda.lms.__all__]
result = [name for name in names if getattr(torch.cuda.memory, name) is getattr(torch.cuda, name)]
"""
    both = evaluate(python, site, code)
    settings = {f"{verb}_{what}_lms" for verb in ("get", "set") for what in ("enabled", "limit")}
    assert {*settings, "get_size_lms", "set_size_lms", "reclaim_inactive"} <= set(both)  # type: ignore[call-overload]


@pytest.fixture
def summarizes(patched: Outcome) -> None:
    if not (patched.directory / "torch" / "cuda" / "memory.py").exists():
        pytest.skip("this release has neither memory_summary() nor resets of memory_stats()")


def test_resets_and_a_summary_without_lms(summarizes: None, python: str, site: Path) -> None:
    code = f"""{_DEVICE}
torch.cuda.reset_peak_memory_stats()
torch.cuda.reset_accumulated_memory_stats()
result = [calls, "Large Model" in torch.cuda.memory_summary()]
"""
    calls, mentioned = evaluate(python, site, code)  # type: ignore[misc]
    assert calls == ["peak", "accumulated"]
    assert not mentioned, "memory_summary() speaks of LMS although it was never on"


# A library with the runtime's C interface, as far as torch.cuda.lms uses it. It writes the calls
# down.
_LIBRARY = """
class Function:
    def __init__(self, name):
        self.name = name
    def __call__(self, *arguments):
        log.append(self.name[4:])
        return returns.get(self.name[4:], 0)
class Library:
    def __init__(self, path):
        opened.append(path)
    def __getattr__(self, name):
        function = Function(name)
        setattr(self, name, function)
        return function
log, opened, returns = [], [], {"abi_version": torch.cuda.lms._ABI_VERSION}
torch.cuda.lms.ctypes.CDLL = Library
torch.cuda.device_count = lambda: 1
"""


def test_the_runtime_is_in_libc10_cuda(python: str, site: Path) -> None:
    code = f"""{_LIBRARY}
torch.cuda.set_enabled_lms(True)
result = [opened, log]
"""
    opened, log = evaluate(python, site, code)  # type: ignore[misc]
    assert opened == [str(site / "torch/lib/libc10_cuda.so")]
    settings = ["set_limit", "set_size", "set_host_limit"]
    assert log == ["abi_version", *settings, "set_enabled"]


def test_a_build_without_the_runtime_says_so(python: str, site: Path) -> None:
    """The wheel's own libc10_cuda.so is one."""
    code = """
torch.cuda.device_count = lambda: 1
try:
    torch.cuda.set_enabled_lms(True)
except RuntimeError as error:
    result = [str(error), torch.cuda.get_enabled_lms()]
"""
    message, enabled = evaluate(python, site, code)  # type: ignore[misc]
    assert "libc10_cuda.so was built without it" in message
    assert enabled is False


def test_out_of_memory_is_what_this_release_raises(python: str, site: Path) -> None:
    code = f"""{_LIBRARY}
returns["last_error"] = b"CUDA out of memory. LMS"
torch.cuda.set_enabled_lms(True)
returns["set_enabled"] = 2
try:
    torch.cuda.set_enabled_lms(False)
except RuntimeError as error:
    result = [str(error), torch.cuda.get_enabled_lms()]
"""
    assert evaluate(python, site, code) == ["CUDA out of memory. LMS", True]


def test_what_reaches_storages_without_operators_is_a_region(python: str, site: Path) -> None:
    """On tensors of the host, which stand in for a device's."""
    code = f"""{_LIBRARY}
import io
for kind in list(torch._storage_classes):
    kind.is_cuda = True
    kind._share_cuda_ = getattr(kind, "_share_cuda_", len)
class Device:
    type = "cuda"
torch.FloatStorage.device = Device()
torch._C._broadcast_coalesced = lambda *_: log.append("broadcast")
torch.cuda.set_enabled_lms(True)
tensor = torch.ones(4)
storage = tensor.storage()
def during(function):
    del log[:]
    function()
    return list(log)
result = [
    during(lambda: storage.fill_(2)),
    during(lambda: storage[0]),
    during(lambda: torch.save(tensor, io.BytesIO())),
    during(lambda: tensor.data_ptr()),
    during(lambda: torch.cuda.comm.broadcast_coalesced([tensor], [0, 1])),
    tensor.tolist(),
]
"""
    region = ["begin_region", "end_region"]
    fill, item, save, pointer, broadcast, values = evaluate(python, site, code)  # type: ignore[misc]
    assert fill == region
    assert item == region
    assert "take_address" not in save, "saving a model would keep all of it on the GPU"
    assert "begin_region" in save
    assert pointer == []  # of the host
    assert broadcast == ["begin_region", "broadcast", "end_region"]  # of DataParallel's parameters
    assert values == [2.0] * 4


def test_addresses_that_leave(python: str, site: Path) -> None:
    code = f"""{_LIBRARY}
class Device:
    type = "cuda"
class Storage(object):
    device = Device()
    _cdata = 99
    def __len__(self):
        return 1
class Tensor(torch.Tensor):
    is_cuda = True
    layout = torch.strided
    def storage(self):
        return Storage()
torch.cuda.set_enabled_lms(True)
del log[:]
tensor = Tensor([1.0])
tensor.data_ptr()
result = [list(log)]
del log[:]
torch.cuda.lms.release(tensor)
torch.cuda.lms.is_resident(tensor)
with torch.cuda.lms.resident(tensor):
    pass
result.append(list(log))
"""
    assert evaluate(python, site, code) == [
        ["take_address"],
        ["release_address", "is_resident", "hold", "release"],
    ]


# A runtime's statistics, all 0.
_STATISTICS = """
names = [b"lms.page_in_bytes", b"lms.hook_bytes"]
names += [b"lms.over_limit_count", b"lms.over_limit_bytes_peak"]
names += [b"lms.page_in_count", b"lms.out_of_memory_retries", b"lms.release_caught"]
for name in ("pinned_bytes.all", "lms.resident_bytes", "lms.paged_out_bytes", "lms.held_bytes",
             "lms.host_bytes"):
    names += [(name + "." + what).encode() for what in ("current", "peak", "allocated", "freed")]
names += [b"lms.limit_bytes", b"lms.watching", b"reclaimed", b"reclaimed_bytes"]
names += [b"alloc_distribution." + source.encode() for source in torch.cuda.lms._SOURCES]
returns["stat_count"] = len(names)
torch.cuda.set_enabled_lms(True)
torch.cuda.lms._library.lms_stat_name = lambda index: names[index]
"""


def test_summary(summarizes: None, python: str, site: Path) -> None:
    code = f"""{_DEVICE}{_LIBRARY}{_STATISTICS}
result = torch.cuda.memory_summary()
"""
    text = evaluate(python, site, code)
    assert isinstance(text, str)
    rows = [line for line in text.splitlines() if line]
    assert all(len(line) == len(rows[0]) for line in rows[5:]), text
    for title in ("Large Model Support", "Paged-out memory", "reclaim_fragments"):
        assert title in text


def test_explain(python: str, site: Path) -> None:
    code = f"""{_DEVICE}{_LIBRARY}{_STATISTICS}
result = torch.cuda.lms.explain()
"""
    text = evaluate(python, site, code)
    assert isinstance(text, str)
    assert text.startswith("LMS has paged nothing out.")
    assert "7 bytes of 7 bytes in use are not managed" in text


@pytest.fixture
def first(patched: Outcome) -> None:
    if "lms_stats" not in (patched.directory / "torch" / "cuda" / "__init__.py").read_text():
        pytest.skip("this release's LMS never had these functions: memory_stats() has the numbers")


def test_the_functions_of_the_first_lms(first: None, python: str, site: Path) -> None:
    code = f"""{_DEVICE}{_LIBRARY}{_STATISTICS}
def fill(device, values):
    for index in range(len(values)):
        values[index] = index + 1
    return 0
torch.cuda.lms._library.lms_stats = fill
torch.cuda.lms._library.lms_active = fill
result = [torch.cuda.memory_active(), torch.cuda.max_memory_active(device=0)]
result += [names[torch.cuda.memory_reclaimed(torch.device("cuda:0")) - 1].decode()]
served = torch.cuda.alloc_distribution(0)
result += [dict((name, count and names[count - 1].decode()[19:]) for name, count in served.items())]
del log[:]
returned = [torch.cuda.reset_max_memory_active(0), torch.cuda.reset_memory_reclaimed(),
            torch.cuda.reset_alloc_distribution(device=0)]
result += [returned, log]
"""
    assert evaluate(python, site, code) == [
        1,
        2,
        "reclaimed_bytes",
        {
            "freelist": "freelist",
            "cudamalloc": "cudamalloc",
            "reclaim_one": "reclaim_one",
            "reclaim_fragments": "reclaim_fragments",
            "cudamalloc_over_limit": 0,
            "reclaim_all": "reclaim_all",
            "cudamalloc_purge": "cudamalloc_retry",
        },
        [None] * 3,
        ["reset_active", "reset_reclaimed", "reset_alloc_distribution"],
    ]


def test_the_functions_of_the_first_lms_before_it_is_on(
    first: None, python: str, site: Path
) -> None:
    code = f"""{_DEVICE}{_LIBRARY}
result = [torch.cuda.memory_reclaimed(), sorted(torch.cuda.alloc_distribution().items())]
result += [list(opened)]
torch.cuda.max_memory_active()
result += [len(opened), torch.cuda.get_enabled_lms(), log]
"""
    reclaimed, served, opened, count, enabled, log = evaluate(python, site, code)  # type: ignore[misc]
    assert (reclaimed, opened, count, enabled) == (0, [], 1, False)
    assert len(served) == 7
    assert all(value == 0 for _, value in served)
    assert log[-1] == "active"
    assert "set_enabled" not in log


def test_a_device_that_there_is_not(first: None, python: str, site: Path) -> None:
    code = f"""{_DEVICE}{_LIBRARY}
result = []
for device in (1, -1):
    try:
        torch.cuda.memory_active(device)
    except AssertionError as error:
        result.append(str(error))
"""
    assert evaluate(python, site, code) == ["Invalid device id"] * 2
