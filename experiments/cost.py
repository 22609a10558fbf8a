"""Cost of a policy: what its trainings learned from, and what was sampled for them."""

from coterie.recipes.base import Recipe
from coterie.runs.loop import REINFORCE
from coterie.runs.reinforce_record import step_records
from coterie.runs.run import Run, StageKey
from experiments.results import Training


def training_of(recipe: Recipe, run: Run, version: int) -> Training:
    """Return the cost of a policy."""
    stages = {stage.key: stage for stage in recipe.stages()}
    finished = [key for key in stages if key.iteration < version and run.is_finished(key)]
    # A critic learns too, but it is not the policy.
    player_roles = {*recipe.players().values()}
    trained = [key for key in finished if player_roles & {*stages[key].trains}]
    rows, steps, targets = (
        sum(int(run.metrics(key)[name]) for key in trained)
        for name in ("rows", "steps", "trained_tokens")
    )
    # What the trainings read, and what that was made from. Evaluations are no part of it.
    inputs, unseen = set(trained), [*trained]
    while unseen:
        new = {*stages[unseen.pop()].after} - inputs
        inputs |= new
        unseen += new
    sampled = sum(_sampled_tokens(run, key) for key in inputs)
    seconds = sum(float(run.metrics(key)["seconds"]) for key in inputs)
    return Training(rows, steps, targets, sampled, round(seconds, 1))


def _sampled_tokens(run: Run, key: StageKey) -> int:
    """Return the number of tokens that a stage sampled for training."""
    if key.stage == REINFORCE:
        steps = step_records(run.store, key.iteration, REINFORCE).values()
        return sum(int(step["sampled_tokens"]) for step in steps)
    if key.stage != "rollout":
        return 0
    trees = [
        sum(len(turn.ids) for turn in tree.turns.values() if turn.sample is not None)
        for tree in run.store.trees(key.iteration, key.stage)
    ]
    # Trees hold equal rollouts once, so the counts of rollouts are used where items have them.
    metrics = run.store.metrics(key.iteration, key.stage).values()
    counts = [int(m.get("sampled", m["tokens"])) for m in metrics if "tokens" in m]
    # An expert's traces have tokens too, but nothing was sampled.
    return sum(counts or trees) if any(trees) else 0
