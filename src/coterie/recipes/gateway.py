"""The record of programs that are started elsewhere, whose model calls ``coterie gateway`` answers.

The only stage, ``rollout``, serves until it is interrupted. Its episodes are those that the programs open and end.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress

from coterie.engines.protocol import WORK_NUMBER, cancel
from coterie.environments.external import External, Visit, Visits
from coterie.environments.gateway import Gateway, open_gateway
from coterie.environments.protocol import Shared
from coterie.errors import UserError
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.gateway_settings import GatewayRecordSettings
from coterie.recipes.plan import Plan
from coterie.record.tree import Metrics, Selection, Tree
from coterie.rollout.episodes import Driver, Episode, EpisodeResult
from coterie.runs.loop import Stage, stage
from coterie.runs.run import Run, StageKey
from coterie.runs.work_items import done_of, engine_errors, summary

ROLLOUT = StageKey(0, "rollout")


class GatewayRecord(Recipe):
    """Recipe of ``coterie gateway``, which sets the listener."""

    settings: GatewayRecordSettings
    environment: External
    listener: socket.socket | None = None
    on_open: Callable[[Gateway, str], None] = staticmethod(lambda gateway, key: None)
    """Called with the gateway and the key of new sessions when it answers."""

    def stages(self) -> list[Stage]:
        return self.make_stages(0, self.serve)

    def plan(self) -> Plan:
        raise UserError("gateway has no tasks of its own", "use: coterie gateway model=MODEL")

    def trained_on(self, run: Run, iteration: int) -> Iterator[tuple[str, Tree, Selection]]:
        """Yield all graded episodes."""
        for tree in run.store.trees(*ROLLOUT_KEY):
            for outcome, path in tree.graded():
                for agent in dict.fromkeys(t.speaker.name for t in path if t.prompt is not None):
                    yield self.main_role, tree, Selection(outcome.leaf, agent)

    @stage("rollout", uses=("rollout", "engine"))
    async def serve(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Answer programs until Ctrl-C, and record each episode when its result arrives."""
        s, title = self.settings.rollout, "the gateway"
        samplers = await self.samplers(run, i, s.temperature, s.top_p)
        done, playing = (
            asyncio.Queue[asyncio.Task[EpisodeResult]](),
            dict[asyncio.Task[EpisodeResult], Visit](),
        )
        async with open_gateway(self.listener) as gateway:

            def begin(visit: Visit) -> None:
                task = asyncio.create_task(play(visit))
                playing[task] = visit
                task.add_done_callback(done.put_nowait)

            async def play(visit: Visit) -> EpisodeResult:
                # Engines prefer sessions that began earlier.
                WORK_NUMBER.set(len(playing) + done.qsize())
                episode = Episode(visit.task, visit.sample, *ROLLOUT_KEY)
                # A full pool of sessions would close one of a program, which can't be replayed.
                async with room:
                    try:
                        return await driver.play(episode, sessions)
                    # Such as tools for a model that has none: the error of one program.
                    except UserError as error:
                        return EpisodeResult(episode, None, f"{error.what}; {error.todo}")

            visits = Visits(gateway, run.store, ROLLOUT.stage, self.environment, begin)
            driver = Driver(
                self.environment, samplers, seed=self.settings.seed, shared=Shared(visits)
            )
            room = asyncio.Semaphore(driver.in_flight)
            async with driver.sessions() as sessions:
                self.on_open(gateway, visits.key)
                with engine_errors(title, progress), suppress(asyncio.CancelledError):
                    while True:
                        task = await done.get()
                        visit, result = playing.pop(task), done_of(task.result())
                        run.store.finish(
                            result.key,
                            tree=result.tree,
                            credit=result.credit,
                            metrics=result.metrics,
                            failure=result.failure,
                        )
                        visits.close(visit, result.failure)
                        if result.failure:
                            progress.say(
                                f"an episode of task {visit.task.id} failed: {result.failure}"
                            )
                await cancel(playing)
        if playing:
            progress.say(f"{len(playing)} open sessions are not recorded")
        return summary(run.store, *ROLLOUT_KEY)


ROLLOUT_KEY = (ROLLOUT.iteration, ROLLOUT.stage)
