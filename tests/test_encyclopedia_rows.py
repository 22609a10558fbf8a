"""The tiny model of the ``encyclopedia`` micro-world: what it learns from is what play shows."""

import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling
from coterie.environments.encyclopedia import PROMPT, Question, expert_trace, user_message, words
from coterie.environments.protocol import Shared
from coterie.environments.workflow.environment import Mhqa, WorkflowSettings
from coterie.environments.workflow.trace import TraceForm
from coterie.models.chat import ChatRenderer
from coterie.models.loading import load, load_renderer
from coterie.record.rows import Row, rows, view
from coterie.record.tree import Task, Tree
from coterie.rollout.branches import Branches
from coterie.rollout.recorded_turns import ScriptedSampler
from coterie.rollout.sessions import sessions_of
from coterie.tools.registry import ToolsSettings, open_toolbox, tags_of_sources
from coterie.tools.search import RetrieverSettings, RetrieverTool
from scripts.tiny.encyclopedia import FORMS, TAGS, TOPK, Block, trace_row
from tests.talking import go_on

MODEL = "tiny-encyclopedia"


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    return load_renderer(MODEL)[0].tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("block")


@pytest.fixture(scope="module")
def block(folder: Path) -> Block:
    return Block(folder, 5)


class Asked(Mhqa):
    """Asks as the micro-world does."""

    def __init__(self) -> None:
        self._configure(WorkflowSettings(prompt="short"), "asked")

    def instructions(self) -> str:
        return PROMPT


async def played(question: Question, form: TraceForm, tool: RetrieverTool) -> Row:
    game = Asked().with_tools([tool], ToolsSettings(), tags_of_sources([tool], inline=True))
    messages = expert_trace(question).messages(form)
    expert = ScriptedSampler(ChatRenderer(tokenizer()), lambda task: messages)
    task = Task("one", {"question": question.text})
    tree = Tree(task.id, "r", 0)
    async with open_toolbox([tool], ToolsSettings()) as box, sessions_of(4, 5.0) as kept:
        grown = Branches(
            game, {"agent": expert}, task, tree, seed=0, shared=Shared(box), sessions=kept,
            seconds=5.0,
        )  # fmt: skip
        at = await grown.start()
        while at.state.end is None:
            at = await go_on(grown, at)
    assert at.state.answer == question.answer
    (row,) = rows(view(tree, at.state.turns[-1].id, "agent"))
    return row


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_what_play_shows(block: Block, folder: Path, form: TraceForm) -> None:
    """Else the packaged model would be asked in words that it has never seen."""
    tool = RetrieverTool(RetrieverSettings(corpus=str(folder / "index"), topk=TOPK))

    for question in block.questions(6, ("compare", "chain")):
        shown = asyncio.run(played(question, form, tool))
        row = trace_row(tokenizer(), question, block.said(question, form))
        assert (*shown.ids, tokenizer().eos_token_id) == row.ids, "corpora also have an end of turn"
        starts = [[one.start for one in some.targets] for some in (shown, row)]
        assert starts[0] == starts[1]


def test_targets_are_the_messages_of_the_agent_alone(block: Block) -> None:
    for question in block.questions(20, ("compare", "chain")):
        for form in FORMS:
            said = block.said(question, form)
            row = trace_row(tokenizer(), question, said)
            targets = [tokenizer().decode(row.ids[one.start : one.stop]) for one in row.targets]
            *most, last = expert_trace(question).messages(form)
            assert targets == [*most, f"{last}<|end|>"]
            (ending,) = trace_row(tokenizer(), question, said, ending=True).targets
            assert ending == row.targets[-1]


def right(model: str, asked_in: Sequence[Row], turn: int) -> list[bool]:
    """Whether a message of each row is what a model says, greedily, after all that stands before it."""
    loaded = load(model)
    engine = InProcessEngine(loaded, policy=model, version="0")
    sampling = Sampling(0.0, 1.0, 64, TAGS.stop, 60.0)

    async def say() -> list[bool]:
        targets = [row.targets[turn] for row in asked_in]
        prompts = [row.ids[: one.start] for row, one in zip(asked_in, targets, strict=True)]
        found = await asyncio.gather(*(engine.sample(one, [0], sampling) for one in prompts))
        return [
            completion.ids == row.ids[one.start : one.start + len(completion.ids)]
            for row, one, (completion,) in zip(asked_in, targets, found, strict=True)
        ]

    return asyncio.run(say())


def lookups(count: int = 80) -> list[Row]:
    """Questions that take one search, in an encyclopedia that no model was trained on."""
    with tempfile.TemporaryDirectory() as name:
        block = Block(Path(name), 123_456)
        found = block.questions(count, ("chain",), hops=(1,))
        return [trace_row(tokenizer(), one, block.said(one, "sequential")) for one in found]


def share_of_right_calls(model: str) -> float:
    """Greedily, of questions that take one search."""
    return statistics.fmean(right(model, lookups(), 0))


def test_a_name_is_two_pieces_and_texts_come_back(block: Block) -> None:
    assert all(len(tokenizer().encode(word)) == 1 for word in words())
    for question in block.questions(20, ("compare", "chain")):
        assert len(tokenizer().encode(question.facts[0].subject)) == 2
        for text in (user_message(question), *block.said(question, "parallel")):
            assert tokenizer().decode(tokenizer().encode(text)) == text


def test_the_packaged_model_searches_once_and_answers() -> None:
    assert share_of_right_calls(MODEL) > 0.9
    assert statistics.fmean(right(MODEL, lookups(), -1)) > 0.8
