"""A recipe: of each task's dialogues the best one is imitated (docs/howto/bring-your-own.md)."""

from coterie import Selection, TrainingSettings, key
from coterie.recipes import Episode, Recipe, RecipeSettings, stage, train_sft


class BestOfNSettings(RecipeSettings):
    iterations: int = key(1, "Iterations; each starts from the newest policy.", ge=1)
    tasks: int = key(16, "Training tasks of an iteration.", ge=1)
    rollouts_per_task: int = key(4, "Dialogues of a task.", ge=1)
    train: TrainingSettings = TrainingSettings(max_length=1024)


class BestOfN(Recipe):
    settings_type = BestOfNSettings

    def stages(self):
        stages, trained = [self.evaluation(0)], []
        for i in range(self.settings.iterations):
            stages += self.make_stages(i, self.sample, self.choose, self.learn, after=trained)
            trained = stages[-1:]
            stages.append(self.evaluation(i + 1, trained))
        return stages

    @stage("rollout", uses=["tasks", "rollouts_per_task"])
    async def sample(self, run, i, progress):
        s = self.settings  # the tasks of an iteration follow those of earlier ones
        tasks = self.environment.tasks("train", s.tasks, s.seed, [s.tasks] * i)
        numbers = range(s.rollouts_per_task)
        episodes = [Episode(task, n, i, "rollout") for task in tasks for n in numbers]
        return await self.play(run, episodes, temperature=1.0, top_p=1.0, progress=progress)

    @stage("select", after="rollout")
    def choose(self, run, i, progress):
        trees = [[(o.score, o.leaf) for o, _ in t.graded()] for t in run.store.trees(i, "rollout")]
        best = [max(paths)[1] for paths in trees if paths]
        run.select(i, [Selection(leaf, agent) for leaf in best for agent in self.players()])

    @stage("train", after="select", uses="train", trains="policy")
    def learn(self, run, i, progress):
        return train_sft(self, run, i, self.settings.train, progress)
