"""``coterie reproduce gap``: reinforcement learning from the parallel fine-tuning against more fine-tuning.

Claims, margins and tests were fixed before the first run (one-sided paired bootstrap over questions and seeds, p <
0.05; exact match on 500 held-out questions of the invented encyclopedia a seed):

* must: DAPO, which GAP's script runs, scores above the fine-tuning that it begins from;
* must: DAPO scores above more fine-tuning at equal trained tokens: on the expert's traces of the questions that DAPO
  drew, of which DAPO itself is told the answers alone;
* reported: DAPO scores above more epochs of fine-tuning, on the traces that there are, at equal trained tokens;
* reported: DAPO scores above rejection fine-tuning at equal trained tokens (``controls``);
* reported: GRPO scores above the fine-tuning; PPO scores above it (one seed).

Tokens and rounds of each policy stand in the table. All begin from the same fine-tuned policy of their seed; GRPO has
DAPO's steps and tasks, PPO as many paths a step, one of each question.

Each method has the better of two learning rates on a spare seed, 9: DAPO, GRPO and PPO of 2e-4 (0.976, 0.976, 0.982)
and 5e-4 (0.974, 0.976, 0.970), more fine-tuning of 2.5e-4 (0.748) and 5e-4 (0.730), more epochs of these (0.756,
0.744), rejection fine-tuning of these (0.794, 0.806).

Nothing is trained by reinforcement if the gate is not passed (``rl_gate``).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.config.folders import make_folder
from coterie.evaluation.claims import Claim, Results, above
from coterie.progress import Progress
from coterie.recipes.findings import ClaimResults, Findings
from coterie.recipes.gap.claims import recipe_for
from coterie.recipes.gap.controls import RejectionFineTuning
from coterie.recipes.gap.recipe import Gap
from coterie.recipes.reinforcing import STAGE
from coterie.runs.folder import Run, Step, open_run
from coterie.runs.loop import run_steps
from coterie.runs.reinforce.loop import DRAWS, step_records

BASE, SFT, DAPO, GRPO, PPO = "base", "SFT", "DAPO", "GRPO", "PPO"
MORE, EPOCHS, REJECTION = "more SFT", "more epochs", "rejection fine-tuning"
CONTROLS = (MORE, EPOCHS, REJECTION)
REINFORCED = ("method=rl",)
ONE_DRAW = (
    "rl.rollout.rounds=1", "rl.loss.clip_high=0.2", "rl.loss.dual_clip=3", "rl.loss.kl=0.001",
    "rl.loss.divergence=k3_forward",
)  # fmt: skip
WORDS = {
    DAPO: REINFORCED,
    GRPO: (*REINFORCED, *ONE_DRAW),
    PPO: (
        *REINFORCED, *ONE_DRAW, "rl.advantage.baseline=values", "rl.rollout.samples=1", "rl.rollout.tasks=256",
        "rl.critic.train.learning_rate=1.0e-3",
    ),
    MORE: ("train.learning_rate=2.5e-4",),
    EPOCHS: ("train.learning_rate=2.5e-4",),
    REJECTION: ("train.learning_rate=5.0e-4",),
}  # fmt: skip
"""What each method is told beside the preset of ``gap/tiny``."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """What a reinforcement learning had, which its controls get too."""

    questions: int
    """Those that it drew: the first ones of the training split."""
    tokens: int
    """Target tokens that it was trained on."""


def reproduce(
    folder: Path,
    seeds: Iterable[int],
    words: Sequence[str],
    say: Callable[[str], None],
    progress: Progress,
) -> ClaimResults:
    """Run (or resume) everything, and test the claims."""
    check_methods(words)
    make_folder(folder)
    found = Findings()
    for place, seed in enumerate(seeds):
        own, own_words = folder / f"seed-{seed}", [*words, f"seed={seed}"]
        own.mkdir(exist_ok=True)
        say(f"seed {seed}: {SFT}")
        fine_tuned(own / "sft", own_words, progress, found)
        begun = [*own_words, f"model={own / 'sft'}"]
        learnt = None
        for method in (DAPO, GRPO, *((PPO,) if place == 0 else ())):
            say(f"seed {seed}: {method}")
            recipe = recipe_for([*begun, *WORDS[method]])
            after = _taken(method, recipe, own / method.lower(), progress, found, (STAGE,))
            learnt = learnt or after
        assert learnt is not None, "DAPO comes first"
        for method in CONTROLS:
            say(f"seed {seed}: {method}")
            recipe = _control(method, begun, learnt)
            _taken(method, recipe, own / method.replace(" ", "_"), progress, found, ("train",))
    return ClaimResults(found, _claims(found))


def check_methods(words: Sequence[str]) -> None:
    """Refuse (``UserError``) settings under which a method can't learn, before the fine-tuning that comes first."""
    for method in (DAPO, GRPO, PPO):
        recipe = recipe_for([*words, *WORDS[method]])
        recipe.check()
        recipe.close()


def fine_tuned(folder: Path, words: Sequence[str], progress: Progress, found: Findings) -> None:
    """The parallel fine-tuning that all begin from."""
    recipe = recipe_for(words)
    recipe.check()
    with open_run(folder, recipe.name, recipe.settings) as run:
        run_steps(recipe, run, progress)
        found.add(BASE, recipe.settings.seed, run, 0)
        found.add(SFT, recipe.settings.seed, run, 1)
    recipe.close()


def _taken(
    method: str,
    recipe: Gap,
    folder: Path,
    progress: Progress,
    found: Findings,
    trainings: Sequence[str],
) -> Learnt | None:
    """A training from the fine-tuned policy, and how it does; that policy is not evaluated again."""
    recipe.check()
    _, *steps = recipe.steps()
    with open_run(folder, recipe.name, recipe.settings) as run:
        run_steps(recipe, run, progress, steps)
        found.add(method, recipe.settings.seed, run, 1, trainings)
        learnt = _learnt(recipe, run) if STAGE in trainings else None
    recipe.close()
    return learnt


def _learnt(recipe: Gap, run: Run) -> Learnt:
    records = step_records(run.store, 0, STAGE)
    draws = int(records[max(records)][DRAWS])
    tokens = int(run.metrics(Step(0, STAGE))["trained_tokens"])
    return Learnt(draws * recipe.settings.rl.rollout.drawn, tokens)


def _control(method: str, words: Sequence[str], learnt: Learnt) -> Gap:
    """Fine-tuning on the questions that reinforcement learning had, for as many tokens."""
    equal = [f"train.target_tokens={learnt.tokens}"]
    if method != EPOCHS:
        equal.append(f"traces.tasks={learnt.questions}")
    recipe = recipe_for([*words, *WORDS[method], *equal])
    return RejectionFineTuning(recipe.settings) if method == REJECTION else recipe


def _claims(found: Findings) -> list[Claim]:
    """The claims, each on all seeds that have what it is about."""
    dapo, sft = _of(found, DAPO), _of(found, SFT)
    ppo = _of(found, PPO)
    begun = {seed: tasks for seed, tasks in sft.items() if seed in ppo}
    told = (
        ("dapo_over_sft", "DAPO scores above the fine-tuning that it begins from", dapo, sft, True),
        ("dapo_over_more_sft", f"DAPO scores above {MORE}", dapo, _of(found, MORE), True),
        ("dapo_over_more_epochs", f"DAPO scores above {EPOCHS}", dapo, _of(found, EPOCHS), False),
        ("dapo_over_rejection", f"DAPO scores above {REJECTION}", dapo, _of(found, REJECTION), False),
        ("grpo_over_sft", "GRPO scores above the fine-tuning", _of(found, GRPO), sft, False),
        ("ppo_over_sft", "PPO scores above the fine-tuning", ppo, begun, False),
    )  # fmt: skip
    return [above(id_, text, ours, theirs, must=must) for id_, text, ours, theirs, must in told]


def _of(found: Findings, method: str) -> Results:
    """A method's results, by seed."""
    return {seed: tasks for (name, seed), tasks in found.tasks.items() if name == method}
