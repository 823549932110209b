"""A read-only HTTP server for a channel and a package index, for use in a local network."""

from __future__ import annotations

import http.server
import os
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import IO, cast
from urllib.parse import unquote

from lmsbuild.conda.channel import ALL_SUBDIRS, INDEX, Channel
from lmsbuild.errors import LmsbuildError
from lmsbuild.index import pages
from lmsbuild.index.package_index import HTML, JSON, SIMPLE, PackageIndex

# An open file and what is wrong with it ("" if nothing is); None if there is no such file.
_Found = tuple[IO[bytes], str] | None

# What a request may name besides the packages that the index describes.
_INDEXES = (INDEX, f"{INDEX}.zst")
_TYPES = {
    ".html": pages.HTML_TYPE,
    ".json": "application/json",
    ".metadata": "text/plain; charset=utf-8",
    ".zst": "application/zstd",
}


class Server(http.server.ThreadingHTTPServer):
    """Serves one folder: the indexes of a channel and of a package index, and what they describe.

    A file that has changed since it was indexed is not served.
    """

    daemon_threads = True

    def __init__(
        self, address: tuple[str, int], channel: Channel, say: Callable[[str], None]
    ) -> None:
        self.channel = channel
        self.index = PackageIndex(channel.folder)
        self.guard = threading.Lock()  # of the remembered hashes
        self.say = say
        super().__init__(address, Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that close the connection, as solvers do."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def file_of(self, path: str) -> tuple[IO[bytes] | None, str]:
        """Open the file that a request's path names.

        If it is not served, returns None and the reason ("" if there is no such file). The path is
        only compared with the known names, and never used to open a file.
        """
        parts = path.split("/")
        if len(parts) != 3 or parts[0] or parts[1] not in ALL_SUBDIRS:
            name = path.removeprefix("/")
            return self._opened(lambda: self._in_index(name)) if self.index.exists else (None, "")
        if self.index.exists and not self.channel.exists:
            return None, ""
        return self._opened(lambda: self._in_channel(*parts[1:]))

    def _in_channel(self, subdir: str, name: str) -> _Found:
        if name not in (*_INDEXES, *self.channel.described(subdir)):
            return None
        stream = (self.channel.folder / subdir / name).open("rb")
        stale = [p for p in self.channel.problems((subdir,)) if name in (p.file, *_INDEXES)]
        return stream, f"{stale[0]}; index the channel again" if stale else ""

    def _in_index(self, name: str) -> _Found:
        expected = self.index.hashes()
        if name not in expected:
            return None
        stream = (self.index.folder / name).open("rb")
        stale = self.index.problem(name, expected[name])
        return stream, f"{stale}; index the wheels again" if stale else ""

    def _opened(self, find: Callable[[], _Found]) -> tuple[IO[bytes] | None, str]:
        """What file_of returns for a file that ``find`` looks for.

        ``find`` opens the file before it checks it, because it can be replaced afterwards.
        """
        with self.guard:
            try:
                found = find()
            except FileNotFoundError:
                return None, ""
            except (LmsbuildError, OSError) as error:
                return None, str(error)
        if found is None:
            return None, ""
        stream, problem = found
        if problem:
            stream.close()
            return None, problem
        return stream, ""


class Handler(http.server.BaseHTTPRequestHandler):
    """GET and HEAD; the base class refuses every other method."""

    protocol_version = "HTTP/1.1"
    server_version = "lmsbuild"
    sys_version = ""
    timeout = 60  # seconds until an idle client is disconnected

    def do_GET(self) -> None:
        stream = self._begin()
        if stream is not None:
            with stream:
                while chunk := stream.read(1 << 20):
                    self.wfile.write(chunk)

    def do_HEAD(self) -> None:
        stream = self._begin()
        if stream is not None:
            stream.close()

    def _begin(self) -> IO[bytes] | None:
        path = unquote(self.path.split("?", 1)[0])
        negotiated = path.startswith(f"/{SIMPLE}/") and path.endswith("/")
        if negotiated:
            path += JSON if pages.JSON_TYPE in self.headers.get("Accept", "") else HTML
        stream, reason = cast(Server, self.server).file_of(path)
        if stream is None:
            status = HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.NOT_FOUND
            if reason:
                self.log_error("%s", reason)
            self.send_error(status, explain=reason or None)
            return None
        file = os.fstat(stream.fileno())
        self.send_response(HTTPStatus.OK)
        ending = os.path.splitext(path)[1]
        kind = _TYPES.get(ending, "application/octet-stream")
        if negotiated:
            kind = pages.JSON_TYPE if path.endswith(JSON) else kind
            self.send_header("Vary", "Accept")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(file.st_size))
        self.send_header("Last-Modified", self.date_time_string(int(file.st_mtime)))
        self.end_headers()
        return stream

    def log_message(self, format: str, *args: object) -> None:
        line = f"{self.address_string()} {format % args}"
        # A client could send control characters.
        cast(Server, self.server).say("".join(c if c.isprintable() else "?" for c in line))
