"""A change of a setting makes the results of every stage invalid that depends on it.

``uses.json`` has the stages that each setting invalidated when recipes listed their settings by hand.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin

import pytest

from coterie.config.settings import Settings
from coterie.errors import UserError
from coterie.recipes.registry import recipe, settings

WORDS = {
    "optima/isft_dpo": "iterations=3",
    "sweet_rl/backend": "",
    "sweet_rl/backend baseline": "method=multi_turn_dpo",
    "moat/maths": "iterations=1 start.enabled=true",
    "dense_tree/tiny": "iterations=2",
    "gap/tiny": "method=sft_rl",
    "rl/ppo": "",
    "rl/grpo": "",
    "sft": "dataset=gsm8k model=tiny-exchange",
    "dpo": "model=tiny-exchange dataset=preferences dataset.source=none.jsonl",
}
FILE = Path(__file__).with_name("uses.json")
HARMLESS = {
    "train.save_every_steps", "steps.patience",
    "steps.save_every", "evaluate.every", "engine.max_batch",
}  # fmt: skip
"""Settings that change no result."""


def changes(own: Settings) -> Iterator[tuple[str, Any]]:
    """Yield each key with the settings in which it alone has another value."""
    for name, field in type(own).model_fields.items():
        value = getattr(own, name)
        if isinstance(value, Settings):
            inner = ((f"{name}.{key}", one) for key, one in changes(value))
        else:
            inner = ((name, one) for one in _others(value, field.annotation))
        for key, one in inner:
            yield key, own.model_copy(update={name: one})


def _others(value: Any, kind: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float):
        return [value / 2 + 0.01]
    kinds = get_args(kind) if get_origin(kind) is UnionType else (kind,)
    if value is None and int in kinds:
        return [100]
    choices = [one for each in kinds if get_origin(each) is Literal for one in get_args(each)]
    return [one for one in choices if one != value][:1]


def fingerprints(own: Any) -> dict[str, str]:
    made = recipe(own)
    return {f"{step.iteration}/{step.stage}": made.fingerprint(step) for step in made.stage_keys()}


def invalidated(method: str, overrides: str, wanted: set[str]) -> dict[str, list[str]]:
    """Return the stages that a change of each wanted key makes invalid."""
    own = settings(method, ["engine.device=cpu", *overrides.split()])
    before, found = fingerprints(own), {}
    for key, changed in changes(own):
        if key not in wanted:
            continue
        try:
            after = fingerprints(changed)
        except (UserError, ValueError, AssertionError):
            continue
        found[key] = [step for step, value in before.items() if after.get(step) != value]
    return found


@pytest.mark.parametrize("name", WORDS)
def test_a_change_of_a_setting_makes_at_least_the_stages_invalid_that_it_made(name: str) -> None:
    expected = {
        key: stages.split() for stages, keys in json.loads(FILE.read_text())[name].items()
        for key in keys.split()
    }  # fmt: skip
    found = invalidated(name.split()[0], WORDS[name], {*expected, *HARMLESS})
    missing = {
        key: lost
        for key, stages in expected.items()
        if key in found and (lost := sorted(set(stages) - set(found[key])))
    }
    assert not missing
    assert not any(stages for key, stages in found.items() if key in HARMLESS)
