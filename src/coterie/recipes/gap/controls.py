"""The controls of claims about reinforcement learning: fine-tuning that goes on from the same policy, on as much.

Both are given the questions that reinforcement learning drew, and as many target tokens as it was trained on. *More
SFT* learns the expert's traces of them and needs no class of its own (``traces.tasks``, ``train.target_tokens``).
*Rejection fine-tuning* (Yuan et al., arXiv 2308.01825) learns the policy's own paths that are right, each once.
"""

from collections.abc import Iterator

from coterie.errors import UserError
from coterie.progress import Progress
from coterie.recipes.gap.recipe import Gap
from coterie.rollout.episodes import Episode
from coterie.runs.folder import Run
from coterie.runs.play import summary
from coterie.runs.stage import Stage
from coterie.trajectories.item import Metrics
from coterie.trajectories.selection import Selection
from coterie.trajectories.tree import Tree


class RejectionFineTuning(Gap):
    """Samples as many paths of each question as reinforcement learning does, and learns the right ones."""

    def _imitation(self) -> list[Stage]:
        """Own paths, what is right of them, SFT."""
        s = self.settings
        sampled = (s.traces.tasks, s.rl.rollout.samples, s.rl.rollout.temperature, s.max_tokens)
        rollout = self.stage(0, "rollout", self.sample, (), (*sampled, s.tools.identity()))
        select = self.stage(0, "select", self.select, [rollout])
        train = self.stage(
            0, "train", self.learn, [select], [s.train.identity()], trains=self.leading
        )
        return [rollout, select, train, self.evaluation(1, [train])]

    async def sample(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Paths of each question, by the policy that it begins as."""
        s = self.settings
        tasks = self.environment.tasks("train", s.traces.tasks, s.seed)
        episodes = [
            Episode(task, n, i, "rollout") for task in tasks for n in range(s.rl.rollout.samples)
        ]
        await self.play(run, episodes, s.rl.rollout.temperature, 1.0, progress)
        return summary(run.store, i, "rollout")

    def select(self, run: Run, i: int, progress: Progress) -> Metrics:
        """The right ones. Raises ``UserError`` if there is none."""
        chosen = [one for tree in run.store.trees(i, "rollout") for one in self._right(tree)]
        if not chosen:
            raise UserError(
                "no sampled path is right, so there is nothing to learn from",
                "raise rl.rollout.samples or traces.tasks",
            )
        run.select(i, chosen)
        return {"selected": len(chosen)}

    def _right(self, tree: Tree) -> Iterator[Selection]:
        """A leaf for each right path that says something else than those before it."""
        known = set[tuple[str, ...]]()
        for outcome, _ in tree.trajectories():
            said = tuple(turn.text for turn in tree.path(outcome.leaf) if turn.sample)
            if outcome.score and said not in known:
                known.add(said)
                yield Selection(outcome.leaf, self.agent)
