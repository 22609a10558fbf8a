"""Corpora of passages: rows of a file, indexes by words and by meaning."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.errors import UserError
from coterie.tools.retrieval import (
    EncoderSettings,
    Passages,
    Retriever,
    SearchSettings,
    best,
    build_index,
    check_index,
)
from tests.conftest import Cli
from tests.passages import ROWS, encoded, indexed, tiny_bert
from tests.row_files import jsonl

pytest.importorskip("bm25s")

DENSE = SearchSettings(search="dense")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return indexed(tmp_path_factory.mktemp("index"))


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder in ``bert``, and an index with its vectors in ``index``."""
    return encoded(tmp_path_factory.mktemp("dense"))


# -- passages -----------------------------------------------------------------------------------


def test_passages_stay_whole_and_are_read_by_their_place(index: Path) -> None:
    passages = Passages(index)
    assert [one.id for one in passages] == ["w0", "w1", "w2", "w3", "w4"]
    assert [one.contents for one in passages] == [row["contents"] for row in ROWS]
    assert [one.title for one in passages] == ["Oslo", "Bergen", "Rome", "", 'The "Fram"']
    assert passages[1].text == "Bergen is a city in Norway.\nIt rains there."
    assert passages[3].text == ROWS[3]["contents"]
    for place in (-1, 5):
        with pytest.raises(IndexError):
            passages[place]


def test_pages_are_cut_into_paragraphs_with_ids_of_their_own(tmp_path: Path) -> None:
    oslo = {"id": 7, "title": "Oslo", "text": "A city.\n\nIn Norway."}
    file = jsonl(tmp_path / "rows.jsonl", oslo, {"title": "Rome", "text": "A city."})
    assert build_index(file, tmp_path / "index") == 3
    found = [(one.id, one.title, one.text) for one in Passages(tmp_path / "index")]
    oslo_rows = [("7-0", "Oslo", "A city."), ("7-1", "Oslo", "In Norway.")]
    assert found == [*oslo_rows, ("1", "Rome", "A city.")]


@pytest.mark.parametrize(
    "row",
    [b'"text"', b'{"id": "1"}', b'{"contents": 3}', b'{"contents": " "}', b'{"contents": "\xff"}'],
)
def test_a_row_that_is_none_is_refused_by_its_line_and_nothing_is_left(
    tmp_path: Path, row: bytes
) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'{"contents": "x y"}\n\n' + row + b"\n")
    with pytest.raises(UserError, match=r"line 3|is not UTF-8"):
        build_index(tmp_path / "rows.jsonl", tmp_path / "index")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["rows.jsonl"]


def test_a_corpus_that_was_changed_is_refused(index: Path, tmp_path: Path) -> None:
    build_index(jsonl(tmp_path / "rows.jsonl", *ROWS), tmp_path / "index")
    with (tmp_path / "index" / "passages.jsonl").open("a") as file:
        file.write("{}\n")
    with pytest.raises(UserError, match="is damaged"):
        Retriever(tmp_path / "index")


# -- by words -----------------------------------------------------------------------------------


def test_searches_by_words_give_the_best_first_and_leave_out_what_has_no_word(index: Path) -> None:
    retriever = Retriever(index)
    both, italy, nothing = retriever.search(["capital of Norway", "Italy", "zebra"], 4)
    assert both[0][0].id == "w0" and len(both) == 4
    assert [score for _, score in both] == sorted((score for _, score in both), reverse=True)
    assert [passage.id for passage, _ in italy] == ["w2"] and nothing == []


def test_the_best_are_those_of_a_whole_sort_and_equal_ones_are_in_order() -> None:
    rng = random.Random(3)
    for _ in range(200):
        scores = np.array(rng.choices([0.0, 0.5, 1.0, 2.5], k=rng.randint(1, 30)), np.float32)
        whole = sorted(np.flatnonzero(scores).tolist(), key=lambda place: (-scores[place], place))
        count = rng.randint(1, 12)
        assert best(scores, count).tolist() == whole[:count]


# -- by meaning ---------------------------------------------------------------------------------


def test_searches_by_meaning_compare_means_of_hidden_states_of_prefixed_texts(dense: Path) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(dense / "bert").eval()
    tokenizer = AutoTokenizer.from_pretrained(dense / "bert")

    def vector(text: str) -> Any:
        with torch.no_grad():
            mean = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        return mean / mean.norm()

    query = vector("query: capital of Norway")
    scores = [float(query @ vector(f"passage: {row['contents']}")) for row in ROWS]
    order = sorted(range(5), key=lambda place: -scores[place])
    retriever = Retriever(dense / "index", DENSE)
    (found, _) = retriever.search(["capital of Norway", "a much longer query than that one"], 3)
    assert [passage.id for passage, _ in found] == [ROWS[place]["id"] for place in order[:3]]
    assert [score for _, score in found] == pytest.approx([scores[p] for p in order[:3]], abs=1e-5)


def flat(file: Path, count: int, width: int, **more: Any) -> str:
    """A FAISS index as the published one of Wiki-18 is made."""
    import faiss

    metric = more.get("metric", faiss.METRIC_INNER_PRODUCT)
    made = faiss.index_factory(width, "Flat", metric)
    made.add(np.random.default_rng(0).normal(size=(count, width)).astype(np.float32))
    faiss.write_index(made, str(file))
    return str(file)


def outside(dense: Path, file: str) -> SearchSettings:
    encoder = EncoderSettings(model=str(dense / "bert"), device="cpu")
    return SearchSettings(search="dense", vectors=file, encoder=encoder)


def test_a_flat_index_that_others_made_is_searched(dense: Path, tmp_path: Path) -> None:
    import faiss

    from coterie.tools.retrieval import Encoder

    settings = outside(dense, flat(tmp_path / "e5_Flat.index", 5, 16))
    (found,) = Retriever(dense / "index", settings).search(["Norway"], 5)
    assert settings.encoder is not None
    query = Encoder(settings.encoder).queries(["Norway"])
    _, places = faiss.read_index(str(tmp_path / "e5_Flat.index")).search(query, 5)
    assert [passage.id for passage, _ in found] == [f"w{place}" for place in places[0]]


def test_an_index_that_does_not_fit_is_refused(dense: Path, tmp_path: Path) -> None:
    import faiss

    file, folder = tmp_path / "x.index", dense / "index"
    for count, width, more, said in (
        (6, 16, {}, "has 6 vectors, and the corpus 5 passages"),
        (5, 8, {}, "vectors of size 8, but its encoder has size 16"),
        (5, 16, {"metric": faiss.METRIC_L2}, "inner products"),
    ):
        with pytest.raises(UserError, match=said):
            Retriever(folder, outside(dense, flat(file, count, width, **more)))
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(UserError, match="can't be read as a FAISS index"):
        Retriever(folder, outside(dense, str(file)))
    with pytest.raises(UserError, match="there is no file"):
        check_index(folder, outside(dense, str(tmp_path / "none.index")))


def test_vectors_are_searched_by_the_encoder_that_made_them(
    dense: Path, index: Path, tmp_path: Path
) -> None:
    folder = dense / "index"
    same = EncoderSettings(model=str(dense / "bert"), device="cpu", batch=7)
    own = SearchSettings(search="dense", encoder=same)
    assert check_index(folder, own) == check_index(folder, DENSE)
    for wrong in (
        EncoderSettings(model=str(tiny_bert(tmp_path / "other", seed=1))),
        EncoderSettings(model=str(dense / "bert"), query_prefix=""),
    ):
        with pytest.raises(UserError, match="are not from"):
            check_index(folder, SearchSettings(search="dense", encoder=wrong))
    with pytest.raises(UserError, match="has no vectors"):
        check_index(index, DENSE)


def test_what_searches_depend_on_is_the_same_wherever_the_files_lie(
    index: Path, dense: Path, tmp_path: Path
) -> None:
    build_index(jsonl(tmp_path / "again.jsonl", *ROWS), tmp_path / "again")
    build_index(jsonl(tmp_path / "fewer.jsonl", *ROWS[:-1]), tmp_path / "fewer")
    folders = index, tmp_path / "again", tmp_path / "fewer"
    first, again, fewer = map(check_index, folders)
    by_meaning = check_index(dense / "index", DENSE)
    assert first == again and len({first, fewer, by_meaning}) == 3


def test_the_command_indexes_by_meaning_alone(cli: Cli, dense: Path, tmp_path: Path) -> None:
    rows = jsonl(tmp_path / "rows.jsonl", *ROWS)
    ran = cli("data", "index", rows, "made", "--no-bm25", "--dense", dense / "bert")
    assert ran.code == 0 and "5 passages" in ran.err and "encoding" in ran.err
    with pytest.raises(UserError, match="has no BM25 index"):
        check_index(Path("made"))
    retriever = Retriever(Path("made"), DENSE)
    assert len(retriever.search(["Norway"], 5)[0]) == 5
