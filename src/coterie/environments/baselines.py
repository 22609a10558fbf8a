"""Baselines for multi-agent dialogues, for any environment and its metric. Prompts are our own.

``cot``: one agent with all information (Kojima et al. 2022); ``cot_sc``: a majority of several (Wang et al. 2023);
``mad``: multi-agent debate (Du et al. 2023); ``autoform``: a format of the agents' choice (Chen et al. 2024).
"""

import asyncio
import re
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import Any, TypeVar

from coterie.environments.acting import (
    ANSWER,
    EMPTY_ACTION,
    EMPTY_ANSWER,
    FIRST_ACTION,
    Acting,
    Form,
    Move,
    filled,
    read,
)
from coterie.environments.answers import Vote
from coterie.environments.collaboration import Collaboration
from coterie.environments.exchange import Exchange, ExchangeAlone
from coterie.environments.protocol import ActorKind, Environment, State, Transition
from coterie.environments.settings import Method
from coterie.environments.talk import AGREED, ANSWERED, FORMAT_SOURCE, Talk
from coterie.errors import UserError
from coterie.record.tree import LENGTH, TURNS, Task
from coterie.record.turn import Message, Part, Turn

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


def read_react(text: str) -> Move:
    """Parse a message in ReAct's form. An action ends at the last bracket before the next action or the end."""
    marks = list(_ACTIONS.finditer(text))
    if not marks:
        return Move("nothing", note=NO_ACTION)
    end = marks[1].start() if len(marks) > 1 else len(text)
    inside, bracket, _ = text[marks[0].end() : end].rpartition("]")
    if not bracket:
        return Move("nothing", note=NO_ACTION)
    note = FIRST_ACTION * (len(marks) > 1)
    if marks[0][1] == ACT:
        return filled("action", inside.strip("\n").rstrip(), note, EMPTY_ACTION)
    return filled("answer", inside.strip(), note, EMPTY_ANSWER)


def read_thoughts(text: str) -> Move:
    move = read(text)
    return move if move.kind == "answer" else Move("nothing", note=ANSWER_ONLY)


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


ROUNDS = 2
"""Messages of each agent in a debate (Du et al., section 3.1)."""
T = TypeVar("T")
B = TypeVar("B", bound=Talk)


def by_method(environment: Environment, method: Method) -> Environment:
    """Return the environment for a method on a benchmark's tasks."""
    if method == "dialogue":
        return environment
    if isinstance(environment, Collaboration) and method == "cot":
        settings = environment.settings.model_copy(update={"turns": 1})
        return _variant(environment, SingleTurn, settings=settings, max_turns=1)
    if isinstance(environment, Acting):
        forms = {"react": REACT, **({"cot": THOUGHTS} if environment.has_answers else {})}
        if method in forms:
            other = copy(environment)
            other.form = forms[method]
            return other
    if isinstance(environment, Talk):
        if method == "mad":
            turns = ROUNDS * len(environment.agents)
            return _variant(environment, MultiAgentDebate, max_turns=turns, formats=())
        if method == "autoform":
            return _variant(environment, AutoForm, formats=())
        if method != "react":
            return single_agent(environment)
    raise UserError(
        f"method={method} does not support {environment.name}",
        "use method=dialogue; react is for agents that act, cot_sc, mad and autoform for agents that talk until they "
        "agree (coterie.environments.talk.Talk), and cot for agents that can answer at once",
    )


def single_agent(environment: B) -> B:
    """Return the environment's tasks for one agent with all information: an upper bound for dialogues."""
    if isinstance(environment, Exchange):
        return _variant(environment, ExchangeAlone)
    return _variant(environment, SingleAgent, max_turns=1, formats=())


def _variant(environment: T, kind: type, **attributes: object) -> T:
    """Return a copy of the environment with the methods of ``kind`` in front of its own."""
    other = copy(environment)
    other.__class__ = type(kind.__name__, (kind, type(environment)), {})
    vars(other).update(attributes)
    return other


class SingleTurn(Collaboration):
    """An environment with a user in which the agent has one turn and must answer at once."""

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        return self.solo_parts(task, agent)


class Alone(Talk):
    """Agents with all information, without the order, messages and tools of the environment's dialogue."""

    actors, limits, syntax = Talk.actors, Talk.limits, Talk.syntax
    begin, acting, see, tools = Talk.begin, Talk.acting, Talk.see, Talk.tools
    prompt_turns, act = Talk.prompt_turns, Talk.act

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        return self.solo_parts(task, agent)


class SingleAgent(Alone):
    """One agent, one message: steps, then the answer."""

    @property
    def actors(self) -> Mapping[str, ActorKind]:
        return dict.fromkeys(self.agents[:1], "agent")

    def acting(self, state: State) -> tuple[str, ...]:
        return self.agents[:1]

    async def act(
        self, state: State, turns: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        turn = turns[-1]
        answer = self.answer_to(state.task, turn.text)
        return Transition(
            answer=answer, end=LENGTH if turn.truncated else TURNS if answer is None else ANSWERED
        )


class MultiAgentDebate(Alone):
    """Each agent has all information and answers alone, then sees the other answers and answers again.

    The agents' last answers are votes. In a tie the largest group with the earliest agent wins. A truncated message
    counts with its answer, if it has one.
    """

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
        answers: dict[str, str | None] = dict.fromkeys(self.agents)
        for turn in state.turns:
            if (answer := self.answer_to(state.task, turn.text)) is not None:
                answers[turn.speaker.name] = answer
        vote, last = Vote(self.similarity), list(answers.values())
        for place, answer in enumerate(last):
            await asyncio.to_thread(vote.add, place, answer)
        if not vote.winners:
            return Transition(end=TURNS)
        end = AGREED if len(vote.winners) == len(last) else ANSWERED
        return Transition(answer=last[vote.winners[0]], end=end)


class AutoForm(Talk):
    """The dialogue of the environment in a format that the agents choose themselves."""

    def see(self, state: State, actor: str) -> tuple[Message, ...]:
        system, *dialogue = super().see(state, actor)
        return (replace(system, parts=(_CHOOSING, *system.parts)), *dialogue)


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
