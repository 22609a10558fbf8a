"""Settings from words: what is wrong is named, and the nearest right key is offered."""

import re
from pathlib import Path

import pytest

from coterie.config.resolve import keys, read_yaml
from coterie.errors import UserError
from coterie.recipes.optima_settings import OptimaSettings
from coterie.recipes.registry import names, settings

PHRASES = re.compile(
    r"Input should|Value error|valid (string|integer|number|tuple|dict)|String should|Field required|"
    r"Extra inputs|should have at least|should match|_type|_parsing"
)
"""How the validator speaks."""


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
        ("train.method=half", "train.method=half: must be full or lora"),
        ("tracker=wandbb", "did you mean wandb?"),
        ("train.lr=1", "did you mean 'train.learning_rate'?"),
        ("seed=99999999999999999999", "seed=99999999999999999999: must be at most 4294967295"),
        ("train.seed=4294967296", "train.seed=4294967296: must be at most"),
        ("rollout.samples=2.5", "rollout.samples=2.5: must be a whole number"),
        ("rollout.top_p=0", "rollout.top_p=0: must be more than 0"),
        ("rollout.format_pool=maybe", "rollout.format_pool=maybe: must be true or false"),
        ("train.learning_rate=.nan", "train.learning_rate=nan: must be a finite number"),
        ("select.threshold=.inf", "select.threshold=inf: must be a finite number"),
        ("train.betas=[0.9,x]", "train.betas, item 2=x: must be a number"),
        ("engine.device=gpu", "`cuda`"),
        (
            "train.lora_r=8",
            "train.lora_r and train.lora_alpha have no effect with train.method=full",
        ),
        ("train.max_length=9999", "train.max_length=9999 tokens does not fit train.tokens_per_"),
        ("rollout=4", "rollout is a group of keys"),
        ("=4", "key=value"),
        ("seed", "key=value"),
        ("rollout.samples=1", "gives no choice"),
        ("rollout={samples: 4", "rollout is a group of keys"),
    ],
)
def test_a_bad_word_is_refused_with_what_to_do(word: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        settings("optima/isft", [word])
    assert said in str(error.value)
    assert not PHRASES.search(str(error.value))


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("train.lr", "update.learning_rate"),
        ("temperature", "rollout.temperature"),
        ("num_generations", "rollout.samples"),
        ("update.lora_rank", "train.lora_r"),
        ("critic.train.dtype", "train.dtype"),
    ],
)
def test_a_hint_has_the_last_part_of_the_wrong_key(key: str, near: str) -> None:
    with pytest.raises(UserError, match=f"did you mean '{near}'"):
        settings("rl/grpo", [f"{key}=1"])


def test_values_that_yaml_would_read_as_something_else_stay_text() -> None:
    words = ["model=2024-01-01", "train.mixed_precision=no", "train.save_every_seconds=none"]
    found = settings("optima/isft", words)
    assert found.model == "2024-01-01"
    assert found.train.mixed_precision == "no" and found.train.save_every_seconds is None
    assert settings("optima/isft", ["model='7'"]).model == "7"
    assert settings("optima/isft", ["model=[red]x"]).model == "[red]x"


def test_a_settings_file_may_begin_with_a_bom_and_has_each_key_once(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("\ufeffseed: 1\nrollout:\n  samples: 2\n", encoding="utf-8")
    assert read_yaml(file) == {"seed": 1, "rollout": {"samples": 2}}
    file.write_text("seed: 1\nrollout:\n  tasks: 2\n  tasks: 3\n")
    with pytest.raises(
        UserError, match=r"config\.yaml.*'rollout.tasks' is in line 3 and again in line 4"
    ):
        read_yaml(file)
    for broken in (b"\xff\xfe\x00", b"made: 2024-13-45", b"? [a, b]\n: 1", b"[" * 5000,
                   b"seed: " + b"9" * 5000):  # fmt: skip
        file.write_bytes(broken)
        with pytest.raises(UserError, match=r"config\.yaml"):
            read_yaml(file)


@pytest.mark.parametrize(
    ("stored", "said"),
    [({"dataset": 5}, "dataset=5: dataset is a group of keys"), ({1: 2}, "1: is not known here")],
)
def test_stored_values_of_another_kind_are_refused(stored: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        settings("optima/isft", (), stored)


def test_a_misspelt_recipe_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match="optima/isft"):
        settings("optima/sft")


def test_every_key_says_what_it_means() -> None:
    assert names()
    missing = [key.path for key in keys(OptimaSettings) if len(key.meaning) < 10]
    assert not missing
