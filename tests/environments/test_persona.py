"""The `persona` micro-world: tasks, the scripted person, scripted dialogues, and the packaged model."""

import asyncio
import random
import re

import pytest

from coterie.environments.persona import (
    CALLS,
    CHOICES,
    NO_WISH,
    SYSTEM_PROMPT,
    TOO_MUCH,
    UNCLEAR,
    Choice,
    generate_tasks,
    output_of,
    scripted_reply,
)
from coterie.models.loading import load_renderer
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.worker import SandboxSettings
from scripts.tiny.persona_dialogues import ASKS, answer_text
from tests.helpers.play_scripts import complete_greedily

TASKS = generate_tasks("heldout", 1)[:150]
ABOVE_4 = Choice("above", 4)
TIMES_3 = Choice("times", 3)
LAST_2 = Choice("last", 2)


def test_the_steps_of_a_function_do_what_they_say():
    xs = [7, 2, 9, 4, 5]
    assert output_of([ABOVE_4, TIMES_3], xs) == [21, 27, 15]
    assert output_of([Choice("odd"), Choice("down"), Choice("first", 2)], xs) == [9, 7]
    assert output_of([Choice("below", 5), Choice("minus", 3), Choice("sum")], xs) == 0
    assert output_of([Choice("up"), LAST_2, Choice("smallest")], xs) == 7


def test_the_calls_tell_every_wrong_choice_and_are_not_constant():
    for task in TASKS:
        lists = [[int(n) for n in re.findall(r"\d+", call)] for call in task.calls]
        right = [output_of(task.choices, xs) for xs in lists]
        assert len(set(task.calls)) == CALLS and any(value != right[0] for value in right)
        for place, choice in enumerate(task.choices):
            for other in CHOICES[choice.aspect]:
                wrong = (*task.choices[:place], other, *task.choices[place + 1 :])
                assert ([output_of(wrong, xs) for xs in lists] == right) == (other == choice)


def test_references_agree_with_the_steps_in_the_real_sandbox():
    async def run() -> None:
        async with Sandbox(SandboxSettings(workers=1)) as sandbox:
            for task in TASKS[:20]:
                lists = [[int(n) for n in re.findall(r"\d+", call)] for call in task.calls]
                right = tuple(output_of(task.choices, xs) for xs in lists)
                assert (await sandbox.grade(task.reference, task.calls, right)).success

    asyncio.run(run())


@pytest.mark.parametrize(
    ("question", "reply"),
    [
        ("Which numbers are kept?", "Keep only numbers above 4."),
        ("Even or odd ones, perhaps?", "Keep only numbers above 4."),
        ("How is each number changed?", "Multiply each number by 3."),
        ("HOW MANY DO YOU WANT?", "Only the last 2."),
        ("In what order?", NO_WISH),
        ("What should it return?", NO_WISH),
        ("Can you tell me more?", UNCLEAR),
        ("", UNCLEAR),
        ("Which are kept and how are they changed?", TOO_MUCH),
    ],
)
def test_the_user_tells_one_choice_at_a_time(question: str, reply: str):
    assert scripted_reply((ABOVE_4, TIMES_3, LAST_2), question) == reply


def test_the_packaged_model_writes_the_function_of_its_choices():
    """After a dialogue in which it has asked for every choice."""
    tokenizer, tasks = load_renderer("tiny-persona")[0].tokenizer, generate_tasks("heldout", 7)[:40]
    prompts = []
    for task in tasks:
        dialogue = [("system", SYSTEM_PROMPT), ("user", task.opening)]
        for choice in random.Random(task.task_id).sample(task.choices, len(task.choices)):
            dialogue += [("assistant", ASKS[choice.aspect][1]), ("user", choice.sentence)]
        messages = [{"role": role, "content": text} for role, text in dialogue]
        prompts.append(
            tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        )
    texts = [one.text for one in complete_greedily("tiny-persona", prompts, 120)]
    right = [answer_text(task.reference) for task in tasks]
    assert sum(map(str.__eq__, texts, right)) / len(tasks) > 0.75
