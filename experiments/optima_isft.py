"""iSFT against its base and two controls.

Claims, margins and tests were fixed before any run (one-sided paired bootstrap over tasks and seeds, and a t test over
seeds, p < 0.05 each). Controls train on as many dialogues as iSFT did in each iteration, under the same training
settings, so in as many steps:

* ``random``: dialogues drawn at random from the control's own rollouts, instead of the best;
* ``scripted``: more pre-training on the scripted corpus that made the base.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

from coterie.progress import Progress
from coterie.recipes.optima import Optima
from coterie.recipes.optima_settings import OptimaSettings
from coterie.record.rows import Row
from coterie.record.tree import Metrics, Selection
from coterie.record.turn import digest
from coterie.runs.loop import Stage
from coterie.runs.run import Run, StageKey
from experiments.claims import Claim, Hypothesis
from experiments.experiment import Experiment, Quick, make_recipe, marked
from experiments.optima import TUNING as TUNING
from experiments.optima import gate as gate
from experiments.results import BEST, Measurements
from scripts.tiny.exchange import pretraining_rows
from scripts.tiny.exchange_dialogues import corpus

MARGINS = {"base": 0.0, "random": 0.10, "scripted": 0.10}
QUICK = Quick(("isft", "random"), ("evaluate.tasks=200",))
CORPUS_SEED = 900_000
"""First seed of the control's dialogues; none of them made the base."""


class RandomControl(Optima):
    """Each iteration trains on random dialogues of as many tasks as iSFT selected, one of each task."""

    def __init__(self, settings: OptimaSettings, counts: Sequence[int]) -> None:
        super().__init__(settings)
        self.counts = counts

    def stages(self) -> list[Stage]:
        return marked(super().stages(), "random", *self.counts)

    def demonstrate(self, run: Run, i: int, progress: Progress) -> Metrics:
        rewards = {task: values for task, values in self.rewards(run, i).items() if values}
        generator = random.Random(int(digest("select", self.settings.seed, i)[:15], 16))
        tasks = sorted(generator.sample(sorted(rewards), min(self.counts[i], len(rewards))))
        leaves = [generator.choice(rewards[task]).leaf for task in tasks]
        context = self.context(i)
        run.select(i, [Selection(leaf, agent, context) for leaf in leaves for agent in self.agents])
        return {"tasks": len(rewards), "selected": len(leaves)}


class ScriptedControl(Optima):
    """More pre-training: each iteration trains on as many scripted dialogues as iSFT selected."""

    def __init__(self, settings: OptimaSettings, counts: Sequence[int]) -> None:
        super().__init__(settings)
        self.counts = counts

    def stages(self) -> list[Stage]:
        """Return the trainings, each from the one before, and the evaluation of the last policy."""
        stages = super().stages()
        needed = [*(stage for stage in stages if stage.trains), stages[-1]]
        return [
            replace(stage, after=tuple(previous.key for previous in needed[max(n - 1, 0) : n]))
            for n, stage in enumerate(needed)
        ]

    def rows(self, run: Run, iteration: int, role: str | None = None) -> list[Row]:
        """Return both agents' rows of fresh scripted dialogues."""
        seed = CORPUS_SEED + self.settings.seed * 1000 + iteration
        dialogues = corpus(seed, self.counts[iteration])
        tokenizer = self.renderers[self.main_role].tokenizer
        return [row for d in dialogues for row in pretraining_rows(d, tokenizer)]


def run(x: Experiment) -> None:
    """Run iSFT and its controls."""
    for seed in x.seeds:
        recipe: Optima = make_recipe("optima/isft", [*x.overrides, f"seed={seed}"])
        s = recipe.settings
        with x.run("isft", recipe) as run:
            for version in range(s.iterations + 1):
                x.add_run("isft" if version else "base", recipe, run, version)
            counts = [
                int(run.metrics(StageKey(i, "select"))["selected"]) for i in range(s.iterations)
            ]
        controls: dict[str, Optima] = {
            "random": RandomControl(s, counts),
            "scripted": ScriptedControl(s, counts),
        }
        for method in x.chosen(controls):
            shares = "isft" if method == "random" else None
            with x.run(method, controls[method], shares=shares) as run:
                x.add_run(method, controls[method], run, s.iterations)


def claims(measurements: Measurements) -> list[Claim]:
    """Test the claims."""
    return measurements.test(
        *(
            Hypothesis(
                f"isft_over_{rival}",
                f"isft scores above {rival} by more than {margin:.2f}, at no more tokens",
                *("isft", "base" + BEST if rival == "base" else rival),
                margin=margin,
                at_no_more_tokens=True,
            )
            for rival, margin in MARGINS.items()
        )
    )
