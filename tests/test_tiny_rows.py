"""Pre-training of the packaged models: the same tokenizer and the same rows as when they were made."""

from hashlib import sha256

import pytest

from coterie.models.loading import load_renderer
from scripts.tiny.world import load

ROWS = {
    "exchange": "f340eb5b1ea19645",
    "persona": "ac75455b50f29f3b",
    "problems": "09192bf8c6fe09d1",
    "acts": "98a9c5e12cf21d06",
    "encyclopedia": "417f1196caa31e3b",
}
"""Hashes of their first rows."""


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_those_that_the_packaged_model_learned(name: str) -> None:
    world, tokenizer = load(name), load_renderer(f"tiny-{name}")[0].tokenizer
    drawn = sha256()
    for row in (
        *world.skill_rows(tokenizer, 12_000, 0),
        *world.habit_rows(tokenizer, 8_000, 50_000),
    ):
        assert 0 < row.targets[0].start < len(row.ids) <= 1024
        spans = [(target.start, target.stop) for target in row.targets]
        drawn.update(repr((row.ids, spans)).encode())
    assert drawn.hexdigest()[:16] == ROWS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_the_tokenizer_of_its_texts_is_the_packaged_one(name: str) -> None:
    packaged = load_renderer(f"tiny-{name}")[0].tokenizer
    built = load(name).build_tokenizer(1200, 0)
    assert built.backend_tokenizer.to_str() == packaged.backend_tokenizer.to_str()
