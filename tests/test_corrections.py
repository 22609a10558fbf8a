"""Replies of a critic of actions."""

import time

import pytest

from coterie.rewards.critics import Correction, read_correction

TWO = "Corrected subgoals: Subgoal 1: halve 48\nCorrected actions: R1 = Calculator(48 / 2)"
CORRECTED = Correction("corrected", "Subgoal 1: halve 48", "R1 = Calculator(48 / 2)")
ACCEPTED, UNREADABLE = Correction("accepted"), Correction("unreadable")


@pytest.mark.parametrize(
    ("reply", "correction"),
    [
        ("  ACCEPT.\n", ACCEPTED),
        ("<think>R1 looks wrong.\nCorrected actions: no</think>\nACCEPT", ACCEPTED),
        ("Corrected actions: no\n</think>\n\nACCEPT", ACCEPTED),
        (f"<think>ACCEPT? No.</think>\nHere it is:\n\n{TWO}\n", CORRECTED),
        (f"ACCEPT? No.\n</think>\n{TWO}", CORRECTED),
        (TWO.replace("Corrected actions", "**Corrected Actions**"), CORRECTED),
        (TWO.replace("goals:", "goals:**").replace("actions:", "actions:**"), CORRECTED),
        (TWO.replace(": Sub", ":\nSub").replace(": R1", ":\nR1"), CORRECTED),
        ("I can't ACCEPT these.", UNREADABLE),
        ("Corrected subgoals:\nCorrected actions: R1 = Count(1)", UNREADABLE),
        (f"ACCEPT\n{TWO}", UNREADABLE),
        (TWO.partition("\n")[0], UNREADABLE),
        (TWO.partition("\n")[2], UNREADABLE),
        ("The actions are fine, I accept them.", UNREADABLE),
        ("I can't ACCEPTABLY say", UNREADABLE),
        ("<think>it goes on and on, ACCEPT", UNREADABLE),
        ("Corrected subgoals:\nCorrected actions:", UNREADABLE),
    ],
)
def test_a_reply_is_read_as_what_it_says(reply, correction):
    assert read_correction(reply) == correction


@pytest.mark.parametrize("part", ["\n", "corrected subgoals:\n", "corrected actions*", "*"])
def test_nonsense_is_read_in_no_time(part):
    began = time.process_time()
    assert read_correction(f"corrected subgoals:{part * 20_000}").verdict == "unreadable"
    assert time.process_time() - began < 1
