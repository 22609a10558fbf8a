"""Export of a run's traces and questions, for GAP's released code and LLaMA-Factory.

sft.json           the traces that the run learns from, whole, with their observations
dataset_info.json  what LLaMA-Factory asks about it (the data set ``gap``; ``--ignore_observation`` masks there)
prompts.parquet    the training questions for reinforcement learning, each a group of its own
"""

import json
from dataclasses import dataclass
from pathlib import Path

from coterie.config.folders import check_new_file
from coterie.environments.gold import gold_answers, question_of
from coterie.environments.protocol import Environment, State
from coterie.errors import UserError
from coterie.recipes.gap.files.prompts import Answers, PromptRow, Said, write_prompts
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
    environment, count = recipe.environment, recipe.settings.traces.tasks
    tasks = environment.tasks("train", count, recipe.settings.seed)
    prompts = [_prompt(environment, recipe.agent, task) for task in tasks]
    write_prompts(files[2], prompts)
    return ExportedTraces(files, traces, len(prompts))


def _trace(recipe: Gap, tree: Tree, leaf: str) -> TraceRow:
    """A path as one text after its prompt, as the original has it."""
    path = tree.path(leaf)
    first = next(turn for turn in path if turn.prompt)
    request = tree.requests[first.prompt or ""]
    output = "".join(said(recipe.environment, turn) for turn in path)
    return TraceRow(instruction=prompt_text(tree.messages(request)), output=output)


def _prompt(environment: Environment, agent: str, task: Task) -> PromptRow:
    shown = first_prompts(environment, task)[agent].messages
    return PromptRow(
        index=task.id,
        data_source=environment.name,
        prompt=(Said(role="user", content=prompt_text(shown)),),
        gold=Answers(target=tuple(gold_answers(task)), question=question_of(task)),
        question=question_of(task),
        tools=tuple(tool.name for tool in environment.tools(State(task, 0), agent)),
    )
