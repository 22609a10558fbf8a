"""What a critic of actions is asked, and what its replies say."""

import time

import pytest

from coterie.rewards.critics import Correction, correction_question, read_correction

TWO = "Corrected subgoals: Subgoal 1: halve 48\nCorrected actions: R1 = Calculator(48 / 2)"
FOUND = Correction("corrected", "Subgoal 1: halve 48", "R1 = Calculator(48 / 2)")


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ("ACCEPT", Correction("accepted")),
        ("  ACCEPT.\n", Correction("accepted")),
        ("<think>R1 looks wrong.\nCorrected actions: no</think>\nACCEPT", Correction("accepted")),
        (TWO, FOUND),
        (f"<think>ACCEPT? No.</think>\nHere it is:\n\n{TWO}\n", FOUND),
        (f"ACCEPT? No.\n</think>\n{TWO}", FOUND),
        ("Corrected actions: no\n</think>\n\nACCEPT", Correction("accepted")),
        (TWO.replace("Corrected actions", "**Corrected Actions**"), FOUND),
        (TWO.replace("goals:", "goals:**").replace("actions:", "actions:**"), FOUND),
        (TWO.replace(": Sub", ":\nSub").replace(": R1", ":\nR1"), FOUND),
        ("I can not ACCEPT these.", Correction("unreadable")),
        ("I can't ACCEPT these.", Correction("unreadable")),
        ("Corrected subgoals:\nCorrected actions: R1 = Count(1)", Correction("unreadable")),
        (f"ACCEPT\n{TWO}", Correction("unreadable")),
        (TWO.partition("\n")[0], Correction("unreadable")),
        (TWO.partition("\n")[2], Correction("unreadable")),
        ("The actions are fine, I accept them.", Correction("unreadable")),
        ("I can't ACCEPTABLY say", Correction("unreadable")),
        ("<think>it goes on and on, ACCEPT", Correction("unreadable")),
        ("", Correction("unreadable")),
        ("Corrected subgoals:\nCorrected actions:", Correction("unreadable")),
    ],
)
def test_a_reply_is_read_as_what_it_says(reply, says):
    assert read_correction(reply) == says


@pytest.mark.parametrize("part", ["\n", "corrected subgoals:\n", "corrected actions*", "*"])
def test_nonsense_is_read_in_no_time(part):
    began = time.process_time()
    assert read_correction(f"corrected subgoals:{part * 20_000}").verdict == "unreadable"
    assert time.process_time() - began < 1


def test_the_critic_is_shown_the_task_the_subgoals_the_actions_and_the_tools():
    _, asked = correction_question(
        "Task: 48 and half", "Subgoal 1: halve", "R1 = Calculator(4)", "- Count: x"
    )
    for part in ("Task: 48 and half", "Subgoal 1: halve", "R1 = Calculator(4)", "- Count: x"):
        assert part in asked.text
