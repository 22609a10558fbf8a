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


def serve(served: Hub) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, body: bool) -> None:
            served.asked.append(self.path)
            if self.path.startswith("/api/datasets/") and served.revision:
                return self.list()
            found = [data for path, data in served.files.items() if self.path.endswith(path)]
            if not found:
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            commit = COMMIT.search(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(found[0])))
            self.send_header("X-Repo-Commit", commit[1] if commit else "0" * 40)
            self.send_header("ETag", f'"{hashlib.sha256(found[0]).hexdigest()}"')
            self.send_header("X-Linked-Size", str(len(found[0])))
            self.end_headers()
            if body:
                self.wfile.write(found[0])

        def list(self) -> None:
            """Tell the files of a data set at the revision that is served."""
            _, _, revision = self.path.partition("/revision/")
            is_there = unquote(revision.partition("?")[0]) == served.revision
            names = [{"rfilename": name} for name in served.files]
            found = {"id": "owner/name", "sha": "0" * 40, "siblings": names} if is_there else {}
            data = json.dumps(found).encode()
            self.send_response(200 if is_there else 404)
            if not is_there:
                self.send_header("X-Error-Code", "RevisionNotFound")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server


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
    name: str = "me"
    orgs: tuple[str, ...] = ()
    access: str = "write"
    """What the token may do: ``read``, ``write`` or ``fineGrained``."""
    full: bool = False
    """Refuse large files."""
    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """The files of each repository."""
    private: list[str] = field(default_factory=list)
    stored: dict[str, bytes] = field(default_factory=dict)
    """Large files by their checksum."""
    asked: list[str] = field(default_factory=list)
    """Method and path of each request, in order."""

    def whoami(self) -> dict[str, object]:
        orgs = [{"name": name} for name in self.orgs]
        auth = {"accessToken": {"displayName": "test", "role": self.access}}
        return {"type": "user", "name": self.name, "orgs": orgs, "auth": auth}

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

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.reply(200, {})

        def do_GET(self) -> None:
            self.answer()

        do_POST = do_PUT = do_GET

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            account.asked.append(f"{self.command} {self.path}")
            hub = f"http://127.0.0.1:{self.server.server_address[1]}"
            if self.path.startswith("/large/"):
                digest = self.path.rpartition("/")[2]
                assert hashlib.sha256(body).hexdigest() == digest
                account.stored[digest] = body
                self.reply(403 if account.full else 200, {})
            elif self.headers.get("Authorization") != f"Bearer {account.token}":
                self.reply(401, {"error": "Invalid credentials"})
            elif self.path == "/api/whoami-v2":
                self.reply(200, account.whoami())
            elif self.path == "/api/repos/create":
                self.reply(200, account.create(json.loads(body), hub))
            elif self.path == "/api/validate-yaml":
                self.reply(200, {"errors": [], "warnings": []})
            elif self.path.endswith("/preupload/main"):
                self.reply(200, account.modes(json.loads(body)))
            elif self.path.endswith(".git/info/lfs/objects/batch"):
                self.reply(200, account.places(json.loads(body), hub))
            elif self.path.endswith("/commit/main"):
                repo = self.path.removeprefix("/api/models/").removesuffix("/commit/main")
                self.reply(200, account.commit(repo, body, hub))
            else:
                self.reply(404, {"error": "Not found"})

        def reply(self, status: int, found: dict[str, object] | dict[str, str]) -> None:
            data = b"" if self.command == "HEAD" else json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

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
