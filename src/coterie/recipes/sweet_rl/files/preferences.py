"""Import of a file of SWEET-RL's policy preferences as a new run whose next step is the policy's training.

A row becomes a tree of its own: the chat of its prompt as context that nobody here sampled, under the file's own
system prompt, and then the two ways to go on as siblings. What comes before that training is not in the file: those
steps are marked as imported, with nothing in them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.environments.coding import AGENT, SHOWN_REFERENCE
from coterie.environments.user_simulator import PERSON
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import load_renderer
from coterie.progress import Progress
from coterie.recipes.importing import finish_imported, imported_run
from coterie.recipes.line_files import LineFile
from coterie.recipes.sweet_rl.files.importing import environment_of
from coterie.recipes.sweet_rl.files.records import PreferenceRow, Side, read_lines
from coterie.recipes.sweet_rl.files.rendered import CHATML, LLAMA, Form, RenderedChat, form_of
from coterie.recipes.sweet_rl.recipe import SECOND, SweetRL
from coterie.rollout.recorded import recorded
from coterie.rollout.samplers import AgentContext, Prompt
from coterie.runs.folder import Run, Step
from coterie.trajectories.item import ItemKey, Metrics
from coterie.trajectories.selection import Selection
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Message, Part, Speaker, make_turn

TRAIN = Step(SECOND, "train")
"""What comes next."""
DIALOGUES = "the critic's rows and whole dialogues don't train the policy here: import the file of trajectories"


@dataclass(frozen=True, slots=True)
class ImportedPairs:
    """What came of an import."""

    pairs: int
    held_out: int
    """Rows that were left out, for their request is a task that the run's data set holds out."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A row: a chat, and the better and the worse way to go on."""

    chat: RenderedChat
    chosen: str
    rejected: str


def import_preferences(
    path: Path, recipe: SweetRL, folder: Path, progress: Progress
) -> ImportedPairs:
    """Make a run folder of a file of preferences between turns; it appears when it is whole.

    Raises ``UserError`` if the folder exists, the run can't train on such pairs, no pair is left, or with
    the number of the first line that is broken.
    """
    environment = environment_of(recipe)
    if TRAIN not in recipe.steps():
        raise UserError(
            f"method={recipe.settings.method} trains on whole dialogues, and a file of preferences "
            "has pairs of turns",
            "leave out the method, or import the file of trajectories",
        )
    total = sum(1 for _ in LineFile(path).objects())
    renderer, _ = load_renderer(recipe.settings.model)
    own = form_of(renderer)
    forms = [*([] if own is None else [own]), LLAMA, CHATML]
    held_out = {
        environment.request(task)
        for task in environment.tasks("heldout", 10**9, recipe.settings.seed)
    }
    chosen, left_out = list[Selection](), 0
    progress.start(total, f"import {path.name}")
    with imported_run(recipe, folder, progress) as run:
        for number, row in read_lines(path, PreferenceRow):
            try:
                found = compared(row, forms)
                if found.chat.said[0] in held_out:
                    left_out += 1
                else:
                    name = f"import-{path.stem}-{number:07d}"
                    chosen.append(_write(run, name, found, f"import:{path.name}", renderer))
            except ValueError as error:
                raise LineFile(path).broken(number, str(error)) from error
            progress.advance(1)
        if not chosen:
            raise UserError(
                f"{path} has no pair that could be trained on ({left_out} are of held-out tasks)",
                "give a file of preferences, of training tasks",
            )
        run.store.select(SECOND, "select", chosen)
        _finish(recipe, run, path, len(chosen))
    return ImportedPairs(len(chosen), left_out)


def compared(row: PreferenceRow, forms: Sequence[Form]) -> Compared:
    """What a row compares, by the first form that reads it. Raises ``ValueError`` that says what is wrong."""
    for form in forms:
        (before, chosen), (same, rejected) = (
            _side(row.prompt, side, form) for side in (row.chosen, row.rejected)
        )
        chat, other = form.chat(before), form.chat(same)
        if chat is None or other is None:
            continue
        if chat != other:
            raise ValueError(f"its sides come after different prompts; {DIALOGUES}")
        if SHOWN_REFERENCE in chat.system:
            raise ValueError(f"its system prompt shows the reference; {DIALOGUES}")
        chosen, rejected = form.turn(chosen), form.turn(rejected)
        if chosen == rejected:
            raise ValueError("chosen and rejected are equal")
        return Compared(chat, chosen, rejected)
    text = row.prompt or (row.chosen.input if isinstance(row.chosen, Side) else row.chosen)
    if any(form.in_front(text) for form in forms):
        raise ValueError(
            f"there is text in front of the chat, as the reference in the critic's rows; {DIALOGUES}"
        )
    raise ValueError(
        "its prompt is not a chat in the form of Llama-3, ChatML or the run's model that ends with a turn of the "
        "person and the header of the agent's"
    )


def _side(prompt: str | None, side: str | Side, form: Form) -> tuple[str, str]:
    """Prompt and completion of one side."""
    if isinstance(side, Side):
        return side.input, side.output
    return form.split(side) if prompt is None else (prompt, side)


def _write(run: Run, name: str, row: Compared, author: str, renderer: ChatRenderer) -> Selection:
    """Put a row's task and tree into the store; returns its pair."""
    tree = Tree(name, "rollout", SECOND)
    own = Part(row.chat.system, audience=frozenset({AGENT}), source=author)
    shown = [Message("system", (own,))] if row.chat.system else []
    node = tree.root
    for place, text in enumerate(row.chat.said):
        who = Speaker("agent", AGENT) if place % 2 else Speaker("person", PERSON)
        ids = renderer.written(text) if place % 2 else ()
        turn = make_turn(node, who, [Part(text, source=author)], ids=ids, author=author)
        tree.add(turn)
        shown.append(Message("assistant" if place % 2 else "user", turn=turn.id))
        node = turn.id
    sides = []
    for text in (row.chosen, row.rejected):
        response = recorded(
            Prompt(tree, node, AGENT, tuple(shown), 0, 0), AgentContext(), text, author, renderer
        )
        tree.add(response.turn, response.request)
        sides.append(response.turn.id)
    with run.store.together():
        run.store.put_tasks([Task(name, {"question": row.chat.said[0]})])
        run.store.finish(ItemKey(SECOND, "rollout", name, "0000"), tree=tree)
    return Selection(sides[0], AGENT, rejected=sides[1])


def _finish(recipe: SweetRL, run: Run, file: Path, pairs: int) -> None:
    """Mark what comes before the policy's training as finished: nothing of it is to be done."""
    for step in recipe.steps()[: recipe.steps().index(TRAIN)]:
        if step.stage == "evaluate":
            continue
        found: dict[str, Metrics] = {
            "rollout": {"n": 0},
            "select": {"selected": pairs if step.iteration == SECOND else 0},
            "train": {"rows": 0, "trained_tokens": 0},
        }
        finish_imported(recipe, run, step, file, found.get(step.stage, {}))
