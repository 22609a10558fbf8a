"""The experiment on density: its world, and the gate that judges pairs of whole runs."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from coterie.environments.acting import write_action, write_answer
from coterie.environments.plans.python_maths import WRONG
from coterie.environments.qa_metrics import GRADER
from coterie.record.tree import Tree
from coterie.record.turn import Part, Speaker, make_turn
from coterie.rollout.tree_search import Rollout
from coterie.selection import DensePairSettings
from experiments import dense_tree_density
from experiments.dense_tree_density import SideSearch
from experiments.sums_row import COUNT, SumsRow, attempts_of
from tests.conftest import Cli
from tests.helpers.play_scripts import play_messages


def test_a_row_of_sums_is_solved_with_at_most_one_wrong_answer() -> None:
    environment = SumsRow()
    (task,) = environment.tasks("heldout", 1, 0)
    questions: Any = task.public["questions"]
    answers = json.loads(task.secrets["answers"].reveal(GRADER))
    assert len(questions) == len(answers) == COUNT
    assert [" in all" in question for question in questions] == [False, False, True, True]
    messages = [*map(write_answer, answers)]
    messages.insert(1, write_answer("0"))
    messages.insert(1, write_action("x = 3 * 4 - 5\nprint(x)"))
    state, heard = asyncio.run(play_messages(environment, task, messages))
    grade = asyncio.run(environment.grade(state, None))
    assert grade.score == 1 and attempts_of(state).right.count(False) == 1
    prompts = [[text for _, text in at.messages] for at in heard]
    # Each prompt begins with its own question, and has nothing of the ones before.
    assert [prompt[0] for prompt in prompts] == [questions[n] for n in (0, 1, 1, 1, 2, 3)]
    assert prompts[3][2::2] == ["7", WRONG] and len(prompts[4]) == 1
    second = [messages[0], write_answer("0"), write_answer("0")]
    state, _ = asyncio.run(play_messages(environment, task, second))
    grade = asyncio.run(environment.grade(state, None))
    assert grade.score == 0 and grade.metrics["right"] == 1 / COUNT and state.end is not None


@pytest.mark.parametrize(
    ("further", "right"), [((0.9, 0.2), 1.0), ((0.2, 0.9), 0.0), ((0.5, 0.5), 0.5)]
)
def test_pairs_of_whole_runs_are_judged_by_further_runs_from_each_side(
    further: tuple[float, float], right: float
) -> None:
    tree, leaves = Tree("task", "gate", 0), []
    for text in ("better", "worse", "worse"):
        turn = make_turn(tree.root, Speaker("agent", "agent"), [Part(text)], author="script")
        tree.add(turn)
        leaves.append(turn.id)
    whole = [
        Rollout(0, number, tree.root, leaf, float(number == 0))
        for number, leaf in enumerate(leaves)
    ]
    branches: Any = SimpleNamespace(tree=tree)
    sampler: Any = None
    search = SideSearch(
        branches, sampler, "agent", sampler, DensePairSettings(margin=0.3), rollouts=whole
    )
    rng: Any = None
    # The pair's sides are the starts of the further runs.
    starts = [{rollout.start for rollout in search.plan(number, rng)} for number in (1, 2, 3)]
    assert starts == [{leaves[0]}, {leaves[1]}, set()]
    for number, (start, mean) in enumerate(zip(leaves[:2], further, strict=True), 1):
        rewards = [float(n < 10 * mean) for n in range(10)]
        search.rollouts += [
            Rollout(number, n, start, start, reward) for n, reward in enumerate(rewards)
        ]
    assert search.right() == [right] and search.distinct() == pytest.approx(2 / 3)


def test_the_gate_of_density_judges_pairs_and_chooses_a_decode(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("GATE_TASKS", 3), ("WHOLE", 8), ("FURTHER", 2)):
        monkeypatch.setattr(dense_tree_density, name, value)
    gate = cli("reproduce", "dense_tree-density", "--gate", "evaluate.tasks=3", "engine.device=cpu")
    values = json.loads(gate.out.splitlines()[-1])
    assert values["distinct"] > 0.5 and 0 <= values["right"] <= 1, values
    assert values["base"] == max(values["decodes"]["SumsRow"]["scores"].values())
