"""The `exchange` micro-world: tasks, prompts and scripted dialogues."""

import random
import re

import pytest

from coterie.environments.exchange import (
    AGENTS,
    MAX_TURNS,
    generate_tasks,
    prompt_text,
    system_prompt,
)
from coterie.models.loading import load
from scripts.tiny.exchange import words
from scripts.tiny.exchange_dialogues import (
    GUESS,
    STYLES,
    ExchangeDialogue,
    corpus,
    scripted_dialogue,
)

DIALOGUES = list(corpus(5, 1500))


@pytest.fixture(scope="module")
def tokenizer():
    return load("tiny-exchange").tokenizer


def last_answers(dialogue: ExchangeDialogue) -> list[str]:
    """The answers that the last two utterances mark."""
    return [re.findall("<A>(.*?)</A>", text)[-1] for text in dialogue.utterances[-2:]]


def is_right(dialogue: ExchangeDialogue) -> bool:
    return set(last_answers(dialogue)) == {dialogue.task.answer}


def test_every_needed_fact_is_held_by_its_holder_and_by_nobody_else():
    for task in generate_tasks("heldout", 400, 2):
        assert len(task.key) == task.level
        for holder, fact in task.key:
            assert [agent for agent in AGENTS if fact in task.facts[agent]] == [holder]
        subjects = [fact.subject for agent in AGENTS for fact in task.facts[agent]]
        assert len(set(subjects)) == len(subjects)
        values = [fact.value for agent in AGENTS for fact in task.facts[agent]]
        assert values.count(task.answer) == 1


def test_two_hops_are_split_between_the_agents_in_either_order():
    tasks = generate_tasks("train", 200, 0, levels=(2,))
    orders = {tuple(holder for holder, _ in task.key) for task in tasks}
    assert orders == {("Alice", "Bob"), ("Bob", "Alice")}
    assert all(task.key[0][1].value == task.key[1][1].subject for task in tasks)


def test_honest_dialogues_are_always_right_and_end_in_agreement_within_the_turn_limit():
    for task in generate_tasks("corpus", 60, 9):
        for style in STYLES:
            dialogue = ExchangeDialogue(
                task, style, None, tuple(scripted_dialogue(task, style, random.Random(0)))
            )
            assert is_right(dialogue)
            assert len(dialogue.utterances) <= MAX_TURNS


def test_honest_speakers_name_only_what_they_have_read_or_heard():
    lexicon = set(words())
    for dialogue in DIALOGUES:
        if dialogue.style == GUESS:
            continue
        heard = ""
        for number, text in enumerate(dialogue.utterances):
            agent = AGENTS[number % 2]
            known = (
                prompt_text(
                    system_prompt(agent, "", dialogue.task.question, dialogue.task.facts[agent])
                )
                + heard
            )
            named = {
                word for word in re.findall(r"\w+", text) if word in lexicon and word[0].isupper()
            }
            named |= set(re.findall("<A>(.*?)</A>", text))
            assert named <= set(re.findall(r"\w+", known))
            heard += text


def test_a_prompt_shows_an_agent_its_own_facts_only_and_ends_with_the_format():
    task = generate_tasks("train", 1, 0)[0]
    pieces = system_prompt("Alice", "Bob", task.question, task.facts["Alice"], "Write rows.")
    text = prompt_text(pieces)
    assert text.endswith(f"Question: {task.question}\nFormat: Write rows.")
    assert all(fact.value in text for fact in task.facts["Alice"])
    bobs = "".join(piece for piece, audience in pieces if "Bob" in audience)
    assert not any(fact.subject in bobs.replace(task.question, "") for fact in task.facts["Alice"])


def test_every_word_of_the_lexicon_is_one_piece_also_inside_the_answer_marks(tokenizer):
    for word in words():
        assert len(tokenizer.encode(f"{word} and", add_special_tokens=False)) == 2
        marked = tokenizer.encode(f"is <A>{word}</A>", add_special_tokens=False)
        assert marked[-3:] == tokenizer.convert_tokens_to_ids(["<A>", f"Ġ{word}", "</A>"])
