"""The `persona` micro-world: tasks, the scripted person, scripted dialogues, and the packaged model."""

import asyncio
import random
import re
from collections import Counter

import pytest

from coterie.environments.collaboration import answer_in
from coterie.environments.persona import (
    ASPECTS,
    CALLS,
    CHOICES,
    LIKELY_SHARE,
    MAX_TURNS,
    NO_WISH,
    QUESTIONS,
    SENTENCES,
    SYSTEM_PROMPT,
    THEMES,
    TOO_MUCH,
    UNCLEAR,
    WISHES,
    Choice,
    aspect_sets,
    aspects_in,
    generate_tasks,
    output_of,
    scripted_reply,
)
from coterie.environments.settings import MicroSplit
from coterie.models.loading import load_renderer
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.worker import SandboxSettings
from scripts.tiny.persona_dialogues import ASKS, HABITS, VAGUE, answer_text, corpus, question
from tests.helpers.play_scripts import complete_greedily

TASKS = generate_tasks("heldout", 1)[:150]
ABOVE_4, TIMES_3, CUT_2 = Choice("above", 4), Choice("times", 3), Choice("tail", 2)


def test_the_steps_of_a_function_do_what_they_say():
    xs = [7, 2, 9, 4, 5]
    assert output_of([ABOVE_4, TIMES_3], xs) == [21, 27, 15]
    assert output_of([Choice("odd"), Choice("down"), Choice("head", 1)], xs) == [7, 5]
    assert output_of([Choice("below", 6), Choice("minus", 3), Choice("largest")], xs) == [
        -1,
        1,
        2,
        2,
    ]
    assert output_of([Choice("up"), Choice("second", 2), Choice("all", 2)], xs) == [4, 7, 4, 7]
    assert output_of([Choice("back"), CUT_2, Choice("each", 2)], xs) == [5, 5, 4, 4, 9, 9]
    assert output_of([Choice("first", 3), Choice("sum"), Choice("smallest")], xs) == [11, 7, 4, 4]


def test_each_aspect_is_likely_in_half_of_the_themes():
    likely = Counter(aspect for aspects in THEMES.values() for aspect in aspects)
    assert likely == dict.fromkeys(ASPECTS, len(THEMES) / 2)


@pytest.mark.parametrize(("split", "share"), [("heldout", LIKELY_SHARE), ("corpus", 0.5)])
def test_wishes_are_about_likely_aspects_except_in_pre_training(split: MicroSplit, share: float):
    tasks = [task for task in generate_tasks(split, 1)[:4000] if task.theme in THEMES]
    wishes = [choice.aspect in THEMES[t.theme] for t in tasks for choice in t.choices]
    assert len(wishes) == WISHES * len(tasks)
    assert sum(wishes) / len(wishes) == pytest.approx(share, abs=0.03)


def test_the_enumerated_sets_of_aspects_are_those_of_tasks():
    sets = aspect_sets("eggs")
    assert sum(sets.values()) == pytest.approx(1)
    tasks = [task for task in generate_tasks("heldout", 1)[:6000] if task.theme == "eggs"]
    drawn = Counter(frozenset(choice.aspect for choice in task.choices) for task in tasks)
    for aspects, probability in sets.items():
        assert drawn[aspects] / len(tasks) == pytest.approx(probability, abs=0.08)


def test_the_request_tells_the_theme_and_the_number_of_wishes_but_no_aspect():
    for task in TASKS:
        assert SENTENCES[task.theme] in task.opening and f"{WISHES} wishes" in task.opening
        assert not aspects_in(task.opening)


def test_the_calls_tell_every_wrong_choice_and_are_not_constant():
    for task in TASKS:
        lists = [[int(n) for n in re.findall(r"\d+", call)] for call in task.calls]
        right = [output_of(task.choices, xs) for xs in lists]
        assert len(set(task.calls)) == CALLS and any(value != right[0] for value in right)
        for place, choice in enumerate(task.choices):
            before, after = task.choices[:place], task.choices[place + 1 :]
            assert [output_of((*before, *after), xs) for xs in lists] != right
            for other in CHOICES[choice.aspect]:
                wrong = (*before, other, *after)
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
    ("text", "reply"),
    [
        ("About the eggs: keep only some?", "Keep only numbers above 4."),
        ("Even or odd ones, perhaps?", "Keep only numbers above 4."),
        ("How is each number changed?", "Multiply each number by 3."),
        ("SHALL I CUT SOME OFF?", "Leave out the last 2."),
        ("In what order?", NO_WISH),
        ("What comes at the end?", NO_WISH),
        ("Can you tell me more?", UNCLEAR),
        ("", UNCLEAR),
        ("Which are kept and how are they changed?", TOO_MUCH),
    ],
)
def test_the_user_tells_one_choice_at_a_time(text: str, reply: str):
    assert scripted_reply((ABOVE_4, TIMES_3, CUT_2), text) == reply


def test_scripted_questions_are_about_one_aspect_and_vague_ones_about_none():
    for theme in SENTENCES:
        assert all(aspects_in(question(theme, ask)) == [aspect] for aspect, ask in ASKS.items())
        assert not any(aspects_in(question(theme, ask)) for ask in VAGUE)


def test_scripted_agents_ask_evenly_and_with_the_reference_rather_about_its_lines():
    first = {True: Counter[bool](), False: Counter[bool]()}
    for dialogue in corpus(3, 2000):
        if dialogue.habits[0] == "ask":
            (aspect,) = aspects_in(dialogue.turns[0])
            first[dialogue.shown][aspect in {c.aspect for c in dialogue.task.choices}] += 1
        assert len(dialogue.turns) <= MAX_TURNS and answer_in(dialogue.turns[-1]) is not None
        assert dialogue.right == (dialogue.habits[-1] == "answer")
    shares = [counts[True] / counts.total() for counts in (first[False], first[True])]
    even = WISHES / len(ASPECTS)
    assert shares == pytest.approx([even, HABITS.read + (1 - HABITS.read) * even], abs=0.06)


def test_the_packaged_model_writes_the_function_of_its_choices():
    """After six questions, among them one about every choice."""
    tokenizer, tasks = load_renderer("tiny-persona")[0].tokenizer, generate_tasks("heldout", 7)[:40]
    prompts = []
    for task in tasks:
        rng, dialogue = random.Random(task.task_id), [("system", SYSTEM_PROMPT)]
        dialogue.append(("user", task.opening))
        wished = [choice.aspect for choice in task.choices]
        others = rng.sample([a for a in ASPECTS if a not in wished], QUESTIONS - WISHES)
        for aspect in rng.sample([*wished, *others], QUESTIONS):
            asked = question(task.theme, ASKS[aspect])
            dialogue += [("assistant", asked), ("user", scripted_reply(task.choices, asked))]
        messages = [{"role": role, "content": text} for role, text in dialogue]
        prompts.append(
            tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        )
    texts = [one.text for one in complete_greedily("tiny-persona", prompts, 96)]
    right = [answer_text(task.reference) for task in tasks]
    assert sum(map(str.__eq__, texts, right)) / len(tasks) > 0.75
