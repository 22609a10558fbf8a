"""The tasks of a coding environment without the conversation: the benchmark's single-turn baseline."""

from dataclasses import replace

from coterie.environments.coding import AGENT, Coding
from coterie.environments.passing import OthersPlay
from coterie.environments.protocol import State
from coterie.tools.sandbox.inside.plain import Wire
from coterie.tools.sandbox.pool import Sandbox
from coterie.trajectories.task import Task
from coterie.trajectories.turn import Message, Part


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
