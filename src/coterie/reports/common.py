"""What every run's report page shows, whatever its recipe: policies, dialogues, failures, times."""

from collections.abc import Sequence

from coterie.config.resolve import flatten
from coterie.config.settings import Settings
from coterie.models.loading import LoadedModel
from coterie.reports.data import (
    DialogueView,
    Failure,
    GradeMeans,
    IterationPoint,
    Setting,
    StageTime,
    TokenPiece,
    TurnView,
)
from coterie.reports.plan_view import plan_views
from coterie.reports.tool_use import call_views
from coterie.rollout.episodes import dialogue_tokens
from coterie.runs.folder import Run, Step
from coterie.runs.held_out import evaluation, grade_means
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Outcome, Tree
from coterie.trajectories.turn import Turn

EXAMPLES = 12


def shown_settings(settings: Settings) -> tuple[Setting, ...]:
    values = flatten(settings.model_dump(mode="json"))
    return tuple(Setting(name, str(value)) for name, value in values.items())


def timings(run: Run, done: Sequence[Step]) -> tuple[StageTime, ...]:
    """How long each finished step took."""
    return tuple(StageTime(s.iteration, s.stage, float(run.metrics(s)["seconds"])) for s in done)


def tasks_of(run: Run, step: Step) -> int:
    """How many tasks a stage has dialogues of, failed ones included."""
    return len({task for task, _ in run.store.finished_keys(step.iteration, step.stage) if task})


def policy_point(run: Run, version: int) -> IterationPoint:
    found = evaluation(run.store, version)
    return IterationPoint(version, found.score, found.low, found.high, found.tokens, found.n)


def failures(run: Run) -> tuple[Failure, ...]:
    """What failed for good, by its reason."""
    groups: dict[tuple[int, str, str], list[str]] = {}
    for key, reason in run.store.failures():
        groups.setdefault((key.iteration, key.stage, reason), []).append(f"{key.task}/{key.sample}")
    return tuple(
        Failure(iteration, stage, reason, len(items), items[0])
        for (iteration, stage, reason), items in groups.items()
    )


def held_out_dialogue(
    run: Run, version: int, task: Task, model: LoadedModel
) -> DialogueView | None:
    """The dialogue of a policy on a held-out task; ``None`` if it failed."""
    try:
        tree: Tree = run.store.tree(version, "evaluate", task.id)
    except KeyError:  # the dialogue failed; the failures table says why
        return None
    for outcome, path in tree.trajectories():
        return dialogue_view(model, version, outcome, path, trained=False)
    return None


def dialogue_view(
    model: LoadedModel, iteration: int, outcome: Outcome, path: Sequence[Turn], *, trained: bool
) -> DialogueView:
    """A dialogue token by token; a turn that no policy made is one piece."""
    turns = []
    for at, turn in enumerate(path):
        own = tuple(TokenPiece(text, trained) for text in model.renderer.pieces(turn.ids))
        pieces = own or (TokenPiece(turn.text or _results(turn), trained=False),)
        calls, plans = call_views(path, at), plan_views(turn)
        turns.append(TurnView(turn.speaker.name, pieces, len(turn.ids), calls, plans))
    return DialogueView(
        iteration, tuple(turns), outcome.answer, outcome.score, dialogue_tokens(path)
    )


def _results(turn: Turn) -> str:
    """Results of calls, where the model's template shows them."""
    return "\n".join(result.text for result in turn.results)


def stage_grades(run: Run, step: Step) -> GradeMeans:
    """What the dialogues of a finished stage were like: a ``rollout``, or held-out ones."""
    known = run.metrics(step)
    means = grade_means(run.store, step.iteration, step.stage, samples=None)
    what = "training" if step.stage == "rollout" else "held out"
    of = f"{what}, {f'policy {step.iteration}' if step.iteration else 'base'}"
    return GradeMeans(of, int(known["n"]), float(known["score"]), means)


def first_and_last(
    run: Run, versions: Sequence[int], task: Task, model: LoadedModel
) -> tuple[DialogueView | None, DialogueView | None]:
    """A held-out task's dialogue of the policy before training, and of the last one after it, where there are any."""
    if len(versions) > 1:
        before, after = (
            held_out_dialogue(run, one, task, model) for one in (versions[0], versions[-1])
        )
        return before, after
    only = held_out_dialogue(run, versions[0], task, model)
    return (None, only) if versions[0] else (only, None)
