"""Groups that are sampled while steps train (``rollout.max_staleness``)."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

from coterie.engines.protocol import RequestSlots, cancel
from coterie.environments.protocol import draw_tasks
from coterie.progress import Progress
from coterie.record.store import Store
from coterie.record.tree import ItemKey
from coterie.rewards.dialogue_reward import PathReward
from coterie.rollout.episodes import Driver, Episode, EpisodeResult, bounded_gather
from coterie.rollout.sessions import Sessions
from coterie.runs.loop import REINFORCE
from coterie.runs.reinforce_batch import AgentPath, StepSamples, informative_tasks, paths_of
from coterie.runs.reinforce_record import Group, step_stage
from coterie.runs.reinforce_settings import GroupSettings, StepSettings
from coterie.runs.work_items import done_of, record


@dataclass(eq=False)
class GroupQueue:
    """Groups of draws that are played while steps train. Each step takes the first complete ones.

    A draw begins as soon as the groups that wait or are played are fewer than ``max_staleness`` further steps need. So
    draw ``d`` begins after step ``d - max_staleness``, or earlier if groups were dropped.
    """

    store: Store
    iteration: int
    driver: Driver
    sessions: Sessions
    rollout: GroupSettings
    steps: StepSettings
    reward: PathReward
    agents: Sequence[str]
    _: KW_ONLY
    progress: Progress
    sampled_tokens: Callable[[], int]
    taken: set[Group]
    """Groups that recorded steps took."""
    step: int
    """Number of steps taken."""
    ages: Mapping[str, int]
    """Age in steps of each version of the policies that a step may still train on, by writer."""
    draws: int = 0
    """Number of draws begun."""
    _ready: list[Group] = field(default_factory=list)
    """Complete groups, in the order of completion."""
    _paths: dict[Group, list[AgentPath]] = field(default_factory=dict)
    """Paths of complete groups that were read from the store."""
    _missing: dict[Group, int] = field(default_factory=dict)
    """Number of missing paths of each group in play."""
    _begins: dict[int, int] = field(default_factory=dict)
    """Number of steps taken when each draw began."""
    _playing: set[asyncio.Task[None]] = field(default_factory=set)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._slots = RequestSlots(self.driver.in_flight)
        started = self.store.stages(self.iteration, f"{REINFORCE}/*")
        draws = [int(stage.rpartition("/")[2]) for stage in started]
        self._started = max([*draws, *(draw for draw, _ in self.taken)], default=-1) + 1
        """Number of draws that an earlier process began."""

    async def take(self, recorded: Sequence[Group] = ()) -> StepSamples:
        """Return the groups of the next step: the ``recorded`` ones of a repeated step, else the first complete ones.

        Groups with an older version than ``ages`` are taken, too, but their paths are dropped and counted.
        """
        groups: list[Group] | None = list(recorded)
        while not groups:
            self._raise_failures()
            self._fill()
            if (groups := self._choose()) is None:
                self._changed.clear()
                await self._changed.wait()
        self._read(groups)
        fresh = [group for group in groups if self._is_fresh(group)]
        paths = [path for group in fresh for path in self._paths[group]]
        ages = [(self.ages[writer], count) for path in paths for writer, count in _writers(path)]
        tokens = sum(count for _, count in ages)
        samples = StepSamples(max(self.draws, self._started), len({draw for draw, _ in groups}))
        samples.tasks, samples.paths = [task for _, task in fresh], paths
        samples.sample_count = len(fresh) * self.rollout.rollouts_per_task
        samples.groups = groups
        stale = (group for group in groups if group not in fresh)
        samples.stale = [path for group in stale for path in self._paths[group]]
        for group in groups:
            del self._paths[group]
        samples.staleness = sum(age * count for age, count in ages) / max(tokens, 1)
        samples.staleness_max = max((age for age, _ in ages), default=0)
        self.taken.update(groups)
        self._ready = [group for group in self._ready if group not in self.taken]
        return samples

    def advance(self, ages: Mapping[str, int], *, play: bool) -> None:
        """Count a step whose weights the engines have loaded, and begin the draws that it allows if ``play``."""
        self.step += 1
        self.ages = ages
        if play:
            self._fill()

    def _choose(self) -> list[Group] | None:
        """Return the groups of a step, oldest draw first, then by order of completion; ``None`` if some are missing.

        With dynamic sampling, groups without signal do not count as enough, but are taken. If nothing is in play any
        more, all complete groups are enough.
        """
        if self._missing and len(self._ready) < self.rollout.tasks:
            return None
        chosen, names, count = list[Group](), set[str](), 0
        self._read(self._ready)
        for group in sorted(self._ready, key=lambda group: group[0]):
            if not self._is_fresh(group):
                chosen.append(group)
            elif group[1] not in names:
                chosen.append(group)
                names.add(group[1])
                count += self._counts(group)
            if count == self.rollout.tasks:
                return chosen
        return None if self._missing else chosen

    def _fill(self) -> None:
        """Begin draws until enough groups wait or are in play. First continue the draws of an earlier process."""
        s = self.rollout
        steps = min(s.max_staleness + 1, self.steps.count - self.step)
        while True:
            is_bound = s.rounds > 1 and self.draws >= (self.step + s.max_staleness + 1) * s.rounds
            if self.draws >= self._started:
                if is_bound:
                    return
                useful = self._useful()
                if useful >= s.tasks and useful + s.tasks_per_round > steps * s.tasks:
                    return
            self._begin(self.draws)
            self.draws += 1

    def _useful(self) -> int:
        """Return the number of groups that steps may take: complete ones, and those in play of recent draws."""
        recent = self.step - self.rollout.max_staleness
        self._read(self._ready)
        ready = sum(self._is_fresh(group) and self._counts(group) for group in self._ready)
        return ready + sum(self._begins[draw] >= recent for draw, _ in self._missing)

    def _begin(self, draw: int) -> None:
        """Play the unfinished groups of a draw."""
        s, stage = self.rollout, step_stage(REINFORCE, draw)
        previous_counts = [s.tasks_per_round] * draw
        tasks = draw_tasks(
            self.driver.environment, "train", s.tasks_per_round, self.driver.seed, previous_counts
        )
        self.store.put_tasks(tasks)
        finished = self.store.finished_keys(self.iteration, stage)
        self._begins[draw] = self.step
        episodes = list[Episode]()
        for task in tasks:
            if (draw, task.id) in self.taken:
                continue
            numbers = range(s.rollouts_per_task)
            new_episodes = [Episode(task, n, self.iteration, stage) for n in numbers]
            new_episodes = [
                episode for episode in new_episodes if (task.id, episode.key.sample) not in finished
            ]
            self._missing[draw, task.id] = len(new_episodes)
            self._complete(draw, task.id)
            episodes += new_episodes
        if episodes:
            playing = asyncio.create_task(self._play(episodes))
            playing.add_done_callback(lambda _: self._changed.set())
            self._playing.add(playing)

    async def _play(self, episodes: Sequence[Episode]) -> None:
        work = (self._one(episode) for episode in episodes)
        async with bounded_gather(work, len(episodes)) as playing:
            done = (done_of(result) async for result in playing)
            fields = (self.progress, "dialogues", self.sampled_tokens, self._written)
            await record(self.store, done, *fields)

    async def _one(self, episode: Episode) -> EpisodeResult:
        async with self._slots:
            return await self.driver.play(episode, self.sessions)

    def _written(self, key: ItemKey) -> None:
        draw = int(key.stage.rpartition("/")[2])
        self._missing[draw, key.task] -= 1
        self._complete(draw, key.task)

    def _complete(self, draw: int, task: str) -> None:
        if not self._missing[draw, task]:
            del self._missing[draw, task]
            self._ready.append((draw, task))
            self._changed.set()

    def _raise_failures(self) -> None:
        for task in [task for task in self._playing if task.done()]:
            self._playing.discard(task)
            task.result()

    def _read(self, groups: Iterable[Group]) -> None:
        """Read the paths of groups that have not been read yet."""
        unread: dict[int, list[str]] = {}
        for draw, task in groups:
            if (draw, task) not in self._paths:
                self._paths[draw, task] = []
                unread.setdefault(draw, []).append(task)
        for draw, tasks in unread.items():
            stage = step_stage(REINFORCE, draw)
            for path in paths_of(
                self.store, self.iteration, stage, tasks, self.agents, self.reward
            ):
                self._paths[draw, path.task].append(path)

    def _is_fresh(self, group: Group) -> bool:
        writers = (writer for path in self._paths[group] for writer, _ in _writers(path))
        return all(writer in self.ages for writer in writers)

    def _counts(self, group: Group) -> bool:
        """Return True for groups that a step counts: all, or with dynamic sampling those with different rewards."""
        return self.rollout.rounds == 1 or bool(informative_tasks(self._paths[group]))

    async def close(self) -> None:
        await cancel(self._playing)


def _writers(path: AgentPath) -> list[tuple[str, int]]:
    """Return writer and number of tokens of each span of an agent's turns."""
    return [span for row in path.rows for target in row.targets for span in target.writers]
