"""SWEET-RL with other critics and other numbers of tasks in ``persona``.

Fixed before any run. One claim, which is reported: with 75 tasks, SWEET scores above SWEET whose critic does not see
the reference. In the table without a claim:

* with 150 tasks SWEET's critic, whose advantages are means, one that takes sums, a regression head, and a value
  function;
* the base with the best of eight candidates for each turn, as SWEET's critic scores them (SWEET-RL's figure 3a);
* with 300 and 600 tasks SWEET with and without the reference, where nothing is expected, because a critic without it
  sees enough dialogues of each theme.

Each critic has a row with the pairs of first turns that it orders rightly. The gate is that of ``sweet_rl``.
"""

from collections.abc import Sequence

from coterie.environments.protocol import AGENT
from coterie.recipes.sweet_rl import SweetRL
from coterie.record.store import Store
from coterie.record.tree import Tree
from coterie.record.turn import Turn
from coterie.rollout.candidates import BestOfSampler
from coterie.rollout.episodes import Episode
from coterie.runs.loop import EVALUATION
from coterie.runs.run import Run
from coterie.runs.work_items import play, sampled_tokens
from experiments.claims import Claim, Hypothesis
from experiments.experiment import Experiment, Quick, held_out_results, make_recipe
from experiments.results import Measurements
from experiments.sweet_rl import BACKEND, METHODS, gate, run_method

__all__ = ["gate"]
MEANS = "means"
CRITICS: dict[str, tuple[str, ...]] = {
    MEANS: (),
    "regression": ("critic.kind=regression",),
    "classifier": ("critic.kind=classifier",),
    "sums": ("critic.objective.reduction=none",),
}
"""Differences from the preset. The first run begins; the others share its equal steps."""
BEST_OF = 8
CURVE = (75, 300, 600)
"""Numbers of tasks besides the preset's, with and without the reference."""
QUICK = Quick(("sweet, 75 tasks", "no_reference, 75 tasks"), ("evaluate.tasks=200",))
REFERENCE_75 = Hypothesis(
    "reference_75",
    "75 tasks: SWEET scores above SWEET without the reference",
    *("sweet, 75 tasks", "no_reference, 75 tasks"),
    must=False,
)


def run(x: Experiment) -> None:
    """Run the critics, and the curve over numbers of tasks."""
    for seed in x.seeds:
        common = [*x.overrides, f"seed={seed}"]
        for method in x.chosen(CRITICS):
            run_method(x, method, [*common, *CRITICS[method]], leader=MEANS)
        if x.quick is None:
            add_best_of(x, make_recipe(BACKEND, common))
        for tasks in CURVE:
            leader = f"sweet, {tasks} tasks"
            for name in x.chosen((leader, f"no_reference, {tasks} tasks")):
                overrides = [*common, *METHODS[name.split(",")[0]], f"rollout.tasks={tasks}"]
                run_method(x, name, overrides, leader=leader)


def add_best_of(x: Experiment, recipe: SweetRL) -> None:
    """Record the base whose turns are the best of several candidates, as the trained critic scores them."""
    s, tasks = recipe.settings, {task.id: task for task in x.held_out(recipe)}

    async def play_tasks(run: Run, store: Store) -> None:
        turn_critic = recipe.critic(run)
        assert turn_critic is not None
        sampler = await recipe.sampler(run, 0, s.evaluate.temperature)
        async with turn_critic.open() as critic, recipe.actors(run) as actors:

            async def score(tree: Tree, turns: Sequence[Turn]) -> Sequence[float]:
                scores: Sequence[float] = await critic.advantages(tasks[tree.task], tree, turns)
                return scores

            driver = actors.driver({AGENT: BestOfSampler(sampler, BEST_OF, score)}, s.seed)
            episodes = [Episode(task, 0, 0, EVALUATION) for task in tasks.values()]
            await play(store, driver, episodes, x.progress, sampled_tokens([sampler]))

    with x.run(MEANS, recipe) as run:
        file = run.folder / "evaluations" / f"best-of-{BEST_OF}.sqlite"
        with Store.open(file) as store:
            if len(store.finished_keys(0, EVALUATION)) < len(tasks):
                recipe.models(run).engines.run(play_tasks(run, store))
            results = held_out_results(store, 0)
    temperature = s.evaluate.temperature
    x.measurements.add(f"base, best of {BEST_OF}", s.seed, 0, temperature, results)


def claims(measurements: Measurements) -> list[Claim]:
    """Test the claim."""
    return measurements.test(REFERENCE_75)
