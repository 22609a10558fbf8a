"""Names and markers in the lines of the original's dialogues: who says what."""

from pathlib import Path

import pytest

from coterie.recipes.optima.files.speech import Conversation, beginner, named, parse, unnamed
from coterie.rewards.conduct import leaks
from tests.test_original_files import GSM8K_LINE, opened, put_in, raw, wrote


@pytest.mark.parametrize(
    ("utterances", "said", "cut"),
    [
        (["Alice: a", "Bob: b"], (("Alice", "a"), ("Bob", "b")), None),
        (["Alice:a", " Bob:  b"], (("Alice", "a"), ("Bob", " b")), None),
        (["a", "b", "Alice thinks"], (("Alice", "a"), ("Bob", "b"), ("Alice", "Alice thinks")), None),
        (["Alice: Alice: x", "Bob: y"], (("Alice", "Alice: Alice: x"), ("Bob", "y")), None),
        (["Alice: Bob: x", "Alice: y"], (("Alice", "Bob: x"), ("Bob", "Alice: y")), None),
        (["Alice: a", "large"], (("Alice", "a"),), "large"),
        (["Alice: a", "Bob:error", "Alice: b"], (("Alice", "a"),), "error"),
        (["Alice: error", "Bob: large"], (("Alice", "error"), ("Bob", "large")), None),
    ],
)  # fmt: skip
def test_names_in_front_are_taken_off_and_markers_understood(
    utterances: list[str], said: tuple[tuple[str, str], ...], cut: str | None
) -> None:
    assert parse(utterances, 0) == Conversation(said, cut)  # type: ignore[arg-type]


def test_the_first_speaker_is_whom_most_names_agree_with() -> None:
    assert beginner([["x", "y"]]) == 0
    assert beginner([["Alice: x", "y"], ["Bob: x", "Alice: y"], ["Bob: z"]]) == 1
    assert parse(["x", "Alice: y"], 1).said == (("Bob", "x"), ("Alice", "y"))


@pytest.mark.parametrize("text", ["a", " a", "", "Bob: a", "\n a ", "Alice: Alice: a", "large"])
def test_any_text_survives_its_name(text: str) -> None:
    assert unnamed(named("Alice", text), "Alice") == text


def test_a_name_that_is_there_is_not_put_there_again() -> None:
    assert named("Alice", "Alice: a") == "Alice: a"
    assert named("Alice", "Bob: a") == "Alice: Bob: a"


@pytest.mark.parametrize(
    ("utterance", "leak"),
    [
        ("Alice: a", 0), ("a", 0), ("Alice: Alice: a", 1), ("Alice: a Alice: b", 1), ("a Alice: b", 1),
        ("Alice: Bob: a", 1), ("Alice: a Bob: b", 1), ("Bob: a", 1),
    ],
)  # fmt: skip
def test_a_leak_of_the_released_code_is_one_after_its_import(
    tmp_path: Path, utterance: str, leak: int
) -> None:
    """There: both names, or one of them twice, where a name that lacks is put in front."""
    line = {**GSM8K_LINE, "results": [raw([utterance, "Bob: right"], "7")]}
    put_in(wrote(tmp_path / "theirs.jsonl", line), tmp_path / "run", kind="raw")
    with opened(tmp_path / "run", "dataset=gsm8k") as (recipe, run):
        (tree,) = run.store.trees(0, "rollout")
        ((_, path),) = tree.trajectories()
        assert leaks(path, recipe.environment.agents) == leak
