"""Contract 14: what an expert wrote, played with real tools, is trained token for token as if it had been sampled.

Every token of the expert's is a target once, under its name; none of prompts or of results is. What stands between the
expert's turns is the results alone, and all of it together is the text that is expected.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from coterie.datasets.load import distinct_passages, load_rows, write_passages
from coterie.datasets.rows import QuestionRow
from coterie.engines.protocol import Completion, EngineError, Sampling
from coterie.environments.protocol import Grade, Pure, Shared, State, Transition
from coterie.environments.with_tools import with_tools
from coterie.environments.workflow.expert import gold_titles, has_passages, trace_of
from coterie.environments.workflow.plan_graph import TraceForm
from coterie.models.chat import ChatRenderer
from coterie.record.rows import Row, recontext, rows, view
from coterie.record.tree import Ending, Task, Tree
from coterie.record.turn import Message, Part, Turn
from coterie.rollout.episodes import Driver, Episode, EpisodeResult
from coterie.rollout.samplers import AgentContext, Prompt, Response, Sampler, TokenSampler
from coterie.rollout.script_player import EXPERT, Script, ScriptedSampler
from coterie.tools.calls import Tags
from coterie.tools.registry import ToolsSettings, open_toolbox
from coterie.tools.retrieval import build_index
from coterie.tools.search import RetrieverSettings, RetrieverTool
from tests.helpers.play_native_calls import Prepared, Said
from tests.helpers.play_scripts import finish_episodes
from tests.helpers.template_models import TEMPLATES, make_model

pytest.importorskip("bm25s")

NAMES = [name for name in TEMPLATES if name != "thinking"]
"""Without the one that rewrites thoughts, also those before an inline result; see the last test."""
FORMS: tuple[TraceForm, ...] = ("parallel", "sequential")
CHOSEN = {
    "bridge_comparison": "72a60713086011ebbd5dac1f6bf848b6",
    "compositional": "2ad8cc560bdc11eba7f7acde48001122",
    "comparison": "b6c2dabb095f11ebbdafac1f6bf848b6",
}
"""Rows of the packaged 2Wiki, by type."""


class Asked(Pure):
    """One agent answers one question, by a tag."""

    name, metric = "asked", "right"
    actors: ClassVar[dict[str, Any]] = {"solver": "agent"}
    limits: ClassVar[dict[str, int]] = {"turns": 1}

    def next_actors(self, state: State) -> tuple[str, ...]:
        return ("solver",)

    def observe(self, state: State, actor: str) -> tuple[Message, ...]:
        said = (Message("assistant", turn=turn.id) for turn in state.turns)
        return (Message.of("user", f"Question: {state.task.public['question']}"), *said)

    async def act(self, state: State, taken: tuple[Turn, ...], *_: Any, **__: Any) -> Transition:
        answer = taken[-1].text.split("<answer>")[-1].removesuffix("</answer>")
        return Transition(answer=answer, end=Ending("answered"))

    async def grade(self, state: State, session: Any) -> Grade:
        return Grade(float(state.answer == state.task.public["gold"]))


def chosen() -> dict[str, QuestionRow]:
    return {row.id: row for row in load_rows("2wiki", "sample").rows["train"]}


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> RetrieverTool:
    """BM25 over all passages of the rows that ship, as `coterie data passages` writes them."""
    folder = tmp_path_factory.mktemp("corpus")
    write_passages(distinct_passages(chosen().values()), folder / "passages.jsonl")
    build_index(folder / "passages.jsonl", folder / "index")
    return RetrieverTool(RetrieverSettings(corpus=str(folder / "index"), topk=2))


def syntax_of(tool: RetrieverTool) -> Tags:
    return Tags(tool.tags, inline=True)


class Policy(Prepared):
    """Stands for an engine whose model says the messages of a script, with the tokenizer's own ids."""

    async def sample(
        self, prompt: Sequence[int], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        text = self.script.pop(0).text
        (stop,) = (one for one in sampling.stop if text.endswith(one))
        ids = tuple(self.renderer.tokenizer(text, add_special_tokens=False)["input_ids"])
        said = text.removesuffix(stop)
        return [Completion(ids, (-1.0,) * len(ids), said, "stop_string", seeds[0], stop=stop)]


def scripted(
    tool: RetrieverTool, renderer: ChatRenderer, row: QuestionRow, script: Script
) -> EpisodeResult:
    """Play an episode of a row's question by the expert."""
    return play(tool, row, ScriptedSampler(renderer, script))


def play(tool: RetrieverTool, row: QuestionRow, sampler: Sampler) -> EpisodeResult:
    """One episode of a row's question with the tool inline."""

    async def played() -> EpisodeResult:
        settings = ToolsSettings(calls="inline")
        question: Any = Asked()  # has no tasks
        environment = with_tools(question, [tool], settings, syntax_of(tool))
        task = Task(row.id, {"question": row.question, "gold": row.answer})
        async with open_toolbox([tool], settings) as box:
            driver = Driver(environment, {"solver": sampler}, seed=0, shared=Shared(box))
            (one,) = await finish_episodes(driver, Episode(task, 0, 0, "expert"))
        return one

    return asyncio.run(played())


def path_of(one: EpisodeResult) -> tuple[Tree, list[Turn]]:
    assert one.tree is not None, one.failure
    ((_, path),) = one.tree.trajectories()
    return one.tree, path


def messages_of(row: QuestionRow, form: TraceForm) -> Script:
    return lambda task: trace_of(row).messages(form)


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> TraceForm:
    found: TraceForm = request.param
    return found


@pytest.fixture(params=CHOSEN)
def row(request: pytest.FixtureRequest) -> QuestionRow:
    return chosen()[CHOSEN[request.param]]


@pytest.mark.parametrize("name", NAMES)
def test_all_that_the_expert_says_is_a_target_once_and_nothing_else_is(
    name: str, row: QuestionRow, form: TraceForm, tool: RetrieverTool
) -> None:
    renderer = make_model(name).renderer
    tree, path = path_of(scripted(tool, renderer, row, messages_of(row, form)))
    said = trace_of(row).messages(form)
    (trained,) = rows(view(tree, path[-1].id, "solver"))
    own = [turn for turn in path if turn.speaker.kind == "agent"]
    assert [turn.text for turn in own] == list(said)
    assert [trained.ids[one.start : one.stop] for one in trained.targets] == [
        turn.ids for turn in own
    ]
    assert [one.turn for one in trained.targets] == [turn.id for turn in own]
    assert {one.writer for one in trained.targets} == {EXPERT}
    assert trained.logprobs is None
    assert sum(trained.mask) == sum(len(turn.ids) for turn in own)
    assert [renderer.decode(turn.ids) for turn in own] == list(said)
    assert not [one for turn in own for one in turn.ids if one in renderer.control.ids]


@pytest.mark.parametrize("name", NAMES)
def test_between_the_expert_s_turns_stand_the_results_alone(
    name: str, row: QuestionRow, form: TraceForm, tool: RetrieverTool
) -> None:
    renderer = make_model(name).renderer
    tree, path = path_of(scripted(tool, renderer, row, messages_of(row, form)))
    seen = [turn for turn in path if turn.speaker.kind == "tool"]
    assert [len(turn.results) for turn in seen] == (
        [len(level) for level in trace_of(row).levels]
        if form == "parallel"
        else [1] * sum(map(len, trace_of(row).levels))
    )
    assert has_passages([one.text for turn in seen for one in turn.results], gold_titles(row))
    (segment,) = view(tree, path[-1].id, "solver").segments
    first, *between = [piece for piece in segment.pieces if piece.turn is None]
    shown = syntax_of(tool)
    assert [renderer.decode(piece.ids) for piece in between] == [
        shown.show(turn.results) for turn in seen
    ]
    said = trace_of(row).messages(form)
    texts = [one + shown.show(turn.results) for one, turn in zip(said, seen, strict=False)]
    whole = f"{renderer.decode(first.ids)}{''.join(texts)}{said[-1]}"
    assert renderer.decode(segment.ids) == whole
    assert row.question in renderer.decode(first.ids)


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_that_says_the_same_has_the_same_tokens(
    name: str, row: QuestionRow, form: TraceForm, tool: RetrieverTool
) -> None:
    renderer = make_model(name).renderer
    script = messages_of(row, form)
    engine = Policy(renderer, list(map(Said, trace_of(row).messages(form))))
    sampled = play(tool, row, TokenSampler(engine, renderer.render, Sampling(), 100_000))
    views = []
    for one in (sampled, scripted(tool, renderer, row, script)):
        tree, path = path_of(one)
        (segment,) = view(tree, path[-1].id, "solver").segments
        views.append([(piece.ids, piece.turn is not None) for piece in segment.pieces])
    assert views[0] == views[1]


@pytest.mark.parametrize("name", NAMES)
def test_the_prompts_are_those_that_a_policy_would_be_given(
    name: str, row: QuestionRow, tool: RetrieverTool
) -> None:
    renderer = make_model(name).renderer
    tree, path = path_of(scripted(tool, renderer, row, messages_of(row, "parallel")))
    recorded = view(tree, path[-1].id, "solver")
    again = recontext(
        tree, path[-1].id, "solver", name="same", edit=lambda shown: shown, render=renderer.render
    )
    assert again.segments == recorded.segments


def test_the_answer_is_graded_as_any_other(row: QuestionRow, tool: RetrieverTool) -> None:
    one = scripted(tool, make_model("chatml").renderer, row, messages_of(row, "parallel"))
    tree, path = path_of(one)
    (outcome,) = tree.outcomes.values()
    assert (outcome.answer, outcome.score) == (row.answer, 1.0)
    assert one.tokens == sum(len(turn.ids) for turn in path if turn.speaker.kind == "agent")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (["<wiki_search>a</wiki_search>"], "has 1 messages, but another"),
        (
            ["<wiki_search>a</wiki_search> and", "<answer>b</answer>"],
            "message 1 .* continues after",
        ),
        (["<answer>b</answer> and more"], "message 1 .* continues after"),
    ],
)
def test_what_could_not_be_sampled_so_fails_its_episode(
    said: Sequence[str], why: str, row: QuestionRow, tool: RetrieverTool
) -> None:
    one = scripted(tool, make_model("chatml").renderer, row, lambda task: said)
    assert one.tree is None
    with pytest.raises(EngineError, match=why):
        raise EngineError(one.failure)


def test_a_message_without_a_stop_string_ends_as_a_turn_does() -> None:
    renderer = make_model("chatml").renderer
    sampler = ScriptedSampler(renderer, lambda task: ["Hello.", "Bye."], author="script:me")

    async def asked() -> Response:
        tree = Tree("t", "r", 0)
        prompt = Prompt(
            tree, tree.root, "solver", (Message.of("user", "Hi"),), 0, 0, task=Task("t", {})
        )
        return await sampler.respond(prompt, AgentContext())

    turn = asyncio.run(asked()).turn
    assert turn.ids == renderer.encode_turn("Hello.")
    assert (turn.writer, turn.parts) == ("script:me", (Part("Hello.", source="script:me"),))


def test_a_template_that_drops_thoughts_trains_each_turn_once(
    row: QuestionRow, form: TraceForm, tool: RetrieverTool
) -> None:
    renderer = make_model("thinking").renderer
    tree, path = path_of(scripted(tool, renderer, row, messages_of(row, form)))
    found: list[Row] = list(rows(view(tree, path[-1].id, "solver")))
    trained = [one.ids[target.start : target.stop] for one in found for target in one.targets]
    assert trained == [turn.ids for turn in path if turn.speaker.kind == "agent"]
