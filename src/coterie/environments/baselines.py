"""The baselines that agents who talk are compared with, over any environment and its metric.

* ``cot``: chain of thought; one agent that holds what all agents hold answers in one message.
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

from coterie.environments.acting.environment import Acting
from coterie.environments.acting.syntax import (
    ANSWER,
    CUT,
    EMPTY_ACTION,
    EMPTY_ANSWER,
    FIRST_ACTION,
    Form,
    Move,
    read,
)
from coterie.environments.coding import AGENT, Coding
from coterie.environments.exchange.environment import Exchange, ExchangeAlone
from coterie.environments.passing import OthersPlay, OthersTasks
from coterie.environments.protocol import (
    ActorKind,
    Environment,
    State,
    Transition,
)
from coterie.environments.talk import AGREED, ANSWERED, FORMAT_SOURCE, Talk
from coterie.environments.votes import Vote
from coterie.errors import UserError
from coterie.tools.sandbox.inside.plain import Wire
from coterie.tools.sandbox.pool import Sandbox
from coterie.trajectories.task import Task
from coterie.trajectories.tree import LENGTH, TURNS
from coterie.trajectories.turn import Message, Part, Turn

# Other forms for the same tasks, as baselines: ReAct, and a chain of thought without actions.
#
# * ``react``: ReAct (Yao et al. 2023, "ReAct: Synergizing Reasoning and Acting in Language Models"): a thought, then an
# action with its argument in brackets.
# * ``cot``: chain of thought: the agent thinks and answers; what it hears of an answer is as in the environment.

ACT, FINISH = "Act", "Finish"
NO_ACTION = (
    f"There is no action in your message. Write `Action: {ACT}[...]` or `Action: {FINISH}[...]`."
)
ANSWER_ONLY = f"You can't act here. Think, then write `{ANSWER}` with your answer."

_ACTIONS = re.compile(rf"^[ \t]*Action:[ \t]*({ACT}|{FINISH})\[", re.MULTILINE)


def read_react(text: str, cut: bool = False) -> Move:
    """What a message in ReAct's form does. An action reaches to the bracket before the next one, or the last one."""
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
    """The answer of a message; it can do nothing else."""
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


class SingleTurn(OthersPlay, Coding):
    """Another coding environment, in which the agent has one turn and is told to answer at once.

    All else is the other environment's own.
    """

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
        """As the environment's own, for an agent that has to answer at once."""
        return self.environment.solo_parts(task, agent)

    def see(self, state: State, actor: str) -> tuple[Message, ...]:
        """As in the environment, but that the agent is told to answer at once."""
        shown = self.environment.see(state, actor)
        if actor != AGENT:
            return shown
        return (replace(shown[0], parts=self.system_parts(state.task, actor)), *shown[1:])

    # -- the environment's own ----------------------------------------------------------------

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

    async def expected(self, task: Task, sandbox: Sandbox) -> list[Wire]:
        return await self.environment.expected(task, sandbox)


Method = Literal["dialogue", "cot", "cot_sc", "mad", "autoform", "react"]
"""How a benchmark's tasks are played: the benchmark's own dialogue, or a baseline."""
ROUNDS = 2
"""Messages of each agent of a debate (Du et al., section 3.1)."""


def by_method(environment: Environment, method: Method) -> Environment:
    """The environment in which a benchmark's tasks are played by a method."""
    if method == "dialogue":
        return environment
    if isinstance(environment, Coding):
        if method != "cot":
            raise UserError(
                f"method={method} is not for {environment.name}, where an agent works with a person",
                "use method=dialogue, or method=cot for an answer without asking",
            )
        return SingleTurn(environment)
    if isinstance(environment, Acting):
        return _acting(environment, method)
    if not isinstance(environment, Talk) or method == "react":
        raise UserError(
            f"method={method} is not for {environment.name}, where agents do not talk until they agree",
            "use method=dialogue, or derive the environment from coterie.environments.talk.Talk",
        )
    if method == "mad":
        return MultiAgentDebate(environment)
    if method == "autoform":
        return AutoForm(environment)
    return single_agent(environment)


def _acting(environment: Acting, method: Method) -> Acting:
    """The same tasks for an agent that writes in another form."""
    known = {"react": REACT, **({"cot": THOUGHTS} if environment.has_answers else {})}
    if method not in known:
        raise UserError(
            f"method={method} is not for {environment.name}, where an agent acts",
            f"use method=dialogue, or one of: {', '.join(known)}",
        )
    return environment.in_form(known[method])


def single_agent(environment: Talk) -> Talk:
    """The environment's tasks for one agent that holds everything: the ceiling of a dialogue."""
    if not isinstance(environment, Exchange):
        return SingleAgent(environment)
    alone = ExchangeAlone(levels=environment.levels)
    alone.max_turns = environment.max_turns
    return alone


class Variant(OthersTasks, Talk):
    """The tasks, answers and grades of an environment, and what these need, to be played in another way.

    How it goes is not passed on: who acts, what the environment says, its tools and its formats.
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
        """As the environment's own, for an agent that works alone."""
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
        self, state: State, taken: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        said = taken[-1]
        answer = self.answer_to(state.task, said.text)
        return Transition(
            answer=answer, end=LENGTH if said.truncated else TURNS if answer is None else ANSWERED
        )


class MultiAgentDebate(Variant):
    """Each agent holds everything and answers alone, then sees the others' answers and answers anew.

    The last answers of the agents are voted on; if none has a majority, the first agent's group
    among the largest wins. A message that was cut gives the answer that is in it, if any.
    """

    def __init__(self, environment: Talk) -> None:
        super().__init__(environment)
        self.max_turns = ROUNDS * len(self.agents)

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        return (Part(_DEBATE, source="task"), *self.solo_parts(task, agent))

    def acting(self, state: State) -> tuple[str, ...]:
        return self.agents

    def heard(self, state: State, agent: str) -> tuple[Turn, ...]:
        """Of each round the agent's own message, then the others'."""
        turns, count = state.turns, len(self.agents)
        rounds = [turns[start : start + count] for start in range(0, len(turns), count)]
        order = [sorted(one, key=lambda turn: turn.speaker.name != agent) for one in rounds]
        return tuple(turn for one in order for turn in one)

    async def act(
        self, state: State, taken: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        if len(state.turns) < self.max_turns:
            return Transition()
        answers = {
            turn.speaker.name: answer
            for turn in state.turns
            if (answer := self.answer_to(state.task, turn.text)) is not None
        }
        last = [answers.get(agent) for agent in self.agents]
        winners = await asyncio.to_thread(self._voted, last)
        if not winners:
            return Transition(end=TURNS)
        end = AGREED if len(winners) == len(last) else ANSWERED
        return Transition(answer=last[winners[0]], end=end)

    def _voted(self, answers: Sequence[str | None]) -> tuple[int, ...]:
        vote = Vote(self.similarity)
        for place, answer in enumerate(answers):
            vote.add(place, answer)
        return vote.winners


class AutoForm(OthersPlay, Variant):
    """The environment's own dialogue, in a format that the agents choose themselves, and not one of a pool."""

    def __init__(self, environment: Talk) -> None:
        super().__init__(environment)
        self.syntax = environment.syntax

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """The request to choose a format, and the environment's own prompt."""
        return (_CHOOSING, *self.environment.system_parts(task, agent))

    def see(self, state: State, actor: str) -> tuple[Message, ...]:
        """What the environment shows, with the request to choose a format before its prompt."""
        system, *heard = self.environment.see(state, actor)
        return (replace(system, parts=(_CHOOSING, *system.parts)), *heard)

    @property
    def actors(self) -> Mapping[str, ActorKind]:
        return self.environment.actors

    @property
    def limits(self) -> Mapping[str, int]:
        return self.environment.limits

    def heard(self, state: State, agent: str) -> tuple[Turn, ...]:
        return self.environment.heard(state, agent)


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
