"""A hub that serves given files: what stands in for the real one."""

import hashlib
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import huggingface_hub.constants as hub
import pytest


@dataclass
class Hub:
    """A server with the files of one data set's repository."""

    files: dict[str, bytes]
    cut_at: int | None = None
    """End the next answer after so many bytes and refuse the ones after it."""
    spoil: bool = False
    """Send other bytes than those that the checksum is of."""
    refuse: bool = False
    ranges: list[str] = field(default_factory=list)
    """The Range of each GET, in order."""


def serve(served: Hub) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            served.ranges.append(self.headers.get("Range", ""))
            self.answer(body=True)

        def answer(self, body: bool) -> None:
            found = [data for path, data in served.files.items() if self.path.endswith(path)]
            if not found or (body and served.refuse):
                self.send_response(500 if found else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            data = found[0]
            digest = hashlib.sha256(data).hexdigest()
            start = int(self.headers["Range"].split("=")[1].rstrip("-")) if self.ranged else 0
            self.send_response(206 if self.ranged else 200)
            self.send_header("Content-Length", str(len(data) - start))
            if self.ranged:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("ETag", f'"{digest}"')
            self.send_header("X-Linked-Size", str(len(data)))
            self.end_headers()
            if not body:
                return
            sent = bytes(len(data)) if served.spoil else data
            stop = len(data)
            if served.cut_at is not None:
                stop, served.cut_at, served.refuse = served.cut_at, None, True
            self.wfile.write(sent[start:stop])
            self.close_connection = stop < len(data)

        @property
        def ranged(self) -> bool:
            return "Range" in self.headers

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server


def point_hub_at(server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What HF_ENDPOINT does when the hub's client is imported."""
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(hub, "ENDPOINT", endpoint)
    monkeypatch.setattr(
        hub, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", False)
