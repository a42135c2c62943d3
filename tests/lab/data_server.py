"""A local web server that can misbehave as real ones do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Serves `content` by path.

    Attributes:
        content: what is served.
        ranges: whether it answers requests for a part with that part.
        cuts: after how many bytes the next answers break off, one number per answer.
        stalls: whether a broken-off answer stays silent instead of closing the connection.
        stalled: set once an answer is silent.
        asked: path and Range header of every request.
    """

    daemon_threads = False  # so that closing the server waits for all of them

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content: dict[str, bytes] = {}
        self.ranges = True
        self.cuts: list[int] = []
        self.stalls = False
        self.stalled = threading.Event()
        self.ending = threading.Event()
        self.asked: list[tuple[str, str | None]] = []

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is none of our business."""


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append((self.path, wanted))
        content = self.server.content.get(self.path)
        if content is None:
            return self.send_error(404)
        start = 0
        if wanted is not None and self.server.ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                return self.end_headers()
            self.send_response(206)
            last = len(content) - 1
            self.send_header("Content-Range", f"bytes {start}-{last}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        return self._send(content[start:])

    def _send(self, body: bytes) -> None:
        cut = self.server.cuts.pop(0) if self.server.cuts else None
        self.wfile.write(body[:cut])
        self.wfile.flush()
        if cut is not None and self.server.stalls:
            self.server.stalled.set()
            self.server.ending.wait()
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.ending.set()
        server.shutdown()
        thread.join()
        server.server_close()
