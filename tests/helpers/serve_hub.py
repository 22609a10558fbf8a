"""A fake of the Hugging Face hub, which lies outside the project: its HTTP side for downloads."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote

import huggingface_hub.constants as hub
import pytest

COMMIT = re.compile(r"/resolve/([0-9a-f]{40})/")
"""A pinned revision in an address."""


@dataclass
class Hub:
    """A server with the files of data repositories, by the ends of their addresses."""

    files: dict[str, bytes]
    asked: list[str] = field(default_factory=list)
    """The path of each request, in order."""
    revision: str = ""
    """Branch of which files are listed."""


def serve_files(served: Hub) -> ThreadingHTTPServer:
    class Files(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked.append(self.path)
            if self.path.startswith("/api/datasets/") and served.revision:
                return self.list()
            data = next(
                (one for name, one in served.files.items() if self.path.endswith(name)), None
            )
            if data is None:
                return self.reply(404)
            commit = COMMIT.search(self.path)
            etag = f'"{hashlib.sha256(data).hexdigest()}"'
            names = {"X-Repo-Commit": commit[1] if commit else "0" * 40, "ETag": etag}
            self.reply(200, data, {**names, "X-Linked-Size": str(len(data))})

        do_HEAD = do_GET

        def list(self) -> None:
            """Send the names of the files at the served revision."""
            if "/tree/" in self.path:
                tree = [
                    {"type": "file", "path": name, "size": len(data), "oid": "0" * 40}
                    for name, data in served.files.items()
                ]
                return self.reply(200, json.dumps(tree).encode())
            _, _, revision = self.path.partition("/revision/")
            if unquote(revision.partition("?")[0]) != served.revision:
                return self.reply(404, headers={"X-Error-Code": "RevisionNotFound"})
            names = [{"rfilename": name} for name in served.files]
            info = {"id": "owner/name", "sha": "0" * 40, "siblings": names}
            self.reply(200, json.dumps(info).encode())

        def reply(self, status: int, data: bytes = b"", headers: Mapping[str, str] = {}) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server


@contextmanager
def stub_hub(
    files: dict[str, bytes], cache: Path, monkeypatch: pytest.MonkeyPatch, revision: str = ""
) -> Iterator[Hub]:
    served = Hub(files, revision=revision)
    server = serve_files(served)
    endpoint = f"http://127.0.0.1:{server.server_port}"  # as HF_ENDPOINT, which is read on import
    address = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(hub, "ENDPOINT", endpoint)
    monkeypatch.setattr(hub, "HUGGINGFACE_CO_URL_TEMPLATE", address)
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(cache))
    yield served
    server.shutdown()
    server.server_close()
