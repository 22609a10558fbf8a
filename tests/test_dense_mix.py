"""Outside preference pairs that train beside the trees' own."""

from pathlib import Path

import pytest

from coterie.errors import UserError
from coterie.progress import Silent
from coterie.recipes.dense_tree import DenseTree
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.runs.folder import Step
from tests.conftest import once
from tests.test_conversations import ours

pytestmark = pytest.mark.usefixtures("own_home")

TINY = (
    "model=tiny-problems", "dataset.source=sample", "engine.device=cpu", "train.max_steps=1", "train.batch_rows=4",
    "train.learning_rate=1e-3", "rollout.max_tokens=32", "evaluate.tasks=2", "environment.shots=0",
    "train.max_length=1024",
)  # fmt: skip
TRAIN, SELECT = Step(0, "train"), Step(0, "select")


def made(*words: str) -> DenseTree:
    found = recipe_of(settings("dense_tree/gsm8k", once(*TINY, *words)))
    assert isinstance(found, DenseTree)
    return found


def test_outside_pairs_that_ask_held_out_questions_are_left_out(tmp_path: Path) -> None:
    question = str(made().environment.tasks("heldout", 1, 0)[0].public["question"])
    own = ours(tmp_path / "own.jsonl", 4)
    other = ours(tmp_path / "other.jsonl", 2, question=f"Step by step!\n{question}")
    recipe = made(f"mix={{{own}: 2, {other}: 2}}")
    pairs, counts = recipe.mixed_pairs(0, Silent())
    assert counts == {"mixed_own.jsonl": 2, "mixed_other.jsonl": 0, "held_out_other.jsonl": 2}
    drawn = {one.name for one in pairs}
    assert len(drawn) == 2
    others = [{one.name for one in recipe.mixed_pairs(i, Silent())[0]} for i in range(8)]
    assert others[0] == drawn and any(names != drawn for names in others), "each iteration draws"


def test_training_depends_on_the_sets_and_their_content(tmp_path: Path) -> None:
    own = ours(tmp_path / "own.jsonl", 4)
    plain = made().fingerprint(TRAIN)
    mixed = made(f"mix={{{own}: 2}}").fingerprint(TRAIN)
    assert len({plain, mixed, made(f"mix={{{own}: 3}}").fingerprint(TRAIN)}) == 3
    moved = tmp_path / "elsewhere" / "own.jsonl"
    moved.parent.mkdir()
    own.rename(moved)
    assert made(f"mix={{{moved}: 2}}").fingerprint(TRAIN) == mixed, "wherever it lies"
    ours(moved, 5)
    assert made(f"mix={{{moved}: 2}}").fingerprint(TRAIN) != mixed
    assert made(f"mix={{{moved}: 2}}").fingerprint(SELECT) == made().fingerprint(SELECT)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mix={ultra_interac: 5}"], "did you mean 'ultra_interact'?"),
        (["mix={ultra_interact: 0}"], "must be at least 1"),
        (["mix={ultra_interact: many}"], "must be a whole number"),
        (["mix={a/x.jsonl: 1, b/x.jsonl: 2}"], "have the same name x.jsonl"),
        (["mix={ultra_interact: 5}", "learns=successes"], "remove mix.sets"),
    ],
)
def test_sets_that_there_are_not_and_counts_below_one_are_refused(
    words: list[str], said: str
) -> None:
    with pytest.raises(UserError) as error:
        made(*words)
    assert said in error.value.what


def test_a_set_that_is_not_here_is_refused_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"openbmb/UltraFeedback .* is not in the cache"):
        made("mix={ultra_feedback: 14000}").plan()
