"""The ``problems`` micro-world: tasks, wordings, the environment, what the packaged model knows."""

import asyncio
import random

from coterie.environments.plans.plan_ground import (
    GROUNDER,
    PLANNER,
    UNREADABLE,
    actions_text,
    gold,
    plan_text,
)
from coterie.environments.plans.problems import (
    MISREADINGS,
    TOTAL,
    Fact,
    Problem,
    Problems,
    ProblemsSettings,
    actions,
    as_task,
    brief,
    clear,
    generate,
    right_subgoals,
    subgoals,
)
from coterie.environments.protocol import Shared
from coterie.models.loading import load_renderer
from coterie.tools.actions.grammar import check_actions
from coterie.tools.sandbox.pool import Sandbox
from scripts.tiny.problems import grounder_row, misread_text
from tests.helpers.play_scripts import complete_greedily, play_dialogue

PROBLEMS = generate("heldout", 1)[:300]
ANN = Fact("Ann", "pens", 12, "+", 3)
BOB = Fact("Bob", "cups", 20, "-", 5)
BESIDE = Fact("Bob", "hats", 30, "*", 2)
SMALL = Problem("small", (ANN, BOB), (BESIDE, ANN, BOB))


def test_careful_plans_are_brief_only_where_that_means_one_thing():
    rng = random.Random(0)
    assert subgoals(SMALL, 1.0, rng, careful=True) == [brief(ANN), clear(BOB), TOTAL]
    assert subgoals(SMALL, 1.0, rng, careful=False) == [brief(ANN), brief(BOB), TOTAL]
    assert subgoals(SMALL, 0.0, rng, careful=False) == [clear(ANN), clear(BOB), TOTAL]
    for problem in PROBLEMS:
        for fact, goal in zip(problem.parts, right_subgoals(problem)[:-1], strict=True):
            assert goal == clear(fact) or not problem.is_ambiguous(fact)


def test_actions_run_and_the_answer_is_compared(runner: asyncio.Runner, sandbox: Sandbox):
    task, plan = as_task(SMALL), plan_text(right_subgoals(SMALL))
    right = actions_text(actions(SMALL))
    assert gold(task).plan == plan
    for text, score, unreadable in (
        (right, 1.0, False),
        ("R1 = Calculator(12 + 3); R2 = Calculator(30 * 2); R3 = Calculator(R1 + R2)", 0.0, False),
        ("R1 = Calculator(12 / 0)", 0.0, True),
        (right.replace("Calculator", "Count"), 0.0, True),  # the only tool is the calculator
    ):
        lines = {PLANNER: plan, GROUNDER: text}
        dialogue = play_dialogue(
            Problems(), task, lambda prompt, own=lines: own[prompt.agent], shared=Shared(sandbox)
        )
        state, grade = runner.run(dialogue)
        assert (grade.score, state.end == UNREADABLE) == (score, unreadable), text


def test_far_tasks_are_worded_differently():
    (far,) = Problems(ProblemsSettings(far=True)).tasks("heldout", 1, 3)
    assert str(far.public["question"]).startswith("For ")


def test_quantities_in_words_have_calculations_that_no_other_has():
    dozen, half = Fact("Ann", "pens", 12, "*", 12), Fact("Bob", "cups", 20, "/", 2)
    assert [(fact.words, fact.calculation, fact.value) for fact in (dozen, half)] == [
        ("12 dozen", "12 * 12", 144),
        ("half of 20", "20 / 2", 10),
    ]
    facts = [fact for problem in PROBLEMS for fact in problem.facts]
    in_words = [fact for fact in facts if fact.words != fact.calculation]
    assert 0.4 < len(in_words) / len(facts) < 0.6
    ends = {f"{fact.sign} {fact.second}" for fact in facts if fact not in in_words}
    assert not ends & {*MISREADINGS, *MISREADINGS.values()}
    assert all(len({fact.first for fact in one.facts}) == len(one.facts) for one in PROBLEMS)


def test_a_misread_quantity_gives_a_wrong_answer(runner: asyncio.Runner, sandbox: Sandbox):
    parts = (Fact("Ann", "pens", 12, "*", 12), Fact("Bob", "cups", 20, "/", 2))
    task = as_task(Problem("words", parts, parts))
    right = actions_text([action for step in gold(task).steps for action in step.actions])
    assert misread_text(right) == (
        "R1 = Calculator(12 * 10); R2 = Calculator(20 * 2); R3 = Calculator(R1 + R2)"
    )
    for text, score in ((right, 1.0), (misread_text(right), 0.0)):
        lines = {PLANNER: gold(task).plan, GROUNDER: text}
        dialogue = play_dialogue(
            Problems(), task, lambda prompt, own=lines: own[prompt.agent], shared=Shared(sandbox)
        )
        assert runner.run(dialogue)[1].score == score


def test_the_packaged_grounder_understands_right_plans_and_misreads_words_at_times():
    tokenizer, own = load_renderer("tiny-problems")[0].tokenizer, PROBLEMS[:60]
    rows = [grounder_row(one, tokenizer, plan_text(right_subgoals(one))) for one in own]
    prompts = [row.ids[: row.targets[0].start] for row in rows]
    texts = [one.text for one in complete_greedily("tiny-problems", prompts, 80)]
    right = [actions_text(actions(one)) for one in own]
    # With the right ends of calculations the actions are right.
    read = [misread_text(text) for text in texts]
    assert sum(map(str.__eq__, read, map(misread_text, right))) / 60 > 0.9
    in_words = [n for n, text in enumerate(right) if misread_text(text) != text]
    assert 0.2 < sum(texts[n] == right[n] for n in in_words) / len(in_words) < 0.75
    assert sum(not check_actions(one, "maths").problems for one in texts) / 60 > 0.95
