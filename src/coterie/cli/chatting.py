"""The conversation of ``coterie chat``: lines of a person, replies that are shown as they grow."""

import asyncio
import io
import itertools
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from coterie.cli.serving import open_policies
from coterie.config.text import encoded
from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import EngineError, Sampling
from coterie.errors import UserError
from coterie.recipes.recorded_run import recorded_run
from coterie.recipes.registry import recipe as recipe_of
from coterie.rollout.opening import Opening, first_prompts
from coterie.terminal.console import notes
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Message

NEW = "/new"
"""What a person types to begin anew."""
MIN_ROOM = 8
"""Tokens that must be left of the context for a reply."""
READER = "assistant"


@dataclass(frozen=True, slots=True)
class Manner:
    """How the model talks."""

    temperature: float
    max_tokens: int
    seed: int | None
    system: str
    task: int | None


@dataclass(slots=True)
class Conversation:
    """What was said so far, and the model that answers."""

    engine: InProcessEngine
    manner: Manner
    opening: Opening
    reader: str = READER
    said: list[Message] = field(default_factory=list)

    async def reply(self, show: Callable[[str], None]) -> None:
        """The model's next words; ``show`` gets them piece by piece. Raises ``EngineError``."""
        renderer, shown = self.engine.loaded.renderer, ""
        messages = [*self.opening.messages, *self.said]
        prompt = renderer.render(messages, self.opening.tree, self.reader)
        room = self.engine.loaded.context_length - len(prompt)
        if room < MIN_ROOM:
            raise EngineError(
                f"the conversation has {len(prompt)} tokens, and the model takes "
                f"{self.engine.loaded.context_length}: {NEW} begins anew"
            )
        ids: list[int] = []

        def heard(token: int) -> None:
            nonlocal shown
            if token in renderer.end_ids:
                return
            ids.append(token)
            text = renderer.decode(ids).rstrip("\ufffd")  # a character that is not whole yet
            show(text[len(shown) :])
            shown = text

        sampling = Sampling(self.manner.temperature, max_tokens=min(room, self.manner.max_tokens))
        seed = secrets.randbits(31) if self.manner.seed is None else self.manner.seed
        (completion,) = await self.engine.sample(
            prompt, [seed + len(self.said)], sampling, on_token=heard
        )
        show(completion.text[len(shown) :])
        self.said.append(Message.of("assistant", completion.text))


def talk(source: str, iteration: int | None, device: str | None, manner: Manner) -> None:
    """Talk until the person's lines end, or Ctrl-C."""
    encoded(manner.system, "--system")
    if manner.task is not None:
        opening, reader = _opening(source, manner)
    else:
        told = (Message.of("system", manner.system),) if manner.system else ()
        opening, reader = Opening(told, Tree("chat", "chat", 0)), READER
    with suppress(KeyboardInterrupt):
        engine = open_policies(source, iteration, source, device).base.engine
        conversation = Conversation(engine, manner, opening, reader)
        with asyncio.Runner() as runner:
            _turns(conversation, runner)
    if sys.stdin.isatty():
        print()


def _turns(conversation: Conversation, runner: asyncio.Runner) -> None:
    """The person and the model in turn; where the agent has been asked something, it begins."""
    opened = conversation.opening.messages
    begins = bool(opened) and opened[-1].role != "system"
    if begins:
        _answer(conversation, runner)
    for line in _lines():
        if line == NEW:
            conversation.said.clear()
            if begins:
                _answer(conversation, runner)
        elif line:
            conversation.said.append(Message.of("user", line))
            if not _answer(conversation, runner):
                conversation.said.pop()


def _answer(conversation: Conversation, runner: asyncio.Runner) -> bool:
    """Print a reply as it grows; whether there was one."""
    try:
        runner.run(conversation.reply(lambda text: print(text, end="", flush=True)))
    except EngineError as error:
        notes().print(str(error), style="yellow")
        return False
    print(flush=True)
    return True


def _lines() -> Iterator[str]:
    """What the person types, without blanks around it."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    if not sys.stdin.isatty():
        yield from (line.strip() for line in sys.stdin)
        return
    with suppress(ImportError):
        import readline  # noqa: F401 - lines can then be edited
    with suppress(EOFError):
        for _ in itertools.count():
            yield input("> ").strip()


def _opening(source: str, manner: Manner) -> tuple[Opening, str]:
    """What the run's agent is shown at the beginning of a held-out task, which is printed, and its name."""
    if manner.system:
        raise UserError("--system and --task both say what the model is told", "give one of them")
    if not (Path(source) / "config.yaml").is_file():
        raise UserError(f"--task: {source} is not a run folder", "leave --task out, or give a run")
    assert manner.task is not None
    with recorded_run(Path(source), recipe_of) as (recipe, _):
        tasks = recipe.heldout_tasks()
        if manner.task >= len(tasks):
            raise UserError(
                f"--task {manner.task}: the run has {len(tasks)} held-out tasks",
                f"give a number from 0 to {len(tasks) - 1}",
            )
        first = recipe.roles()[0].name
        agent = next(agent for agent, role in recipe.players().items() if role == first)
        opening = first_prompts(recipe.environment, tasks[manner.task])[agent]
    for message in opening.messages:
        of_turn = opening.tree.turns[message.turn].parts if message.turn else ()
        parts = (*message.parts, *of_turn)
        text = "".join(part.text for part in parts if part.visible_to(agent))
        notes().print(f"[{message.role}] {text}")
    return opening, agent
