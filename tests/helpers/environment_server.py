"""An HTTP server that sends what a test gives it for each path, whole or in pieces, and hostile ways to reply."""

import gzip
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

Reply = Callable[[BaseHTTPRequestHandler], None]
MIB = 1 << 20


def reply_with(body: object, status: int = 200, **headers: str) -> Reply:
    """Send bytes, or a value as JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in {"Content_Length": str(len(content)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(content)

    return reply


def reply_in_pieces(piece: bytes, seconds: float, status: int = 200) -> Reply:
    """Send a piece again and again until the client has gone."""

    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.end_headers()
        for _ in range(200):
            handler.wfile.write(piece)
            time.sleep(seconds)

    return reply


HOSTILE: Mapping[str, tuple[Reply, str]] = {
    "bomb": (
        reply_with(gzip.compress(bytes(64 * MIB)), Content_Encoding="gzip"),
        "packs its reply",
    ),
    "endless": (reply_in_pieces(bytes(MIB), 0), "more than 1 MiB"),
    "drip": (reply_in_pieces(b" ", 0.05), "did not answer within"),
    "silent": (lambda _: time.sleep(2), "did not answer within"),
    "long header": (reply_with({}, X="x" * 200_000), "too long"),
    "half": (reply_with(b"{}", Content_Length="100"), "peer closed connection"),
    "redirect": (reply_with(b"", 302, Location="http://127.0.0.1:9/x"), "redirects to http"),
    "status": (reply_with(b"no\x1b[2J", 500), "status 500: no\ufffd[2J"),
    "busy": (reply_with(b"\xff\x1b[2J", 503), "status 503: \ufffd\ufffd[2J"),
    "endlessly busy": (reply_in_pieces(bytes(MIB), 0, 503), "more than 1 MiB"),
    "too many": (reply_with(b"", 429, Retry_After="99999999"), "status 429"),
    "deep": (reply_with(b"[" * 100_000 + b"]" * 100_000), "recursion limit"),
    "many lists": (reply_with(b'{"a": [' + b"[]," * 200_000 + b"1]}"), "200000 lists and objects"),
    "not json": (reply_with(b"<html>\x1b]0;\x07\x9b"), "Invalid JSON"),
    "not utf-8": (reply_with(b'{"a": "\xff"}'), "invalid unicode"),
    "list": (reply_with([]), "should be an object"),
    "null": (reply_with(None), "should be an object"),
}
"""Replies that no client may accept, and parts of the errors."""


@contextmanager
def serve_replies(replies: Mapping[str, Reply]) -> Iterator[str]:
    """Serve replies by path, and yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            try:
                replies[self.path.partition("?")[0]](self)
            except OSError:  # the client has gone
                self.close_connection = True

        do_POST = do_GET

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.block_on_close = True, False
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
