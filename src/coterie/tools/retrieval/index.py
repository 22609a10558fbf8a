"""A folder of passages that can be searched: how ``coterie data index`` makes it, and what it says of itself."""

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from coterie.config.folders import check_new_folder, expanded, whole_folder
from coterie.errors import UserError
from coterie.progress import Progress, Silent
from coterie.tools.retrieval import bm25 as words
from coterie.tools.retrieval import vectors as meaning
from coterie.tools.retrieval.passages import Passages, PassageWriter, read_rows
from coterie.tools.retrieval.settings import EncoderSettings

if TYPE_CHECKING:  # loads torch
    from coterie.tools.retrieval.encoder import Encoder

MANIFEST, VECTORS = "manifest.json", "vectors.faiss"
FORM = 2
"""Of the folder."""


class MadeWith(BaseModel):
    """The encoder of a folder's vectors."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    encoder: EncoderSettings
    identity: str
    """A hash of what vectors depend on."""


class Manifest(BaseModel):
    """What a folder says of itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    form: int
    passages: int
    pages: int
    content: str
    """A hash of all passages in their order."""
    bm25: bool
    vectors: MadeWith | None = None

    @classmethod
    def read(cls, folder: Path) -> Self:
        """That of a folder. Raises ``UserError`` for what is not an index."""
        try:
            found = cls.model_validate_json((folder / MANIFEST).read_bytes())
        except (OSError, ValidationError) as error:
            raise UserError(
                f"{folder} is not an index of pages, or of an older form",
                "make one: coterie data index FILE.jsonl FOLDER",
            ) from error
        if found.form != FORM:
            raise UserError(f"{folder} is of form {found.form}, not {FORM}", "make the index again")
        return found


def build_index(
    file: Path,
    folder: Path,
    *,
    bm25: bool = True,
    encoder: EncoderSettings | None = None,
    progress: Progress | None = None,
) -> int:
    """Index a JSONL file (``passages.read_rows``); how many passages it has.

    With an ``encoder`` they are also indexed by meaning. Raises ``UserError`` for a file that can't be read, a row
    that is broken, a folder that is there already, and a package or a model that is missing.
    """
    check_new_folder(folder, "give another folder, or remove it")
    with whole_folder(folder) as new:
        return fill_index(new, file, bm25=bm25, encoder=encoder, progress=progress or Silent())


def fill_index(
    new: Path, file: Path, *, bm25: bool, encoder: EncoderSettings | None, progress: Progress
) -> int:
    """As :func:`build_index`, into a new folder that the caller keeps or drops."""
    if bm25:
        words.package()
    loaded = None if encoder is None else _loaded(encoder)
    writer = PassageWriter(new)
    contents = writer.passing(read_rows(file, progress))
    tokens = words.tokenized(contents) if bm25 else deque(contents, 0)
    written = writer.finish()
    if not written.passages:
        raise UserError(f"{file} has no text", "give rows with `contents`, or `title` and `text`")
    if bm25:
        words.build_bm25(tokens, new)
    made = None
    if encoder is not None and loaded is not None:
        meaning.build_vectors(Passages(new), loaded, new / VECTORS, progress)
        made = MadeWith(encoder=_placed(encoder), identity=encoder.identity())
    told = Manifest(
        form=FORM,
        passages=written.passages,
        pages=written.pages,
        content=written.content,
        bm25=bm25,
        vectors=made,
    )
    (new / MANIFEST).write_text(told.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return written.passages


def _placed(encoder: EncoderSettings) -> EncoderSettings:
    """An encoder whose folder is found from everywhere."""
    folder = expanded(encoder.model)
    model = str(folder.absolute()) if folder.is_dir() else encoder.model
    return encoder.model_copy(update={"model": model})


def _loaded(encoder: EncoderSettings) -> "Encoder":
    meaning.package()
    from coterie.tools.retrieval.encoder import Encoder  # loads torch

    return Encoder(encoder)
