"""MOAT: joint alignment, its halves alone, and supervised training.

Claims, margins and tests were fixed before any run (one-sided paired bootstrap over tasks and
seeds, p < 0.05; score is success: the actions' result, in the sandbox, is the answer):

* must: joint alignment scores above supervised training that continues with as many rows and steps;
* reported: joint alignment scores above the planner's half alone, and above the grounder's half alone;
* reported: J (mean log-likelihood of right actions under the planner's plans) is above the control's;
* reported: J never falls by more than its standard error, from half-step to half-step;
* reported: joint alignment scores above the supervised start on problems in other words with one more step.

The control sees more right rows than joint alignment did: tasks are drawn until there are as many rows.

Nothing is trained if the gate is not passed: the grounder must understand right plans and not those that the planner
samples, and among a task's plans there must be some that it understands better than most. A seed's runs share their
equal steps: the supervised start, and the first rollouts and rewards.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, stdev

from coterie.environments.plans.plan_ground import GROUNDER, PLANNER, gold
from coterie.environments.plans.problems import Problems, ProblemsSettings
from coterie.progress import Progress
from coterie.recipes.moat import DATA, HALF, WHOLE, Moat
from coterie.recipes.moat_settings import MoatSettings
from coterie.recipes.trainings import TrainingJob
from coterie.record.tree import Metrics
from coterie.rollout.episodes import Episode
from coterie.rollout.samplers import Sampler
from coterie.rollout.script_player import ScriptedSampler
from coterie.runs.run import Run, StageKey
from coterie.runs.work_items import play
from experiments.claims import (
    Claim,
    HeldOutResult,
    Hypothesis,
    Results,
    above,
    common_tasks,
)
from experiments.experiment import (
    SPARE_SEED,
    Experiment,
    Gate,
    Quick,
    make_recipe,
    sampled_scores,
)
from experiments.results import Measurements

JOINT, CONTROL, START = "joint", "continued SFT", "separate SFT"
PARTS = {"planner only": "planner", "grounder only": "grounder", CONTROL: "sft"}
FAR = " (far)"
"""Suffix of a method's results on problems in other words."""
CLAIMS = (
    Hypothesis("over_continued_sft", f"joint scores above {CONTROL}", JOINT, CONTROL),
    Hypothesis(
        "over_planner_only",
        "joint scores above the planner's half alone",
        *(JOINT, "planner only"),
        must=False,
    ),
    Hypothesis(
        "over_grounder_only",
        "joint scores above the grounder's half alone",
        *(JOINT, "grounder only"),
        must=False,
    ),
)
FARTHER = Hypothesis(
    "far",
    f"in other words with one more step, joint scores above {START}",
    *(JOINT + FAR, START + FAR),
    must=False,
)
QUICK = Quick((JOINT, CONTROL), ("iterations=2", "evaluate.tasks=200", "measure.tasks=50"))
TUNING = {
    "DPO of the planner": {
        "align.train.learning_rate=1e-4": 0.757,
        "align.train.learning_rate=3e-4": 0.880,
    },
    "SFT of the grounder": {
        "improve.train.learning_rate=1e-4": 0.650,
        "improve.train.learning_rate=3e-4": 0.640,
    },
    CONTROL: {
        "improve.train.learning_rate=1e-4": 0.640,
        "improve.train.learning_rate=3e-4": 0.623,
    },
}
"""Learning rates that were tried on seed 9, and the success after one iteration."""
BEST_MINUS_MEAN, GOLD_SUCCESS, SAMPLED_SUCCESS = 0.15, 0.9, 0.7
"""Lower bounds, and the upper bound of sampled plans."""


class ContinuedSFT(Moat):
    """Continue supervised training of both roles with as many rows and steps as joint alignment had."""

    def __init__(self, settings: MoatSettings, counts: Mapping[str, Sequence[int]]) -> None:
        super().__init__(settings)
        self.counts = counts
        """Rows of each role in each iteration."""

    def gold_depends(self, iteration: int) -> Sequence[object]:
        """Return also the rows of joint alignment, on which all iterations after the start depend."""
        s = self.settings.align.train
        rows = (list(self.counts.values()), s.batch_size, s.epochs)
        return (*super().gold_depends(iteration), *(() if self.is_start(iteration) else rows))

    def train_on_gold(self, run: Run, iteration: int, progress: Progress, role: str) -> Metrics:
        """Train a role on as many right rows as it had in joint alignment, in as many steps."""
        if self.is_start(iteration):
            return super().train_on_gold(run, iteration, progress, role)
        s, index = self.settings, iteration - 1
        previous = [max(counts) for counts in zip(*self.counts.values(), strict=True)][:index]
        tasks = self.environment.tasks(
            "train", self.counts[role][index], s.seed, [s.start.tasks, *previous]
        )
        train = self.trainings()["improve.train"]
        if role == PLANNER:  # a pair is two rows, and as many pairs are a step
            batches = {"batch_size": 2 * s.align.train.batch_size, "epochs": s.align.train.epochs}
            train = train.model_copy(update=batches)
        rows = [row for task in tasks for row in self.gold_rows(task, role)]
        return TrainingJob.of(self, run, iteration, train, progress, role).train(rows)


def run(x: Experiment) -> None:
    """Run joint alignment, its halves and the control."""
    for seed in x.seeds:
        joint = moat(x, seed, "joint")
        with x.run(JOINT, joint) as run:
            x.add_run("base", joint, run, 0)
            measure(x, START, joint, run, [int(joint.settings.start.enabled)])
            measure(x, JOINT, joint, run)
            add_likelihoods(x, JOINT, joint, run)
            trained = rows_trained(run, joint)
        for method in x.chosen(PARTS):
            recipe = moat(x, seed, PARTS[method])
            if method == CONTROL:
                recipe = ContinuedSFT(recipe.settings, trained)
            with x.run(method, recipe, shares=JOINT) as run:
                measure(x, method, recipe, run)
                add_likelihoods(x, method, recipe, run)


def claims(measurements: Measurements) -> list[Claim]:
    """Test the claims."""
    joint, control = (likelihoods(measurements, method) for method in (JOINT, CONTROL))
    return [
        *measurements.test(*CLAIMS),
        *likelihood_claims(joint, control[-1]),
        *measurements.test(FARTHER),
    ]


def moat(x: Experiment, seed: int, parts: str) -> Moat:
    """Return the recipe of a variant."""
    recipe: Moat = make_recipe("moat/maths", [*x.overrides, f"seed={seed}", f"parts={parts}"])
    return recipe


def rows_trained(run: Run, recipe: Moat) -> dict[str, list[int]]:
    """Count the rows of each role in each iteration of a finished joint alignment; a pair is two."""
    iterations = range(1, recipe.settings.iteration_count)
    return {
        PLANNER: [2 * int(run.metrics(StageKey(i, "align"))["rows"]) for i in iterations],
        GROUNDER: [int(run.metrics(StageKey(i, "improve"))["rows"]) for i in iterations],
    }


def measure(
    x: Experiment, method: str, recipe: Moat, run: Run, versions: Sequence[int] = ()
) -> None:
    """Record policies (all after the start by default), and the last one on problems in other words."""
    s = recipe.settings
    versions = versions or range(int(s.start.enabled) + 1, s.iteration_count + 1)
    for version in versions:
        x.add_run(method, recipe, run, version)
    x.add_run(method + FAR, recipe, run, versions[-1], Problems(ProblemsSettings(far=True)))


def add_likelihoods(x: Experiment, method: str, recipe: Moat, run: Run) -> None:
    """Record J: the log-likelihoods of a run's held-out tasks, half-step after half-step."""
    steps = [step for step in recipe.stage_keys() if step.stage in (WHOLE, HALF)]
    for n, step in enumerate(steps):
        x.measurements.tasks[likelihood_name(method, n), recipe.settings.seed] = {
            key.task: HeldOutResult(float(values["loglikelihood"]), 0)
            for key, values in run.store.metrics(step.iteration, step.stage).items()
            if "loglikelihood" in values
        }


def likelihood_name(method: str, step: int) -> str:
    """Return the name of the log-likelihoods of held-out tasks after a half-step."""
    return f"J of {method} {step}"


def likelihoods(measurements: Measurements, method: str) -> list[Results]:
    """Return the log-likelihoods of the held-out tasks, half-step after half-step."""
    results = list[Results]()
    while step := measurements.of(likelihood_name(method, len(results))):
        results.append(step)
    return results


def likelihood_claims(joint: Sequence[Results], control: Results) -> list[Claim]:
    """Test J of joint alignment against the control's, and the half-step in which it falls most, by its p."""
    text = f"J of joint is above that of {CONTROL}"
    steps = []
    for measures in pairwise(joint):
        earlier, later = common_tasks(*measures)
        values = [result.score for tasks in earlier.values() for result in tasks.values()]
        margin = -stdev(values) / math.sqrt(len(values))
        falls = "J of joint never falls by more than its standard error"
        hypothesis = Hypothesis("j_never_falls", falls, JOINT, JOINT, must=False, margin=margin)
        steps.append(above(hypothesis, later, earlier))
    j = above(Hypothesis("j", text, JOINT, CONTROL, must=False), joint[-1], control)
    return [j, max(steps, key=lambda claim: (claim.p, claim.p_seeds))]


def gate(x: Experiment) -> Gate:
    """Play held-out tasks with the untrained model: K sampled plans of each, and the right one."""
    recipe = moat(x, SPARE_SEED, "joint")
    with x.base(recipe) as run:
        x.choose_decode(recipe, run)
        recipe.models(run).engines.run(play_plans(x, recipe, run))
        sampled, right = (sampled_scores(run, 0, stage) for stage in ("gate_sampled", "gate_gold"))
    best = fmean(max(scores) - fmean(scores) for scores in sampled)
    on_right = fmean(score for scores in right for score in scores)
    on_sampled = fmean(map(fmean, sampled))
    return Gate(
        {"best_minus_mean": best, "gold_success": on_right, "sampled_success": on_sampled},
        passed=best >= BEST_MINUS_MEAN
        and on_right >= GOLD_SUCCESS
        and on_sampled <= SAMPLED_SUCCESS,
        conditions=f"best_minus_mean at least {BEST_MINUS_MEAN}, gold_success at least {GOLD_SUCCESS}, "
        f"sampled_success at most {SAMPLED_SUCCESS}",
    )


async def play_plans(x: Experiment, recipe: Moat, run: Run) -> None:
    """Play all held-out tasks with sampled and with right plans."""
    s, tasks = recipe.settings.rollout, recipe.heldout_tasks()
    grounder = await recipe.sampler(run, 0, s.ground_temperature, s.top_p, GROUNDER)
    planner_sampler = await recipe.sampler(run, 0, s.temperature, s.top_p, PLANNER)
    renderer = (await recipe.models(run).open_engine(PLANNER, 0)).renderer
    right = ScriptedSampler(renderer, lambda task: [gold(task).plan], DATA)
    planners: dict[str, tuple[Sampler, int]] = {
        "gate_sampled": (planner_sampler, s.rollouts_per_task),
        "gate_gold": (right, 1),
    }
    stats = grounder.engine.stats
    async with recipe.actors(run) as actors:
        for stage, (planner, samples) in planners.items():
            episodes = [Episode(task, n, 0, stage) for task in tasks for n in range(samples)]
            driver = actors.driver({PLANNER: planner, GROUNDER: grounder}, recipe.settings.seed)
            await play(run.store, driver, episodes, x.progress, lambda: stats.sampled_tokens)
