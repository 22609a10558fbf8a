"""Files in published forms: what is shown, what is trained, what is not used, and what is refused."""

import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from coterie.datasets.conversations import Conversations, Preferences
from coterie.datasets.load import UNUSED
from coterie.datasets.question_files import FileSettings
from coterie.environments.protocol import State
from coterie.environments.registry import TaskSettings, make_environment
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.recipes.file_training import DPOOnFile
from coterie.record.rows import Row
from coterie.runs.benchmark import benchmark_settings
from coterie.training.chat_rows import conversation_rows
from tests.helpers.published_forms import FORMS, Form, numbered
from tests.helpers.published_templates import published_tokenizer
from tests.helpers.template_models import make_tokenizer


def names(kind: str) -> list[Any]:
    return [pytest.param(form, id=form.origin) for form in FORMS if getattr(form, kind)]


def renderer(form: Form) -> ChatRenderer:
    return ChatRenderer(
        make_tokenizer("chatml")
        if form.template == "chatml"
        else published_tokenizer(form.template)
    )


def shown(own: ChatRenderer, row: Row) -> str:
    """Return the messages of a row, with its trained texts in brackets."""
    text, position = "", 0
    for target in row.targets:
        trained = own.decode(row.ids[target.start : target.stop]).removesuffix("<|im_end|>")
        text += f"{own.decode(row.ids[position : target.start])}[{trained}]<|im_end|>"
        position = target.stop
    text += own.decode(row.ids[position:])
    return re.sub(r"<\|im_start\|>(\w+)\n", r"\1: ", text.replace("<|im_end|>\n", " ")).replace(
        "<|im_end|>", ""
    )


def trained(own: ChatRenderer, rows: list[Row]) -> str:
    texts = [
        own.decode(row.ids[target.start : target.stop]) for row in rows for target in row.targets
    ]
    return "trained: " + "|".join(text.removesuffix("<|im_end|>").strip() for text in texts)


def settings(form: Form, folder: Path) -> FileSettings:
    ignored = [key.partition("=")[2].strip("[]").split(",") for key in form.keys]
    return FileSettings(name="x", source=str(form.write(folder)), ignore=tuple(*ignored))


def expected(pattern: str, number: int) -> str:
    """Return a pattern as a regular expression; ``*`` are options in any order."""
    return re.escape(numbered(pattern, number)).replace(r"\*", r"[abc]\d \| [abc]\d \| [abc]\d")


def check_refusal(reason: str, call: Any) -> None:
    with pytest.raises(UserError, match=reason.removeprefix("refused: ")):
        call()


@pytest.mark.parametrize("form", names("sft"))
def test_conversations_train_what_their_form_means(form: Form, tmp_path: Path) -> None:
    files, own = Conversations(settings(form, tmp_path)), renderer(form)
    if form.sft.startswith("refused"):
        return check_refusal(form.sft, lambda: files.rows("train"))
    rows = {split: files.rows(split) for split in ("train", "heldout")}
    assert list(map(len, rows.values())) == [9, 1]
    shown_rows = []
    for row in chain(*rows.values()):
        training_rows = conversation_rows(own, row)
        whole = (
            trained if form.sft.startswith("trained") else lambda own, rows: shown(own, rows[-1])
        )
        shown_rows.append((int(re.findall(r"\d+", row.origin)[-1]), whole(own, training_rows)))
    for number, (_, text) in enumerate(sorted(shown_rows)):
        assert re.fullmatch(expected(form.sft, number), text), text
    if not form.dpo:
        assert dict(files.notes).get(UNUSED, "") == form.unused


@pytest.mark.parametrize("form", names("dpo"))
def test_preferences_train_what_their_form_means(form: Form, tmp_path: Path) -> None:
    files, own = Preferences(settings(form, tmp_path)), renderer(form)

    def pairs() -> list[Any]:
        rows = files.rows("train") + files.rows("heldout")
        made = [pair for row in rows for pair in DPOOnFile.items_of(None, own, row)]  # type: ignore[arg-type]
        return sorted(made, key=lambda pair: int(re.findall(r"\d+", pair.chosen[0].origin)[-1]))

    if isinstance(form.dpo, str):
        return check_refusal(form.dpo, pairs)
    assert [len(files.rows(split)) for split in ("train", "heldout")] == [9, 1]
    for number, pair in enumerate(pairs()):
        texts = tuple(shown(own, side[-1]) for side in (pair.chosen, pair.rejected))
        assert texts == tuple(numbered(side, number) for side in form.dpo)
    assert dict(files.notes).get(UNUSED, "") == form.unused
    assert ("prompts that both sides repeat" in dict(files.notes)) == ("\n" in form.dpo[0])


@pytest.mark.parametrize("form", names("rl"))
def test_questions_show_and_grade_what_their_form_means(form: Form, tmp_path: Path) -> None:
    overrides = [
        f"dataset={form.write(tmp_path)}",
        "environment.prompt={question}",
        *(f"dataset.{key}" for key in form.keys),
    ]
    game = make_environment(benchmark_settings(TaskSettings, "question", overrides))
    if form.rl.startswith("refused"):
        return check_refusal(form.rl, lambda: game.tasks("train", 10, 0))
    tasks = [game.tasks(split, 8 if split == "train" else 2, 0) for split in ("train", "heldout")]
    assert list(map(len, tasks)) == [8, 2]
    rows = []
    for task in chain(*tasks):
        messages = game.observe(State(task, 0), "agent")
        text = " ".join(
            f"{one.role}: {''.join(part.text for part in one.parts)}" for one in messages
        )
        item = game._items[task.id]  # type: ignore[attr-defined]
        rows.append(
            (int(re.findall(r"\d+", item.where)[-1]), f"{text} => {'|'.join(item.answers)}")
        )
    for number, (_, text) in enumerate(sorted(rows)):
        assert re.fullmatch(expected(form.rl, number), text), text
    assert dict(game.notes).get(UNUSED, "") == form.unused  # type: ignore[attr-defined]
