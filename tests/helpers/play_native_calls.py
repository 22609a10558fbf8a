"""Dialogues with calls in the syntaxes of models and by tags: how each is written, an environment, and who says what.

No tiny model speaks these syntaxes. So an engine of ours stands for the model: :class:`Prepared` gives back what was
prepared (and is no model), :class:`Forced` is the in-process engine, which reads each prompt and scores what was
prepared.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Completion, Sampling, Stats
from coterie.environments.protocol import Observation, Shared, State, Syntax, Transition
from coterie.models.chat import ChatRenderer
from coterie.record.rows import Row, rows, view
from coterie.record.tree import Ending, Task, Tree
from coterie.record.turn import (
    Message,
    Part,
    Role,
    Sample,
    Speaker,
    Tool,
    ToolCall,
    ToolResult,
    Turn,
    make_turn,
)
from coterie.rollout.branches import Branches
from coterie.rollout.samplers import TokenSampler
from coterie.rollout.sessions import Sessions
from coterie.tools.calls import CallLimits, NativeCalls, Tag, Tags, run_calls
from tests.helpers.script_games import GAME, TOOLS, Base

Call = tuple[str, str]
"""A tool, and its argument."""
SCHEMA = {"type": "object", "properties": {"what": {"type": "string", "description": "A thing."}}}
OFFERED = (
    Tool("look", "Looks at a thing.", {**SCHEMA, "required": ["what"]}),
    Tool("wait", "Waits too long.", SCHEMA),
)


def _json(key: str) -> Callable[[Call], str]:
    return lambda call: json.dumps({"name": call[0], key: {"what": call[1]}})


def _between(inside: Callable[[Call], str]) -> Callable[[Sequence[Call]], str]:
    return lambda calls: "\n".join(f"<tool_call>\n{inside(one)}\n</tool_call>" for one in calls)


def _xml(call: Call) -> str:
    return f"<function={call[0]}>\n<parameter=what>\n{call[1]}\n</parameter>\n</function>"


def _invoke(call: Call) -> str:
    return f'<invoke name="{call[0]}">\n<parameter name="what">{call[1]}</parameter>\n</invoke>\n'


def _kimi(calls: Sequence[Call]) -> str:
    each = (
        f"<|tool_call_begin|>functions.{name}:{at}<|tool_call_argument_begin|>{json.dumps({'what': what})}"
        for at, (name, what) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{'<|tool_call_end|>'.join(each)}<|tool_call_end|>{SECTION_END}"


def _tags(calls: Sequence[Call]) -> str:
    return f"<{calls[0][0]}>{'|'.join(what for _, what in calls)}</{calls[0][0]}>"


HERMES = ("qwen2", "qwen3", "opens", "granite")
SECTION_END = "<|tool_calls_section_end|>"
WRITE: Mapping[str, Callable[[Sequence[Call]], str]] = {
    **dict.fromkeys(HERMES, _between(_json("arguments"))),
    "coder": _between(_xml),
    "llama31": lambda calls: "; ".join(map(_json("parameters"), calls)),
    "mistral": lambda calls: f"[TOOL_CALLS] [{', '.join(map(_json('arguments'), calls))}]",
    "kimi": _kimi,
    "minimax": lambda calls: (
        f"\n<minimax:tool_call>\n{''.join(map(_invoke, calls))}</minimax:tool_call>"
    ),
    "tags": _tags,
}
THOUGHTS = {"qwen3": "<think>\nhm\n</think>\n\n", "opens": "hm\n</think>\n\n",
            "minimax": "hm\n</think>\n\n"}  # fmt: skip
"""With what messages begin, by template: the prompts of the last two have opened the thought."""
BROKEN = {
    **dict.fromkeys(HERMES, '<tool_call>\n{"name": "look", "arguments": {what}}\n</tool_call>'),
    "coder": "<tool_call>\n<function=look>\n<parameter=what>\n1\n</function>\n</tool_call>",
    "llama31": '{"name": "look", "parameters": {what}}',
    "mistral": '[TOOL_CALLS] [{"name": "look", "arguments": "1"}]',
    "kimi": "<|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{what}<|tool_call_end|>",
    "minimax": '<minimax:tool_call>\n<invoke name="look">\n<parameter name="what">1\n</invoke>\n</minimax:tool_call>',
    "tags": "<look></look>",
}


@dataclass(frozen=True, slots=True)
class Said:
    """What an agent says, and whether its message is cut."""

    text: str
    cut: bool = False


def script(way: str, thought: str = "") -> list[Said]:
    """Parallel calls, a broken call, one that waits too long, twelve calls, one that is cut, and two answers."""
    write = WRITE[way]
    twelve = [("look", f"thing {n}") for n in range(12)]
    said = [
        Said(write([("look", "1"), ("look", "2")])),
        Said(BROKEN[way]),
        Said(write([("wait", "1")])),
        Said(write(twelve)),
        Said(write([("look", "never")]).removesuffix(SECTION_END)[:-1], cut=True),
        Said("It is blue."),
        Said(write([("look", "3")])),
        Said("It is tall."),
    ]
    return [Said(thought + one.text, one.cut) for one in said]


class Things(Base):
    """An agent looks at things, and is asked a second question after its first answer."""

    limits: Mapping[str, int] = {"turns": 12}

    def __init__(self, syntax: Syntax, shows: str, role: Role = "tool") -> None:
        self.syntax = syntax
        self.shows = shows
        """What is seen of every thing."""
        self.role: Role = role
        self.ran: list[str] = []

    def tools(self, state: State, actor: str) -> tuple[Tool, ...]:
        return OFFERED

    def observe(self, state: State, actor: str) -> tuple[Message, ...]:
        roles: dict[str, Role] = {"agent": "assistant", "tool": self.role, "environment": "user"}
        said = (Message(roles[turn.speaker.kind], turn=turn.id) for turn in state.turns)
        return Message.of("user", "Look."), *said

    async def act(self, state: State, taken: tuple[Turn, ...], *_: Any, **__: Any) -> Transition:
        (turn,) = taken
        if not turn.calls:
            if state.data == "asked again":
                return Transition(state.data, answer=turn.text, end=Ending("answered"))
            return Transition("asked again", (Observation(GAME, (Part("And now?"),)),))

        async def look(given: Mapping[str, Any]) -> str:
            self.ran.append(given["what"])
            await asyncio.sleep(0.001 * (len(self.ran) % 3))
            return f"{given['what']}: {self.shows}"

        async def wait(given: Mapping[str, Any]) -> str:
            await asyncio.sleep(60)
            raise AssertionError

        limits = CallLimits(seconds=0.3)
        results = await run_calls(turn.calls, OFFERED, {"look": look, "wait": wait}, limits)
        return Transition(state.data, (Observation(TOOLS, results=results),))


def syntax_of(way: str, *, inline: bool = False) -> Syntax:
    if way != "tags":
        return NativeCalls()
    return Tags({"look": Tag("what", "|"), "wait": Tag("what")}, inline=inline)


def call_and_result(
    arguments: str, *results: str, sample: Sample | None = None, text: str = "", result: str = "",
    name: str = "look",
) -> tuple[Tree, list[Message]]:  # fmt: skip
    """Return a question, calls of a tool and their results, as a tree and its messages."""
    tree, parts = Tree("t", "r", 0), [Part(text)] if text else []
    calls = tuple(ToolCall(f"c{n}", name, arguments) for n in range(len(results)))
    asked = make_turn(tree.root, Speaker("agent", "agent"), parts, sample=sample, calls=calls)
    answers = tuple(ToolResult(f"c{n}", one) for n, one in enumerate(results))
    shown = [Part(result)] if result else []
    told = make_turn(asked.id, Speaker("tool", "tools"), shown, results=answers)
    tree.add(asked)
    tree.add(told)
    chat = Message("assistant", turn=asked.id), Message("tool", turn=told.id)
    return tree, [Message.of("user", "Hello"), *chat]


def odd_ids(renderer: ChatRenderer, text: str) -> tuple[int, ...]:
    """Ids of a text as no tokenizer gives them: letter by letter, but for control tokens."""
    whole = renderer.tokenizer(text, add_special_tokens=False)["input_ids"]
    found: list[int] = []
    for one in whole:
        letters = renderer.decode([one])
        split = one not in renderer.control.ids and "\ufffd" not in letters
        for part in letters if split else ():
            found += renderer.tokenizer(part, add_special_tokens=False)["input_ids"]
        found += [] if split else [one]
    return tuple(found)


def prepared_completion(renderer: ChatRenderer, said: Said, sampling: Sampling) -> Completion:
    """What an engine gives for a text: with a stop string of the sampling at its end, or an end of turn."""
    ids = odd_ids(renderer, said.text)
    stop = next((one for one in sampling.stop if said.text.endswith(one)), "")
    finish = "length" if said.cut else "stop_string" if stop else "end"
    end = () if finish != "end" else renderer.end
    ids = (*ids, *end)
    logprobs = tuple(-0.01 * place for place in range(len(ids)))
    return Completion(ids, logprobs, said.text.removesuffix(stop), finish, 0, stop=stop)  # type: ignore[arg-type]


SAMPLING = Sampling()
Heard = list[tuple[tuple[int, ...], Completion]]
"""Prompts and completions of an engine."""


@dataclass
class Prepared:
    """Stands for an engine: gives what was prepared, in order, with made-up log-probs. No model runs."""

    renderer: ChatRenderer
    script: list[Said]
    heard: Heard = field(default_factory=list)
    policy: str = "prepared"
    version: str = "0"
    stats: Stats = field(default_factory=Stats)
    width: int = 128

    async def sample(
        self, prompt: Sequence[int], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        completion = prepared_completion(self.renderer, self.script[len(self.heard)], sampling)
        self.heard.append((tuple(prompt), completion))
        return [completion]

    async def logprobs(self, *_: Any) -> Any:
        raise AssertionError("it has no model")

    load = logprobs


class Recorder(InProcessEngine):
    """The in-process engine, which remembers what it reads and returns."""

    heard: Heard

    async def sample(self, prompt: Any, seeds: Any, sampling: Sampling, **_: Any) -> Any:
        (completion,) = await self.complete(prompt, seeds, sampling)
        self.heard.append((tuple(prompt), completion))
        return [completion]

    async def complete(self, *asked: Any) -> Any:
        return await super().sample(*asked)


class Forced(Recorder):
    """A recorder that returns what was prepared: the model reads the prompt and scores it."""

    script: list[Said]

    async def complete(self, prompt: Any, seeds: Any, sampling: Sampling) -> Any:
        text = self.script[len(self.heard)]
        completion = prepared_completion(self.loaded.renderer, text, sampling)
        (scores,) = await self.logprobs(prompt, [completion.ids])
        return [replace(completion, logprobs=tuple(scores))]


@dataclass
class Played:
    """A dialogue, and exactly what the engine received and returned."""

    tree: Tree
    leaf: str
    heard: Heard
    game: Any

    @property
    def path(self) -> list[Turn]:
        return self.tree.path(self.leaf)

    @property
    def said(self) -> list[Turn]:
        return [turn for turn in self.path if turn.speaker.kind == "agent"]

    def segments(self) -> list[Any]:
        return list(view(self.tree, self.leaf, "agent").segments)

    def rows(self) -> list[Row]:
        return list(rows(view(self.tree, self.leaf, "agent")))

    def is_viewed_as_sampled(self) -> bool:
        """Return True if prompts and completions of the view are exactly those of the engine."""
        pieces = []
        for segment in self.segments():
            ids: tuple[int, ...] = ()
            for piece in segment.pieces:
                if piece.turn is not None:
                    pieces.append((ids, piece.ids))
                ids += piece.ids
        return pieces == [(prompt, completion.ids) for prompt, completion in self.heard]

    def targets(self) -> list[tuple[int, ...]]:
        return [row.ids[one.start : one.stop] for row in self.rows() for one in row.targets]


def play_calls(
    engine: Any, renderer: ChatRenderer, game: Any, sampling: Sampling = SAMPLING, seed: int = 0
) -> Played:
    """Play one dialogue by the driver's own branches."""

    async def played() -> Played:
        sampler = TokenSampler(engine, renderer.render, sampling, 10_000, renderer.calls)
        async with Sessions(1, 5.0) as sessions:
            grown = Branches(
                *(game, {"agent": sampler}, Task("t", {}), Tree("t", "r", 0)),
                seed=0, shared=Shared(), sessions=sessions, seconds=5.0,
            )  # fmt: skip
            at = await grown.start()
            while at.state.end is None:
                seeds = {"agent": seed * 100 + len(at.state.turns)}
                at = await grown.advance(at, await grown.respond(at, seeds, 0))
        return Played(grown.tree, at.node, engine.heard, game)

    return asyncio.run(played())
