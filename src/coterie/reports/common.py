"""What every run's report page shows, whatever its recipe: policies, dialogues, failures, times."""

from collections.abc import Iterator, Sequence

from coterie.config.resolve import flatten
from coterie.config.settings import Settings
from coterie.environments.workflow.measures import plans_of
from coterie.environments.workflow.plan import BrokenPlan, Plan
from coterie.environments.workflow.written import parse_plan
from coterie.models.loading import LoadedModel
from coterie.reports.data import (
    DialogueView,
    Failure,
    GradeMeans,
    IterationPoint,
    PlanArrow,
    PlanNode,
    PlanView,
    Setting,
    StageTime,
    TokenPiece,
    TurnView,
)
from coterie.reports.tool_use import call_views
from coterie.rollout.episodes import dialogue_tokens
from coterie.runs.evaluation_results import evaluation, grade_means
from coterie.runs.folder import Run, Step
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Outcome, Tree
from coterie.trajectories.turn import Turn

WIDTH, HEIGHT = 190, 34
"""Of a task's box, in pixels."""
APART, BELOW = 46, 10
"""Pixels between columns, and between boxes of a column."""
LETTERS = 22
"""Of a task's text in its box."""
MOST = 60
"""Tasks of a plan that is drawn."""


def plan_views(turn: Turn) -> tuple[PlanView, ...]:
    return tuple(map(_drawn, _plans(turn.text)))


def _plans(text: str) -> Iterator[Plan]:
    for written in plans_of(text):
        try:
            plan = parse_plan(written)
        except BrokenPlan:
            continue
        if len(plan.tasks) <= MOST:
            yield plan


def _drawn(plan: Plan) -> PlanView:
    places = {
        id_: (column * (WIDTH + APART), row * (HEIGHT + BELOW))
        for column, level in enumerate(plan.levels)
        for row, id_ in enumerate(level)
    }
    nodes = tuple(
        PlanNode(task.id, _short(task.text), task.text, *places[task.id]) for task in plan.tasks
    )
    arrows = tuple(
        PlanArrow(
            places[other][0] + WIDTH,
            places[other][1] + HEIGHT // 2,
            places[task.id][0],
            places[task.id][1] + HEIGHT // 2,
        )
        for task in plan.tasks
        for other in task.after
    )
    shape = plan.shape
    width = shape.levels * (WIDTH + APART) - APART
    return PlanView(nodes, arrows, width, shape.width * (HEIGHT + BELOW) - BELOW, shape.levels)


def _short(text: str) -> str:
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}…"


EXAMPLES = 12


def shown_settings(settings: Settings) -> tuple[Setting, ...]:
    values = flatten(settings.model_dump(mode="json"))
    return tuple(Setting(name, str(value)) for name, value in values.items())


def timings(run: Run, done: Sequence[Step]) -> tuple[StageTime, ...]:
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
