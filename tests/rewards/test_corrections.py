"""Replies of a critic of actions."""

import asyncio

import pytest

from coterie.engines.chat_model import ChatModelSettings, LoadedChat
from coterie.engines.endpoint import Utterance
from coterie.rewards.critics import Correction, read_correction
from tests.helpers.native_templates import make_native_model
from tests.helpers.play_native_calls import Forced, Said

TWO = "Corrected subgoals: Subgoal 1: halve 48\nCorrected actions: R1 = Calculator(48 / 2)"
CORRECTED = Correction("corrected", "Subgoal 1: halve 48", "R1 = Calculator(48 / 2)")
ACCEPTED, REJECTED = Correction("accepted"), Correction("rejected")


@pytest.mark.parametrize(
    ("reply", "correction"),
    [
        ("  ACCEPT.\n", ACCEPTED),
        (f"Here it is:\n\n{TWO}\n", CORRECTED),
        (TWO.replace("Corrected actions", "**Corrected Actions**"), CORRECTED),
        (TWO.replace("goals:", "goals:**").replace("actions:", "actions:**"), CORRECTED),
        (TWO.replace(": Sub", ":\nSub").replace(": R1", ":\nR1"), CORRECTED),
        ("I can't ACCEPT these.", REJECTED),
        ("Corrected subgoals:\nCorrected actions: R1 = Count(1)", REJECTED),
        (f"ACCEPT\n{TWO}", REJECTED),
        (TWO.partition("\n")[0], REJECTED),
        (TWO.partition("\n")[2], REJECTED),
        ("The actions are fine, I accept them.", REJECTED),
        ("I can't ACCEPTABLY say", REJECTED),
        ("Corrected subgoals:\nCorrected actions:", REJECTED),
    ],
)
def test_a_reply_is_read_as_what_it_says(reply, correction):
    assert read_correction(reply) == correction


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("<think>Corrected actions: no</think>\nACCEPT", "ACCEPT"),
        ("<think>it goes on and on, ACCEPT", ""),
        ("ACCEPT", "ACCEPT"),
    ],
)
def test_thoughts_of_a_critic_whose_template_has_none_are_no_reply(said: str, answer: str) -> None:
    engine = Forced(make_native_model("smol"), policy="critic", version="0")
    engine.script, engine.heard = [Said(said)], []
    chat = LoadedChat(engine, ChatModelSettings(model="smol", max_tokens=64))
    reply = asyncio.run(chat.ask([Utterance("user", "Are they right?")], 0))
    assert reply.text == answer
