"""The record of programs that are started elsewhere, whose model calls ``coterie gateway`` answers.

The only stage, ``rollout``, serves until it is interrupted. Its episodes are those that the programs open and end.
"""

import asyncio
import itertools
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from coterie.engines.protocol import WORK_NUMBER, cancel
from coterie.environments.external import External, Visit, Visits
from coterie.environments.gateway import Gateway, open_gateway
from coterie.environments.protocol import Shared
from coterie.errors import UserError
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.gateway_record_settings import GatewayRecordSettings
from coterie.recipes.plan import Plan
from coterie.record.tree import Metrics, Selection, Tree
from coterie.rollout.episodes import Driver, Episode, EpisodeResult
from coterie.runs.loop import Role, Stage, stage
from coterie.runs.run import Run, StageKey
from coterie.runs.work_items import done_of, engine_errors, summary

ROLLOUT = StageKey(0, "rollout")
KEY = (ROLLOUT.iteration, ROLLOUT.stage)


class GatewayRecord(Recipe):
    """Recipe of ``coterie gateway``, which sets the listener."""

    settings: GatewayRecordSettings
    environment: External
    listener: socket.socket | None = None
    on_open: Callable[[Gateway, str], None] = staticmethod(lambda gateway, key: None)
    """Called with the gateway and the key of new sessions when it answers."""

    def roles(self) -> tuple[Role, ...]:
        """Return the main model, and those of single roles of the program. Raises ``UserError``."""
        if unknown := self.settings.models.keys() - self.environment.actors.keys():
            raise UserError(f"models has no role {min(unknown)!r}", "name it in --roles, too")
        return (*super().roles(), *(Role(*pair) for pair in sorted(self.settings.models.items())))

    def players(self) -> Mapping[str, str]:
        return {**super().players(), **{name: name for name in self.settings.models}}

    def stages(self) -> list[Stage]:
        return self.make_stages(0, self.serve)

    def plan(self) -> Plan:
        raise UserError("gateway has no tasks of its own", "use: coterie gateway model=MODEL")

    def trained_on(self, run: Run, iteration: int) -> Iterator[tuple[str, Tree, Selection]]:
        """Yield all graded episodes."""
        players = self.players()
        for tree in run.store.trees(*KEY):
            for outcome, path in tree.graded():
                for agent in dict.fromkeys(t.speaker.name for t in path if t.prompt is not None):
                    yield players[agent], tree, Selection(outcome.leaf, agent)

    @stage("rollout", uses=("rollout", "engine"))
    async def serve(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Answer programs until Ctrl-C, and record each episode when its result arrives."""
        s, numbers = self.settings.rollout, itertools.count(1)
        samplers = await self.samplers(run, i, s.temperature, s.top_p)
        playing = dict[asyncio.Task[EpisodeResult], Visit]()
        done = asyncio.Queue[asyncio.Task[EpisodeResult]]()

        def begin(visit: Visit) -> None:
            task = asyncio.create_task(play(visit))
            playing[task] = visit
            task.add_done_callback(done.put_nowait)

        async def play(visit: Visit) -> EpisodeResult:
            WORK_NUMBER.set(next(numbers))  # engines prefer sessions that began earlier
            episode = Episode(visit.task, visit.sample, *KEY)
            # A full pool would close the session of another program, which can't be replayed.
            async with room:
                try:
                    return await driver.play(episode, sessions)
                # Such as tools for a model that can't call any: the error of one program.
                except UserError as error:
                    return EpisodeResult(episode, None, f"{error.what}; {error.todo}")

        def record(task: asyncio.Task[EpisodeResult]) -> None:
            visit, item = playing.pop(task), done_of(task.result())
            results: dict[str, Any] = {
                "tree": item.tree,
                "credit": item.credit,
                "metrics": item.metrics,
            }
            run.store.finish(item.key, **results, failure=item.failure)
            visits.close(visit, item.failure)
            if item.failure:
                progress.say(f"an episode of task {visit.task.id} failed: {item.failure}")

        async with open_gateway(self.listener) as gateway:
            visits = Visits(gateway, run.store, KEY[1], self.environment, begin)
            shared, seed = Shared(visits), self.settings.seed
            driver = Driver(self.environment, samplers, seed=seed, shared=shared)
            room = asyncio.Semaphore(driver.in_flight)
            async with driver.sessions() as sessions:
                self.on_open(gateway, visits.key)
                with engine_errors("the gateway", progress), suppress(asyncio.CancelledError):
                    while True:
                        record(await done.get())
                while not done.empty():
                    record(done.get_nowait())
                left = len(playing)
                await cancel(playing)
        if left:
            progress.say(f"{left} sessions had no result yet and are not recorded")
        return summary(run.store, *KEY)
