"""Passages: indexes by words and by meaning, and the tool that searches them here or at a server."""

import asyncio
import contextlib
import json
import random
import string
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerFast

from coterie.errors import UserError
from coterie.tools.calls import CallLimits, Tags, ToolError, ToolSource, ToolUnavailable, run_calls
from coterie.tools.registry import sources_of
from coterie.tools.retrieval import (
    Encoder,
    EncoderSettings,
    Passage,
    Passages,
    Retriever,
    SearchSettings,
    best,
    build_index,
    check_index,
)
from coterie.tools.search import NOTHING, Batches, RetrieverSettings, RetrieverTool
from tests.conftest import Cli
from tests.helpers.serve_app import serve_app
from tests.helpers.write_rows import write_jsonl

pytest.importorskip("bm25s")

ROWS = [
    {"id": "w0", "contents": '"Oslo"\nOslo is the capital of Norway.'},
    {"id": "w1", "contents": '"Bergen"\nBergen is a city in Norway.\nIt rains there.'},
    {"id": "w2", "contents": '"Rome"\nRome is the capital of Italy.'},
    {"id": "w3", "contents": "A text without a title\nof two lines about Norway."},
    {"id": "w4", "contents": '"The "Fram""\nA ship of Norway.'},
]
DENSE = SearchSettings(search="dense")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    assert build_index(write_jsonl(folder / "rows.jsonl", *ROWS), folder / "index") == len(ROWS)
    return folder / "index"


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder in ``bert``, and an index with its vectors in ``index``."""
    pytest.importorskip("faiss")
    folder = tmp_path_factory.mktemp("dense")
    encoder = EncoderSettings(model=tiny_bert(folder / "bert"), device="cpu", batch=2)
    rows = write_jsonl(folder / "rows.jsonl", *ROWS)
    assert build_index(rows, folder / "index", encoder=encoder) == len(ROWS)
    return folder


def tiny_bert(folder: Path, seed: int = 0) -> str:
    """A BERT of one layer with random weights that reads letters, saved in a folder."""
    letters = string.ascii_lowercase + string.digits + string.punctuation
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{one}" for one in letters)]
    vocab = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]",
    ).save_pretrained(folder)  # fmt: skip
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=300,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    return str(folder)


# -- indexes ------------------------------------------------------------------------------------


def test_passages_stay_whole_and_are_read_by_their_place(index: Path) -> None:
    passages = Passages(index)
    assert [(one.id, one.contents) for one in passages] == [
        (row["id"], row["contents"]) for row in ROWS
    ]
    assert [one.title for one in passages] == ["Oslo", "Bergen", "Rome", "", 'The "Fram"']
    assert passages[1].text == "Bergen is a city in Norway.\nIt rains there."
    assert passages[3].text == ROWS[3]["contents"]
    with pytest.raises(IndexError):
        passages[-1]


def test_pages_are_cut_into_paragraphs_with_ids_of_their_own(tmp_path: Path) -> None:
    oslo = {"id": 7, "title": "Oslo", "text": "A city.\n\nIn Norway."}
    file = write_jsonl(tmp_path / "rows.jsonl", oslo, {"title": "Rome", "text": "A city."})
    assert build_index(file, tmp_path / "index") == 3
    passages = [(one.id, one.title, one.text) for one in Passages(tmp_path / "index")]
    oslo_rows = [("7-0", "Oslo", "A city."), ("7-1", "Oslo", "In Norway.")]
    assert passages == [*oslo_rows, ("1", "Rome", "A city.")]


def test_the_best_are_the_first_of_a_whole_sort_with_ties_in_order() -> None:
    rng = random.Random(3)
    for _ in range(200):
        scores = np.array(rng.choices([0.0, 0.5, 1.0, 2.5], k=rng.randint(1, 30)), np.float32)
        whole = sorted(np.flatnonzero(scores).tolist(), key=lambda place: (-scores[place], place))
        count = rng.randint(1, 12)
        assert best(scores, count).tolist() == whole[:count]


def test_searches_by_words_give_the_best_first_and_leave_out_passages_without_a_word(
    index: Path,
) -> None:
    both, italy, nothing = Retriever(index).search(["capital of Norway", "Italy", "zebra"], 4)
    assert both[0][0].id == "w0" and len(both) == 4
    assert [score for _, score in both] == sorted((score for _, score in both), reverse=True)
    assert [passage.id for passage, _ in italy] == ["w2"] and nothing == []


def test_searches_by_meaning_compare_means_of_hidden_states_of_prefixed_texts(dense: Path) -> None:
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
    (hits, _) = retriever.search(["capital of Norway", "a much longer query than that one"], 3)
    assert [passage.id for passage, _ in hits] == [ROWS[place]["id"] for place in order[:3]]
    assert [score for _, score in hits] == pytest.approx([scores[p] for p in order[:3]], abs=1e-5)


def test_an_index_of_faiss_is_searched_if_it_fits(dense: Path, tmp_path: Path) -> None:
    import faiss

    file, folder = tmp_path / "e5_Flat.index", dense / "index"
    encoder = EncoderSettings(model=str(dense / "bert"), device="cpu")

    def settings(
        count: int, width: int, metric: int = faiss.METRIC_INNER_PRODUCT
    ) -> SearchSettings:
        vectors = faiss.index_factory(width, "Flat", metric)
        vectors.add(np.random.default_rng(0).normal(size=(count, width)).astype(np.float32))
        faiss.write_index(vectors, str(file))
        return SearchSettings(search="dense", vectors=str(file), encoder=encoder)

    (hits,) = Retriever(folder, own := settings(5, 16)).search(["Norway"], 5)
    _, places = faiss.read_index(str(file)).search(Encoder(encoder).queries(["Norway"]), 5)
    assert [passage.id for passage, _ in hits] == [f"w{place}" for place in places[0]]
    for count, width, metric, problem in (
        (6, 16, faiss.METRIC_INNER_PRODUCT, "has 6 vectors, and the corpus 5 passages"),
        (5, 8, faiss.METRIC_INNER_PRODUCT, "vectors of size 8, but its encoder has size 16"),
        (5, 16, faiss.METRIC_L2, "inner products"),
    ):
        with pytest.raises(UserError, match=problem):
            Retriever(folder, settings(count, width, metric))
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(UserError, match="can't be read as a FAISS index"):
        Retriever(folder, own)
    file.unlink()
    with pytest.raises(UserError, match="there is no file"):
        check_index(folder, own)


def test_the_hash_of_an_index_depends_on_its_passages_and_its_encoder(
    index: Path, dense: Path, tmp_path: Path
) -> None:
    copy, fewer = tmp_path / "copy", tmp_path / "fewer"
    build_index(write_jsonl(tmp_path / "copy.jsonl", *ROWS), copy)
    build_index(write_jsonl(tmp_path / "fewer.jsonl", *ROWS[:-1]), fewer)
    by_meaning = check_index(dense / "index", DENSE)
    assert check_index(index) == check_index(copy)
    assert len({check_index(index), check_index(fewer), by_meaning}) == 3
    bert = str(dense / "bert")
    same = EncoderSettings(model=bert, device="cpu", batch=7)
    assert check_index(dense / "index", SearchSettings(search="dense", encoder=same)) == by_meaning
    for wrong in (
        EncoderSettings(model=tiny_bert(tmp_path / "other", seed=1)),
        EncoderSettings(model=bert, query_prefix=""),
    ):
        with pytest.raises(UserError, match="are not from"):
            check_index(dense / "index", SearchSettings(search="dense", encoder=wrong))
    with pytest.raises(UserError, match="has no vectors"):
        check_index(index, DENSE)
    with (copy / "passages.jsonl").open("a") as file:
        file.write("{}\n")
    with pytest.raises(UserError, match="is damaged"):
        Retriever(copy)


def test_the_command_indexes_by_meaning_alone(cli: Cli, dense: Path, tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", *ROWS)
    ran = cli("data", "index", rows, "made", "--no-bm25", "--dense", dense / "bert")
    assert ran.code == 0 and "5 passages" in ran.err and "encoding" in ran.err
    with pytest.raises(UserError, match="has no BM25 index"):
        check_index(Path("made"))
    assert len(Retriever(Path("made"), DENSE).search(["Norway"], 5)[0]) == 5


# -- the tool -----------------------------------------------------------------------------------

OSLO = 'Doc 1 (Title: "Oslo")\nOslo is the capital of Norway.'
Body = dict[str, Any]
Answer = Callable[[int, Body], Response]


def echoed(number: int, body: Body) -> Response:
    rows = [[{"document": {"id": "1", "contents": f'"T"\n{query}'}}] for query in body["queries"]]
    return JSONResponse({"result": rows})


@contextlib.asynccontextmanager
async def opened(answer: Answer, **settings: Any) -> AsyncIterator[tuple[Any, list[Body]]]:
    """A tool that asks a fake server, which gives this answer, and the requests to the server."""
    bodies: list[Body] = []

    async def retrieve(request: Request) -> Response:
        bodies.append(json.loads(await request.body()))
        return answer(len(bodies), bodies[-1])

    async with serve_app(Starlette(routes=[Route("/retrieve", retrieve, methods=["POST"])])) as url:
        given = RetrieverSettings(url=f"{url}/retrieve", **settings)
        source: ToolSource = await asyncio.to_thread(RetrieverTool, given)
        async with source.open() as functions:
            yield functions["wiki_search"], bodies


def texts(source: ToolSource, text: str) -> list[str]:
    """The results of the calls of a message."""

    async def play() -> list[str]:
        async with source.open() as functions:
            calls = Tags(source.tags).parse(text, "stop")
            results = await run_calls(calls, source.tools, functions, CallLimits())
            return [one.text for one in results if not one.error]

    return asyncio.run(play())


def test_agents_are_shown_numbered_passages_of_a_folder_or_a_file(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTERIE_HOME", str(tmp_path / "home"))
    message = "<wiki_search>capital of Norway | zebra</wiki_search>"
    file = write_jsonl(tmp_path / "rows.jsonl", *ROWS)
    folder, *files = (
        RetrieverTool(RetrieverSettings(corpus=str(place), topk=5)) for place in (index, file, file)
    )
    norway, zebra = texts(folder, message)
    first, *others = norway.split("\n\n")
    assert first == OSLO and len(others) == 4 and zebra == NOTHING
    untitled = next(one for one in others if "without a title" in one)
    assert untitled.partition("\n") == (untitled[:5], "\n", ROWS[3]["contents"])
    assert [norway, zebra] == texts(files[0], message) == texts(files[1], message)
    assert len(list((tmp_path / "home" / "indexes").glob("[!.]*"))) == 1

    entry = {"name": "wiki", "tool": "wiki_search", "corpus": str(index), "topk": 1}
    (tmp_path / "tools.yaml").write_text(json.dumps({"tools": [entry]}))
    (source,) = sources_of(["wiki"], str(tmp_path / "tools.yaml"))
    assert [tool.name for tool in source.tools] == ["wiki"]
    assert texts(source, "<wiki>Oslo|Oslo</wiki>") == [OSLO, OSLO]
    assert source.identity != folder.identity


def test_the_calls_of_a_message_go_out_in_one_request_and_equal_queries_once() -> None:
    async def play() -> None:
        async with opened(echoed, topk=2) as (search, bodies):
            queries = ["b", "a", "b", "c", "a"]
            answers = await asyncio.gather(*(search({"query": one}) for one in queries))
            await search({"query": "later"})
            with pytest.raises(ToolError, match="the query is empty"):
                await search({"query": " "})
        assert [one.partition("\n")[2] for one in answers] == queries
        assert bodies[0] == {"queries": ["b", "a", "c"], "topk": 2, "return_scores": True}
        assert [body["queries"] for body in bodies[1:]] == [["later"]]

    asyncio.run(play())


@pytest.mark.parametrize(
    "fault",
    [
        lambda: JSONResponse({"error": "full"}, 503, {"Retry-After": "0"}),
        lambda: JSONResponse({}, 429),
        lambda: Response("nonsense"),
        lambda: JSONResponse({"result": []}),
    ],
    ids=["full", "too many", "no JSON", "too few"],
)
def test_a_temporary_fault_is_tried_again_and_then_the_server_is_unavailable(
    fault: Callable[[], Response],
) -> None:
    def answer(number: int, body: Body) -> Response:
        return echoed(number, body) if number == 2 else fault()

    async def play() -> None:
        async with opened(answer, tries=2) as (search, bodies):
            assert (await search({"query": "x"})).endswith("\nx")
            with pytest.raises(ToolUnavailable):
                await search({"query": "x"})
        assert len(bodies) == 4

    asyncio.run(play())


def test_one_query_that_is_refused_does_not_fail_the_others() -> None:
    def picky(number: int, body: Body) -> Response:
        is_bad = "bad" in body["queries"]
        return JSONResponse({"detail": "no bad ones"}, 422) if is_bad else echoed(number, body)

    async def play() -> list[Any]:
        async with opened(picky) as (search, _):
            queries = (search({"query": one}) for one in ("a", "bad", "c"))
            return await asyncio.gather(*queries, return_exceptions=True)

    first, bad, last = asyncio.run(play())
    assert str(first).endswith("\na") and str(last).endswith("\nc")
    assert isinstance(bad, ToolError) and "no bad ones" in str(bad)


def test_a_search_that_fails_fails_its_own_calls_alone() -> None:
    async def search(queries: Any) -> Any:
        await asyncio.sleep(0.01)
        if "bad" in queries:
            raise ValueError("no one")
        return [[Passage(query, query)] for query in queries]

    async def play() -> list[Any]:
        batches = Batches(search, 0.0, 2)
        first = asyncio.gather(batches.ask("bad"), batches.ask("beside"), return_exceptions=True)
        await asyncio.sleep(0.005)
        given_up = asyncio.ensure_future(batches.ask("good"))
        later = asyncio.ensure_future(batches.ask("good"))
        await asyncio.sleep(0)
        given_up.cancel()
        return [*await first, await later]

    bad, beside, good = asyncio.run(play())
    assert isinstance(bad, ValueError) and isinstance(beside, ValueError)
    assert good == [Passage("good", "good")]
