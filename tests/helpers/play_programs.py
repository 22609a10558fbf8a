"""Programs that are played through the gateway, with prepared replies whose tokens no tokenizer gives."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from openai import OpenAI

from coterie.config.plugins import object_name
from coterie.engines.protocol import Completion, Sampling
from coterie.environments.gateway import open_gateway
from coterie.environments.program import Program
from coterie.environments.protocol import Environment, Shared
from coterie.environments.registry import TaskSettings, make_environment
from coterie.models.chat import ChatRenderer
from coterie.record.rows import Row, rows, view
from coterie.record.turn import Turn
from coterie.rollout.episodes import Driver, Episode, EpisodeResult
from coterie.rollout.samplers import TokenSampler
from coterie.runs.benchmark import benchmark_settings
from tests.helpers.play_native_calls import Prepared, Said, prepared_completion
from tests.helpers.play_scripts import finish_episodes
from tests.helpers.write_rows import write_jsonl

Say = Callable[[str, int], Said | str | Awaitable[str]]
"""Reply to the text of a prompt and the number of replies before it."""


class Speaking(Prepared):
    """An engine whose replies are a function of the prompt."""

    def __init__(self, renderer: ChatRenderer, say: Say) -> None:
        super().__init__(renderer, [])
        self.say = say
        self.samplings: list[Sampling] = []

    async def sample(
        self, prompt: Sequence[int], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        reply = self.say(self.renderer.decode(prompt), len(self.heard))
        reply = reply if isinstance(reply, Said | str) else await reply
        reply = Said(reply) if isinstance(reply, str) else reply
        completion = prepared_completion(self.renderer, reply, sampling)
        self.samplings.append(sampling)
        self.heard.append((tuple(prompt), completion))
        return [completion]


@dataclass
class PlayedProgram:
    """Finished episodes, and exactly what the engine received and returned."""

    results: list[EpisodeResult]
    engine: Speaking

    @property
    def result(self) -> EpisodeResult:
        (result,) = self.results
        assert result.failure is None, result.failure
        return result

    @property
    def score(self) -> float | None:
        assert self.result.tree is not None
        (outcome,) = self.result.tree.outcomes.values()
        return outcome.score

    @property
    def path(self) -> list[Turn]:
        tree = self.result.tree
        assert tree is not None
        (leaf,) = tree.outcomes
        return tree.path(leaf)

    @property
    def failure(self) -> str:
        (result,) = self.results
        assert result.failure is not None
        return result.failure

    def rows(self, role: str = "agent") -> list[Row]:
        tree = self.result.tree
        assert tree is not None
        (leaf,) = tree.outcomes
        return list(rows(view(tree, leaf, role)))

    def check_views(self, *roles: str) -> None:
        """Check that the rows hold each sampled token once, after exactly the prompt that it was sampled from."""
        sampled = [(prompt, completion.ids) for prompt, completion in self.engine.heard]
        viewed = [
            (row.ids[: target.start], row.ids[target.start : target.stop])
            for role in roles or ("agent",)
            for row in self.rows(role)
            for target in row.targets
        ]
        assert sorted(viewed) == sorted(sampled)


def make_program(folder: Path, run: Callable[..., Any] | str, *overrides: str) -> Program:
    """Return the environment of a function or a command, with ten questions."""
    lines = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(10)]
    file = write_jsonl(folder / "questions.jsonl", *lines)
    program = (
        f"environment.command={run}"
        if isinstance(run, str)
        else f"environment.agent={object_name(run)}"
    )
    given = [f"dataset={file}", "environment=program", program, *overrides]
    environment = make_environment(
        benchmark_settings(TaskSettings, "program", given[:1] + given[2:])
    )
    assert isinstance(environment, Program)
    return environment


def play_program(
    environment: Environment,
    renderer: ChatRenderer,
    say: Say,
    *,
    samples: int = 1,
    context: int = 20_000,
    max_tokens: int = 512,
    shared: AbstractAsyncContextManager[Shared] | None = None,
) -> PlayedProgram:
    """Play samples of the first task, with the gateway of a run or with other shared resources."""
    engine = Speaking(renderer, say)
    sampler = TokenSampler.of(engine, renderer, Sampling(max_tokens=max_tokens), context)
    (task,) = environment.tasks("train", 1, 0)

    async def play() -> list[EpisodeResult]:
        async with shared or _gateway() as resources:
            samplers = dict.fromkeys(environment.actors, sampler)
            driver = Driver(environment, samplers, seed=0, shared=resources)
            episodes = [Episode(task, sample, 0, "rollout") for sample in range(samples)]
            return await finish_episodes(driver, *episodes)

    return PlayedProgram(asyncio.run(play()), engine)


@asynccontextmanager
async def _gateway() -> AsyncIterator[Shared]:
    async with open_gateway() as gateway:
        yield Shared(gateway)


@cache
def _client() -> OpenAI:
    """Return a client whose connections all sessions share, since a new one reads all certificates."""
    return OpenAI(base_url="http://127.0.0.1", api_key="none")


def client_of(session: Any, **options: Any) -> OpenAI:
    return _client().with_options(base_url=session.base_url, api_key=session.api_key, **options)


def wire_tool(name: str = "look", argument: str = "what") -> dict[str, Any]:
    """Return a function tool of one text as OpenAI's clients send it."""
    schema = {
        "type": "object",
        "properties": {argument: {"type": "string"}},
        "required": [argument],
    }
    return {
        "type": "function",
        "function": {"name": name, "description": "Looks.", "parameters": schema},
    }


def compact(arguments: str) -> str:
    return json.dumps(json.loads(arguments), separators=(",", ":"))
