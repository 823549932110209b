"""lmsbuild channel serve: read-only, nothing but the channel, nothing stale."""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

import pytest
from click.testing import CliRunner

from lmsbuild.cli.main import main
from lmsbuild.conda.channel import Channel
from lmsbuild.conda.package_file import edit_index
from lmsbuild.conda.server import Server
from lmsbuild.errors import ChannelError, PackagerError
from lmsbuild.tools.cache import sha256_of
from toolkit.helpers.fake_conda import package as package
from toolkit.helpers.fake_conda import solve, stub, unheard


@pytest.fixture
def channel(tmp_path: Path, package: Path) -> Channel:
    made = Channel(tmp_path / "channel")
    made.add([package, stub(tmp_path / "made", "pure")], unheard)
    return made


@pytest.fixture
def server(channel: Channel) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), channel, unheard) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(server: Server, path: str, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_it_serves_indexes_and_packages(server: Server, channel: Channel, package: Path) -> None:
    for name in ("repodata.json", "repodata.json.zst", package.name):
        data = (channel.folder / "linux-64" / name).read_bytes()
        assert ask(server, f"/linux-64/{name}") == (200, data)
        assert ask(server, f"/linux-64/{name}", "HEAD") == (200, b"")


def test_a_solver_reads_it(server: Server, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{server.server_address[1]}"
    found = solve([url], ["thing", "pure"], tmp_path / "cache")
    assert sorted(found) == ["pure", "thing"]


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/linux-64",
        "/linux-64/",
        "/linux-64/../secret.txt",
        "/linux-64/%2e%2e/secret.txt",
        "/linux-64/..%2fsecret.txt",
        "/../secret.txt",
        "//etc/passwd",
        "/linux-64//etc/passwd",
        "/linux-64/.hidden",
        "/linux-64/link.conda",
        "/linux-64/other.txt",
        "/osx-64/repodata.json",
        "/.lmsbuild.lock",
        "/linux-64/repodata.json/x",
        "/linux-64\\..\\secret.txt",
    ],
)
def test_nothing_else_is_served(server: Server, channel: Channel, path: str) -> None:
    (channel.folder.parent / "secret.txt").write_text("secret")
    (channel.folder / "linux-64" / "other.txt").write_text("secret")
    (channel.folder / "linux-64" / ".hidden").write_text("secret")
    (channel.folder / "linux-64" / "link.conda").symlink_to(channel.folder.parent / "secret.txt")
    status, body = ask(server, path)
    assert status == 404
    assert b"secret" not in body.replace(b"secret.txt", b"")


def headers(server: Server, path: str, **sent: str) -> tuple[int, Message, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    try:
        connection.request("GET", path, headers={k.replace("_", "-"): v for k, v in sent.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


@pytest.fixture
def url(package: Path) -> str:
    return f"/linux-64/{package.name}"


def test_a_download_goes_on_where_it_stopped(server: Server, package: Path, url: str) -> None:
    data = package.read_bytes()
    status, found, body = headers(server, url, Range="bytes=100-")
    assert (status, body) == (206, data[100:])
    assert found["Content-Range"] == f"bytes 100-{len(data) - 1}/{len(data)}"
    assert headers(server, url, Range="bytes=100-199")[2] == data[100:200]
    # Not with the rest of another file.
    status, _, body = headers(server, url, Range="bytes=100-", If_Range='"another"')
    assert (status, body) == (200, data)
    assert headers(server, url, Range=f"bytes={len(data)}-")[0] == 416


def test_what_a_client_has_is_not_sent_again(server: Server, package: Path, url: str) -> None:
    status, found, _ = headers(server, url)
    assert (status, found["Accept-Ranges"]) == (200, "bytes")
    assert found["ETag"] == f'"{sha256_of(package)}"'
    assert headers(server, url, If_None_Match=found["ETag"])[::2] == (304, b"")
    assert headers(server, url, If_Modified_Since=found["Last-Modified"])[::2] == (304, b"")
    assert headers(server, url, If_None_Match='"another"')[::2] == (200, package.read_bytes())


def test_each_index_has_its_own_tag(server: Server, channel: Channel) -> None:
    path = "/linux-64/repodata.json"
    before = headers(server, path)[1]["ETag"]
    (channel.folder / "linux-64" / "repodata.json.zst").unlink()
    next((channel.folder / "linux-64").glob("*.conda")).unlink()
    channel.index()
    status, found, _ = headers(server, path, If_None_Match=before)
    assert status == 200
    assert found["ETag"] != before


def test_a_change_of_the_same_size_and_date_is_noticed(
    server: Server, channel: Channel, package: Path, url: str
) -> None:
    target = channel.folder / "linux-64" / package.name
    assert ask(server, url)[0] == 200
    status = target.stat()
    time.sleep(0.05)  # the clock of file systems ticks every few milliseconds
    with target.open("r+b") as stream:
        stream.write(b"x")
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert ask(server, url)[0] == 503


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "PATCH", "OPTIONS", "MKCOL"])
def test_it_is_read_only(server: Server, channel: Channel, package: Path, method: str) -> None:
    before = (channel.folder / "linux-64" / package.name).read_bytes()
    assert ask(server, f"/linux-64/{package.name}", method)[0] == 405
    assert (channel.folder / "linux-64" / package.name).read_bytes() == before


def test_what_changes_meanwhile_is_not_served(
    server: Server, channel: Channel, package: Path, tmp_path: Path
) -> None:
    target = channel.folder / "linux-64" / package.name
    assert ask(server, f"/linux-64/{package.name}")[0] == 200
    copy = tmp_path / "copy.conda"
    shutil.copy(package, copy)
    edit_index(copy, lambda index: index.update(depends=["changed"]))
    os.replace(copy, target)
    for name in (package.name, "repodata.json", "repodata.json.zst"):
        status, body = ask(server, f"/linux-64/{name}")
        assert status == 503
        assert b"has changed since it was indexed" in body
    # Other platforms are not concerned.
    assert ask(server, "/noarch/repodata.json")[0] == 200
    channel.index()
    assert ask(server, f"/linux-64/{package.name}") == (200, target.read_bytes())


def test_a_package_that_no_index_describes_is_not_served(
    server: Server, channel: Channel, package: Path, tmp_path: Path
) -> None:
    new = stub(tmp_path / "made", "new", subdir="linux-64")
    shutil.copy(new, channel.folder / "linux-64")
    assert ask(server, f"/linux-64/{new.name}")[0] == 404
    assert ask(server, "/linux-64/repodata.json")[0] == 503
    # The old one is what it was.
    assert ask(server, f"/linux-64/{package.name}")[0] == 200


def test_the_command_serves_this_machine_only(channel: Channel) -> None:
    command = [sys.executable, "-m", "lmsbuild", "channel", "serve", str(channel.folder)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*command, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:")
            connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
            connection.request("GET", "/noarch/repodata.json")
            assert connection.getresponse().status == 200
            connection.close()
        finally:
            process.terminate()


def test_a_port_that_is_taken_is_one_line(server: Server, channel: Channel) -> None:
    port = str(server.server_address[1])
    result = CliRunner().invoke(main, ["channel", "serve", str(channel.folder), "--port", port])
    assert result.exit_code == ChannelError.exit_code
    assert f"port {port} (Address already in use); name another --port" in result.output


def test_without_the_extra_it_says_so(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "werkzeug", None)
    result = CliRunner().invoke(main, ["channel", "serve", str(channel.folder)])
    assert result.exit_code == PackagerError.exit_code
    assert "pip install '.[conda]'" in " ".join(result.output.split())


def test_a_client_that_goes_away_is_no_error(
    server: Server, channel: Channel, capfd: pytest.CaptureFixture[str]
) -> None:
    for error in (ConnectionResetError, BrokenPipeError, TimeoutError):
        try:
            raise error
        except error:
            server.handle_error(None, ("127.0.0.1", 1))
    assert capfd.readouterr() == ("", "")
    try:
        raise KeyError("a bug")
    except KeyError:
        server.handle_error(None, ("127.0.0.1", 1))
    assert "a bug" in capfd.readouterr().err
