"""Fetching wheels through pip."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote

import pytest
from packaging.requirements import Requirement

from lmsbuild.errors import (
    DamagedWheelError,
    ForeignWheelError,
    NetworkError,
    ToolMissingError,
)
from lmsbuild.tools import fetch
from lmsbuild.tools.download import NotOnIndexError, Target
from lmsbuild.tools.fetch import (
    fetch_newest,
    fetch_package,
    fetch_wheel,
    forgotten_if_unfit,
)
from toolkit.helpers.fake_torch import (
    CUDA_WHEEL_NAME,
    DIST_INFO,
    MACHINE,
    PYTHON,
    VERSION,
    WHEEL_NAME,
    FakeTorch,
    Wheel,
)
from toolkit.helpers.fake_torch import fake as fake
from toolkit.helpers.fake_torch import offline as offline

TARGET = Target(python=PYTHON, architecture=MACHINE)
CUDA = "fake-cuda-headers==1.0"


class Index:
    """A package index on this machine. ``send`` is the share of each file that it delivers."""

    def __init__(self, files: dict[str, bytes], send: float = 1.0) -> None:
        self.files, self.send, self.hashes = files, send, True
        self.delay = 0.0  # seconds before each quarter
        self.delivered = 0

    def page(self) -> bytes:
        links = []
        for name, data in self.files.items():
            fragment = f"#sha256={hashlib.sha256(data).hexdigest()}" if self.hashes else ""
            links.append(f'<a href="/files/{name}{fragment}">{name}</a>')
        return b"<!DOCTYPE html><html><body>" + "\n".join(links).encode()


@contextmanager
def serving(index: Index) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = unquote(self.path.rsplit("/", 1)[-1])
            data = index.files[name] if name in index.files else index.page()
            self.send_response(200)
            self.send_header(
                "Content-Type", "application/zip" if name in index.files else "text/html"
            )
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if name not in index.files:
                self.wfile.write(data)
                return
            index.delivered += 1
            part = data[: int(len(data) * index.send)]
            with suppress(BrokenPipeError, ConnectionResetError):  # the reader was interrupted
                for start in range(0, len(part), max(len(part) // 4, 1)):
                    time.sleep(index.delay)
                    self.wfile.write(part[start : start + max(len(part) // 4, 1)])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple"
    finally:
        server.shutdown()


@pytest.fixture
def index(fake: FakeTorch, offline: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """The CUDA headers' wheel on an index that pip is told to use."""
    served = Index({CUDA_WHEEL_NAME: (fake.links / CUDA_WHEEL_NAME).read_bytes()})
    with serving(served) as url:
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.delenv("PIP_FIND_LINKS")
        monkeypatch.setenv("PIP_INDEX_URL", url)
        monkeypatch.setenv("PIP_RETRIES", "0")
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield served


def leftovers(cache: Path) -> list[Path]:
    return sorted(path for path in cache.rglob("*") if path.is_file())


def test_a_wheel_is_fetched_once(index: Index, tmp_path: Path) -> None:
    first = fetch_wheel(CUDA, TARGET, tmp_path)
    assert first.path.read_bytes() == index.files[CUDA_WHEEL_NAME]
    assert first.sha256 == hashlib.sha256(index.files[CUDA_WHEEL_NAME]).hexdigest()
    assert first.index_sha256 == first.sha256
    assert fetch_wheel(CUDA, TARGET, tmp_path) == first
    assert index.delivered == 1


def test_a_local_version_is_fetched_once(index: Index, fake: FakeTorch, tmp_path: Path) -> None:
    wheel = local_version(fake, "cu1", tmp_path)
    index.files = {wheel.name: wheel.read_bytes()}
    first = fetch_wheel(f"torch=={VERSION}", TARGET, tmp_path / "cache")
    assert first.index_sha256 == first.sha256
    assert fetch_wheel(f"torch=={VERSION}", TARGET, tmp_path / "cache") == first
    assert index.delivered == 1


def test_what_turns_out_to_be_another_wheel_is_fetched_again(
    index: Index, fake: FakeTorch, tmp_path: Path
) -> None:
    requirement, cache = f"torch=={VERSION}", tmp_path / "cache"
    index.files = {WHEEL_NAME: fake.base.read_bytes()}
    fetch_wheel(requirement, TARGET, cache)
    with (
        pytest.raises(ForeignWheelError, match="it is what pip's index has for torch"),
        forgotten_if_unfit(requirement, TARGET, cache),
    ):
        raise ForeignWheelError("another one")
    with forgotten_if_unfit(requirement, TARGET, cache):
        fetch_wheel(requirement, TARGET, cache)
    fetch_wheel(requirement, TARGET, cache)
    assert index.delivered == 2


def local_version(fake: FakeTorch, local: str, folder: Path) -> Path:
    """The fake wheel, with a local version."""
    version = f"{VERSION}+{local}"
    members = {
        name.replace(VERSION, version): data.replace(
            f"Version: {VERSION}".encode(), f"Version: {version}".encode()
        )
        for name, data in fake.wheel.members.items()
    }
    dist_info, name = (text.replace(VERSION, version) for text in (DIST_INFO, WHEEL_NAME))
    return Wheel(members, dist_info).write(folder / name)


def test_an_index_without_hashes_is_said_to_have_none(index: Index, tmp_path: Path) -> None:
    index.hashes = False
    assert fetch_wheel(CUDA, TARGET, tmp_path).index_sha256 is None


def test_a_changed_file_in_the_cache_is_fetched_again(index: Index, tmp_path: Path) -> None:
    first = fetch_wheel(CUDA, TARGET, tmp_path)
    first.path.write_bytes(b"bitrot")
    again = fetch_wheel(CUDA, TARGET, tmp_path)
    assert again == first
    assert again.path.read_bytes() == index.files[CUDA_WHEEL_NAME]
    assert index.delivered == 2


def test_a_torch_without_cuda_is_not_taken(index: Index, fake: FakeTorch, tmp_path: Path) -> None:
    wheel = local_version(fake, "cpu", tmp_path)
    index.files[wheel.name] = wheel.read_bytes()
    index.files[WHEEL_NAME] = fake.base.read_bytes()
    found = fetch_wheel(f"torch=={VERSION}", TARGET, tmp_path / "cache")
    assert found.path.name == WHEEL_NAME


def test_the_newest_of_a_series_is_fetched(index: Index, tmp_path: Path) -> None:
    assert fetch_newest("fake-cuda-headers==1.*", TARGET, tmp_path).path.name == CUDA_WHEEL_NAME


def test_progress_is_told_in_bytes(index: Index, tmp_path: Path) -> None:
    larger = tmp_path / CUDA_WHEEL_NAME
    larger.write_bytes(index.files[CUDA_WHEEL_NAME])
    with zipfile.ZipFile(larger, "a") as wheel:
        wheel.writestr("padding", os.urandom(1 << 20))  # pip shows no progress of half a megabyte
    index.files[CUDA_WHEEL_NAME] = larger.read_bytes()
    index.delay = 0.3
    calls: list[tuple[str, int, int | None]] = []
    fetch_wheel(CUDA, TARGET, tmp_path / "cache", lambda *call: calls.append(call))
    assert {what for what, _, _ in calls} == {CUDA}
    assert {total for _, _, total in calls} == {larger.stat().st_size}
    told = [done for _, done, _ in calls]
    assert told == sorted(told)
    assert told[-1] == larger.stat().st_size
    assert any(0 < done < told[-1] for done in told)


@pytest.mark.parametrize("send", [0.0, 0.5])
def test_a_download_cut_short_leaves_nothing(index: Index, tmp_path: Path, send: float) -> None:
    index.send = send
    with pytest.raises((NetworkError, DamagedWheelError), match="fake-cuda-headers"):
        fetch_wheel(CUDA, TARGET, tmp_path)
    assert leftovers(tmp_path) == []


def test_no_network_is_a_network_error(
    offline: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(NetworkError, match="check the network"):
        fetch_wheel("nothing-there==1", TARGET, tmp_path)
    assert leftovers(tmp_path) == []


def test_a_tampered_file_does_not_get_in(index: Index, tmp_path: Path) -> None:
    page = index.page()
    index.files[CUDA_WHEEL_NAME] = index.files[CUDA_WHEEL_NAME] + b"evil"
    index.page = lambda: page  # type: ignore[method-assign]
    with pytest.raises(DamagedWheelError, match="hash"):
        fetch_wheel(CUDA, TARGET, tmp_path)
    assert leftovers(tmp_path) == []


def test_what_the_index_lacks_is_named(offline: None, tmp_path: Path) -> None:
    with pytest.raises(NotOnIndexError, match=rf"torch==7\.0 for CPython {PYTHON} on {MACHINE}"):
        fetch_wheel("torch==7.0", TARGET, tmp_path)


def test_a_constraint_is_named(
    offline: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("fake-cuda-headers<1\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(constraints))
    with pytest.raises(NotOnIndexError, match="allows only fake-cuda-headers<1: change it"):
        fetch_wheel(CUDA, TARGET, tmp_path / "cache")


def test_another_python_and_architecture_are_asked_for(offline: None, tmp_path: Path) -> None:
    with pytest.raises(NotOnIndexError, match=r"CPython 3\.99 on riscv64"):
        fetch_wheel("torch==9.1.0", Target(python="3.99", architecture="riscv64"), tmp_path)
    # The headers' wheel serves every Python.
    other = Target(python="3.99", architecture=MACHINE)
    assert fetch_wheel(CUDA, other, tmp_path).path.name == CUDA_WHEEL_NAME


def test_a_python_without_pip_is_named(
    offline: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift 2\nexec "{sys.executable}" -S -E -m pip "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ToolMissingError, match="has no pip"):
        fetch_wheel(CUDA, TARGET, tmp_path / "cache")


def test_a_pip_that_is_too_old_is_named(
    offline: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    says = "option --progress-bar: invalid choice: 'raw' (choose from 'on', 'off')"
    python.write_text(f'#!/bin/sh\necho "{says}" >&2\nexit 2\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ToolMissingError, match=r"older than 24\.1; run: .* install --upgrade pip$"):
        fetch_wheel(CUDA, TARGET, tmp_path / "cache")


def test_a_pip_that_ends_after_its_output_is_waited_for(
    offline: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n"{sys.executable}" "$@"\nexec >&-\nsleep 0.5\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert fetch_wheel(CUDA, TARGET, tmp_path / "cache").path.name == CUDA_WHEEL_NAME


def test_pip_is_required() -> None:
    # What uv makes an environment of has no pip unless somebody asks for it.
    required = [Requirement(line) for line in metadata.requires("lmsbuild") or []]
    (pip,) = [requirement for requirement in required if requirement.name == "pip"]
    assert pip.marker is None
    assert "24.0" not in pip.specifier  # it has no --progress-bar=raw
    assert "24.1" in pip.specifier


def test_an_interrupted_download_leaves_nothing(index: Index, tmp_path: Path) -> None:
    index.delay = 5.0
    code = (
        "import signal\n"
        "from pathlib import Path\n"
        "from lmsbuild.tools.download import Target\n"
        "from lmsbuild.tools.fetch import fetch_wheel\n"
        # A shell that runs the tests in the background has it ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "print('go', flush=True)\n"
        f"fetch_wheel({CUDA!r}, Target(python={PYTHON!r}, architecture={MACHINE!r}), "
        f"Path({str(tmp_path)!r}))"
    )
    root = Path(fetch.__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=root,
        env=dict(os.environ),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"go\n"
    deadline = time.monotonic() + 60
    while not index.delivered and time.monotonic() < deadline:
        time.sleep(0.05)
    assert index.delivered == 1
    process.send_signal(signal.SIGINT)
    assert process.wait(60) != 0
    process.stdout.close()
    assert leftovers(tmp_path) == []


def test_a_package_is_unpacked_with_its_mode_bits(offline: None, tmp_path: Path) -> None:
    found = fetch_package(CUDA, TARGET, tmp_path)
    assert (found.path / "nvidia/cu13/include/cuda_runtime_api.h").is_file()
    assert (found.path / "nvidia/cu13/lib/libcudart.so.13").stat().st_mode & 0o777 == 0o755
    assert fetch_package(CUDA, TARGET, tmp_path) == found


@pytest.mark.parametrize(
    ("python", "tag"), [("3.12", "cp312"), ("3.8", "cp38"), ("3.7", "cp37m"), ("3.5", "cp35m")]
)
def test_the_abi_of_a_python(python: str, tag: str) -> None:
    assert Target(python=python, architecture=MACHINE).abi_tag == tag
