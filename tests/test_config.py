"""Settings from words: what is wrong is named, and the nearest right key is offered."""

import pytest

from coterie.config.resolve import keys
from coterie.errors import UserError
from coterie.recipes.optima_settings import OptimaSettings
from coterie.recipes.registry import NAMES, settings


def test_words_win_over_the_preset() -> None:
    found = settings("optima/isft", ["rollout.samples=4", "train.learning_rate=1e-3", "seed=7"])
    assert (found.rollout.samples, found.train.learning_rate, found.seed) == (4, 1e-3, 7)
    assert found.model == "tiny-exchange"


def test_stored_values_lie_between_preset_and_words() -> None:
    found = settings("optima/isft", ["seed=7"], {"seed": 3, "iterations": 1})
    assert (found.seed, found.iterations) == (7, 1)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("rollout.sample=4", "rollout.samples"),
        ("lambda_tokens=1", "reward.lambda_token"),
        ("iteration=2", "iterations"),
        ("rollout.samples=0", "rollout.samples=0"),
        ("rollout.samples=many", "rollout.samples"),
        ("rollout.top_p=1.5", "rollout.top_p"),
        ("train.method=half", "train.method"),
        ("seed", "key=value"),
        ("rollout.samples=1", "nothing to choose from"),
        ("train.method=lora", "adapter on an adapter"),
        ("select.rule=random", "select.counts"),
        ("rollout={samples: 4", "not a value"),
    ],
)
def test_a_bad_word_is_refused_with_what_to_do(word: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        settings("optima/isft", [word])
    assert said in str(error.value) or "unknown key 'rollout'" in str(error.value)


def test_a_misspelt_recipe_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match="optima/isft"):
        settings("optima/sft")


def test_every_key_says_what_it_means() -> None:
    assert NAMES
    missing = [key.path for key in keys(OptimaSettings) if len(key.meaning) < 10]
    assert not missing
