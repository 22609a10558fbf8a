"""SWEET-RL on web pages: the method and its baselines on the micro-world ``pages``, rendered by Chromium.

Claims, margins and tests were fixed before any run (one-sided paired bootstrap over tasks and seeds, p < 0.05; score is
the similarity ``layout`` of the agent's last page and the user's: a page of one color 0, the user's page 1):

* must: SWEET scores above the base (zero-shot);
* reported: SWEET scores above rejection fine-tuning;
* reported: SWEET scores above multi-turn DPO.

A seed's runs share their equal steps: the base's evaluation and the offline dialogues. Nothing was tuned on these
pages: rates, epochs and weights of all methods are those of ``sweet_rl/backend`` on its micro-world.

Nothing is trained if the gate is not passed: an agent that makes the change that the user asks for, until the user is
satisfied, must score above the base.
"""

import json
import random
from dataclasses import replace

from coterie.environments.collaboration import MARKER
from coterie.environments.pages.micro_world import (
    HIDDEN,
    RIGHT,
    Design,
    draw_design,
    largest_difference,
    scripted_reply,
    write_page,
)
from coterie.environments.protocol import AGENT
from coterie.environments.user_simulator import PERSON
from coterie.recipes.sweet_rl import SweetRL
from coterie.record.tree import Task
from coterie.rollout.episodes import Episode
from coterie.rollout.samplers import Sampler
from coterie.rollout.script_player import ScriptedSampler
from coterie.runs.run import Run
from coterie.runs.work_items import play
from experiments.claims import Claim
from experiments.experiment import (
    SPARE_SEED,
    Experiment,
    Gate,
    Quick,
    make_recipe,
    sampled_scores,
)
from experiments.results import Measurements
from experiments.sweet_rl import BASELINES, OVER_ZERO_SHOT, run_method

NAME = "sweet_rl/frontend"
METHODS = ("sweet", "rejection_ft", "multi_turn_dpo")
ORACLE_MINUS_BASE = 0.2
TUNING: dict[str, dict[str, float]] = {}
"""Nothing was tuned on these pages."""
QUICK = Quick(("sweet", "rejection_ft"), ("rollout.tasks=60", "evaluate.tasks=60"))
DEFAULTS = ("evaluate.tasks=650",)
"""More pages than are used, because seeds draw some of them twice."""


def run(x: Experiment) -> None:
    """Run the methods with every seed."""
    for seed in x.seeds:
        for method in x.chosen(METHODS):
            run_method(x, method, [*x.overrides, f"method={method}", f"seed={seed}"], NAME)


def claims(measurements: Measurements) -> list[Claim]:
    """Test the claims of the backend whose methods run here, of which only one must hold."""
    return measurements.test(OVER_ZERO_SHOT, *BASELINES)


def gate(x: Experiment) -> Gate:
    """Play the held-out tasks with the base, and with an agent that makes the changes asked for."""
    recipe: SweetRL = make_recipe(NAME, [*x.overrides, f"seed={SPARE_SEED}"])
    with x.base(recipe) as run:
        x.choose_decode(recipe, run)
        recipe.models(run).engines.run(play_both(x, recipe, run))
        base, oracle = (
            [score for scores in sampled_scores(run, 0, stage) for score in scores]
            for stage in ("gate_base", "gate_oracle")
        )
    means = {"base": sum(base) / len(base), "oracle": sum(oracle) / len(oracle)}
    return Gate(
        means,
        passed=means["oracle"] - means["base"] >= ORACLE_MINUS_BASE,
        conditions=f"oracle minus base at least {ORACLE_MINUS_BASE}",
    )


async def play_both(x: Experiment, recipe: SweetRL, run: Run) -> None:
    base = await recipe.sampler(run, 0, recipe.settings.evaluate.temperature)
    samplers: dict[str, Sampler] = {
        "gate_base": base,
        "gate_oracle": ScriptedSampler(recipe.renderers["policy"], oracle_turns, "script:pages"),
    }
    stats = base.engine.stats
    async with recipe.actors(run) as actors:
        for stage, sampler in samplers.items():
            episodes = [Episode(task, 0, 0, stage) for task in recipe.heldout_tasks()]
            driver = actors.driver({AGENT: sampler}, recipe.settings.seed)
            await play(run.store, driver, episodes, x.progress, lambda: stats.sampled_tokens)


def oracle_turns(task: Task) -> list[str]:
    """Return the turns of an agent that begins with any page and makes each change that the user asks for."""
    goal = Design(**json.loads(task.secrets[HIDDEN].reveal(PERSON)))
    page = replace(draw_design(random.Random(task.id)), heading=goal.heading)
    turns = [write_page(page)]
    while (name := largest_difference(page, goal)) is not None:
        page = replace(page, **{name: getattr(goal, name)})
        turns.append(write_page(page))
    assert scripted_reply(goal, turns[-1]) == RIGHT
    return [*turns, f"{MARKER}\n{turns[-1]}"]
