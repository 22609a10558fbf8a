"""Baselines for dialogues and for agents that act, for any environment and its metric. Prompts are our own.

Dialogues: ``cot``, one agent with all information (Kojima et al. 2022); ``cot_sc``, a majority of several (Wang et al.
2023); ``mad``, multi-agent debate (Du et al. 2023); ``autoform``, a format of the agents' choice (Chen et al. 2024).
Agents that act: other message formats, ``reflexion`` and ``code_as_policy``.

:func:`by_method` is the entry. A message format replaces the environment's :class:`~coterie.environments.acting.Form`.
Other methods are mixins: the classes below, which :func:`_variant` puts in front of the environment's class.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from coterie.environments.acting import (
    ANSWER,
    CUT,
    EMPTY_ACTION,
    EMPTY_ANSWER,
    FIRST_ACTION,
    SOLVED,
    Acting,
    Form,
    Move,
    filled,
    observation,
    read,
)
from coterie.environments.code_blocks import python_blocks
from coterie.environments.collaboration import Collaboration
from coterie.environments.dialogue import AGREED, FORMAT_SOURCE, Dialogue
from coterie.environments.exchange import Exchange, ExchangeAlone
from coterie.environments.protocol import (
    AGENT,
    ActorKind,
    Environment,
    Grade,
    Replayed,
    Shared,
    State,
    Transition,
)
from coterie.environments.qa_metrics import Vote
from coterie.environments.settings import Method
from coterie.errors import UserError
from coterie.record.tree import ANSWERED, LENGTH, TURNS, Ending, Task
from coterie.record.turn import Message, Part, Turn
from coterie.tools.sandbox.inside.policy import ACTION as ACTION_LINE
from coterie.tools.sandbox.inside.policy import POLICY
from coterie.tools.sandbox.pool import Sandbox

# Message formats of agents that act:
#
# * ``react``: ReAct (Yao et al. 2023, "ReAct: Synergizing Reasoning and Acting in Language Models"): a thought, then an
#   action with its argument in brackets.
# * ``cot``: chain of thought: the agent thinks and answers. It gets the feedback of the environment to answers.
# * ``code_as_policy``: a program.

ACT, FINISH = "Act", "Finish"
NO_ACTION = (
    f"There is no action in your message. Write `Action: {ACT}[...]` or `Action: {FINISH}[...]`."
)
ANSWER_ONLY = f"You can't act here. Think, then write `{ANSWER}` with your answer."

_ACTIONS = re.compile(rf"^[ \t]*Action:[ \t]*({ACT}|{FINISH})\[", re.MULTILINE)


def read_react(text: str) -> Move:
    """Parse a message in ReAct's form. An action ends at the last bracket before the next action or the end."""
    beginnings = list(_ACTIONS.finditer(text))
    if not beginnings:
        return Move("nothing", note=NO_ACTION)
    end = beginnings[1].start() if len(beginnings) > 1 else len(text)
    argument, bracket, _ = text[beginnings[0].end() : end].rpartition("]")
    if not bracket:
        return Move("nothing", note=NO_ACTION)
    note = FIRST_ACTION * (len(beginnings) > 1)
    if beginnings[0][1] == ACT:
        return filled("action", argument.strip("\n").rstrip(), note, EMPTY_ACTION)
    return filled("answer", argument.strip(), note, EMPTY_ANSWER)


def read_thoughts(text: str) -> Move:
    """Parse a message of an agent that only answers."""
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


NO_PROGRAM = "There is no program in your message, so nothing was done."


def read_program(text: str) -> Move:
    blocks = python_blocks(text)
    return Move("action", blocks[0]) if blocks else Move("nothing", note=NO_PROGRAM)


PROGRAM = Form(
    "",
    "Write one program in Python that does the whole task, between ```python and ```. It is run once, and you can't "
    "correct it. Each call of a function is an action, and returns what you then see, as text.\nFunctions:\n",
    read_program,
)

ROUNDS = 2
"""Messages of each agent in a debate (Du et al., section 3.1)."""
T = TypeVar("T")


def by_method(environment: Environment, method: Method, attempts: int = 3) -> Environment:
    """Return the environment for a method on a benchmark's tasks. ``attempts`` is for ``reflexion``."""
    if method == "dialogue":
        return environment
    if isinstance(environment, Collaboration) and method == "cot":
        settings = environment.settings.model_copy(update={"turns": 1})
        return _variant(environment, SingleTurn, settings=settings, max_turns=1)
    if isinstance(environment, Acting):
        # Thoughts without actions need an environment that accepts answers.
        forms = {"react": REACT, **({"cot": THOUGHTS} if environment.has_answers else {})}
        if method in forms:
            variant = copy(environment)
            variant.form = forms[method]
            return variant
        # A variant opens sessions itself, so it is never pure, but must know if the environment is.
        purity = {"is_pure": environment.pure, "pure": False}
        if method == "reflexion":
            # Each attempt has one more turn, in which the agent reflects.
            limits = {"turns": attempts * (environment.steps + 1)}
            return _variant(environment, Reflexion, attempts=attempts, limits=limits, **purity)
        # The functions of a program are made from the forms of the environment's actions, which not
        # all environments list.
        if method == "code_as_policy" and type(environment).commands is not Acting.commands:
            needs = tuple(dict.fromkeys((*environment.needs, Sandbox)))
            return _variant(environment, CodeAsPolicy, form=PROGRAM, needs=needs, **purity)
    if isinstance(environment, Dialogue):
        if method == "mad":
            turns = ROUNDS * len(environment.agents)
            return _variant(environment, MultiAgentDebate, max_turns=turns, formats=())
        if method == "autoform":
            return _variant(environment, AutoForm, formats=())
        if method in ("cot", "cot_sc"):
            # One agent with all information: an upper bound for dialogues.
            if isinstance(environment, Exchange):
                return _variant(environment, ExchangeAlone)
            return _variant(environment, SingleAgent, max_turns=1, formats=())
    raise UserError(
        f"method={method} does not support {environment.name}",
        "use method=dialogue; react and reflexion are for agents that act, code_as_policy for agents with commands, "
        "cot_sc, mad and autoform for agents that talk until they agree (coterie.environments.Dialogue), and "
        "cot for agents that can answer at once",
    )


def _variant(environment: T, kind: type, **attributes: object) -> T:
    """Return a copy of the environment with the methods of ``kind`` in front of its own, and with other attributes.

    In a method of ``kind``, ``super()`` is the environment's own class.
    """
    mixed = type(kind.__name__, (kind, type(environment)), {})
    # The copy keeps all attributes, as `copy.copy` would; no class is assigned, since layouts of classes may differ.
    variant: T = object.__new__(mixed)
    vars(variant).update(vars(environment))
    vars(variant).update(attributes)
    return variant


class SingleTurn(Collaboration):
    """An environment with a user in which the agent has one turn and must answer at once."""

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        return self.solo_parts(task, agent)


class Alone(Dialogue):
    """Agents with all information, without the order, messages and tools of the environment's dialogue."""

    # Named here, so that they precede the environment's own methods; inherited ones would come after them.
    actors, limits, syntax = Dialogue.actors, Dialogue.limits, Dialogue.syntax
    begin, next_actors, observe = Dialogue.begin, Dialogue.next_actors, Dialogue.observe
    tools = Dialogue.tools
    prompt_turns, act = Dialogue.prompt_turns, Dialogue.act

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        return self.solo_parts(task, agent)


class SingleAgent(Alone):
    """One agent, one message: steps, then the answer."""

    @property
    def actors(self) -> Mapping[str, ActorKind]:
        return dict.fromkeys(self.agents[:1], "agent")

    def next_actors(self, state: State) -> tuple[str, ...]:
        return self.agents[:1]

    async def act(
        self,
        state: State,
        turns: tuple[Turn, ...],
        session: Any,
        *,
        replayed: tuple[Turn, ...] = (),
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

    def next_actors(self, state: State) -> tuple[str, ...]:
        return self.agents

    def prompt_turns(self, state: State, agent: str) -> tuple[Turn, ...]:
        """Return, for each round, the agent's own message and then the other messages."""
        # Simultaneous turns are recorded in the order of the agents, so a round is a slice.
        turns, count = state.turns, len(self.agents)
        rounds = [turns[start : start + count] for start in range(0, len(turns), count)]
        order = [
            sorted(round_turns, key=lambda turn: turn.speaker.name != agent)
            for round_turns in rounds
        ]
        return tuple(turn for round_turns in order for turn in round_turns)

    async def act(
        self,
        state: State,
        turns: tuple[Turn, ...],
        session: Any,
        *,
        replayed: tuple[Turn, ...] = (),
    ) -> Transition:
        if len(state.turns) < self.max_turns:
            return Transition()
        answers: dict[str, str | None] = dict.fromkeys(self.agents)
        # An agent whose last message has no answer keeps its earlier answer.
        for turn in state.turns:
            if (answer := self.answer_to(state.task, turn.text)) is not None:
                answers[turn.speaker.name] = answer
        vote, last_answers = Vote(self.similarity), list(answers.values())
        for index, answer in enumerate(last_answers):
            # Comparing answers may take seconds, which must not block the event loop.
            await asyncio.to_thread(vote.add, index, answer)
        if not vote.winners:
            return Transition(end=TURNS)
        end = AGREED if len(vote.winners) == len(last_answers) else ANSWERED
        return Transition(answer=last_answers[vote.winners[0]], end=end)


class AutoForm(Dialogue):
    """The dialogue of the environment in a format that the agents choose themselves."""

    def observe(self, state: State, actor: str) -> tuple[Message, ...]:
        system, *dialogue = super().observe(state, actor)
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


# Baselines of agents that act. They need the session of the environment, or open it more than once.


@dataclass(eq=False, slots=True)
class Live(Replayed):
    """Session of the environment, which can be replaced by a new one."""

    shared: Shared
    stack: AsyncExitStack
    """Closes the session."""
    session: Any = None
    """What the environment's own methods get as ``live``: its session, or :class:`Shared` if it is pure."""


class Renewable(Acting):
    """Variant of an environment that can begin again within an episode. ``super()`` is the environment.

    The variant's ``live`` is a :class:`Live`, and the environment's methods get ``live.session``.
    """

    is_pure: bool
    """True if the environment has no sessions."""

    @asynccontextmanager
    async def open(self, task: Task, seed: int, shared: Shared) -> AsyncIterator[Live]:
        async with AsyncExitStack() as stack:
            live = Live(shared, stack)
            await self.renew(live, task, seed)
            yield live

    async def renew(self, live: Live, task: Task, seed: int) -> None:
        # The former session is closed before another one opens.
        await live.stack.aclose()
        live.session = live.shared
        if not self.is_pure:
            session = super().open(task, seed, live.shared)  # type: ignore[misc]
            live.session = await live.stack.enter_async_context(session)

    async def begin(self, task: Task, session: Live) -> Transition:
        transition: Transition = await super().begin(task, session.session)  # type: ignore[misc]
        return transition

    async def grade(self, state: State, session: Live) -> Grade:
        grade: Grade = await super().grade(state, session.session)  # type: ignore[misc]
        return grade


def _text(transition: Transition) -> str:
    return "\n".join(part.text for observation in transition.seen for part in observation.parts)


REFLECT = (
    "This attempt failed. Write in a few sentences why, and what you will do instead. Write nothing else: after that "
    "you begin again."
)
LESSONS = "\nYou tried this task before and failed. What you wrote afterwards:"


@dataclass(frozen=True, slots=True)
class Trial:
    """An attempt at a task, and the results of earlier attempts."""

    data: object = None
    """Data of the environment."""
    start: int = 0
    """Number of turns before the attempt."""
    solved: tuple[bool, ...] = ()
    """Finished attempts: true for a solved task, or a score of 1."""
    lessons: tuple[str, ...] = ()
    """The agent's reflections on them."""


class Reflexion(Renewable):
    """Reflexion (Shinn et al. 2023): after a failed attempt the agent writes why, and begins the same task again.

    Its reflections are in the prompts of later attempts; nothing else of earlier attempts is. Which attempt failed
    follows from the environment's ending or score, so it is an oracle.
    """

    attempts: int

    def observe(self, state: State, actor: str) -> tuple[Message, ...]:
        system, *messages = super().observe(self._inner(state), actor)
        lessons = [Part(f"\n- {lesson}", source="reflection") for lesson in _trial(state).lessons]
        if lessons:
            parts = (*system.parts, Part(LESSONS, source="task"), *lessons)
            system = replace(system, parts=parts)
        return (system, *messages)

    async def begin(self, task: Task, session: Live) -> Transition:
        transition = await super().begin(task, session)
        return replace(transition, data=Trial(transition.data))

    async def act(
        self,
        state: State,
        turns: tuple[Turn, ...],
        session: Live,
        *,
        replayed: tuple[Turn, ...] = (),
    ) -> Transition:
        trial, inner = _trial(state), self._inner(state)
        # The turn after a failed attempt is the reflection, so there is a result without a lesson. The
        # task then begins again.
        if len(trial.solved) > len(trial.lessons):
            await self.renew(session, state.task, state.seed)
            next_trial = await super().begin(state.task, session)
            lessons = (*trial.lessons, turns[-1].text.strip())
            data = Trial(next_trial.data, len(state.turns), trial.solved, lessons)
            return replace(next_trial, data=data)
        transition = await super().act(inner, turns, session.session, replayed=replayed)
        # The recorded limit covers all attempts, so the limit of one attempt is checked here.
        end = transition.end or (TURNS if inner.left["turns"] <= 0 else None)
        if end is None:
            return replace(transition, data=replace(trial, data=transition.data))
        # The score of the attempt says whether it succeeded.
        grade = await super().grade(replace(inner, data=transition.data, end=end), session)
        solved = (*trial.solved, end == SOLVED or (grade.score or 0.0) >= 1)
        data = replace(trial, data=transition.data, solved=solved)
        if solved[-1] or len(solved) >= self.attempts:
            return replace(transition, data=data, end=end)
        # The attempt is over, but the episode continues with a request for a reflection.
        seen = observation("\n".join(filter(None, (_text(transition), REFLECT))))
        return replace(transition, data=data, seen=seen, end=None)

    async def grade(self, state: State, session: Live) -> Grade:
        """Score the last attempt. ``within_attempt_t`` is 1 if one of the first t attempts succeeded."""
        grade, solved = await super().grade(self._inner(state), session), _trial(state).solved
        within = {
            f"within_attempt_{t}": float(any(solved[:t])) for t in range(1, self.attempts + 1)
        }
        return replace(grade, metrics={**grade.metrics, "attempts": len(solved), **within})

    def _inner(self, state: State) -> State:
        """Return the state of the current attempt alone, as the environment would have it in a single attempt."""
        trial = _trial(state)
        turns = state.turns[trial.start :]
        turns_left = self.steps - sum(turn.speaker.name == AGENT for turn in turns)
        return replace(state, turns=turns, data=trial.data, left={"turns": turns_left})


def _trial(state: State) -> Trial:
    return state.data if isinstance(state.data, Trial) else Trial(state.data)


RAN = Ending("program")
"""The program ended, or could not be run."""


class CodeAsPolicy(Renewable):
    """Code as policies (Liang et al. 2023): one program does the task, and nothing is sampled after it.

    The program runs in the sandbox. It waits there while its actions are carried out in the environment.
    """

    def system_prompt(self, task: Task) -> str:
        functions = (_signature(form) for form in self.commands(task))
        prompt: str = super().system_prompt(task)  # type: ignore[safe-super]
        return prompt + "\n".join(functions)

    async def act(
        self,
        state: State,
        turns: tuple[Turn, ...],
        session: Live,
        *,
        replayed: tuple[Turn, ...] = (),
    ) -> Transition:
        move = Move("nothing", note=CUT) if turns[-1].truncated else self.form.read(turns[-1].text)
        if move.kind == "nothing":
            return Transition(state.data, observation(move.note), end=RAN)
        current, log, end = state, list[str](), None
        commands = [(_function_name(form), form) for form in self.commands(state.task)]
        # The program pauses at each call of an action, until ``proceed`` gives it the reply.
        async with session.shared[Sandbox].session(state.seed) as python:
            await python.run(f"from {POLICY} import begin, proceed")
            cell = await python.run(f"begin({move.content!r}, {commands!r})")
            while (action := _next_action(cell.text)) is not None and end is None:
                transition = await self.do(current, action, session.session)
                reply = _text(transition)
                log += [f"> {action}", reply]
                current = replace(current, data=transition.data)
                # The log has two entries for each action.
                end = transition.end or (TURNS if len(log) >= 2 * self.steps else None)
                if end is None:
                    cell = await python.run(f"proceed({reply!r})")
        # The program ended, so show its output or its error.
        log += [] if end else [cell.text.strip()]
        return Transition(current.data, observation("\n".join(filter(None, log))), end=end or RAN)


def _function_name(form: str) -> str:
    return re.sub(r"\W+", "_", form.partition("{")[0].strip())


def _signature(form: str) -> str:
    names = [chr(ord("a") + index) for index in range(form.count("{}"))]
    return f"{_function_name(form)}({', '.join(names)})  # {form.format(*names)}"


def _next_action(text: str) -> str | None:
    """Return the action at the end of a cell's output, or ``None`` if the program ended."""
    # A paused program prints its next action as the last line.
    last_line = text.rpartition("\n")[2]
    try:
        return (
            str(json.loads(last_line.removeprefix(ACTION_LINE)))
            if ACTION_LINE in last_line
            else None
        )
    except ValueError:
        return None
