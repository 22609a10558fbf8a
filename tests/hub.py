"""A fake of the Hugging Face hub, which lies outside the project: its HTTP side for downloads, and for uploads."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
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


class Handler(BaseHTTPRequestHandler):
    """Handler that writes no log."""

    def reply(self, status: int, data: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


def start(handler: type[Handler]) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server


def serve(served: Hub) -> ThreadingHTTPServer:
    class Files(Handler):
        def do_GET(self) -> None:
            served.asked.append(self.path)
            if self.path.startswith("/api/datasets/") and served.revision:
                return self.list()
            found = [data for path, data in served.files.items() if self.path.endswith(path)]
            if not found:
                return self.reply(404)
            commit, size = COMMIT.search(self.path), str(len(found[0]))
            etag = f'"{hashlib.sha256(found[0]).hexdigest()}"'
            names = {"X_Repo_Commit": commit[1] if commit else "0" * 40, "ETag": etag}
            self.reply(200, found[0], **names, X_Linked_Size=size)

        do_HEAD = do_GET

        def list(self) -> None:
            """Tell the files of a data set at the revision that is served."""
            _, _, revision = self.path.partition("/revision/")
            if unquote(revision.partition("?")[0]) != served.revision:
                return self.reply(404, X_Error_Code="RevisionNotFound")
            names = [{"rfilename": name} for name in served.files]
            found = {"id": "owner/name", "sha": "0" * 40, "siblings": names}
            self.reply(200, json.dumps(found).encode())

    return start(Files)


@contextmanager
def stub_hub(
    files: dict[str, bytes], cache: Path, monkeypatch: pytest.MonkeyPatch, revision: str = ""
) -> Iterator[Hub]:
    served = Hub(files, revision=revision)
    server = serve(served)
    point_hub_at(server, monkeypatch)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(cache))
    yield served
    server.shutdown()
    server.server_close()


@dataclass
class Account:
    """What the hub knows of a person, and has got from them."""

    token: str
    full: bool = False
    """Refuse large files."""
    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """The files of each repository."""
    private: list[str] = field(default_factory=list)
    stored: dict[str, bytes] = field(default_factory=dict)
    """Large files by their checksum."""
    asked: list[str] = field(default_factory=list)
    """Method and path of each request, in order."""

    def create(self, given: dict[str, str], hub: str) -> dict[str, str]:
        """A repository; in the client's words its owner is an organization."""
        name = f"{given['organization']}/{given['name']}"
        self.repos.setdefault(name, {})
        if given.get("visibility") == "private":
            self.private.append(name)
        return {"url": f"{hub}/{name}"}

    def modes(self, given: dict[str, list[dict[str, str]]]) -> dict[str, object]:
        return {"files": [
            {"path": one["path"], "shouldIgnore": False,
             "uploadMode": "lfs" if one["path"].endswith(".safetensors") else "regular"}
            for one in given["files"]
        ]}  # fmt: skip

    def places(self, given: dict[str, list[dict[str, object]]], hub: str) -> dict[str, object]:
        """Where large files are to be put."""
        return {"transfer": "basic", "objects": [
            {**one, "actions": {"upload": {"href": f"{hub}/large/{one['oid']}", "header": {}}}}
            for one in given["objects"]
        ]}  # fmt: skip

    def commit(self, repo: str, lines: bytes, hub: str) -> dict[str, str]:
        """Take files into a repository: small ones as they are sent, large ones that were put before."""
        for line in map(json.loads, lines.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                self.repos[repo][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.repos[repo][value["path"]] = self.stored[value["oid"]]
        return {"commitUrl": f"{hub}/{repo}/commit/{'1' * 40}", "commitOid": "1" * 40}


def take(account: Account) -> ThreadingHTTPServer:
    """The hub's side of `create_repo` and `upload_folder` of huggingface_hub, without its Xet storage."""

    class Uploads(Handler):
        def do_HEAD(self) -> None:
            self.reply(200)

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            account.asked.append(f"{self.command} {self.path}")
            hub = f"http://127.0.0.1:{self.server.server_address[1]}"
            if self.path.startswith("/large/"):
                digest = self.path.rpartition("/")[2]
                assert hashlib.sha256(body).hexdigest() == digest
                account.stored[digest] = body
                self.told({}, 403 if account.full else 200)
            elif self.headers.get("Authorization") != f"Bearer {account.token}":
                self.told({"error": "Invalid credentials"}, 401)
            elif self.path == "/api/repos/create":
                self.told(account.create(json.loads(body), hub))
            elif self.path == "/api/validate-yaml":
                self.told({"errors": [], "warnings": []})
            elif self.path.endswith("/preupload/main"):
                self.told(account.modes(json.loads(body)))
            elif self.path.endswith(".git/info/lfs/objects/batch"):
                self.told(account.places(json.loads(body), hub))
            elif self.path.endswith("/commit/main"):
                repo = self.path.removeprefix("/api/models/").removesuffix("/commit/main")
                self.told(account.commit(repo, body, hub))
            else:
                self.told({"error": "Not found"}, 404)

        do_POST = do_PUT = do_GET

        def told(self, found: object, status: int = 200) -> None:
            self.reply(status, json.dumps(found).encode(), Content_Type="application/json")

    return start(Uploads)


def point_hub_at(server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What HF_ENDPOINT does when the hub's client is imported."""
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(hub, "ENDPOINT", endpoint)
    monkeypatch.setattr(
        hub, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", False)
