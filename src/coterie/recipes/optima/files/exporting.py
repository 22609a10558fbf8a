"""Export of a run's rollouts to files in the form of the released code's, under its file names.

    iteration_0.jsonl             the dialogues
    rewarded_iteration_0.jsonl    the same with their rewards, once the reward stage is done
    iteration_0_dpo_format.jsonl  preference pairs, where the run has selected some

The files hold right answers, as the originals do.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel

from coterie.config.folders import check_new_file
from coterie.errors import UserError
from coterie.recipes.optima.files.pairs import PAIRS, imported, pair_lines, preferred
from coterie.recipes.optima.files.records import (
    AGENTS,
    ERROR,
    LARGE,
    DialogueResult,
    OptimaTaskLine,
    write_lines,
)
from coterie.recipes.optima.files.speech import check_agents, named
from coterie.recipes.optima.files.tasks import answers_of, notes_of, original_of
from coterie.recipes.optima.recipe import Optima
from coterie.rewards.combined import Reward
from coterie.rollout.episodes import dialogue_tokens
from coterie.runs.folder import Run, Step
from coterie.trajectories.task import Task
from coterie.trajectories.tree import LENGTH, Outcome, Tree
from coterie.trajectories.turn import Turn


def export_run(recipe: Optima, run: Run, out: Path, iteration: int | None) -> list[Path]:
    """Write the files of one iteration, or of all that have something; returns their paths.

    Raises ``UserError`` if there is nothing to write, or a file exists.
    """
    check_agents(recipe.agents)
    last = max((step.iteration for step in recipe.steps()), default=0)
    wanted = range(last + 1) if iteration is None else [iteration]
    files = {path: lines for i in wanted for path, lines in _files(recipe, run, out, i)}
    if not files:
        which = "no iteration" if iteration is None else f"iteration {iteration} not"
        raise UserError(
            f"{run.folder} has {which} sampled to the end, and no pairs",
            f"run `coterie rollout {run.folder}` first, or give another --iteration",
        )
    for path in files:
        check_new_file(path)
    for path, lines in files.items():
        write_lines(path, lines)
    return list(files)


def _files(
    recipe: Optima, run: Run, out: Path, iteration: int
) -> Iterator[tuple[Path, Iterator[BaseModel]]]:
    """The files of an iteration with their lines, which are made when they are read."""
    if (reward := Step(iteration, "reward")) not in recipe.steps():
        return
    if run.is_finished(Step(iteration, "rollout")):
        yield out / f"iteration_{iteration}.jsonl", raw_lines(recipe, run, iteration)
    if run.is_finished(reward) and (found := recipe.rewards(run, iteration)):
        lines = rewarded_lines(recipe, run, iteration, found)
        yield out / f"rewarded_iteration_{iteration}.jsonl", lines
    pairs = list(preferred(run.store, iteration, "rollout", "select", recipe.fingerprint(reward)))
    if iteration == PAIRS.iteration and run.is_finished(PAIRS):
        pairs += imported(run.store)
    if pairs:
        yield out / f"iteration_{iteration}_dpo_format.jsonl", pair_lines(pairs)


def raw_lines(recipe: Optima, run: Run, iteration: int) -> Iterator[OptimaTaskLine]:
    """A line for each task of an iteration, numbered in order; failed dialogues come last in theirs."""
    failed = Counter(k.task for k, _ in run.store.failures(iteration) if k.stage == "rollout")
    names = {task for task, _ in run.store.finished_keys(iteration, "rollout") if task}
    for number, name in enumerate(sorted(names)):
        task = run.store.task(name)
        results = []
        with suppress(KeyError):  # no tree: all its dialogues failed
            tree = run.store.tree(iteration, "rollout", name)
            results = [_result(recipe, task, tree, *found) for found in tree.trajectories()]
        results += [_failed(recipe, task)] * failed[name]
        yield OptimaTaskLine(task_id=number, results=results)


def rewarded_lines(
    recipe: Optima, run: Run, iteration: int, rewards: dict[str, list[Reward]]
) -> Iterator[OptimaTaskLine]:
    """A line for each task that has rewards; without the dialogues that failed."""
    for number, tree in enumerate(run.store.trees(iteration, "rollout")):
        by_leaf = {reward.leaf: reward for reward in rewards.get(tree.task, [])}
        task = run.store.task(tree.task)
        results = [
            _rewarded(_result(recipe, task, tree, outcome, path), by_leaf[outcome.leaf])
            for outcome, path in tree.trajectories()
            if outcome.leaf in by_leaf
        ]
        if results:
            yield OptimaTaskLine(task_id=number, results=results)


def _result(
    recipe: Optima, task: Task, tree: Tree, outcome: Outcome, path: list[Turn]
) -> DialogueResult:
    conversation = [named(turn.speaker.name, turn.text) for turn in path]
    systems = _systems(tree, path)
    return _blank(recipe, task).model_copy(
        update={
            "first_prompt": systems.get(AGENTS[0], ""),
            "second_prompt": systems.get(AGENTS[1], ""),
            "conversation": conversation + [LARGE] * (outcome.ending == LENGTH),
            "final_answer": outcome.answer or "",
            "token_count": dialogue_tokens(path),
        }
    )


def _rewarded(result: DialogueResult, reward: Reward) -> DialogueResult:
    return result.model_copy(
        update={
            "reward": reward.total,
            "correct_score": reward.score,
            "token_score": reward.terms["tokens"],
            "ppl_score": reward.terms["loss"],
        }
    )


def _failed(recipe: Optima, task: Task) -> DialogueResult:
    """A dialogue of which nothing is recorded but that it failed."""
    return _blank(recipe, task).model_copy(update={"conversation": [ERROR]})


def _blank(recipe: Optima, task: Task) -> DialogueResult:
    original = original_of(recipe.settings.played)
    return DialogueResult(
        question=str(task.public["question"]),
        conversation=[],
        answer=answers_of(task),
        context_first=notes_of(task, AGENTS[0]),
        context_second=notes_of(task, AGENTS[1]),
        score_type=original.score_type,
        data_type=original.data_type,
        dataset_name=original.name,
    )


def _systems(tree: Tree, path: list[Turn]) -> dict[str, str]:
    """Each agent's system prompt in a dialogue, a format prompt included."""
    found: dict[str, str] = {}
    for turn in path:
        if turn.prompt is not None and turn.speaker.name not in found:
            system = tree.messages(tree.requests[turn.prompt])[0]
            found[turn.speaker.name] = "".join(part.text for part in system.parts)
    return found
