"""Import of raw and rewarded files: dialogues of the released code as iteration 0 of a new run.

Each dialogue becomes a path of turns that nobody here sampled, under the prompts of the run's own
environment: what it is trained on then is what the recipe would have trained on. Prompts of the file are
not used; the recipe would drop their format instructions anyway.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from coterie.environments.protocol import State
from coterie.environments.talk import AGREED
from coterie.environments.traits import Graded
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import load_renderer
from coterie.progress import Progress
from coterie.recipes.importing import finish_imported, imported_run
from coterie.recipes.optima.files.records import ERROR, DialogueResult, Lines, OptimaTaskLine
from coterie.recipes.optima.files.speech import Conversation, beginner, check_agents, parse
from coterie.recipes.optima.files.tasks import OURS, content, task_of
from coterie.recipes.optima.recipe import Optima
from coterie.recipes.optima.reward import COUNTS
from coterie.rewards.combined import TERMS
from coterie.rewards.conduct import leaks, repeats
from coterie.rollout.episodes import dialogue_tokens
from coterie.rollout.recorded import recorded, state_after
from coterie.rollout.samplers import AgentContext, Prompt
from coterie.runs.folder import Run, Step
from coterie.runs.play import summary
from coterie.trajectories.store import Credit, ItemKey, Metrics
from coterie.trajectories.task import Task
from coterie.trajectories.tree import LENGTH, Outcome, Tree
from coterie.trajectories.turn import Turn

ROLLOUT, REWARD = Step(0, "rollout"), Step(0, "reward")


@dataclass(frozen=True, slots=True)
class OptimaSurvey:
    """What a file holds, known once all its lines have been read and found whole."""

    dataset: str | None
    """Our name of its data set; ``None`` if the file doesn't say."""
    tasks: int
    samples: int
    """Most dialogues of a task."""
    first: int
    """Which agent begins."""


@dataclass(frozen=True, slots=True)
class OptimaImported:
    """What came of an import."""

    tasks: int
    dialogues: int
    failed: int
    """Dialogues that the file has no whole text of."""
    held_out: int
    """Tasks that were left out, for the run's held-out tasks ask the same."""


def survey(lines: Lines, *, rewarded: bool) -> OptimaSurvey:
    """Read a whole file. Raises ``UserError`` that names the first line that is broken."""
    names: dict[str, int] = {}
    tasks = samples = 0
    for number, line in lines.read(OptimaTaskLine):
        tasks, samples = tasks + 1, max(samples, len(line.results))
        for place, result in enumerate(line.results):
            names.setdefault(result.dataset_name, number)
            if rewarded and _parts(result) is None:
                reason = (
                    f"results.{place}: there must be reward, correct_score, token_score and "
                    "ppl_score, and the reward at most the sum of the others (or use --kind raw)"
                )
                raise lines.broken(number, reason)
    found = [name for name in names if name]
    if len(names) > 1:
        both = " and ".join(repr(name) for name in names)
        raise lines.broken(max(names.values()), f"one run has one data set, not {both}")
    if found and found[0] not in OURS:
        known = ", ".join(OURS)
        raise lines.broken(names[found[0]], f"dataset_name {found[0]!r} is none of {known}")
    conversations = (r.conversation for _, line in lines.read(OptimaTaskLine) for r in line.results)
    return OptimaSurvey(OURS[found[0]] if found else None, tasks, samples, beginner(conversations))


def import_dialogues(
    lines: Lines,
    recipe: Optima,
    folder: Path,
    progress: Progress,
    *,
    found: OptimaSurvey,
    rewarded: bool,
) -> OptimaImported:
    """Make a run folder of a file that was surveyed; it appears when it is whole.

    Its rollouts of iteration 0 are then finished, and, if ``rewarded``, their rewards too: as the
    file has them. Raises ``UserError`` if the folder exists or a line can't be used.
    """
    check_agents(recipe.agents)
    if rewarded and recipe.settings.reward.terms:
        raise UserError(
            f"{lines.path} has rewards without the terms of reward.terms",
            "leave reward.terms out, or import with --kind raw and compute rewards anew",
        )
    renderer, _ = load_renderer(recipe.settings.model)
    with imported_run(recipe, folder, progress) as run:
        work = _OptimaImport(lines, recipe, run, renderer, found.first, rewarded=rewarded)
        return asyncio.run(work.do(found.tasks, progress))


class _OptimaImport:
    """One import into an open run."""

    def __init__(
        self,
        lines: Lines,
        recipe: Optima,
        run: Run,
        renderer: ChatRenderer,
        first: int,
        *,
        rewarded: bool,
    ) -> None:
        self.lines = lines
        self.recipe = recipe
        self.run = run
        self.renderer = renderer
        self.first = first
        self.rewarded = rewarded
        self.author = f"import:{lines.path.name}"

    async def do(self, tasks: int, progress: Progress) -> OptimaImported:
        """Import every line and mark the stages that are then finished."""
        dataset = self.recipe.settings.played
        held_out = {content(dataset, task) for task in self.recipe.heldout_tasks()}
        kept = dialogues = failed = 0
        progress.start(tasks, f"import {self.lines.path.name}")
        for number, line in self.lines.read(OptimaTaskLine):
            task = self._task(number, line)
            progress.advance(1)
            if content(dataset, task) in held_out:
                continue
            kept, dialogues = kept + 1, dialogues + len(line.results)
            failed += await self._import(number, line, task)
        if dialogues == failed:
            raise UserError(
                f"{self.lines.path} has no dialogue that could be trained on "
                f"({tasks - kept} of {tasks} tasks are held out in this run, {failed} dialogues are "
                "not whole)",
                "give a file of training tasks",
            )
        self._finish(ROLLOUT, summary(self.run.store, 0, ROLLOUT.stage))
        if self.rewarded:
            found = self.run.store.metrics(0, REWARD.stage).values()
            self._finish(REWARD, {name: sum(int(one[name]) for one in found) for name in COUNTS})
        return OptimaImported(kept, dialogues, failed, tasks - kept)

    def _task(self, number: int, line: OptimaTaskLine) -> Task:
        try:
            id_ = f"import-{line.task_id:07d}"
            return task_of(self.recipe.settings.played, id_, line.results[0])
        except ValueError as error:
            raise self.lines.broken(number, str(error)) from error

    async def _import(self, number: int, line: OptimaTaskLine, task: Task) -> int:
        """Write the dialogues of one task, and their rewards; returns how many failed."""
        store = self.run.store
        store.put_tasks([task])
        credit: list[Credit] = []
        paths: list[tuple[Outcome, list[Turn]]] = []
        for sample, result in enumerate(line.results):
            key = ItemKey(0, ROLLOUT.stage, task.id, f"{sample:04d}")
            conversation = parse(result.conversation, self.first)
            if conversation.cut == ERROR or not conversation.said:
                store.finish(
                    key, failure=self._lacking(number, conversation), metrics={"tokens": 0}
                )
                continue
            tree, outcome = await self._replay(task, sample, result, conversation)
            path = tree.path(outcome.leaf)
            store.finish(key, tree=tree, metrics={"tokens": dialogue_tokens(path)})
            paths.append((outcome, path))
            credit += self._credit(outcome.leaf, result)
        if self.rewarded and paths:
            counts = self._counts(paths)
            store.finish(ItemKey(0, REWARD.stage, task.id), credit=credit, metrics=counts)
        return len(line.results) - len(paths)

    def _lacking(self, number: int, conversation: Conversation) -> str:
        place = f"{self.lines.path.name}, line {number}"
        if conversation.cut == ERROR:
            return f"{place}: the server refused utterance {len(conversation.said) + 1} (`error`)"
        return f"{place}: the file has nothing that was said"

    async def _replay(
        self, task: Task, sample: int, result: DialogueResult, conversation: Conversation
    ) -> tuple[Tree, Outcome]:
        """The dialogue as a tree of one path."""
        environment = self.recipe.environment
        tree = Tree(task.id, ROLLOUT.stage, 0)
        state = State(task, 0)
        contexts = {agent: AgentContext() for agent in self.recipe.agents}
        node = tree.root
        for speaker, text in conversation.said:
            shown = environment.see(state, speaker)
            prompt = Prompt(tree, node, speaker, shown, 0, sample)
            response = recorded(prompt, contexts[speaker], text, self.author, self.renderer)
            tree.add(response.turn, response.request)
            node = response.turn.id
            state = await state_after(environment, state, response.turn)
        end = LENGTH if conversation.cut else state.end or AGREED  # by the file's own parser
        answer = (result.final_answer or "").strip()
        given = None if answer in ("", ERROR) else answer
        score = result.correct_score
        if score is None:
            assert isinstance(environment, Graded), "the released code's data sets are graded"
            score = 0.0 if end == LENGTH else environment.score(task, given)
        outcome = Outcome(node, sample, end, given, float(score))
        tree.end(outcome)
        return tree, outcome

    def _credit(self, leaf: str, result: DialogueResult) -> list[Credit]:
        parts = _parts(result) if self.rewarded else None
        settings = self.recipe.fingerprint(REWARD)
        named = zip(TERMS, parts or (), strict=False)
        return [Credit(leaf, name, value, settings) for name, value in named]

    def _counts(self, paths: list[tuple[Outcome, list[Turn]]]) -> Metrics:
        found = (
            len(paths),
            0,
            sum(outcome.ending == LENGTH for outcome, _ in paths),
            sum(leaks(path, self.recipe.agents) for _, path in paths),
            sum(repeats(path) for _, path in paths),
        )
        return dict(zip(COUNTS, found, strict=True))

    def _finish(self, done: Step, metrics: Metrics) -> None:
        finish_imported(self.recipe, self.run, done, self.lines.path, metrics)


def _parts(result: DialogueResult) -> tuple[float, float, float, float] | None:
    """Task, tokens, loss and leaks of a reward; ``None`` if a part is missing or they don't add up.

    In cleaned files each utterance that speaks for another agent has taken 10 off the reward alone.
    """
    task, tokens, loss = result.correct_score, result.token_score, result.ppl_score
    if result.reward is None or task is None or tokens is None or loss is None:
        return None
    leaked = round(result.reward - (task + tokens + loss), 6)
    return (task, tokens, loss, min(leaked, 0.0)) if leaked <= 0 else None
