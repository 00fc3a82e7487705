"""A web server for one page that changes, on this machine only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer

from pcfed.report.page import PLOTLY, read_asset

HOST = "127.0.0.1"


class LiveServer:
    """Serves a page at a free port of this machine; use it as a context manager.

    Parameters
    ----------
    version : callable
        Returns an integer that changes with the page. A browser that has the same version gets no
        new page.
    render : callable
        Returns the page, for the version of that time.
    """

    def __init__(self, version: Callable[[], int], render: Callable[[], str]) -> None:
        self._version, self._render = version, render
        self._rendered: tuple[int, bytes] | None = None
        self._lock = threading.Lock()
        live = self

        class Handler(_Handler):
            page = staticmethod(live.page)

        self._server = _Server((HOST, 0), Handler)
        self.address = f"http://{HOST}:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def page(self) -> tuple[int, bytes]:
        """Return the version of the page and the page, which is rendered once per version."""
        with self._lock:
            version = self._version()
            if self._rendered is None or self._rendered[0] != version:
                self._rendered = version, self._render().encode()
            return self._rendered

    def __enter__(self) -> LiveServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False


class _Handler(BaseHTTPRequestHandler):
    """Answers GET for the page and for Plotly, if the request names this machine."""

    page: Callable[[], tuple[int, bytes]]

    def do_GET(self) -> None:
        """Send the page, unless the browser has it."""
        port = self.connection.getsockname()[1]
        # A site of someone else whose name resolves to this machine sends its own name.
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            self._send(HTTPStatus.FORBIDDEN, b"This page is only for this machine.\n")
        elif self.path == f"/{PLOTLY}":
            self._send(HTTPStatus.OK, read_asset(PLOTLY).encode(), "text/javascript")
        elif self.path != "/":
            self._send(HTTPStatus.NOT_FOUND, b"There is no such page.\n")
        else:
            self._send_page()

    def _send_page(self) -> None:
        try:
            version, page = self.page()
        except (ValueError, OSError):  # a file that is being written; the browser asks again
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, b"The page cannot be read now.\n")
            return
        tag = f'"{version}"'
        if self.headers.get("If-None-Match") == tag:
            self._send(HTTPStatus.NOT_MODIFIED, b"")
        else:
            self._send(HTTPStatus.OK, page, "text/html", {"ETag": tag})

    def _send(
        self,
        status: HTTPStatus,
        body: bytes,
        kind: str = "text/plain",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        common = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        }
        for name, value in {**common, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Print nothing: the terminal belongs to the training."""
