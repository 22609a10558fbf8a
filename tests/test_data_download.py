"""Data sets from the hub: downloaded, checked, gone on with, refused."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants as hub
import pytest

from coterie.datasets.catalogue import SPLITS, find
from coterie.datasets.download import download
from coterie.datasets.local import load_rows
from coterie.datasets.prepared import read_manifest
from coterie.errors import UserError
from coterie.progress import Silent
from tests.conftest import Cli
from tests.hub import Hub, point_hub_at, serve
from tests.test_data import sums, table

pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    entry = find("gsm8k")
    parts = {entry.repos[0].train[0]: sums(0, 400), entry.repos[0].heldout[0]: sums(400, 500)}
    repository = Hub(
        {name: table(tmp_path / "made.parquet", rows).read_bytes() for name, rows in parts.items()}
    )
    server = serve(repository)
    point_hub_at(server, monkeypatch)
    monkeypatch.setattr(hub, "DOWNLOAD_CHUNK_SIZE", 512)
    yield repository
    server.shutdown()
    server.server_close()


def test_a_set_is_downloaded_checked_and_prepared(served: Hub, cli: Cli, own_home: Path) -> None:
    said = cli("data", "download", "gsm8k")
    assert said.code == 0, said.err
    assert [len(load_rows("gsm8k", split)) for split in SPLITS] == [400, 100]
    manifest = read_manifest(own_home / "data/gsm8k")
    assert find("gsm8k").repos[0].revision in manifest.source
    assert not (own_home / "downloads/gsm8k").exists()
    before = len(served.ranges)
    again = cli("data", "download", "gsm8k")
    assert again.out == said.out and len(served.ranges) == before, "nothing was fetched again"
    row = next(line for line in cli("data", "list").out.splitlines() if "gsm8k" in line)
    assert "400" in row


def test_a_download_that_was_cut_goes_on_where_it_stopped(served: Hub) -> None:
    served.cut_at = 2048
    with pytest.raises(UserError, match="can't be had"):
        download(find("gsm8k"), Silent())
    with pytest.raises(UserError, match="not prepared"):
        load_rows("gsm8k", "train")
    before = len(served.ranges)
    served.refuse = False
    download(find("gsm8k"), Silent())
    assert served.ranges[before] == "bytes=2048-"
    assert [len(load_rows("gsm8k", split)) for split in SPLITS] == [400, 100]


def test_a_wrong_checksum_is_refused_and_the_file_is_not_kept(served: Hub) -> None:
    served.spoil = True
    with pytest.raises(UserError, match="wrong checksum"):
        download(find("gsm8k"), Silent())
    served.spoil = False
    download(find("gsm8k"), Silent())
    assert len(load_rows("gsm8k", "train")) == 400


def test_a_file_that_the_hub_does_not_have_is_named(served: Hub) -> None:
    served.files.clear()
    with pytest.raises(UserError, match=r"train-00000-of-00001.parquet of openai/gsm8k"):
        download(find("gsm8k"), Silent())


def test_without_a_network_it_says_what_to_put_where(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as closed:
        pass
    point_hub_at(closed, monkeypatch)
    said = cli("data", "download", "hotpot_qa")
    assert said.code == 2 and "Traceback" not in said.err
    assert "distractor/train-00001-of-00002.parquet" in said.err
    assert "coterie data prepare hotpot_qa --from FOLDER" in said.err
