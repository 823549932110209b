"""A read-only HTTP server for a channel and a package index, for use in a local network."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, NoReturn, cast

from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound, ServiceUnavailable
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler
from werkzeug.wrappers import Request, Response
from werkzeug.wsgi import FileWrapper

from lmsbuild.conda.channel import ALL_SUBDIRS, INDEX, Channel
from lmsbuild.errors import LmsbuildError
from lmsbuild.index import pages
from lmsbuild.index.package_index import HTML, JSON, SIMPLE, PackageIndex

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

# What a request may name besides the packages that the index describes.
_INDEXES = (INDEX, f"{INDEX}.zst")
_METHODS = ("GET", "HEAD")
_CHUNK = 1 << 20  # bytes per read while sending
_TYPES = {
    ".html": pages.HTML_TYPE,
    ".json": "application/json",
    ".metadata": "text/plain; charset=utf-8",
    ".zst": "application/zstd",
}


@dataclass(frozen=True)
class _Found:
    """An open file, the SHA-256 that it should have, and what is wrong with it, if anything."""

    stream: IO[bytes]
    sha256: str
    problem: str


class Server(ThreadedWSGIServer):
    """Serves one folder: the indexes of a channel and of a package index, and what they describe.

    A file that has changed since it was indexed is not served.
    """

    def __init__(
        self, address: tuple[str, int], channel: Channel, say: Callable[[str], None]
    ) -> None:
        self.channel = channel
        self.index = PackageIndex(channel.folder)
        self.guard = threading.Lock()  # of the remembered hashes
        self.say = say
        # Werkzeug ends the program if it cannot listen.
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        with socket.create_server(address, family=family) as listener:
            super().__init__(*address, self.answer, Handler, fd=listener.fileno())

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that close the connection, as solvers do."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def answer(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        """The WSGI application."""
        request = Request(environ)
        try:
            return self._response(request)(environ, start)
        except HTTPException as error:
            return error.get_response(environ)(environ, start)

    def _response(self, request: Request) -> Response:
        """Raises HTTPException."""
        if request.method not in _METHODS:
            raise MethodNotAllowed(valid_methods=_METHODS)
        path = request.path
        negotiated = path.startswith(f"/{SIMPLE}/") and path.endswith("/")
        if negotiated:
            path += JSON if pages.JSON_TYPE in request.headers.get("Accept", "") else HTML
        found = self._file_of(path)
        kind = _TYPES.get(os.path.splitext(path)[1], "application/octet-stream")
        if negotiated and path.endswith(JSON):
            kind = pages.JSON_TYPE
        status = os.fstat(found.stream.fileno())
        response = Response(
            FileWrapper(found.stream, _CHUNK), content_type=kind, direct_passthrough=True
        )
        if negotiated:
            response.vary.add("Accept")
        response.content_length = status.st_size
        response.last_modified = status.st_mtime  # type: ignore[assignment]
        response.set_etag(found.sha256)
        try:
            return response.make_conditional(
                request, accept_ranges=True, complete_length=status.st_size
            )
        except HTTPException:
            found.stream.close()
            raise

    def _file_of(self, path: str) -> _Found:
        """Open the file that a request's path names.

        The path is only compared with the known names, and never used to open a file.

        Raises:
            NotFound: there is no such file.
            ServiceUnavailable: it is not the one that was indexed.
        """
        parts = path.split("/")
        if len(parts) != 3 or parts[0] or parts[1] not in ALL_SUBDIRS:
            name = path.removeprefix("/")
            known = self.index.exists
            found = self._opened(lambda: self._in_index(name)) if known else None
        elif self.index.exists and not self.channel.exists:
            found = None
        else:
            found = self._opened(lambda: self._in_channel(*parts[1:]))
        if found is None:
            raise NotFound()
        if found.problem:
            found.stream.close()
            self._refuse(found.problem)
        return found

    def _in_channel(self, subdir: str, name: str) -> _Found | None:
        if name not in (*_INDEXES, *self.channel.described(subdir)):
            return None
        stream = (self.channel.folder / subdir / name).open("rb")
        stale = [p for p in self.channel.problems((subdir,)) if name in (p.file, *_INDEXES)]
        problem = f"{stale[0]}; index the channel again" if stale else ""
        return _Found(stream, self.channel.sha256(subdir, name), problem)

    def _in_index(self, name: str) -> _Found | None:
        expected = self.index.hashes()
        if name not in expected:
            return None
        stream = (self.index.folder / name).open("rb")
        stale = self.index.problem(name, expected[name])
        return _Found(stream, expected[name], f"{stale}; index the wheels again" if stale else "")

    def _opened(self, find: Callable[[], _Found | None]) -> _Found | None:
        """What ``find`` finds. It opens the file before it checks it, because it can be replaced
        afterwards. Raises ServiceUnavailable."""
        with self.guard:
            try:
                return find()
            except FileNotFoundError:
                return None
            except (LmsbuildError, OSError) as error:
                self._refuse(str(error))

    def _refuse(self, reason: str) -> NoReturn:
        self.say(reason)
        raise ServiceUnavailable(reason)


class Handler(WSGIRequestHandler):
    """One line of log per request."""

    server_version = "lmsbuild"
    sys_version = ""
    timeout = 60  # seconds until an idle client is disconnected

    def version_string(self) -> str:
        return self.server_version

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        self.log("info", '"%s" %s', self.requestline, code)

    def log(self, type: str, message: str, *args: object) -> None:
        line = f"{self.address_string()} {message % args}"
        # A client could send control characters.
        cast(Server, self.server).say("".join(c if c.isprintable() else "?" for c in line))
