"""pip installs from an index that a static web server, or `lmsbuild channel serve`, serves."""

from __future__ import annotations

import http.client
import http.server
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest

from lmsbuild.conda.channel import Channel
from lmsbuild.conda.server import Server
from lmsbuild.index.package_index import PackageIndex
from toolkit.helpers import small_wheel
from toolkit.helpers.fake_conda import ignore, solve, stub, unheard

JSON = "application/vnd.pypi.simple.v1+json"
NEW, OLD = "thing-2.0+lms1-py3-none-any.whl", "thing-1.0-py3-none-any.whl"


class Static(http.server.SimpleHTTPRequestHandler):
    """A web server that knows nothing of package indexes."""

    def log_message(self, format: str, *args: object) -> None:
        self.server.said.append(format % args)  # type: ignore[attr-defined]


@contextmanager
def serving(server: http.server.HTTPServer) -> Iterator[str]:
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@contextmanager
def static(folder: Path, said: list[str]) -> Iterator[str]:
    address = ("127.0.0.1", 0)
    server = http.server.ThreadingHTTPServer(address, partial(Static, directory=str(folder)))
    server.said = said  # type: ignore[attr-defined]
    with serving(server) as url:
        yield url


@contextmanager
def own(folder: Path, said: list[str]) -> Iterator[str]:
    with serving(Server(("127.0.0.1", 0), Channel(folder), said.append)) as url:
        yield url


SERVERS = pytest.mark.parametrize("serve", [static, own])
Serve = Callable[[Path, list[str]], AbstractContextManager[str]]


@pytest.fixture(scope="module")
def made_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp_path = tmp_path_factory.mktemp("made")
    folder = tmp_path / "site"
    small_wheel.write(folder, "thing", "1.0")
    small_wheel.write(folder, "thing", "2.0+lms1", headers="Requires-Dist: part>=1\n")
    small_wheel.write(folder, "thing", "3.0", headers="Requires-Python: <3\n")
    small_wheel.write(folder, "part", "1.5")
    PackageIndex(folder).index(ignore)
    Channel(folder).add([stub(tmp_path / "made", "package")], unheard)
    return folder


@pytest.fixture
def site(tmp_path: Path, made_site: Path) -> Path:
    """A folder that is a package index and a channel."""
    return Path(shutil.copytree(made_site, tmp_path / "site"))


def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.upper().startswith("PIP_")}
    environment |= {"PIP_CONFIG_FILE": os.devnull, "NO_PROXY": "127.0.0.1"}
    return subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", *arguments],
        env=environment,
        capture_output=True,
        text=True,
    )


@SERVERS
def test_pip_installs_from_it(site: Path, tmp_path: Path, serve: Serve) -> None:
    said: list[str] = []
    with serve(site, said) as url:
        target = tmp_path / "installed"
        done = pip("install", "--index-url", f"{url}/simple", "--target", str(target), "thing")
    assert done.returncode == 0, done.stdout + done.stderr
    # 3.0 is not for this Python.
    assert (target / "thing.py").read_text() == "version = '2.0+lms1'\n"
    assert (target / "part.py").exists()


@SERVERS
def test_pip_resolves_without_a_wheel(site: Path, serve: Serve) -> None:
    said: list[str] = []
    with serve(site, said) as url:
        done = pip(
            "install", "--dry-run", "--ignore-installed", "--index-url", f"{url}/simple", "thing"
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Would install part-1.5 thing-2.0+lms1" in done.stdout
    asked = " ".join(said)
    assert ".whl.metadata" in asked
    assert ".whl HTTP" not in asked


def test_pip_checks_the_hash(site: Path, tmp_path: Path) -> None:
    wheel = site / OLD
    other = small_wheel.write(tmp_path / "made", "thing", "1.0", content="changed = 1\n")
    shutil.copy(other, wheel)
    with static(site, []) as url:
        arguments = ("--index-url", f"{url}/simple", "--dest", str(tmp_path / "got"))
        done = pip("download", "--no-deps", *arguments, "thing==1.0")
    assert done.returncode == 1
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not list((tmp_path / "got").glob("*"))


@SERVERS
def test_one_folder_serves_a_conda_solver_too(site: Path, tmp_path: Path, serve: Serve) -> None:
    with serve(site, []) as url:
        assert sorted(solve([url], ["package"], tmp_path / "cache")) == ["package"]


def get(url: str, path: str, accept: str) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
    try:
        connection.request("GET", path, headers={"Accept": accept})
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize("project", ["", "thing/"])
def test_our_server_answers_in_what_a_client_asks_for(site: Path, project: str) -> None:
    folder = site / "simple" / project
    with own(site, []) as url:
        html = (200, "text/html", (folder / "index.html").read_bytes())
        json = (200, JSON, (folder / "index.json").read_bytes())
        assert get(url, f"/simple/{project}", "text/html, */*;q=0.8") == html
        assert get(url, f"/simple/{project}", f"{JSON}, text/html;q=0.01") == json
        # By name, as any web server does.
        status, kind, data = get(url, f"/simple/{project}index.json", "*/*")
        assert (status, kind, data) == (200, "application/json", json[2])


def test_our_server_serves_what_the_index_describes(site: Path) -> None:
    (site / "secret.txt").write_text("secret")
    (site.parent / "secret.txt").write_text("secret")
    small_wheel.write(site, "new")
    paths = ("/", "/simple", "/simple/gone/", "/secret.txt", "/simple/../secret.txt")
    paths += ("/%2e%2e/secret.txt", "//etc/passwd", "/.lmsbuild.lock", "/simple/thing/../")
    with own(site, []) as url:
        for path in (*paths, "/new-1.0-py3-none-any.whl"):
            status, _, body = get(url, path, "*/*")
            assert (path, status) == (path, 404)
            assert b"secret" not in body.replace(b"secret.txt", b"")
        assert get(url, f"/{NEW.replace('+', '%2B')}", "*/*")[0] == 200


@pytest.mark.parametrize("file", [OLD, f"{OLD}.metadata", "simple/thing/index.html"])
def test_what_changes_meanwhile_is_not_served(site: Path, file: str) -> None:
    with own(site, []) as url:
        assert get(url, f"/{file}", "*/*")[0] == 200
        (site / file).write_bytes(b"changed")
        status, _, body = get(url, f"/{file}", "*/*")
        assert status == 503
        assert b"has changed since it was indexed" in body
        assert get(url, f"/{NEW}", "*/*")[0] == 200


@pytest.mark.parametrize("channel", [True, False])
def test_the_command_serves_what_is_there(site: Path, channel: bool) -> None:
    if not channel:
        for path in site.glob("*/repodata.json*"):
            path.unlink()
    command = [sys.executable, "-m", "lmsbuild", "channel", "serve", str(site), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().decode().strip()
            assert get(url, "/simple/", "text/html")[0] == 200
            assert get(url, "/noarch/repodata.json", "*/*")[0] == (200 if channel else 404)
        finally:
            process.terminate()


def test_the_command_refuses_a_stale_index(site: Path) -> None:
    (site / OLD).unlink()
    command = [sys.executable, "-m", "lmsbuild", "channel", "serve", str(site), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, "is missing; run: lmsbuild index" in done.stderr) == (1, True)
