"""A forwarding server between a client and the gateway, which keeps what the client really sent and received."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


@dataclass
class Exchange:
    """A request of the client and its answer."""

    path: str
    body: dict[str, Any]
    answer: Any
    """The JSON answer, or the text of a stream."""


@dataclass
class Recorder:
    """All exchanges of a client, in order, and the URL to call instead of the gateway's."""

    url: str = ""
    exchanges: list[Exchange] = field(default_factory=list)


@contextmanager
def recorded(base_url: str) -> Iterator[Recorder]:
    """Forward requests to ``base_url`` until the context ends."""
    target, recorder = urlsplit(base_url), Recorder()

    class Forward(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def do_GET(self) -> None:
            self.forward(b"")

        def do_POST(self) -> None:
            self.forward(self.rfile.read(int(self.headers["content-length"])))

        def forward(self, body: bytes) -> None:
            assert target.hostname is not None
            connection = http.client.HTTPConnection(target.hostname, target.port, timeout=60)
            connection.request(self.command, self.path, body, dict(self.headers))
            reply = connection.getresponse()
            data = reply.read()
            if self.command == "POST":
                is_json = "json" in reply.headers["content-type"]
                answer = json.loads(data) if is_json else data.decode()
                recorder.exchanges.append(Exchange(self.path, json.loads(body), answer))
            self.send_response(reply.status)
            self.send_header("content-type", reply.headers["content-type"])
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Forward)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    recorder.url = f"http://127.0.0.1:{server.server_port}{target.path}"
    try:
        yield recorder
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
