"""A lone surrogate is not text: whoever brings one in is told where it is, without a traceback."""

from pathlib import Path

import pytest

from coterie.config.resolve import resolve
from coterie.datasets.files import read_rows
from coterie.datasets.rows import Gsm8kRow
from coterie.environments.dialogue import read_pool
from coterie.errors import UserError
from coterie.models.loading import load_renderer
from coterie.progress import Silent
from coterie.recipes.optima_settings import OptimaSettings
from coterie.record.tree import Tree
from coterie.record.turn import Message, Part, Speaker, make_turn

HALF = "ab\ud800"
SPELLED = r"ab\ud800"


def test_a_message_or_turn_with_half_a_character_is_refused() -> None:
    renderer, _ = load_renderer("tiny-exchange")
    with pytest.raises(UserError, match=r"system message holds .*\\ud800, at character 3"):
        renderer.render([Message("system", (Part(HALF),))], Tree("t", "r", 0), "A")
    with pytest.raises(UserError, match="written elsewhere"):
        renderer.encode_turn(HALF)
    with pytest.raises(UserError, match="half a character"):
        make_turn("p", Speaker("environment", "world"), [Part(HALF)])


@pytest.mark.parametrize("spelled", [SPELLED, r"\udc00\ud83d", r"\uD83Dx"])
def test_rows_that_spell_one_are_refused_with_their_line(tmp_path: Path, spelled: str) -> None:
    whole = '{"question": "what is 1+1? \\ud83d\\ude00", "answer": "1+1\\n#### 2"}\n'
    rows = tmp_path / "rows.jsonl"
    rows.write_text(whole + whole.replace("what", spelled))
    with pytest.raises(UserError, match=r"line 2 .*half a character"):
        list(read_rows(rows, Gsm8kRow, Silent()))
    rows.write_text(whole)
    (row,) = read_rows(rows, Gsm8kRow, Silent())
    assert row.question.endswith("😀")


def test_pools_settings_and_drafts_hold_none(tmp_path: Path) -> None:
    pool = tmp_path / "pool.jsonl"
    pool.write_text('{"index": 0, "format": "' + SPELLED + '"}\n')
    with pytest.raises(UserError, match=r"line 1 .*half a character"):
        read_pool(pool)
    with pytest.raises(UserError, match="half a character"):
        resolve(OptimaSettings, [], ["model=\ud800"])
