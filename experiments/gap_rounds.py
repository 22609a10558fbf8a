"""GAP: does reinforcement learning find shorter paths than imitation, where right paths differ in their rounds?

The questions compare entities of the encyclopedia, whose entries can be searched for at once or one by one. The start
is a fine-tuning on parallel traces of half of the questions and on sequential ones of the others, so that its paths
differ. A round costs 0.05 of the reward of a right answer. Claims, margins, tests and the gate were fixed before any
run (500 held-out questions a seed, one-sided paired tests, p < 0.05):

* must: DAPO needs fewer rounds than the start, with an exact match that is not lower by 0.02 or more;
* reported: DAPO needs fewer rounds than expert iteration, with an exact match that is not lower by 0.02 or more. Expert
  iteration has the same loop and steps, but imitates the paths with the highest reward of their group: the right ones
  with the fewest rounds. Groups with equal rewards teach neither of them.

Nothing was tuned: both have the learning rate of DAPO in ``gap``.

Gate, on the spare seed and before any reinforcement: among the right paths of eight the rounds differ in at least half
of the questions with several right paths.
"""

from dataclasses import dataclass, replace
from statistics import fmean
from zlib import crc32

from coterie.environments.workflow.plan_graph import Trace, TraceForm
from coterie.recipes.gap import Gap
from coterie.recipes.gap_settings import GapSettings
from coterie.record.tree import Task
from coterie.runs.evaluation import held_out_draws
from coterie.runs.loop import EVALUATION
from coterie.runs.run import Run
from experiments.claims import Claim, HeldOutResult, brief, common_tasks
from experiments.experiment import GROUPS, SPARE_SEED, Experiment, Gate, Quick, make_recipe
from experiments.gap import encyclopedia_of
from experiments.results import Measurements

START, DAPO, EXPERT = "SFT", "DAPO", "expert iteration"
REINFORCED = ("method=rl", "reward.measures={rounds: -0.05}")
METHODS = {DAPO: REINFORCED, EXPERT: (*REINFORCED, "loss.kl_coef=0", "advantage.baseline=best")}
"""Settings of each method that differ from the start's."""
LOST = 0.02
"""An exact match that is lower by less is not lower."""
PATHS, MIN_DIFFER = 8, 0.5
QUICK = Quick((DAPO, EXPERT), ("steps.count=6", "evaluate.tasks=200"))
DEFAULTS = ("environment.kinds=[compare]", "evaluate.tasks=700")


@dataclass(frozen=True, slots=True)
class OneByOne(Trace):
    """A trace that searches for one entry at a time, whatever the form of the others."""

    def messages(self, form: TraceForm) -> tuple[str, ...]:
        return super(OneByOne, self).messages("sequential")


class MixedTraces(Gap):
    """Fine-tune on traces that search one by one for half of the questions, and at once for the others."""

    def __init__(self, settings: GapSettings) -> None:
        super().__init__(settings)
        world = encyclopedia_of(self)
        at_once = world.trace

        def trace(task: Task) -> Trace:
            parallel = at_once(task)
            if crc32(task.id.encode()) % 2:
                return parallel
            return OneByOne(parallel.plan, parallel.levels, parallel.answer, parallel.conclusion)

        world.trace = trace  # type: ignore[method-assign]


def make(x: Experiment, seed: int, *words: str) -> MixedTraces:
    """Return the recipe of a method."""
    gap: Gap = make_recipe("gap/tiny", [*x.overrides, f"seed={seed}", *words])
    return MixedTraces(gap.settings)


def run(x: Experiment) -> None:
    """Fine-tune, and continue by both methods."""
    for seed in x.seeds:
        start = make(x, seed)
        with x.run(START, start) as run:
            x.add_run("base", start, run, 0)
            x.add_run(START, start, run, 1)
            add_rounds(x, START, seed, run, 1)
        for method in x.chosen(METHODS):
            recipe = make(x, seed, *METHODS[method], f"model={x.path(START, seed)}")
            with x.run(method, recipe, steps=recipe.stage_keys()[1:]) as run:
                x.add_run(method, recipe, run, 1)
                add_rounds(x, method, seed, run, 1)


def add_rounds(x: Experiment, method: str, seed: int, run: Run, version: int) -> None:
    """Record exact match and rounds of a policy's held-out questions, in place of tokens."""
    rounds = {
        key.task: int(metrics["rounds"])
        for key, metrics in run.store.metrics(version, EVALUATION).items()
        if key.task and "rounds" in metrics
    }
    x.measurements.tasks[rounds_of(method), seed] = {
        task: HeldOutResult(draw.score, rounds[task])
        for task, (draw,) in held_out_draws(run.store, version, 1).items()
        if task in rounds
    }


def rounds_of(method: str) -> str:
    return f"rounds of {method}"


def claims(measurements: Measurements) -> list[Claim]:
    """Test the claims."""
    ours = measurements.of(rounds_of(DAPO))
    rivals = {rival: measurements.of(rounds_of(rival)) for rival in (START, EXPERT)}
    return [
        replace(
            brief(
                f"rounds_below_{rival.replace(' ', '_')}",
                f"DAPO needs fewer rounds than {rival}, and is right as often",
                *common_tasks(ours, theirs),
                share=1.0,
                loss=LOST,
                unit="rounds",
            ),
            must=rival == START,
        )
        for rival, theirs in rivals.items()
    ]


def gate(x: Experiment) -> Gate:
    """Fine-tune with the spare seed, and sample several paths of each held-out question."""
    recipe = make(x, SPARE_SEED)
    with x.run(START, recipe) as run:
        x.choose_decode(recipe, run, version=1)
        temperature = recipe.settings.rollout.temperature
        x.sample_groups(recipe, run, PATHS, version=1, temperature=temperature)
        of_right: dict[str, list[float]] = {}
        scores = {
            (tree.task, f"{outcome.sample:04d}"): outcome.score or 0.0
            for tree in run.store.trees(1, GROUPS)
            for outcome in tree.outcomes.values()
        }
        for key, metrics in run.store.metrics(1, GROUPS).items():
            if scores.get((key.task, key.sample)) and "rounds" in metrics:
                of_right.setdefault(key.task, []).append(float(metrics["rounds"]))
    several = [rounds for rounds in of_right.values() if len(rounds) > 1]
    differ = fmean(len({*rounds}) > 1 for rounds in several) if several else 0.0
    values = {"rounds_differ": differ, "questions": len(several)}
    condition = f"rounds_differ at least {MIN_DIFFER}"
    return Gate(values, passed=differ >= MIN_DIFFER, conditions=condition)
