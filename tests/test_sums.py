"""The ``sums`` micro-world: its splits, its traps, its scripts."""

import random
from collections.abc import Sequence

from coterie.environments.protocol import Shared
from coterie.environments.python_maths import (
    MOST,
    PROMPT,
    Sums,
    SumsSettings,
    generate,
    problem_text,
    sums_task,
)
from coterie.record.tree import Task
from coterie.tools.sandbox.pool import Sandbox
from scripts.tiny.acts import Dialogue, corrected_play, habit_play, right_play
from tests.playing import converse
from tests.python_sessions import in_sandbox, seen


def test_half_of_the_sums_are_traps_in_which_the_habit_is_wrong() -> None:
    found = generate("heldout", 1000, 1)
    assert 450 < sum(one.trap for one in found) < 550
    for one in found:
        habit, wrong = one.program_of(times=True), one.answer_of(times=True)
        assert (habit == one.program) is (wrong == one.answer) is (not one.trap)
        assert eval(one.program) == one.answer and eval(habit) == wrong
        numbers = [int(word) for word in problem_text(one).split() if word.isdigit()]
        assert max(*numbers, one.answer, wrong) <= MOST and one.answer > 0
        assert ("in all" in problem_text(one)) is one.trap
    assert len(PROMPT.split()) <= 12


def replayed(environment: Sums, plays: Sequence[tuple[Task, Dialogue]]) -> list[float]:
    """The scores of scripted dialogues, each of which must go as it is written."""

    async def work(sandbox: Sandbox) -> list[float]:
        scores = []
        for task, play in plays:
            said = [text for role, text in play if role == "assistant"]
            state, grade = await converse(environment, task, said, Shared(sandbox))
            assert seen(state) == [text for role, text in play if role == "user"]
            assert play[0] == ("system", environment.system_prompt(task)) and grade is not None
            scores.append(grade.score or 0.0)
        return scores

    found: list[float] = in_sandbox(work)
    return found


def test_scripted_dialogues_go_as_they_are_written() -> None:
    rng = random.Random(0)
    found = generate("corpus", 24, 1)
    traps = [one for one in found if one.trap]
    right = [(sums_task(one), right_play(one, rng)) for one in found]
    assert len({play[2] for _, play in right}) > 20
    assert replayed(Sums(), right) == [1.0] * 24
    corrected = [(sums_task(one), corrected_play(one, rng)) for one in traps]
    assert replayed(Sums(), corrected) == [1.0] * len(traps)
    habits = [(sums_task(one), habit_play(one, rng)) for one in found]
    scores = replayed(Sums(SumsSettings(feedback="none")), habits)
    assert scores == [float(not one.trap) for one in found] and 0 < sum(scores) < 24
