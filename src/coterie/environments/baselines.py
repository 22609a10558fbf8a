"""Baselines for multi-agent dialogues, for any environment and its metric.

* ``cot``: chain of thought; one agent has all information and answers in one message.
* ``cot_sc``: several such answers and a majority (Wang et al. 2023, "Self-Consistency Improves
  Chain of Thought Reasoning in Language Models"); the same environment, sampled several times.
* ``mad``: multi-agent debate (Du et al. 2023, "Improving Factuality and Reasoning in Language
  Models through Multiagent Debate").
* ``react``: for an agent that acts (``acting.baselines``), as is ``cot`` there.
* ``autoform``: AutoForm (Chen et al. 2024, "Beyond Natural Language: LLMs Leveraging Alternative
  Formats for Enhanced Reasoning and Communication").

Prompts are our own.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from coterie.environments.acting import (
    ANSWER,
    CUT,
    EMPTY_ACTION,
    EMPTY_ANSWER,
    FIRST_ACTION,
    Acting,
    Form,
    Move,
    read,
)
from coterie.environments.answers import Vote
from coterie.environments.coding import AGENT, Coding
from coterie.environments.exchange import Exchange, ExchangeAlone
from coterie.environments.protocol import (
    ActorKind,
    Environment,
    State,
    Transition,
)
from coterie.environments.talk import AGREED, ANSWERED, FORMAT_SOURCE, Talk
from coterie.environments.with_tools import ForwardedPlay, ForwardedTasks
from coterie.errors import UserError
from coterie.record.tree import LENGTH, TURNS, Task
from coterie.record.turn import Message, Part, Turn
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.results import CallResult

# Other message formats for acting environments:
#
# * ``react``: ReAct (Yao et al. 2023, "ReAct: Synergizing Reasoning and Acting in Language Models"): a thought, then an
# action with its argument in brackets.
# * ``cot``: chain of thought: the agent thinks and answers. It gets the feedback of the environment to answers.

ACT, FINISH = "Act", "Finish"
NO_ACTION = (
    f"There is no action in your message. Write `Action: {ACT}[...]` or `Action: {FINISH}[...]`."
)
ANSWER_ONLY = f"You can't act here. Think, then write `{ANSWER}` with your answer."

_ACTIONS = re.compile(rf"^[ \t]*Action:[ \t]*({ACT}|{FINISH})\[", re.MULTILINE)


def read_react(text: str, cut: bool = False) -> Move:
    """Parse a message in ReAct's form. An action ends at the last bracket before the next action or the end."""
    if cut:
        return Move("nothing", note=CUT)
    marks = list(_ACTIONS.finditer(text))
    if not marks:
        return Move("nothing", note=NO_ACTION)
    end = marks[1].start() if len(marks) > 1 else len(text)
    inside, bracket, _ = text[marks[0].end() : end].rpartition("]")
    if not bracket:
        return Move("nothing", note=NO_ACTION)
    note = FIRST_ACTION if len(marks) > 1 else ""
    if marks[0][1] == ACT:
        content = inside.strip("\n").rstrip()
        return Move("action", content, note) if content else Move("nothing", note=EMPTY_ACTION)
    answer = inside.strip()
    return Move("answer", answer, note) if answer else Move("nothing", note=EMPTY_ANSWER)


def read_thoughts(text: str, cut: bool = False) -> Move:
    """Parse a message that may only answer."""
    move = read(text, cut)
    return move if move.kind == "answer" or cut else Move("nothing", note=ANSWER_ONLY)


REACT = Form(
    "Write a thought, then one action:\nThought: <what you think>\n"
    f"Action: {ACT}[<what you do>]\nWhen you know the answer, write in place of that:\n"
    f"Action: {FINISH}[<your answer>]",
    f"Write a thought, then one action:\nThought: <what you think>\nAction: {ACT}[<action>]",
    read_react,
)
THOUGHTS = Form(
    f"Think step by step. Then write your answer:\n{ANSWER} <your answer>",
    "",
    read_thoughts,
    acts=False,
)


class SingleTurn(ForwardedPlay, Coding):
    """A coding environment in which the agent has one turn and must answer at once."""

    environment: Coding

    def __init__(self, environment: Coding) -> None:
        super().__init__(environment.settings.model_copy(update={"turns": 1}))
        self.environment = environment
        self.name = environment.name
        self.version = environment.version
        self.actors = environment.actors
        self.needs = environment.needs
        self.pure = environment.pure
        self.max_sessions = environment.max_sessions
        self.syntax = environment.syntax
        self.metric = environment.metric
        self.fenced = environment.fenced
        self.script = environment.script

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        return self.environment.solo_parts(task, agent)

    def see(self, state: State, actor: str) -> tuple[Message, ...]:
        """Return the environment's prompt, with a system prompt that requests the answer at once."""
        messages = self.environment.see(state, actor)
        if actor != AGENT:
            return messages
        return (replace(messages[0], parts=self.system_parts(state.task, actor)), *messages[1:])

    # -- forwarded methods --------------------------------------------------------------------

    def solo_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        return self.environment.solo_parts(task, agent)

    def visible(self, text: str) -> str:
        return self.environment.visible(text)

    def request(self, task: Task) -> str:
        return self.environment.request(task)

    def answer(self, text: str) -> str | None:
        return self.environment.answer(text)

    def answer_to(self, task: Task, text: str) -> str | None:
        return self.environment.answer_to(task, text)

    def code(self, answer: str) -> str:
        return self.environment.code(answer)

    def same(self, first: str, second: str) -> bool:
        return self.environment.same(first, second)

    def similarity(self, answer: str, other: str) -> float:
        return self.environment.similarity(answer, other)

    def well_formed(self, task: Task, answer: str) -> bool:
        return self.environment.well_formed(task, answer)

    async def expected(self, task: Task, sandbox: Sandbox) -> Sequence[CallResult]:
        return await self.environment.expected(task, sandbox)


Method = Literal["dialogue", "cot", "cot_sc", "mad", "autoform", "react"]
"""The dialogue of the benchmark itself, or a baseline."""
ROUNDS = 2
"""Messages of each agent in a debate (Du et al., section 3.1)."""


def by_method(environment: Environment, method: Method) -> Environment:
    """Return the environment for a method on a benchmark's tasks."""
    if method == "dialogue":
        return environment
    if isinstance(environment, Coding):
        if method != "cot":
            raise UserError(
                f"method={method} does not support {environment.name}, where an agent works with a user",
                "use method=dialogue, or method=cot for an answer without questions",
            )
        return SingleTurn(environment)
    if isinstance(environment, Acting):
        return _acting(environment, method)
    if not isinstance(environment, Talk) or method == "react":
        raise UserError(
            f"method={method} does not support {environment.name}, where agents do not talk until they agree",
            "use method=dialogue, or derive the environment from coterie.environments.talk.Talk",
        )
    if method == "mad":
        return MultiAgentDebate(environment)
    if method == "autoform":
        return AutoForm(environment)
    return single_agent(environment)


def _acting(environment: Acting, method: Method) -> Acting:
    """Return the same tasks with another message format."""
    forms = {"react": REACT, **({"cot": THOUGHTS} if environment.has_answers else {})}
    if method not in forms:
        raise UserError(
            f"method={method} does not support {environment.name}, where an agent acts",
            f"use method=dialogue, or one of: {', '.join(forms)}",
        )
    return environment.in_form(forms[method])


def single_agent(environment: Talk) -> Talk:
    """Return the environment's tasks for one agent with all information: an upper bound for dialogues."""
    if not isinstance(environment, Exchange):
        return SingleAgent(environment)
    alone = ExchangeAlone(levels=environment.levels)
    alone.max_turns = environment.max_turns
    return alone


class Variant(ForwardedTasks, Talk):
    """Base class of environments with the tasks, answers and grades of another environment.

    The order of actors, the messages of the environment, its tools and its formats are not forwarded.
    """

    environment: Talk

    def __init__(self, environment: Talk) -> None:
        self.environment = environment
        self.name = environment.name
        self.version = environment.version
        self.agents = environment.agents
        self.max_turns = environment.max_turns
        self.metric = environment.metric
        self.needs = environment.needs
        self.pure = environment.pure
        self.max_sessions = environment.max_sessions

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        return self.solo_parts(task, agent)

    def solo_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        return self.environment.solo_parts(task, agent)

    def answer(self, text: str) -> str | None:
        return self.environment.answer(text)

    def answer_to(self, task: Task, text: str) -> str | None:
        return self.environment.answer_to(task, text)

    def same(self, first: str, second: str) -> bool:
        return self.environment.same(first, second)

    def score(self, task: Task, answer: str | None) -> float:
        return self.environment.score(task, answer)

    def well_formed(self, answer: str) -> bool:
        return self.environment.well_formed(answer)

    def similarity(self, answer: str, other: str) -> float:
        return self.environment.similarity(answer, other)


class SingleAgent(Variant):
    """One agent, one message: steps, then the answer."""

    def __init__(self, environment: Talk) -> None:
        super().__init__(environment)
        self.agents = environment.agents[:1]
        self.max_turns = 1

    async def act(
        self, state: State, turns: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        turn = turns[-1]
        answer = self.answer_to(state.task, turn.text)
        return Transition(
            answer=answer, end=LENGTH if turn.truncated else TURNS if answer is None else ANSWERED
        )


class MultiAgentDebate(Variant):
    """Each agent has all information and answers alone, then sees the other answers and answers again.

    The agents' last answers are votes. In a tie the largest group with the earliest agent wins. A truncated message
    counts with its answer, if it has one.
    """

    def __init__(self, environment: Talk) -> None:
        super().__init__(environment)
        self.max_turns = ROUNDS * len(self.agents)

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        return (Part(_DEBATE, source="task"), *self.solo_parts(task, agent))

    def acting(self, state: State) -> tuple[str, ...]:
        return self.agents

    def prompt_turns(self, state: State, agent: str) -> tuple[Turn, ...]:
        """Return, for each round, the agent's own message and then the other messages."""
        turns, count = state.turns, len(self.agents)
        rounds = [turns[start : start + count] for start in range(0, len(turns), count)]
        order = [sorted(one, key=lambda turn: turn.speaker.name != agent) for one in rounds]
        return tuple(turn for one in order for turn in one)

    async def act(
        self, state: State, turns: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        if len(state.turns) < self.max_turns:
            return Transition()
        answers = {
            turn.speaker.name: answer
            for turn in state.turns
            if (answer := self.answer_to(state.task, turn.text)) is not None
        }
        last = [answers.get(agent) for agent in self.agents]
        winners = await asyncio.to_thread(self._vote, last)
        if not winners:
            return Transition(end=TURNS)
        end = AGREED if len(winners) == len(last) else ANSWERED
        return Transition(answer=last[winners[0]], end=end)

    def _vote(self, answers: Sequence[str | None]) -> tuple[int, ...]:
        vote = Vote(self.similarity)
        for place, answer in enumerate(answers):
            vote.add(place, answer)
        return vote.winners


class AutoForm(ForwardedPlay, Variant):
    """The dialogue of the environment in a format that the agents choose themselves."""

    def __init__(self, environment: Talk) -> None:
        super().__init__(environment)
        self.syntax = environment.syntax

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """Return the request to choose a format, followed by the environment's prompt."""
        return (_CHOOSING, *self.environment.system_parts(task, agent))

    def see(self, state: State, actor: str) -> tuple[Message, ...]:
        """Return the environment's messages, with the request to choose a format first."""
        system, *dialogue = self.environment.see(state, actor)
        return (replace(system, parts=(_CHOOSING, *system.parts)), *dialogue)

    @property
    def actors(self) -> Mapping[str, ActorKind]:
        return self.environment.actors

    @property
    def limits(self) -> Mapping[str, int]:
        return self.environment.limits

    def prompt_turns(self, state: State, agent: str) -> tuple[Turn, ...]:
        return self.environment.prompt_turns(state, agent)


_DEBATE = (
    "Several agents answer the same question. In your first message, answer it on your own. Then you see the messages "
    "of the others: compare them with your own steps, correct your mistakes, and answer again.\n"
)
_CHOOSE = (
    "First choose a short form for your messages that is not plain sentences, such as a table, key = value pairs, "
    "logic, code, or a form of your own. Name it at the beginning of your first message, and use it in all of your "
    "messages. Only the line with the answer keeps the form that is shown below.\n"
)
_CHOOSING = Part(_CHOOSE, source=FORMAT_SOURCE)
