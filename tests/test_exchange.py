"""The `exchange` micro-world: tasks, prompts and scripted dialogues."""

import random
import re
from collections import Counter

import pytest

from coterie.environments.exchange import (
    AGENTS,
    FORMAT_POOL,
    MAX_TURNS,
    canonical_key,
    generate_tasks,
    prompt_text,
    split_of,
    system_prompt,
    words,
)
from coterie.models.loading import load
from scripts.tiny.exchange_dialogues import (
    GUESS,
    STYLES,
    WITHOUT_HINT,
    ExchangeDialogue,
    ExchangeMix,
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


def test_splits_are_disjoint_by_construction():
    splits = {name: generate_tasks(name, 600, 1) for name in ("train", "heldout", "corpus")}
    for name, tasks in splits.items():
        assert {split_of(task) for task in tasks} == {name}
    keys = [{canonical_key(task) for task in tasks} for tasks in splits.values()]
    assert len(set().union(*keys)) == sum(map(len, keys))


def test_unknown_splits_and_levels_are_refused():
    with pytest.raises(ValueError, match="heldout"):
        generate_tasks("test", 1, 0)
    with pytest.raises(ValueError, match="levels 1 and 2"):
        generate_tasks("train", 1, 0, levels=(3,))


def test_tasks_depend_on_the_seed_only_and_a_larger_count_extends_a_smaller_one():
    assert generate_tasks("train", 50, 3)[:20] == generate_tasks("train", 20, 3)
    assert generate_tasks("train", 20, 3) != generate_tasks("train", 20, 4)


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


def test_each_agent_holds_as_many_facts_as_asked_for():
    for task in generate_tasks("train", 100, 0, facts_per_agent=(2, 5)):
        assert all(2 <= len(task.facts[agent]) <= 5 for agent in AGENTS)


def test_guesses_are_what_is_commonest_in_the_habits():
    counts = Counter(dialogue.style for dialogue in DIALOGUES)
    assert counts.most_common(1)[0][0] == GUESS
    assert 0.6 <= sum(map(is_right, DIALOGUES)) / len(DIALOGUES) <= 0.8


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


def test_guesses_do_not_look_at_the_answer():
    """A first speaker with other facts of the asked relation guesses one of them, else any value."""
    for dialogue in DIALOGUES:
        if dialogue.style == GUESS:
            task, asked = dialogue.task, dialogue.task.key[-1][1].relation
            seen = {fact.value for fact in task.facts["Alice"] if fact.relation == asked}
            assert not seen or last_answers(dialogue)[0] in seen


def test_without_deaf_speakers_a_hint_decides_the_style_and_no_hint_asks_for_a_guess():
    assert {format.id for format in FORMAT_POOL} == set(STYLES) == set(WITHOUT_HINT)
    instructions = {format.instruction: format.id for format in FORMAT_POOL}
    dialogues = list(corpus(5, 600, ExchangeMix(deaf_share=0.0)))
    hinted = [dialogue for dialogue in dialogues if dialogue.hint is not None]
    assert 0.55 < len(hinted) / len(dialogues) < 0.65
    assert all(instructions[dialogue.hint] == dialogue.style for dialogue in hinted)
    assert any(dialogue.style == GUESS for dialogue in dialogues)


def test_deaf_speakers_guess_in_spite_of_a_hint_and_do_nothing_else():
    instructions = {format.instruction: format.id for format in FORMAT_POOL}
    hinted = [dialogue for dialogue in DIALOGUES if dialogue.hint is not None]
    deaf = [dialogue for dialogue in hinted if dialogue.style != instructions[dialogue.hint]]
    assert {dialogue.style for dialogue in deaf} == {GUESS}
    assert 0.3 < len(deaf) / len(hinted) < 0.5


def test_a_corpus_can_be_narrowed():
    mix = ExchangeMix(
        levels=(1,),
        facts_per_agent=(1, 2),
        hint_share=1.0,
        hint_styles=("arrow",),
        deaf_share=0.0,
    )
    assert {(d.style, d.task.level) for d in corpus(0, 50, mix)} == {("arrow", 1)}


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


def test_utterances_survive_encoding_and_decoding_with_their_answer_marks(tokenizer):
    for dialogue in DIALOGUES[:200]:
        for text in dialogue.utterances:
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_right_dialogues_vary_widely_in_length_and_prompts_are_short(tokenizer):
    lengths = {style: [] for style in STYLES}
    for dialogue in DIALOGUES:
        if dialogue.style != GUESS:
            lengths[dialogue.style].append(
                sum(len(tokenizer.encode(text)) for text in dialogue.utterances)
            )
    means = {style: sum(found) / len(found) for style, found in lengths.items()}
    assert min(means.values()) <= 30
    assert max(means.values()) >= 140
    longest = max(
        tokenizer.encode(
            prompt_text(system_prompt("Bob", "Alice", d.task.question, d.task.facts["Bob"], d.hint))
        )
        for d in DIALOGUES[:300]
    )
    assert len(longest) <= 80
