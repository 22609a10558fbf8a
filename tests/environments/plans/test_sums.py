"""The ``sums`` micro-world: its splits, its traps, its scripts."""

import random

from coterie.environments.plans.python_maths import (
    MOST,
    PROMPT,
    Sums,
    SumsSettings,
    generate,
    problem_text,
    sums_task,
)
from coterie.environments.protocol import Shared
from coterie.tools.sandbox.pool import Sandbox
from scripts.tiny.acts import corrected_play, habit_play, right_play
from tests.helpers.converse import converse
from tests.helpers.run_python import observed_texts, run_in_sandbox


def test_half_of_the_sums_are_traps_in_which_the_habit_is_wrong() -> None:
    found = generate("heldout", 1)[:1000]
    assert 450 < sum(one.trap for one in found) < 550
    for one in found:
        habit, wrong = one.program_of(times=True), one.answer_of(times=True)
        assert (habit == one.program) is (wrong == one.answer) is (not one.trap)
        assert eval(one.program) == one.answer and eval(habit) == wrong
        numbers = [int(word) for word in problem_text(one).split() if word.isdigit()]
        assert max(*numbers, one.answer, wrong) <= MOST and one.answer > 0
        assert ("in all" in problem_text(one)) is one.trap
    assert len(PROMPT.split()) <= 12


def test_scripted_dialogues_go_as_they_are_written() -> None:
    rng, sums = random.Random(0), generate("corpus", 1)[:24]
    silent = Sums(SumsSettings(feedback="none"))
    plays = [(Sums(), one, right_play(one, rng), 1.0) for one in sums]
    plays += [(Sums(), one, corrected_play(one, rng), 1.0) for one in sums if one.trap]
    plays += [(silent, one, habit_play(one, rng), float(not one.trap)) for one in sums]

    async def work(sandbox: Sandbox) -> None:
        for environment, one, play, score in plays:
            said = [text for role, text in play if role == "assistant"]
            state, grade = await converse(environment, sums_task(one), said, Shared(sandbox))
            assert observed_texts(state) == [text for role, text in play if role == "user"]
            assert play[0] == ("system", environment.system_prompt(sums_task(one)))
            assert grade is not None and grade.score == score

    run_in_sandbox(work)
