"""MOAT: joint alignment, its halves alone and put together, and supervised training.

Claims, margins and tests were fixed before any run (one-sided paired bootstrap over tasks and seeds, and a t test over
the means of the seeds, p < 0.05 each; score is success: the actions' result, in the sandbox, is the answer):

* must: joint alignment scores above supervised training that continues with as many rows and steps;
* reported: joint alignment scores above the planner's half alone, and above the grounder's half alone;
* reported: joint alignment scores above both halves trained apart and put together: the planner of the first and the
  grounder of the second of these runs;
* reported: joint alignment scores above the control after its first iteration, which on the spare seed is its best;
* reported: J (mean log-likelihood of right actions under the planner's plans) is above the control's;
* reported: J never falls by more than its standard error, from half-step to half-step;
* reported: joint alignment scores above the base at its best decode on problems in other words with one more step.

Rows without a claim: joint alignment with 2 and 5 plans a task in place of 15.

The control trains on right plans and right actions, on as many rows as joint alignment: tasks are drawn until there are
as many. Joint alignment improves its grounder without right actions: the critic accepts actions whose answer is right,
and rejects others (`correct.rejected=drop correct.gold=false` in the preset). The rewards of plans need right
actions, as in the paper.

The world has two faults: plans that mean several things, and quantities in words that the grounder misreads whatever
the plan says. Nothing is trained if the gate is not passed: neither the best of all plans nor a grounder that reads
words rightly may be enough alone, both together must be, and the grounder must read words rightly at times, so that it
can learn from its own actions. A seed's runs share their equal steps, such as the first rollouts and rewards.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from statistics import fmean, stdev

from coterie.environments.plans.plan_ground import GROUNDER, PLANNER, gold, plan_text
from coterie.environments.plans.problems import MISREADINGS, TOTAL, Problems, ProblemsSettings
from coterie.models.chat import ChatRenderer
from coterie.progress import Progress
from coterie.recipes.moat import DATA, HALF, WHOLE, Moat
from coterie.recipes.moat_settings import MoatSettings
from coterie.recipes.trainings import TrainingJob
from coterie.record.tree import Metrics, Task
from coterie.rollout.episodes import Episode
from coterie.rollout.samplers import AgentContext, Prompt, Response, Sampler
from coterie.rollout.script_player import recorded_response
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
from experiments.results import BEST, Measurements

JOINT, CONTROL, BASE = "joint", "continued SFT", "base"
PLANNER_ONLY, GROUNDER_ONLY, APART = "planner only", "grounder only", "halves trained apart"
EARLY = f"{CONTROL}, 1 iteration"
PARTS = {PLANNER_ONLY: "planner", GROUNDER_ONLY: "grounder", CONTROL: "sft"}
FEWER_PLANS = {"joint, 2 plans": 2, "joint, 5 plans": 5}
FAR = " (far)"
"""Suffix of a method's results on problems in other words."""
CLAIMS = (
    Hypothesis("over_continued_sft", f"joint scores above {CONTROL}", JOINT, CONTROL),
    *(
        Hypothesis(f"over_{id_}", f"joint scores above {words}", JOINT, method, must=False)
        for id_, words, method in (
            ("planner_only", "the planner's half alone", PLANNER_ONLY),
            ("grounder_only", "the grounder's half alone", GROUNDER_ONLY),
            ("halves_apart", "both halves trained apart and put together", APART),
            ("early_sft", f"{CONTROL} for one iteration", EARLY),
        )
    ),
)
FARTHER = Hypothesis(
    "far",
    f"in other words with one more step, joint scores above {BASE}",
    *(JOINT + FAR, BASE + FAR + BEST),
    must=False,
)
QUICK = Quick((JOINT, CONTROL), ("iterations=2", "evaluate.tasks=200", "measure.tasks=50"))
TUNING = {
    JOINT: {
        "nll_coef=0, learning_rate=3e-4": 0.720,
        "nll_coef=1, learning_rate=3e-4": 0.880,
        "nll_coef=1, learning_rate=1e-3": 0.900,
        "nll_coef=10, learning_rate=3e-4": 0.980,
        "nll_coef=10, learning_rate=1e-3": 0.917,
    },
    CONTROL: {
        "learning_rate=1e-4": 0.767,
        "learning_rate=2e-4": 0.793,
        "learning_rate=3e-4": 0.810,
        "learning_rate=5e-4": 0.787,
        "learning_rate=1e-3": 0.813,
    },
}
"""Settings that were tried on the spare seed, and the success of 300 tasks after three iterations.

Those of joint alignment are of the DPO; its grounder has a rate of 3e-4. The planner has four epochs everywhere. The
halves have the settings of joint alignment. The control's rate is that of both roles.
"""
ONE_FAULT, NO_FAULT, MISREAD = 0.75, 0.95, (0.3, 0.6)
"""Upper bound with one fault mended, lower bound with both, and bounds of the success on problems with words."""


class ContinuedSFT(Moat):
    """Train both roles on right plans and actions, on as many rows and in as many steps as joint alignment."""

    def __init__(self, settings: MoatSettings, counts: Mapping[str, Sequence[int]]) -> None:
        super().__init__(settings)
        self.counts = counts
        """Rows of each role in each iteration."""

    def gold_depends(self, iteration: int) -> Sequence[object]:
        """Return also the rows of joint alignment, on which all iterations depend."""
        s = self.settings.align.train
        return (*super().gold_depends(iteration), [*self.counts.values()], s.batch_size, s.epochs)

    def train_on_gold(self, run: Run, iteration: int, progress: Progress, role: str) -> Metrics:
        """Train a role on as many right rows as it had in joint alignment, in as many steps."""
        s, count = self.settings, self.counts[role][iteration]
        previous = [max(counts) for counts in zip(*self.counts.values(), strict=True)][:iteration]
        tasks = self.environment.tasks("train", count, s.seed, previous)
        train = self.trainings()["improve.train"]
        if role == PLANNER:  # a pair is two rows, and as many pairs are a step
            batches = {"batch_size": 2 * s.align.train.batch_size, "epochs": s.align.train.epochs}
            train = train.model_copy(update=batches)
        rows = [row for task in tasks for row in self.gold_rows(task, role)]
        return TrainingJob.of(self, run, iteration, train, progress, role).train(rows)


def run(x: Experiment) -> None:
    """Run joint alignment, its halves and the control."""
    for seed in x.seeds:
        joint = moat(x, seed)
        with x.run(JOINT, joint) as run:
            x.add_run(BASE, joint, run, 0)
            x.add_run(BASE + FAR, joint, run, 0, Problems(ProblemsSettings(far=True)))
            measure(x, JOINT, joint, run)
            trained = rows_trained(run, joint)
        for method in x.chosen(PARTS):
            recipe = moat(x, seed, f"parts={PARTS[method]}")
            if method == CONTROL:
                recipe = ContinuedSFT(recipe.settings, trained)
            with x.run(method, recipe, shares=JOINT) as run:
                measure(x, method, recipe, run)
                if method == CONTROL:
                    x.add_run(EARLY, recipe, run, 1)
        for method in x.chosen([APART]):
            recipe = put_together(x, seed)
            with x.run(method, recipe, steps=()) as run:
                x.add_run(method, recipe, run, 0)
        for method in x.chosen(FEWER_PLANS):
            recipe = moat(x, seed, f"rollout.rollouts_per_task={FEWER_PLANS[method]}")
            with x.run(method, recipe, shares=JOINT) as run:
                measure(x, method, recipe, run)


def claims(measurements: Measurements) -> list[Claim]:
    """Test the claims."""
    joint, control = (likelihoods(measurements, method) for method in (JOINT, CONTROL))
    return [
        *measurements.test(*CLAIMS),
        *likelihood_claims(joint, control[-1]),
        *measurements.test(FARTHER),
    ]


def moat(x: Experiment, seed: int, *overrides: str) -> Moat:
    """Return the recipe of a variant."""
    recipe: Moat = make_recipe("moat/maths", [*x.overrides, f"seed={seed}", *overrides])
    return recipe


def put_together(x: Experiment, seed: int) -> Moat:
    """Return a recipe that begins with the last planner and the last grounder of the runs of one half."""
    last = moat(x, seed).settings.iteration_count - 1
    planner, grounder = (
        x.path(method, seed) / "training" / PARTS[method] / f"iteration-{last:02d}" / "final"
        for method in (PLANNER_ONLY, GROUNDER_ONLY)
    )
    return moat(x, seed, f"model={planner}", f"grounder={grounder}")


def rows_trained(run: Run, recipe: Moat) -> dict[str, list[int]]:
    """Count the rows of each role in each iteration of a finished joint alignment; a pair is two."""
    iterations = range(recipe.settings.iteration_count)
    return {
        PLANNER: [2 * int(run.metrics(StageKey(i, "align"))["rows"]) for i in iterations],
        GROUNDER: [int(run.metrics(StageKey(i, "improve"))["rows"]) for i in iterations],
    }


def measure(x: Experiment, method: str, recipe: Moat, run: Run) -> None:
    """Record a run's policies, the last one also on problems in other words, and its log-likelihoods."""
    versions = range(1, recipe.settings.iteration_count + 1)
    for version in versions:
        x.add_run(method, recipe, run, version)
    x.add_run(method + FAR, recipe, run, versions[-1], Problems(ProblemsSettings(far=True)))
    add_likelihoods(x, method, recipe, run)


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


# -- the gate --------------------------------------------------------------------------------------


@dataclass(eq=False)
class WrittenPlans:
    """Planner that writes the plans of a task, another one in each draw."""

    renderer: ChatRenderer
    plans: Callable[[Task], Sequence[str]]

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        """Return the plan of the draw."""
        assert prompt.task is not None, "plans need a task"
        plan = self.plans(prompt.task)[prompt.draw]
        return recorded_response(prompt, context, plan, DATA, self.renderer)


@dataclass(eq=False)
class RightReader:
    """The untrained grounder with all its misreadings put right."""

    renderer: ChatRenderer
    grounder: Sampler

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        """Return the grounder's actions, with the right ends of calculations."""
        text = (await self.grounder.respond(prompt, context)).turn.text
        for right, wrong in MISREADINGS.items():
            text = text.replace(f" {wrong})", f" {right})")
        return recorded_response(prompt, context, text, DATA, self.renderer)


def all_plans(task: Task) -> list[str]:
    """Return all plans of a task: each part is clear ("find Bob's cups") or brief ("find Bob's")."""
    _, _, question = str(task.public["question"]).rpartition("How many are ")
    parts = [
        (f"find {owner}'s {thing}", f"find {owner}'s")
        for owner, thing in re.findall(r"(\w+)'s (\w+)", question)
    ]
    return [plan_text([*subgoals, TOTAL]) for subgoals in product(*parts)]


def right_plan(task: Task) -> list[str]:
    return [gold(task).plan]


def has_words(task: Task) -> bool:
    """Return True if a quantity of the total is in words."""
    return any(f" {right})" in gold(task).actions for right in MISREADINGS)


def gate(x: Experiment) -> Gate:
    """Play held-out tasks with the untrained model as it is, and with one fault or both mended."""
    recipe = moat(x, SPARE_SEED)
    with x.base(recipe) as run:
        x.choose_decode(recipe, run)
        recipe.models(run).engines.run(play_gate(x, recipe, run))
        best_plan = fmean(map(max, sampled_scores(run, 0, "gate_all_plans")))
        right_grounder, both_right, words_right = (
            fmean(map(fmean, sampled_scores(run, 0, stage)))
            for stage in ("gate_right_grounder", "gate_both_right", "gate_words")
        )
    low, high = MISREAD
    return Gate(
        {
            "best_plan": best_plan,
            "right_grounder": right_grounder,
            "both_right": both_right,
            "words_right": words_right,
        },
        passed=max(best_plan, right_grounder) <= ONE_FAULT
        and both_right >= NO_FAULT
        and low <= words_right <= high,
        conditions=f"best_plan and right_grounder at most {ONE_FAULT}, both_right at least {NO_FAULT}, "
        f"words_right {low} to {high}",
    )


async def play_gate(x: Experiment, recipe: Moat, run: Run) -> None:
    """Play all plans and, of problems with words, right ones; and with a right grounder sampled and right plans."""
    s, tasks = recipe.settings, recipe.heldout_tasks()
    grounder = await recipe.sampler(run, 0, s.rollout.ground_temperature, 1.0, GROUNDER)
    planner = await recipe.sampler(run, 0, s.rollout.temperature, s.rollout.top_p, PLANNER)
    planner_renderer, grounder_renderer = (recipe.renderers[role] for role in (PLANNER, GROUNDER))
    right, reader = (
        WrittenPlans(planner_renderer, right_plan),
        RightReader(grounder_renderer, grounder),
    )
    samples = s.measure.rollouts_per_task
    any_plan = WrittenPlans(planner_renderer, all_plans)
    plays: dict[str, tuple[Sampler, Sampler, list[tuple[Task, int]]]] = {
        "gate_all_plans": (any_plan, grounder, [(task, len(all_plans(task))) for task in tasks]),
        "gate_words": (right, grounder, [(task, 1) for task in tasks if has_words(task)]),
        "gate_right_grounder": (planner, reader, [(task, samples) for task in tasks]),
        "gate_both_right": (right, reader, [(task, 1) for task in tasks]),
    }
    stats = grounder.engine.stats
    async with recipe.actors(run) as actors:
        for stage, (writer, actor, counts) in plays.items():
            episodes = [Episode(task, n, 0, stage) for task, count in counts for n in range(count)]
            driver = actors.driver({PLANNER: writer, GROUNDER: actor}, s.seed)
            await play(run.store, driver, episodes, x.progress, lambda: stats.sampled_tokens)
