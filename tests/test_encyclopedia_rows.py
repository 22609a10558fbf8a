"""The tiny model of the ``encyclopedia`` micro-world: what it learns from is what play shows."""

import asyncio
import random
import re
import statistics
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling
from coterie.environments.encyclopedia.expert import PROMPT, asked, expert_trace
from coterie.environments.encyclopedia.lexicon import words
from coterie.environments.encyclopedia.questions import Question
from coterie.environments.micro_splits import split_of_key
from coterie.environments.protocol import Shared, State, Transition
from coterie.environments.with_tools import WithTools
from coterie.environments.workflow.trace import TraceForm
from coterie.microworlds.encyclopedia import (
    DRILLS,
    FORMS,
    HABITS,
    TAGS,
    TOPK,
    Block,
    build_tokenizer,
    stage_rows,
    trace_row,
)
from coterie.models.chat import ChatRenderer
from coterie.models.loading import load
from coterie.rollout.branches import Branches
from coterie.rollout.samplers import AgentContext, Prompt, Response
from coterie.rollout.sessions import sessions_of
from coterie.tools.retrieval.tool import RetrieverSettings, RetrieverTool
from coterie.tools.toolbox import ToolsSettings, open_toolbox
from coterie.trajectories.row import Row
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Ending, Tree
from coterie.trajectories.turn import Message, Part, Speaker, Turn, make_turn
from tests.games import Base
from tests.talking import go_on


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """As ``make tiny`` builds it."""
    return build_tokenizer(1200, 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("block")


@pytest.fixture(scope="module")
def block(folder: Path) -> Block:
    return Block(folder, 5)


@cache
def habit_rows() -> list[Row]:
    return list(stage_rows(tokenizer(), HABITS, 60_000, 0))


class Asked(Base):
    """A question, as a terse environment asks it."""

    def __init__(self, question: Question) -> None:
        self.question = question

    def see(self, state: State, actor: str) -> tuple[Message, ...]:
        said = (Message("assistant", turn=turn.id) for turn in state.turns)
        user = Message.of("user", asked(self.question))
        return (Message.of("system", PROMPT), user, *said)

    async def act(
        self, state: State, taken: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        return Transition(answer=taken[-1].text, end=Ending("over"))


class Terse(WithTools):
    """Says nothing of its tools."""

    def _taught(self, shown: Any) -> tuple[Message, ...]:
        return tuple(shown)


class Expert:
    """A sampler that writes an expert's messages, and keeps the prompts that it was given."""

    def __init__(self, question: Question, form: TraceForm) -> None:
        self.lines: Iterator[str] = iter(expert_trace(question).messages(form))
        self.renderer = ChatRenderer(tokenizer())
        self.prompts: list[tuple[int, ...]] = []

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        """The next message, as a stop string ends it."""
        self.prompts.append(self.renderer.render(prompt.shown, prompt.tree, prompt.agent))
        text = next(self.lines)
        ids = tuple(tokenizer().encode(text, add_special_tokens=False))
        speaker = Speaker("agent", prompt.agent)
        turn = make_turn(
            prompt.parent, speaker, [Part(text)], ids=ids, author="script",
            calls=TAGS.parse(text, "stop"),
        )  # fmt: skip
        return Response(turn, None, len(ids))


@asynccontextmanager
async def branches(game: Terse, tool: RetrieverTool, expert: Expert) -> AsyncIterator[Branches]:
    task = Task("one", {})
    async with open_toolbox([tool], ToolsSettings()) as box, sessions_of(4, 5.0) as kept:
        yield Branches(
            game, {"agent": expert}, task, Tree(task.id, "r", 0), seed=0, shared=Shared(box),
            sessions=kept, seconds=5.0,
        )  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_what_play_shows(block: Block, folder: Path, form: TraceForm) -> None:
    """Else the packaged model would be asked in words that it has never seen."""
    tool = RetrieverTool(RetrieverSettings(corpus=str(folder / "index"), topk=TOPK))

    async def play(question: Question) -> list[tuple[int, ...]]:
        game = Terse(Asked(question), [tool], ToolsSettings(), TAGS)
        expert = Expert(question, form)
        async with branches(game, tool, expert) as grown:
            at = await grown.start()
            while at.state.end is None:
                at = await go_on(grown, at)
        return expert.prompts

    for question in block.questions(6, ("compare", "chain")):
        row = trace_row(tokenizer(), question, block.said(question, form))
        prompts = asyncio.run(play(question))
        assert prompts == [row.ids[: target.start] for target in row.targets]


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


def test_few_rows_of_the_corpus_are_whole_trajectories() -> None:
    texts = [(row, tokenizer().decode(row.ids)) for row in habit_rows()]
    assert max(len(row.ids) for row, _ in texts) < 400
    whole = [
        text for row, text in texts if len(row.targets) > 1 and text.count("<observation>") > 1
    ]
    share = 1 - HABITS.lookups - HABITS.given - HABITS.known
    assert abs(len(whole) / len(texts) - share) < 0.06
    assert 0.3 < statistics.fmean("<plan>" in text for text in whole) < 0.7


def test_rows_and_drills_have_no_name_that_a_task_asks_for(block: Block) -> None:
    texts = [tokenizer().decode(row.ids) for row in habit_rows()[:100]]
    names = {name for text in texts for name in re.findall(r'\(Title: "(.+?)"\)', text)}
    assert len(names) > 100
    assert {split_of_key(name) for name in names} == {"corpus"}


def right(model: str, rows: Sequence[Row], turn: int) -> list[bool]:
    """Whether a message of each row is what a model says, greedily, after all that stands before it."""
    loaded = load(model)
    engine = InProcessEngine(loaded, policy=model, version="0")
    sampling = Sampling(0.0, 1.0, 64, TAGS.stop, 60.0)

    async def say() -> list[bool]:
        targets = [row.targets[turn] for row in rows]
        prompts = [row.ids[: one.start] for row, one in zip(rows, targets, strict=True)]
        found = await asyncio.gather(*(engine.sample(one, [0], sampling) for one in prompts))
        return [
            completion.ids == row.ids[one.start : one.start + len(completion.ids)]
            for row, one, (completion,) in zip(rows, targets, found, strict=True)
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


def test_targets_of_drills_are_the_second_halves() -> None:
    rng, cut = random.Random(0), tokenizer()
    for _, drill in DRILLS:
        for _ in range(20):
            row = drill(cut, rng)
            assert row.targets[-1].stop == len(row.ids) <= 400
            assert all(one.start > 0 for one in row.targets)


def test_a_name_is_two_pieces_and_texts_come_back(block: Block) -> None:
    assert all(len(tokenizer().encode(word)) == 1 for word in words())
    for question in block.questions(20, ("compare", "chain")):
        assert len(tokenizer().encode(question.facts[0].subject)) == 2
        for text in (asked(question), *block.said(question, "parallel")):
            assert tokenizer().decode(tokenizer().encode(text)) == text
