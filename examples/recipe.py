"""A recipe: of each task's dialogues the best one is imitated. It has the plain report.
coterie run examples/recipe.py:BestOfN environment=exchange model=tiny-exchange"""

from coterie.config.settings import key
from coterie.recipes.base import Recipe
from coterie.recipes.settings import RecipeSettings
from coterie.recipes.trainings import imitate
from coterie.record.tree import Selection
from coterie.rollout.episodes import Episode
from coterie.training.settings import TrainingSettings


class BestOfNSettings(RecipeSettings):
    tasks: int = key(16, "Training tasks.", ge=1)
    train: TrainingSettings = TrainingSettings(max_length=1024)


class BestOfN(Recipe):
    settings_type = BestOfNSettings

    def stages(self):
        rollout = self.stage(0, "rollout", self.sample, uses=["tasks"])
        select = self.stage(0, "select", self.choose, [rollout])
        train = self.stage(0, "train", self.learn, [select], uses=["train"], trains="policy")
        return [self.evaluation(0), rollout, select, train, self.evaluation(1, [train])]

    async def sample(self, run, i, progress):
        tasks = self.environment.tasks("train", self.settings.tasks, self.settings.seed)
        episodes = [Episode(task, n, i, "rollout") for task in tasks for n in range(4)]
        return await self.play(run, episodes, 1.0, 1.0, progress)

    def choose(self, run, i, progress):
        trees = [[(o.score, o.leaf) for o, _ in t.graded()] for t in run.store.trees(i, "rollout")]
        best = [max(paths)[1] for paths in trees if paths]
        run.select(i, [Selection(leaf, agent) for leaf in best for agent in self.players()])

    def learn(self, run, i, progress):
        return imitate(self, run, i, self.settings.train, progress)
