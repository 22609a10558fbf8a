"""A plug-in package of one module: an environment with a live session and a tool, a reward, a recipe of two roles."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from coterie import (
    Credit,
    Ending,
    Finish,
    ItemKey,
    Message,
    Metrics,
    Part,
    Progress,
    Selection,
    Speaker,
    Task,
    Tool,
    ToolCall,
    TrainingSettings,
    Tree,
    Turn,
    key,
)
from coterie.datasets import Split
from coterie.environments import (
    ActorKind,
    EnvironmentSettings,
    Grade,
    Observation,
    Shared,
    State,
    Syntax,
    Transition,
)
from coterie.recipes import (
    DialogueSample,
    Episode,
    ItemResult,
    Recipe,
    RecipeSettings,
    Role,
    Run,
    Stage,
    StageKey,
    on_trees,
    stage,
    train_sft,
)
from coterie.tools import CallLimits, run_calls

SCHEMA = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
WEIGH = Tool("weigh", "Says how long a word is.", SCHEMA, alone=True)


class FirstWord:
    """A syntax in which the first word of a message is what is weighed."""

    stop: tuple[str, ...] = ()

    def parse(self, text: str, finish: Finish) -> tuple[ToolCall, ...]:
        return tuple(
            ToolCall("c0", "weigh", json.dumps({"word": word})) for word in text.split()[:1]
        )

    def show(self, results: Sequence[Any]) -> str:
        return "; ".join(result.text for result in results)


@dataclass
class Scales:
    """The session: what was weighed so far."""

    relay: "Relay"
    total: int = 0

    def fork(self) -> AbstractAsyncContextManager["Scales"] | None:
        return None  # branches are replayed


class Relay:
    """A planner speaks, then a grounder whose first word is put on scales; short words are better."""

    name = "relay"
    version = "1"
    actors: Mapping[str, ActorKind] = {"planner": "agent", "grounder": "agent"}
    limits: Mapping[str, int] = {"turns": 4}
    needs: tuple[type, ...] = ()
    pure = False
    max_sessions = 3
    syntax: Syntax | None = FirstWord()
    metric = "lightness"

    def __init__(self) -> None:
        self.live = self.most = self.opened = 0

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        first = sum(previous_counts)
        return [
            Task(f"{split}-{n}", {"topic": f"topic {n} of {split}"})
            for n in range(first, first + count)
        ]

    @asynccontextmanager
    async def open(self, task: Task, seed: int, shared: Shared) -> AsyncIterator[Scales]:
        self.live, self.opened = self.live + 1, self.opened + 1
        self.most = max(self.most, self.live)
        try:
            yield Scales(self)
        finally:
            self.live -= 1

    async def begin(self, task: Task, session: Scales) -> Transition:
        said = Observation(Speaker("environment", "relay"), (Part(str(task.public["topic"])),))
        return Transition(seen=(said,))

    def next_actors(self, state: State) -> tuple[str, ...]:
        return ("grounder",) if state.turns[-1].speaker.name == "planner" else ("planner",)

    def observe(self, state: State, actor: str) -> tuple[Message, ...]:
        system = Message.of("system", f"You are the {actor}.")
        shown = (
            Message("assistant" if turn.speaker.name == actor else "user", turn=turn.id)
            for turn in state.turns
        )
        return (system, *shown)

    def tools(self, state: State, actor: str) -> tuple[Tool, ...]:
        return (WEIGH,) if actor == "grounder" else ()

    async def act(
        self,
        state: State,
        taken: tuple[Turn, ...],
        session: Scales,
        *,
        replayed: tuple[Turn, ...] = (),
    ) -> Transition:
        (turn,) = taken
        if turn.speaker.name == "planner":
            return Transition(data=session.total)

        async def weigh(given: Mapping[str, Any]) -> str:
            session.total += len(given["word"])
            return f"{session.total} so far"

        results = await run_calls(turn.calls, (WEIGH,), {"weigh": weigh}, CallLimits(seconds=5))
        over = Ending("weighed") if session.total > 8 else None
        said = Observation(Speaker("tool", "scales"), results=results)
        return Transition(session.total, (said,) if results else (), str(session.total), over)

    async def grade(self, state: State, session: Scales) -> Grade:
        return Grade(1 / (1 + int(state.answer or 0)), {"weighed": session.total})


def lightness(sample: DialogueSample) -> float:
    """A reward: one function of a dialogue."""
    return sample.outcome.score or 0.0


def sampled(tree: Tree, leaf: str) -> DialogueSample:
    """A dialogue, as a reward of its outcome gets it."""
    return DialogueSample(tree.outcomes[leaf], tokens=0, loss=0.0, path=tuple(tree.path(leaf)))


class RelaySettings(RecipeSettings):
    """Settings of the recipe."""

    recipe: ClassVar[str] = "relay/sft"
    model: str = key("tiny-exchange", "Both roles begin as it.")
    environment: EnvironmentSettings = EnvironmentSettings(name="relay")
    shares: bool = key(False, "Whether the roles are adapters of one base in memory.")
    tasks: int = key(3, "Tasks an iteration.", ge=1)
    samples: int = key(3, "Dialogues a task.", ge=1)
    train: TrainingSettings = TrainingSettings()

    @property
    def rounds(self) -> int:
        return 2

    @property
    def max_tokens(self) -> int:
        return 6


class RelayRecipe(Recipe):
    """Iteration 0 trains the grounder on the lightest dialogues, iteration 1 both."""

    settings_type = RelaySettings
    settings: RelaySettings

    def roles(self) -> tuple[Role, ...]:
        model, shares = self.settings.model, "grounder" if self.settings.shares else None
        return (Role("grounder", model), Role("planner", model, shares))

    def players(self) -> Mapping[str, str]:
        return {"planner": "planner", "grounder": "grounder"}

    def dialogues(self) -> int:
        return 2 * self.settings.tasks * self.settings.samples

    def stages(self) -> list[Stage]:
        stages, trained = list[Stage](), list[Stage]()
        for i, methods in enumerate(
            ([self.train_grounder], [self.train_grounder, self.train_planner])
        ):
            stages.append(self.evaluation(i, trained))
            work = (self.rollout, self.weigh, self.select, *methods)
            stages += self.make_stages(i, *work, after=trained)
            trained = stages[-len(methods) :]
        return [*stages, self.evaluation(2, trained)]

    @stage("rollout")
    async def rollout(self, run: Run, i: int, progress: Progress) -> Metrics:
        tasks = self.environment.tasks("train", self.settings.tasks, 0, [self.settings.tasks] * i)
        episodes = [
            Episode(t, n, i, "rollout") for t in tasks for n in range(self.settings.samples)
        ]
        return await self.play(run, episodes, 1.0, 1.0, progress)

    @stage("weigh", after="rollout")
    async def weigh(self, run: Run, i: int, progress: Progress) -> Metrics:
        settings = self.fingerprint(StageKey(i, "weigh"))

        async def weighed(tree: Tree) -> ItemResult:
            await asyncio.sleep(0)
            credit = [
                Credit(leaf, "light", lightness(sampled(tree, leaf)), settings)
                for leaf in tree.outcomes
            ]
            return ItemResult(ItemKey(i, "weigh", tree.task), {}, credit=tuple(credit))

        await on_trees(run.store, i, weighed, progress, "weigh", in_flight=4, stage="weigh")
        return {}

    @stage("select", after="weigh")
    def select(self, run: Run, i: int, progress: Progress) -> Metrics:
        settings, chosen = self.fingerprint(StageKey(i, "weigh")), list[Selection]()
        for tree in run.store.trees(i, "rollout"):
            light = run.store.credit(settings, "light", list(tree.outcomes))
            best = max(sorted(light), key=lambda leaf: light[leaf])
            chosen += [Selection(best, agent) for agent in self.environment.actors]
        run.select(i, chosen)
        return {"selected": len(chosen)}

    @stage("train_grounder", after="select", trains="grounder")
    def train_grounder(self, run: Run, i: int, progress: Progress) -> Metrics:
        return train_sft(self, run, i, self.settings.train, progress, role="grounder")

    @stage("train_planner", after="select", trains="planner")
    def train_planner(self, run: Run, i: int, progress: Progress) -> Metrics:
        return train_sft(self, run, i, self.settings.train, progress, role="planner")
