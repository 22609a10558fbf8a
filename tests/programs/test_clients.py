"""Episodes of eight clients with five published chat templates: exact prompts, and only sampled tokens are trained."""

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coterie.engines.protocol import Sampling
from coterie.environments.gateway import open_gateway
from coterie.environments.protocol import Shared
from coterie.record.rows import rows, view
from coterie.record.tree import Tree
from coterie.rollout.episodes import Driver, Episode
from coterie.rollout.samplers import TokenSampler
from tests.helpers.packaged_environments import packaged_environment
from tests.helpers.play_native_calls import Prepared, Said
from tests.helpers.write_rows import write_jsonl
from tests.programs.agents import RECORDERS
from tests.programs.recorder import Exchange
from tests.programs.scripts import (
    TEMPLATES,
    Reply,
    as_sampled,
    as_written,
    call,
    chat_of,
    rendered,
    renderer,
    replies_of,
)

pytest.importorskip("autogen_agentchat", reason="make test-programs installs the frameworks")

QUESTION = "{0} has 3 boxes with 4 pens in each. {0} gets 5 pens more. How many pens has {0}?"
TOOLS = (
    call("multiply", "First the boxes.", a=3, b=4),
    call("add", "Now the others.", a=12, b=5),
    Reply("17"),
)
HANDOFF = (call("transfer_to_solver", "The solver does that."), *TOOLS)
PROGRAMS = (
    Reply("Thought: I multiply.\n<code>\nboxes = multiply(3, 4)\nprint(boxes)\n</code>"),
    Reply("Thought: I add.\n<code>\npens = boxes + 5\nprint(pens)\n</code>"),
    Reply("Thought: It is known.\n<code>\nfinal_answer(pens)\n</code>"),
)
TEAM = (
    Reply("3 * 4"),
    call("multiply", a=3, b=4),
    Reply("What about the 5 pens?"),
    Reply("3 * 4 + 5"),
    call("multiply", "Once more.", a=3, b=4),
    Reply("DONE 17"),
)
SHELL = (
    Reply("I would use a shell."),
    call("bash", "First a look.", command="echo $((3 * 4 + 5))"),
    call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo 17"),
)
SMOLAGENTS = "smolagents_code"
"""The client that adds to each reply in its history, so that no message repeats a reply."""
CLIENTS: dict[str, tuple[tuple[str, ...], tuple[Reply, ...]]] = {
    "openai_tools": (("agent",), TOOLS),
    "openai_agents": (("triage", "solver"), HANDOFF),
    "agents_chat": (("triage", "solver"), HANDOFF),
    "langgraph_agent": (("agent",), TOOLS),
    "pydantic_agent": (("agent",), TOOLS),
    "autogen_team": (("planner", "checker"), TEAM),
    SMOLAGENTS: (("agent",), PROGRAMS),
    "swe_agent": (("agent",), SHELL),
}
"""Roles of each client, and what their models say, in order."""


@dataclass(frozen=True)
class ClientEpisode:
    """An episode: its record, what the engine received and returned, and what the client sent and received."""

    tree: Tree
    leaf: str
    score: float | None
    calls: list[Any]
    """Prompts and completions of the engine."""
    exchanges: list[Exchange]


def play(client: str, template: str, folder: Path) -> ClientEpisode:
    """Play an episode of a client whose models say the client's replies."""
    roles, replies = CLIENTS[client]
    names = ("Ann", "Bob", "Cal", "Dee", "Eve")
    tasks = [{"question": QUESTION.format(name), "answer": 17} for name in names]
    dataset = write_jsonl(folder / "tasks.jsonl", *tasks)
    environment = packaged_environment(
        "program",
        f"environment.agent=tests.programs.agents:{client}",
        f"environment.roles=[{','.join(roles)}]",
        "environment.reward=math",
        f"dataset={dataset}",
    )
    script = [Said(as_sampled(template, reply)) for reply in replies]
    engine = Prepared(renderer(template), script)
    sampler = TokenSampler.of(engine, renderer(template), Sampling(), 100_000)
    samplers = dict.fromkeys(roles, sampler)
    item = Episode(environment.tasks("train", 1, 0)[0], 0, 0, "rollout")

    async def run_episode() -> Any:
        async with open_gateway() as gateway:
            driver = Driver(environment, samplers, seed=0, shared=Shared(gateway))
            async with driver.play_all([item]) as results:
                return [result async for result in results].pop()

    result = asyncio.run(run_episode())
    assert result.tree is not None, result.failure
    ((outcome, _),) = result.tree.trajectories()
    exchanges = RECORDERS[-1].exchanges
    return ClientEpisode(result.tree, outcome.leaf, outcome.score, engine.heard, exchanges)


COUNTS: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
"""By client: prompts, and those that have another text or other tokens if the client's messages are rendered."""


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("client", CLIENTS)
def test_prompts_are_the_templates_own_with_the_sampled_tokens_in_place(
    client: str, template: str, tmp_path: Path
) -> None:
    roles, replies = CLIENTS[client]
    episode = play(client, template, tmp_path)
    assert episode.score == 1
    assert len(episode.exchanges) == len(episode.calls) == len(replies)
    tokenize = renderer(template).tokenizer
    texts = ids = 0
    for number, (exchange, (prompt, _)) in enumerate(
        zip(episode.exchanges, episode.calls, strict=True)
    ):
        chat, tools = chat_of(exchange)
        text = renderer(template).decode(prompt)
        assert text in expected_texts(template, episode, replies, exchange)
        for earlier in range(number):
            # The same text from a tokenizer would have other ids: the engine samples letter by letter.
            if as_sampled(template, replies[earlier]) in text and len(roles) == 1:
                assert contains(prompt, episode.calls[earlier][1].ids)
        from_messages = rendered(template, chat, tools=tools)
        texts += from_messages != text
        ids += tokenize(from_messages, add_special_tokens=False)["input_ids"] != list(prompt)
    COUNTS[client].append((len(replies), texts, ids))
    check_rows(episode, roles)


def contains(ids: tuple[int, ...], part: tuple[int, ...]) -> bool:
    return any(ids[n : n + len(part)] == part for n in range(len(ids) - len(part) + 1))


def expected_texts(
    template: str, episode: ClientEpisode, replies: tuple[Reply, ...], exchange: Exchange
) -> tuple[str, str]:
    """Return the template's rendering of a request, with the sampled text of each reply of the same model.

    If the template drops the thought of an earlier reply, nothing can be spliced. Its calls are then as the template
    writes them (first text), or as they were sampled, if the request has no tools (second text).
    """
    chat, tools = chat_of(exchange)
    model, echoed = exchange.body["model"], []
    indices = [reply_index(message, episode.exchanges) for message in chat]
    for position, index in enumerate(indices):
        # Replies of other models are context, as the client sent them.
        if index is not None and episode.exchanges[index].body["model"] == model:
            chat[position] = replies[index].message
            echoed.append(replies[index])
    text = rendered(template, chat, tools=tools)
    for reply in echoed:
        text = text.replace(as_written(template, reply), as_sampled(template, reply))
    sampled_text = text
    for reply in echoed:
        old, new = (
            form(template, reply).rpartition("</think>")[2].strip()
            for form in (as_written, as_sampled)
        )
        sampled_text = sampled_text.replace(old, new)
    return text, text if tools else sampled_text


def reply_index(message: dict[str, Any], exchanges: list[Exchange]) -> int | None:
    """Return which reply an assistant's message repeats, by call ids or else by its text; ``None`` if it is changed."""
    if message["role"] != "assistant":
        return None
    ids = tuple(call["id"] for call in message.get("tool_calls", ()))
    content = message["content"].strip()
    for number, exchange in enumerate(exchanges):
        text, reply_ids = replies_of(exchange)
        if ids == reply_ids and (ids or content == text.strip()):
            return number
    # What is no reply has the action that smolagents has read in one.
    assert "Calling tools:" in content, message
    return None


def check_rows(episode: ClientEpisode, roles: tuple[str, ...]) -> None:
    """Check that a role's rows have its model's samples of this session as targets, each token once."""
    for role in roles:
        sampled = [
            completion.ids
            for exchange, (_, completion) in zip(episode.exchanges, episode.calls, strict=True)
            # LiteLLM's prefix of the name is not sent, so a model's name is its role's.
            if exchange.body["model"] == role
        ]
        trained = [
            row.ids[target.start : target.stop]
            for row in rows(view(episode.tree, episode.leaf, role))
            for target in row.targets
        ]
        assert sampled and sorted(trained) == sorted(sampled)


def test_prompts_without_splicing_would_be_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    """Print how many prompts a proxy would get wrong that renders the client's messages."""
    with capsys.disabled():
        print("\nprompts, and those with another text and with other tokens without splicing:")
        for client, counts in COUNTS.items():
            print(f"  {client:16}", *map(sum, zip(*counts, strict=True)))
    for client, counts in COUNTS.items():
        assert any(texts for _, texts, _ in counts) or client == SMOLAGENTS
