"""Export of a run's traces and questions, for GAP's released code and LLaMA-Factory.

sft.json           the traces that the run learns from, whole, with their observations
dataset_info.json  what LLaMA-Factory asks about it (the data set ``gap``; ``--ignore_observation`` masks there)
prompts.parquet    the training questions for reinforcement learning, each a group of its own; of a set for evaluation
                   alone there are none
"""

import json
from dataclasses import dataclass
from pathlib import Path

from coterie.config.folders import check_new_file
from coterie.datasets.finding import Rows
from coterie.environments.gold import gold_answers, question_of
from coterie.environments.protocol import Environment, State
from coterie.environments.workflow.code import TESTS, tests_of
from coterie.errors import UserError
from coterie.recipes.gap.files.prompts import (
    Answers,
    Programme,
    PromptRow,
    Said,
    write_prompts,
)
from coterie.recipes.gap.files.traces import TraceRow, write_traces
from coterie.recipes.gap.recipe import Gap
from coterie.rollout.opening import first_prompts
from coterie.runs.dumped import prompt_text, said
from coterie.runs.folder import Run, Step
from coterie.runs.selected import selected
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Tree

TRACES, INFO, PROMPTS = "sft.json", "dataset_info.json", "prompts.parquet"


@dataclass(frozen=True, slots=True)
class ExportedTraces:
    """What was written."""

    files: tuple[Path, ...]
    traces: int
    prompts: int


def export_run(recipe: Gap, run: Run, out: Path) -> ExportedTraces:
    """Write the files. Raises ``UserError`` if the run has not selected traces yet, or a file exists."""
    if not run.is_finished(Step(0, "select")):
        raise UserError(
            f"the traces of {run.folder} are not there yet", "run it further (`coterie select`)"
        )
    files = tuple(out / name for name in (TRACES, INFO, PROMPTS))
    for path in files:
        check_new_file(path)
    out.mkdir(parents=True, exist_ok=True)
    traces = write_traces(
        files[0], (_trace(recipe, tree, one.leaf) for tree, one in selected(run, 0))
    )
    columns = {"prompt": "instruction", "query": "input", "response": "output"}
    info = {"gap": {"file_name": TRACES, "columns": columns}}
    files[1].write_text(json.dumps(info, indent=2) + "\n", encoding="utf-8")
    prompts = [
        _prompt(recipe.environment, recipe.agent, task, gold)
        for task in _training_tasks(recipe)
        if (gold := _gold(task)) is not None
    ]
    if prompts:
        write_prompts(files[2], prompts)
    return ExportedTraces(files if prompts else files[:2], traces, len(prompts))


def _training_tasks(recipe: Gap) -> list[Task]:
    """None where the data set is for evaluation alone."""
    s = recipe.settings
    if s.dataset.name is not None and "train" not in Rows(s.dataset).splits:
        return []
    return recipe.environment.tasks("train", s.traces.tasks, s.seed)


def _gold(task: Task) -> Answers | Programme | None:
    """Right answers, or tests of programs; ``None`` for tests that call a function: the file has no place for these."""
    if TESTS not in task.secrets:
        return Answers(target=tuple(gold_answers(task)), question=question_of(task))
    tests = tests_of(task)
    if any(test.kind == "functional" for test in tests):
        return None
    stdin, wanted = (test.input for test in tests), (test.output for test in tests)
    return Programme(stdin=tuple(stdin), expected_output=tuple(wanted), question_id=task.id)


def _trace(recipe: Gap, tree: Tree, leaf: str) -> TraceRow:
    """A path as one text after its prompt, as the original has it."""
    path = tree.path(leaf)
    first = next(turn for turn in path if turn.prompt)
    request = tree.requests[first.prompt or ""]
    output = "".join(said(recipe.environment, turn) for turn in path)
    return TraceRow(instruction=prompt_text(tree.messages(request)), output=output)


def _prompt(
    environment: Environment, agent: str, task: Task, gold: Answers | Programme
) -> PromptRow:
    shown = first_prompts(environment, task)[agent].messages
    return PromptRow(
        index=task.id,
        data_source=environment.name,
        prompt=(Said(role="user", content=prompt_text(shown)),),
        gold=gold,
        ability="coding" if isinstance(gold, Programme) else "",
        question=question_of(task),
        tools=tuple(tool.name for tool in environment.tools(State(task, 0), agent)),
    )
