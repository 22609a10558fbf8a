"""Tasks of reasoning-gym: own answers score 1, splits, answers that are code, and scorers that never end."""

import asyncio
import re
from pathlib import Path

import pytest

pytest.importorskip("reasoning_gym", reason="make test-bridges has the package")

import reasoning_gym
from reasoning_gym.factory import DATASETS

from coterie.environments.bridges import reasoning_gym as bridge
from coterie.environments.protocol import Grade, Shared
from coterie.environments.qa_metrics import GRADER
from coterie.record.tree import Task
from tests.conftest import Cli
from tests.helpers.converse import converse
from tests.helpers.packaged_environments import packaged_environment

NO_SINGLE_ANSWER = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
EVALUATING = {
    "binary_matrix", "countdown", "intermediate_integration", "n_queens", "polynomial_multiplication", "puzzle24",
    "simple_integration", "spiral_matrix", "string_insertion",
}  # fmt: skip
"""Data sets whose scorer evaluates the answer."""


def score(task: Task, dataset: str, reply: str) -> Grade:
    environment = packaged_environment("reasoning_gym", f"environment.dataset={dataset}")
    _, grade = asyncio.run(converse(environment, task, [reply], Shared()))
    assert grade is not None
    return grade


def one_task(dataset: str) -> Task:
    return packaged_environment("reasoning_gym", f"environment.dataset={dataset}").tasks(
        "train", 1, 3
    )[0]


@pytest.mark.parametrize("dataset", sorted(set(DATASETS) - NO_SINGLE_ANSWER - {"composite"}))
def test_the_answer_of_a_task_scores_1(dataset: str) -> None:
    task = one_task(dataset)
    right = task.secrets["answer"].reveal(GRADER)
    grade = score(task, dataset, f"I think so.\n<answer>\n{right}\n</answer>")
    assert (grade.score, grade.metrics["well_formed"]) == (1, 1)


def test_a_new_process_makes_the_same_tasks() -> None:
    for dataset in ("codeio", "isomorphic_strings", "knight_swap", "ransom_note", "word_ladder"):
        number = int(str(one_task(dataset).public["number"]))
        before = bridge.ask(dataset, "{}", number)
        bridge._WORKER.close()
        assert bridge.ask(dataset, "{}", number) == before


def test_splits_share_no_question_and_draws_go_on() -> None:
    environment = packaged_environment(
        "reasoning_gym", "environment.config={min_terms: 2, max_terms: 2, max_digits: 1}"
    )
    train, heldout = environment.tasks("train", 100, 0), environment.tasks("heldout", 30, 0)
    questions = [str(task.public["question"]) for task in (*train, *heldout)]
    assert len(set(questions)) == 130
    assert environment.tasks("train", 10, 0, previous_counts=[30, 20]) == train[50:60]
    assert environment.tasks("heldout", 5, 0, previous_counts=[9]) == heldout[:5]
    assert environment.tasks("train", 100, 1) != train


def test_an_answer_without_marks_counts_whole_and_a_wrong_one_scores_0() -> None:
    task = one_task("chain_sum")
    right = task.secrets["answer"].reveal(GRADER)
    grade = score(task, "chain_sum", right)
    assert (grade.score, grade.metrics["well_formed"]) == (1, 0)
    assert score(task, "chain_sum", f"<answer>{right}</answer> no, <answer>x</answer>").score == 0


def test_no_scorer_runs_code_of_an_answer(tmp_path: Path) -> None:
    file = tmp_path / "ran"
    codes = (f"open('{file}', 'w')", f"[[str(open('{file}', 'w'))]]", f"C+open('{file}','w')")
    for dataset in sorted(EVALUATING):
        task = one_task(dataset)
        for code in codes:
            assert (score(task, dataset, f"<answer>{code}</answer>").score or 0) < 0.1
            assert not file.exists(), dataset
    matrix = one_task("spiral_matrix")
    right = matrix.secrets["answer"].reveal(GRADER)
    listed = f"[{', '.join(right.split())}]"
    assert score(matrix, "spiral_matrix", f"<answer>{listed}</answer>").score == 0.1


def test_all_modules_of_the_package_that_evaluate_text_are_known() -> None:
    package = Path(str(reasoning_gym.__file__)).parent
    pattern = re.compile(r"\b(eval|exec|parse_expr|sympify)\(|pickle")
    names = {file.stem for file in package.rglob("*.py") if pattern.search(file.read_text())}
    own = {"basic_arithmetic", "bitwise_arithmetic", "codeio", "propositional_logic"}
    assert names - own - {"generators_00_49", "generators_50_99"} == EVALUATING | {"number_sorting"}


def test_a_scorer_that_does_not_end_scores_0_and_the_next_answer_is_scored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = one_task("countdown")
    right = task.secrets["answer"].reveal(GRADER)
    monkeypatch.setattr(bridge, "SCORING", 3.0)
    grade = score(task, "countdown", "<answer>9**9**9**9</answer>")
    assert (grade.score, grade.metrics["scorer_failed"]) == (0, 1)
    monkeypatch.undo()
    assert score(task, "countdown", f"<answer>{right}</answer>").score == 1


def test_the_command_evaluates_a_model(cli: Cli) -> None:
    overrides = ("policy=tiny-acts", "tasks=2", "engine.device=cpu", "max_tokens=16")
    result = cli("evaluate", "reasoning_gym", "environment.dataset=countdown", *overrides)
    assert result.code == 0, result.err
    assert '"metric": "score_answer"' in result.out
