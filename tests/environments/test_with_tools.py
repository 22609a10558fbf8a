"""Any environment with tools: prompts of agents, texts that the environment knows, and errors."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from coterie import api
from coterie.environments.protocol import Environment, Shared, State, Votes, most_turns
from coterie.environments.with_tools import LAST, LEFT_OUT, REPEATED, SPENT, with_tools
from coterie.errors import UserError
from coterie.progress import Silent
from coterie.record.browse import Browser
from coterie.record.store import Store
from coterie.record.tree import TURNS, Task, Tree
from coterie.record.turn import Tool, ToolCall
from coterie.reports.sections import tools
from coterie.rollout.episodes import Driver, Episode
from coterie.rollout.sessions import Sessions
from coterie.runs.work_items import play
from coterie.tools.calls import Function, Tag, ToolError
from coterie.tools.registry import Toolbox, ToolsSettings, open_toolbox, sources_of, tags_of_sources
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.worker import SandboxSettings
from tests.helpers.play_scripts import Heard, play_messages
from tests.helpers.script_games import Asking, Counting, Rounds, Script
from tests.rollout.test_branches import branches, say

TEXT = {"type": "object", "properties": {"what": {"type": "string"}}}


@dataclass
class Looking:
    """A source with a tool that looks and one that changes something; it remembers its calls."""

    tags: Mapping[str, Tag] = field(default_factory=lambda: {"look": Tag("what", "|")})
    tools: tuple[Tool, ...] = (
        Tool("look", "Looks.", TEXT),
        Tool("push", "Pushes.", TEXT, alone=True),
    )
    identity: str = "1"
    made: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mapping[str, Function]]:
        async def look(given: Mapping[str, Any]) -> str:
            self.made.append(f"look {given['what']}")
            return f"{given['what']} is there"

        async def push(given: Mapping[str, Any]) -> str:
            self.made.append(f"push {given['what']}")
            return "pushed"

        yield {"look": look, "push": push}


def equipped(game: Environment, source: Looking, **keys: Any) -> Any:
    return with_tools(game, [source], ToolsSettings(**keys), tags_of_sources([source]))


@dataclass
class Played:
    """State of a branch after some lines, and what its actors were shown."""

    source: Looking
    environment: Any
    state: State
    heard: list[Heard]

    @property
    def inner(self) -> list[str]:
        """The texts that the environment knows."""
        return [turn.text for turn in self.environment._inner(self.state).turns]

    @property
    def results(self) -> list[tuple[str, bool]]:
        return [(one.text, one.error) for turn in self.state.turns for one in turn.results]


def debate() -> tuple[Environment, Task]:
    game = api.environment("gsm8k", source="sample", turns=4)
    return game, game.tasks("heldout", 1, 0)[0]


def speak(*lines: str, source: Looking | None = None, **keys: Any) -> Played:
    """Play these lines in a debate. Each must be requested."""
    source, (game, task) = source or Looking(), debate()
    environment = equipped(game, source, **keys)

    async def play_all() -> tuple[State, list[Heard]]:
        async with open_toolbox([source], ToolsSettings()) as box:
            return await play_messages(environment, task, lines, shared=Shared(box))

    return Played(source, environment, *asyncio.run(play_all()))


def test_calls_are_answered_and_neither_the_environment_nor_the_other_agent_hears_of_them() -> None:
    got = speak(
        *("<look>a | b</look>", "<look>c</look>", "Perhaps 3."),
        *("No, 4.", "<look>d</look>", "It is 4."),
    )
    first, second = got.environment.actors
    assert [one.actor for one in got.heard] == [first, first, first, second, first, first]
    assert sorted(got.source.made) == ["look a", "look b", "look c", "look d"]
    partner = "\n".join(text for _, text in got.heard[3].messages)
    prompts = (got.environment.observe(got.state, name)[0].parts for name in (first, second))
    assert all("look" in parts[-1].text for parts in prompts), "both read of the tools"
    assert "is there" not in partner and "a | b" not in partner and "Perhaps 3." in partner
    own = "\n".join(text for _, text in got.heard[5].messages)
    order = ("a is there", "b is there", "c is there", "Perhaps 3.", "No, 4.", "d is there")
    places = [own.index(text) for text in order]
    assert places == sorted(places), "the agent's own calls stand where they were made"
    assert got.inner == ["Perhaps 3.", "No, 4.", "It is 4."]


def test_the_environments_own_limit_counts_answers_alone() -> None:
    got = speak(*(text for n in range(4) for text in (f"<look>{n}</look>", f"Perhaps {n}.")))
    assert got.state.end == TURNS and len(got.source.made) == 4
    game, _ = debate()
    assert most_turns(equipped(game, Looking(), rounds=8)) == 9 * most_turns(game)


def test_after_its_last_calls_any_message_of_an_agent_is_its_answer() -> None:
    got = speak("<look>a</look>", "<look>b</look>", "<look>c</look>", "I agree.", rounds=2)
    assert got.heard[2].messages[-1] == ("user", LAST) and LAST not in str(got.heard[1].messages)
    assert got.source.made == ["look a", "look b"]
    assert got.inner == ["<look>c</look>", "I agree."]


def test_repeated_calls_and_those_over_the_total_are_answered_and_not_run() -> None:
    lines = "<look>a | a</look>", "<look>b</look>", "<look>a | c | d</look>", "Perhaps."
    assert speak(*lines, max_total_calls=3).results == [
        *(("a is there", False), (REPEATED, True), ("b is there", False)),
        *((REPEATED, True), ("c is there", False), (SPENT, True)),
    ]
    again = speak(*lines, repeats="run").source.made
    assert sorted(again) == ["look a", "look a", "look a", "look b", "look c", "look d"]


def test_what_changes_something_may_be_called_again_with_json_between_its_tags() -> None:
    push = '<push>{"what": "x"}</push>'
    got = speak(push, push, "<push>x</push>", "Perhaps.")
    assert got.source.made == ["push x", "push x"]
    assert ["not JSON" in text for text, is_error in got.results if is_error] == [True]


@pytest.mark.parametrize("forks", [True, False])
def test_a_session_is_forked_or_replayed_and_calls_that_only_look_are_not_run_again(
    forks: bool,
) -> None:
    source, game = Looking(), Counting(forks=forks)
    made = equipped(game, source)

    async def test() -> tuple[str, str, int]:
        async with open_toolbox([source], ToolsSettings()) as box, Sessions(4, 5.0) as kept:
            grown = branches(made, {"agent": Script(lambda _: "")}, Tree("t", "r", 0), kept)
            grown.shared = Shared(box)
            at = await grown.start()
            at = await say(grown, at, "<look>a</look>")
            at = await say(grown, at, '<push>{"what": "b"}</push>')
            first = await say(grown, at, "2")
            other = await say(grown, at, "3")
            return first.state.turns[-1].text, other.state.turns[-1].text, grown.replays

    first, other, replayed = asyncio.run(test())
    assert (first, other, replayed) == ("now 2", "now 3", 0 if forks else replayed)
    assert source.made.count("look a") == 1
    assert source.made.count("push b") == 1 + replayed, "what changes something is done again"


def test_it_has_the_traits_and_the_grades_of_the_environment() -> None:
    game, task = debate()
    made = equipped(game, Looking())
    assert isinstance(made, Votes) and isinstance(game, Votes)
    assert made.answer_to(task, "The answer is 4.") == game.answer_to(task, "The answer is 4.")
    other, shorter = Looking(identity="2"), equipped(game, Looking(), max_characters=200)
    versions = {one.version for one in (game, made, equipped(game, other), shorter)}
    assert len(versions) == 4
    got = speak("<look>a|a</look>", *(f"Maybe {n}." for n in range(4)))
    shared = Shared(Toolbox({}, ToolsSettings()))
    metrics = asyncio.run(got.environment.grade(got.state, shared)).metrics
    assert (metrics["calls"], metrics["call_errors"], metrics["rounds"]) == (2, 1, 1)


def test_only_agents_have_tools_and_none_that_act_at_the_same_time() -> None:
    game = api.environment("persona")
    made = equipped(game, Looking())
    state = State(game.tasks("train", 1, 0)[0], 0, left=game.limits)
    assert made.tools(state, "person") == () and len(made.tools(state, "agent")) == 2
    assert "<look>" not in str(made.observe(state, "person"))

    async def call() -> None:
        lines = ("<look>a</look>", "Ben")
        async with open_toolbox([Looking()], ToolsSettings()) as box:
            await play_messages(
                equipped(Rounds(), Looking()), Task("t", {}), lines, shared=Shared(box)
            )

    with pytest.raises(Exception, match="simultaneous agents"):
        asyncio.run(call())
    with pytest.raises(UserError, match="of its own"):
        equipped(Asking(), Looking())


MULTIPLY = "examples/tool.py:multiply"


def test_the_page_counts_calls_errors_and_cuts_of_a_tool(tmp_path: Path) -> None:
    game, task = debate()
    source = Looking()
    made = equipped(game, source, max_characters=100)
    left = [f"<look>{'a' * 150}|b</look>", "<look>b</look>", *(f"Maybe {n}." for n in range(4))]

    async def test(store: Store) -> None:
        async with open_toolbox([source], ToolsSettings(max_characters=100)) as box:
            script = Script(lambda _: left.pop(0))
            driver = Driver(made, dict.fromkeys(made.actors, script), seed=0, shared=Shared(box))
            await play(store, driver, [Episode(task, 0, 0, "evaluate")], Silent(), lambda: 0)

    with Store.open(tmp_path / "store.sqlite") as store:
        asyncio.run(test(store))
        assert not store.failures(0)
    (row,) = tools(Browser(tmp_path / "store.sqlite"))["rows"]
    assert row[:4] == ["look", 3, 1, 1]


def test_a_python_session_is_a_tool_of_any_environment_and_each_branch_has_its_own() -> None:
    (source,) = sources_of(["python"], None)
    made = with_tools(Counting(), [source], ToolsSettings(), tags_of_sources([source]))
    assert not made.pure and Sandbox in made.needs

    async def test() -> list[str]:
        async with (
            Sandbox(SandboxSettings(workers=1)) as sandbox,
            open_toolbox([source], ToolsSettings()) as box,
            Sessions(4, 20.0) as kept,
        ):
            grown = branches(made, {"agent": Script(lambda _: "")}, Tree("t", "r", 0), kept, 20.0)
            grown.shared = Shared(box, sandbox)
            at = await grown.start()
            at = await say(grown, at, "<python>x = 6</python>")
            one = await say(grown, at, "<python>x += 1\nx * 2</python>")
            other = await say(grown, at, "<python>x * 7</python>")
            end = await say(grown, one, "<python>x</python>")
            return [now.state.turns[-1].results[0].text for now in (at, one, other, end)]

    assert asyncio.run(test())[1:] == ["14", "42", "7"]


def test_shorter_prompts_leave_out_the_oldest_results_first() -> None:
    got = speak(*(f"Plan {n}. <look>{n}</look>" for n in range(9)), rounds=12)
    results = [turn.id for turn in got.state.turns if turn.results]
    own = [turn.id for turn in got.state.turns if turn.text.startswith("Plan")]
    prompts = list(got.environment.shorter(got.state, got.heard[0].actor))
    for prompt, count in zip(prompts, (1, 2, 4, 8), strict=True):
        assert [one.turn for one in prompt if one.turn in results] == results[count:]
        assert [one.turn for one in prompt if one.turn in own] == own
        assert sum(LEFT_OUT in part.text for one in prompt for part in one.parts) == count


def test_a_call_that_failed_may_be_repeated() -> None:
    class Failing(Looking):
        """A source whose first call fails."""

        @asynccontextmanager
        async def open(self) -> AsyncIterator[Mapping[str, Function]]:
            async with super().open() as functions:

                async def look(given: Mapping[str, Any]) -> str:
                    text = await functions["look"](given)
                    if len(self.made) == 1:
                        raise ToolError("the page is not there yet")
                    return text

                yield {**functions, "look": look}

    lines = "<look>a</look>", "<look>a</look>", "<look>a</look>", "Perhaps."
    results = [text for text, _ in speak(*lines, source=Failing()).results]
    assert results == ["the page is not there yet", "a is there", REPEATED]


def test_a_function_that_waits_holds_up_nobody_and_has_its_time_limit(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import time\n"
        'def sleep(seconds: float) -> str:\n    "Sleeps."\n'
        '    time.sleep(seconds)\n    return "slept"\n'
        'def stop() -> str:\n    "Stops."\n    return next(iter(()))\n'
    )
    sources = sources_of([f"{file}:sleep", f"{file}:stop"], None)
    tools = [tool for source in sources for tool in source.tools]
    calls = [ToolCall("c0", "sleep", '{"seconds": 20}'), ToolCall("c1", "sleep", '{"seconds": 0}')]
    calls.append(ToolCall("c2", "stop", "{}"))

    async def test() -> list[str]:
        limits = ToolsSettings(seconds=0.5)
        async with open_toolbox(sources, limits) as box, asyncio.timeout(60):
            return [one.text for one in await box.run(calls, tools, "")]

    began = time.monotonic()
    late, slept, stopped = asyncio.run(test())
    assert time.monotonic() - began < 15
    assert (late, slept) == ("no answer within 0.5 seconds", "slept")
    assert "StopIteration" in stopped


def test_toolboxes_that_were_closed_leave_nothing() -> None:
    """No process, no file, no thread; over MCP see ``test_mcp.py``."""
    (session,) = sources_of(["python"], None)
    sources, me = sources_of([MULTIPLY], None), psutil.Process()

    async def used(count: int) -> tuple[int, int]:
        async with Sandbox(SandboxSettings(workers=1)) as sandbox:
            for _ in range(count):
                async with open_toolbox(sources, ToolsSettings()) as box:
                    call = ToolCall("c0", "multiply", '{"numbers": "2 * 3"}')
                    (result,) = await box.run([call], sources[0].tools, "")
                    assert result.text == "6"
            for _ in range(count // 5):
                async with session.open_session(0, Shared(sandbox)) as functions:  # type: ignore[attr-defined]
                    await functions["python"]({"code": "1"})
        return len(me.children(recursive=True)), me.num_fds()

    before, threads = asyncio.run(used(5)), threading.active_count()
    assert asyncio.run(used(200)) == before
    assert threading.active_count() <= threads + 2, "a thread may be about to end"
