"""From the Hugging Face hub to a prepared set: pinned revision, resumed downloads, checksums.

What has been downloaded lies in ``$COTERIE_HOME/downloads/NAME`` until the set is prepared, so a
download that was cut goes on where it stopped.
"""

import errno
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.config.home import home, sha256
from coterie.datasets.catalogue import DataSet, Repository, find
from coterie.datasets.data_set import UpstreamSet
from coterie.datasets.preference_files import prepare_preferences
from coterie.datasets.preferences import PreferenceSet
from coterie.datasets.prepared import (
    MANIFEST,
    Manifest,
    folder_of,
    is_prepared,
    is_unchanged,
    read_manifest,
)
from coterie.datasets.preparing import Examine, prepare
from coterie.errors import UserError
from coterie.progress import Progress

if TYPE_CHECKING:
    from huggingface_hub import HfFileMetadata

_SHA256 = re.compile(r"[0-9a-f]{64}")


def download(data_set: DataSet, progress: Progress, examine: Examine | None = None) -> Manifest:
    """Download a set's files and prepare them, unless that has been done and is unchanged.

    A set whose questions this one must leave out is downloaded before, if it is not there. Raises
    ``UserError`` without a network, for a file with a wrong checksum and for a broken row.
    """
    if (known := _present(data_set)) is not None:
        return known
    if not data_set.repos:
        raise UserError(
            f"coterie knows no file of {data_set.name} on the Hugging Face hub",
            f"get its files ({data_set.licence_url}), and `coterie data prepare {data_set.name} --from FILE`",
        )
    if data_set.without is not None and not is_prepared(find(data_set.without)):
        download(find(data_set.without), progress)
    with _downloaded(data_set, progress) as files:
        return prepare(
            *(data_set, files, folder_of(data_set), progress),
            origin=data_set.origin,
            examine=examine,
        )


def download_preferences(data_set: PreferenceSet, progress: Progress) -> Manifest:
    """As :func:`download`, of a set of preferences."""
    if (known := _present(data_set)) is not None:
        return known
    with _downloaded(data_set, progress) as files:
        return prepare_preferences(
            *(data_set, files, folder_of(data_set), progress), origin=data_set.origin
        )


@contextmanager
def _downloaded(data_set: UpstreamSet, progress: Progress) -> Iterator[list[Path]]:
    """Upstream's files of a set; they are removed when the block ends well."""
    folder = home() / "downloads" / data_set.name
    yield [
        _fetch(data_set, repo, name, folder, progress)
        for repo in data_set.repos
        for name in repo.files
    ]
    shutil.rmtree(folder)


def _present(data_set: UpstreamSet) -> Manifest | None:
    """The manifest of the prepared set if it is of upstream's files and its own are unchanged."""
    folder = folder_of(data_set)
    if not (folder / MANIFEST).is_file():
        return None
    manifest = read_manifest(folder)
    same = manifest.source == data_set.origin and is_unchanged(folder, manifest)
    return manifest if same else None


def _fetch(
    data_set: UpstreamSet, repo: Repository, name: str, folder: Path, progress: Progress
) -> Path:
    """One file of one of the set's repositories, checked against the hub's checksum."""
    import huggingface_hub as hub
    from httpx2 import HTTPError

    url = hub.hf_hub_url(repo.name, name, repo_type="dataset", revision=repo.revision)
    file = folder / name.replace("/", "-")
    try:
        remote = hub.get_hf_file_metadata(url)
        if not file.is_file():
            _transfer(url, remote, file, _bar(progress, file.name))
    except (HTTPError, OSError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise _unreachable(data_set, repo, name, error) from error
    wanted = (remote.etag or "").lower()
    if _SHA256.fullmatch(wanted) and sha256(file) != wanted:
        file.unlink()
        raise UserError(
            f"{name} of {repo.name} came with a wrong checksum, and was removed",
            "give the same command again",
        )
    return file


def _transfer(url: str, remote: "HfFileMetadata", file: Path, bar: type[Any]) -> None:
    """Download to a file that a later call can continue (the hub's own download begins anew)."""
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    version = re.sub(r"\W", "", remote.etag or "")[:16]
    partial = file.with_name(f"{file.name}.{version}.partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("ab") as opened:
        have = opened.tell()
        if remote.size is not None and have > remote.size:
            opened.truncate(have := 0)
        http_get(
            url,
            opened,
            resume_size=have,
            headers=build_hf_headers(),
            expected_size=remote.size,
            tqdm_class=bar,
        )
    partial.rename(file)


def _unreachable(data_set: UpstreamSet, repo: Repository, name: str, error: Exception) -> UserError:
    files = "; ".join(
        f"{', '.join(one.files)} of {one.name} at revision {one.revision[:12]}"
        for one in data_set.repos
    )
    return UserError(
        f"{name} of {repo.name} can't be had from the Hugging Face hub: "
        f"{str(error).splitlines()[0]}",
        f"check the network and give the same command again (it resumes); or get {files} on another "
        "machine, put them with their folders into one here, and run `coterie data prepare "
        f"{data_set.name} --from FOLDER`",
    )


def _bar(progress: Progress, name: str) -> Any:
    """The hub's progress bar, shown as one of ours."""
    from tqdm import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*args, **{**options, "disable": True})
            progress.start(int(options.get("total") or 0), name)
            progress.advance(int(options.get("initial") or 0))

        def update(self, n: float | None = 1) -> None:
            progress.advance(int(n or 0))

    return Bar
