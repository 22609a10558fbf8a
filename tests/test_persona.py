"""The `persona` micro-world: tasks, the scripted person, scripted dialogues, and the packaged model."""

import asyncio
import random
import re

import pytest

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling
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
    source_of,
)
from coterie.models.loading import load
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.worker import SandboxSettings
from scripts.tiny.persona_dialogues import (
    ASKS,
    answer_text,
)

TASKS = generate_tasks("heldout", 150, 1)
ABOVE_4 = Choice("above", 4)
TIMES_3 = Choice("times", 3)
LAST_2 = Choice("last", 2)


def test_the_steps_of_a_function_do_what_they_say():
    xs = [7, 2, 9, 4, 5]
    assert output_of([ABOVE_4, TIMES_3], xs) == [21, 27, 15]
    assert output_of([Choice("even"), Choice("plus", 2)], xs) == [4, 6]
    assert output_of([Choice("odd"), Choice("down"), Choice("first", 2)], xs) == [9, 7]
    assert output_of([Choice("below", 5), Choice("minus", 3), Choice("sum")], xs) == 0
    assert output_of([Choice("up"), LAST_2, Choice("smallest")], xs) == 7
    assert output_of([ABOVE_4, Choice("count")], xs) == 3
    assert output_of([ABOVE_4, Choice("largest")], [1]) == 0
    assert source_of("tidy", [ABOVE_4, TIMES_3]) == (
        "def tidy(xs):\n    xs = [x for x in xs if x > 4]\n    xs = [x * 3 for x in xs]\n    return xs"
    )


def test_the_calls_tell_every_wrong_choice_and_are_not_constant():
    for task in TASKS:
        lists = [[int(n) for n in re.findall(r"\d+", call)] for call in task.calls]
        assert len(set(task.calls)) == CALLS
        assert [output_of(task.choices, xs) for xs in lists] == list(task.expected)
        assert any(value != task.expected[0] for value in task.expected)
        for place, choice in enumerate(task.choices):
            for other in CHOICES[choice.aspect]:
                wrong = [*task.choices]
                wrong[place] = other
                same = [output_of(wrong, xs) for xs in lists] == list(task.expected)
                assert same == (other == choice)


def test_references_agree_with_the_steps_in_the_real_sandbox():
    async def run() -> list[bool]:
        async with Sandbox(SandboxSettings(workers=1)) as sandbox:
            graded = [await sandbox.grade(t.reference, t.calls, t.expected) for t in TASKS]
            other = source_of(TASKS[0].name, TASKS[1].choices)
            graded.append(await sandbox.grade(other, TASKS[0].calls, TASKS[0].expected))
            return [one.success for one in graded]

    assert asyncio.run(run()) == [True] * len(TASKS) + [False]


CHOSEN = (ABOVE_4, TIMES_3, LAST_2)
REPLIES = [
    ("Which numbers are kept?", "Keep only numbers above 4."),
    ("So what do you want me to filter?", "Keep only numbers above 4."),
    ("Even or odd ones, perhaps?", "Keep only numbers above 4."),
    ("How is each number changed?", "Multiply each number by 3."),
    ("Do I add something to them?", "Multiply each number by 3."),
    ("HOW MANY DO YOU WANT?", "Only the last 2."),
    ("The first ones?", "Only the last 2."),
    ("In what order?", NO_WISH),
    ("What should it return?", NO_WISH),
    ("Can you tell me more?", UNCLEAR),
    ("Thank you!", UNCLEAR),
    ("", UNCLEAR),
    ("Which are kept and how are they changed?", TOO_MUCH),
    ("Tell me the order, the filter and the result.", TOO_MUCH),
]


@pytest.mark.parametrize(("said", "reply"), REPLIES)
def test_the_person_tells_one_thing_at_a_time(said: str, reply: str):
    assert scripted_reply(CHOSEN, said) == reply


def test_the_packaged_model_writes_the_function_that_it_was_told():
    assert share_right_when_all_is_told("tiny-persona") > 0.75


def share_right_when_all_is_told(model: str) -> float:
    """How often a model that heard every choice answers, greedily, with the reference of a held-out task."""
    loaded = load(model)
    engine = InProcessEngine(loaded, policy="agent", version="0")
    tasks = generate_tasks("heldout", 40, 7)
    sampling = Sampling(temperature=0.0, max_tokens=120)

    async def answers() -> list[str]:
        prompts = [prompt_with_all_told(loaded.tokenizer, task) for task in tasks]
        found = await asyncio.gather(*(engine.sample(p, [0], sampling) for p in prompts))
        return [one[0].text for one in found]

    pairs = zip(asyncio.run(answers()), tasks, strict=True)
    return sum(text == answer_text(task.reference) for text, task in pairs) / len(tasks)


def prompt_with_all_told(tokenizer, task) -> list[int]:
    """A dialogue in which every choice has been asked for, up to where the agent answers."""
    messages = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": task.opening},
    ]
    for choice in random.Random(task.task_id).sample(task.choices, len(task.choices)):
        messages.append({"role": "assistant", "content": ASKS[choice.aspect][1]})
        messages.append({"role": "user", "content": choice.sentence})
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return list(ids)
