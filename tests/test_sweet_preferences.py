"""SWEET-RL's policy preferences into a run: what is read, what is refused, and that the policy trains on them.

The rows here are our own words in the shape that the released code writes.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from coterie.environments.coding import AGENT
from coterie.environments.user_simulator import PERSON
from coterie.models.chat import ChatRenderer
from coterie.models.loading import load_renderer
from coterie.progress import Silent
from coterie.recipes.sweet_rl.files.exporting import export_run
from coterie.recipes.sweet_rl.files.preferences import compared
from coterie.recipes.sweet_rl.files.records import PreferenceRow
from coterie.recipes.sweet_rl.files.rendered import CHATML, LLAMA, Form, RenderedChat, form_of
from coterie.rollout.candidates import candidates
from coterie.runs.folder import Step, open_run
from coterie.runs.loop import run_steps
from coterie.trajectories.selection import Selection
from coterie.trajectories.view import prompts
from tests.conftest import Cli, once
from tests.test_sweet_import import TINY, made, opened, put_in, wrote

WORDS = once(*TINY, "model=tiny-persona", "policy.train.max_steps=1")
SYSTEM, ASKED, ANSWERED, AGAIN = "Work with me.", "Apples?\nMany.", "How many in a box?", "Twelve."
CHAT = RenderedChat(SYSTEM, (ASKED, ANSWERED, AGAIN))
GOOD, BAD = "OUTPUT: So 12 each.", "Pears?"


def llama(*said: str, system: str = SYSTEM) -> str:
    """A prompt as Llama-3.1's template writes it."""
    roles = ["system", *["user", "assistant"] * len(said)]
    dated = f"Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n{system}"
    texts = zip(roles, (dated, *said, None), strict=False)
    shown = (
        f"<|start_header_id|>{role}<|end_header_id|>\n\n"
        + ("" if text is None else f"{text}<|eot_id|>")
        for role, text in texts
    )
    return "<|begin_of_text|>" + "".join(shown)


def chatml(*said: str) -> str:
    roles = ["user", "assistant"] * len(said)
    shown = "".join(f"<|im_start|>{r}\n{t}<|im_end|>\n" for r, t in zip(roles, said, strict=False))
    return f"{shown}<|im_start|>assistant\n"


PROMPT = llama(*CHAT.said)
PAIR = {"prompt": PROMPT, "chosen": GOOD, "rejected": BAD}


def row(**fields: Any) -> PreferenceRow:
    return PreferenceRow.model_validate(fields)


@pytest.mark.parametrize(
    ("fields", "system"),
    [
        (PAIR, SYSTEM),
        (PAIR | {"prompt": f"<|begin_of_text|>{PROMPT}"}, SYSTEM),
        (PAIR | {"chosen": f"{GOOD}<|eot_id|>"}, SYSTEM),
        (PAIR | {"prompt": llama(*CHAT.said, system="")}, ""),
        ({"chosen": f"{PROMPT}{GOOD}<|eot_id|>", "rejected": f"{PROMPT}{BAD}<|eot_id|>"}, SYSTEM),
        (
            {
                "chosen": {"input": PROMPT, "output": GOOD},
                "rejected": {"input": PROMPT, "output": BAD},
            },
            SYSTEM,
        ),
        (PAIR | {"prompt": chatml(*CHAT.said), "chosen": f"{GOOD}<|im_end|>\n"}, ""),
    ],
)
def test_rows_of_every_kind_are_read(fields: dict[str, Any], system: str) -> None:
    found = compared(row(**fields), [LLAMA, CHATML])
    assert found.chat == RenderedChat(system, CHAT.said)
    assert (found.chosen, found.rejected) == (GOOD, BAD)


def test_the_form_of_a_model_is_that_of_its_template() -> None:
    renderer, _ = load_renderer("tiny-persona")
    form = form_of(renderer)
    assert form is not None
    text = "<|system|>Work with me.<|end|><|user|>Apples?<|end|><|assistant|>"
    assert form.chat(text) == RenderedChat("Work with me.", ("Apples?",))
    assert form.chat("<|user|>Apples?<|end|><|assistant|>") == RenderedChat("", ("Apples?",))
    assert form.split(f"{text}Yes.<|end|>") == (text, "Yes.<|end|>")
    assert form.turn("Yes.<|end|>") == "Yes." and form.chat(PROMPT) is None


HEADERS = (
    "{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' }}"
    "{% if m['role'] == 'system' %}{{ 'Cutting Knowledge Date: May\nToday Date: 3 June\n\n' }}{% endif %}"
    "{{ m['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)
FOLDED = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ '[INST]' + m['content'] + '\n\n' }}"
    "{% elif m['role'] == 'assistant' %}{{ m['content'] + '</s>' }}"
    "{% else %}{{ ('' if loop.index == 2 and messages[0]['role'] == 'system' else '[INST]') }}"
    "{{ m['content'] + '[/INST]' }}{% endif %}{% endfor %}"
)
DEFAULT = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nHelp.<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{{ '<|im_start|>assistant\n' }}"
)


def test_templates_of_other_models_are_probed() -> None:
    tokenizer = load_renderer("tiny-persona")[0].tokenizer

    def form(template: str) -> Form | None:
        tokenizer.chat_template = template
        return form_of(ChatRenderer(tokenizer))

    dated, default = form(HEADERS), form(DEFAULT)
    assert dated is not None and default is not None
    assert dated.chat(PROMPT) is None, "other dates"
    assert compared(row(**PAIR), [dated, LLAMA]).chat == CHAT
    own = PROMPT.replace("December 2023", "May").replace("26 Jul 2024", "3 June")
    assert dated.chat(own) == CHAT
    help_ = "<|im_start|>system\nHelp.<|im_end|>\n"
    assert default.chat(help_ + chatml(ASKED)) == RenderedChat("Help.", (ASKED,))
    folded = FOLDED.replace("'[INST]'", "'<|user|>'")
    assert form(FOLDED) is None and form(folded) is None, (
        "where the system prompt ends can't be told"
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (PAIR | {"chosen": BAD}, "line 2: chosen and rejected are equal"),
        (PAIR | {"chosen": f"{BAD}<|eot_id|>"}, "line 2: chosen and rejected are equal"),
        (PAIR | {"prompt": "Apples?"}, "line 2: its prompt is not a chat"),
        (PAIR | {"prompt": llama(ASKED, ANSWERED)}, "line 2: its prompt is not a chat"),
        (PAIR | {"prompt": PROMPT + GOOD}, "line 2: its prompt is not a chat"),
        (PAIR | {"prompt": f"The final answer is: 12.{PROMPT}"}, "import the file of trajectories"),
        (
            PAIR | {"prompt": llama(ASKED, system=f"{SYSTEM}\nReference:\ndef f(): 1")},
            "line 2: its system prompt shows the reference",
        ),
        (
            {"chosen": PROMPT + GOOD, "rejected": llama(ASKED) + BAD},
            "line 2: its sides come after different prompts",
        ),
        ({"prompt": PROMPT, "chosen": GOOD}, "line 2: rejected"),
        ("{", "line 2: not JSON"),
    ],
)
def test_a_broken_line_is_named_and_nothing_is_made(
    cli: Cli, tmp_path: Path, fields: Any, said: str
) -> None:
    second = fields if isinstance(fields, str) else json.dumps(fields)
    (tmp_path / "pairs.jsonl").write_text(f"{json.dumps(PAIR)}\n{second}\n")
    found = cli("import", "sweet_rl", "pairs.jsonl", "--preferences", "--folder", "run", *WORDS)
    assert found.code == 2 and said in found.err, found.err
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.jsonl"]


@pytest.mark.parametrize(
    ("rows", "words", "said"),
    [
        ([], (), "no pair that could be trained on"),
        ([PAIR], ("--repeats", "3"), "leave out --repeats"),
        ([PAIR], ("method=multi_turn_dpo",), "leave out the method"),
        ([PAIR], ("environment=persona",), "environment=persona makes its own tasks"),
        ([PAIR], ("--folder", "."), "exists"),
    ],
)
def test_what_cannot_work_is_refused(
    cli: Cli, tmp_path: Path, rows: Sequence[Any], words: tuple[str, ...], said: str
) -> None:
    wrote(tmp_path / "pairs.jsonl", rows)
    told = (*WORDS, *words) if words[:1] == ("--folder",) else once(*WORDS, *words)
    found = cli("import", "sweet_rl", "pairs.jsonl", "--preferences", "--folder", "run", *told)
    assert found.code == 2 and said in found.err, found.err
    assert not (tmp_path / "run").exists()


def test_the_policy_trains_on_imported_pairs(cli: Cli, tmp_path: Path) -> None:
    held_out = made().environment.tasks("heldout", 10**6, 0)[-1].public["question"]
    rows = [PAIR, PAIR | {"prompt": llama(ASKED)}, PAIR | {"prompt": llama(str(held_out))}]
    wrote(tmp_path / "pairs.jsonl", rows)
    said = cli("import", "sweet_rl", "pairs.jsonl", "--preferences", "--folder", "run", *WORDS)
    assert said.code == 0 and "pairs: 2" in said.err and "held out in this run: 1" in said.err
    assert "coterie train run --iteration 1" in said.err
    said = cli("train", "run", "--iteration", "1")
    assert said.code == 0 and "rows=2" in said.out and "steps=1" in said.out, said
    assert cli("report", "run").code == 0
    assert "has no dialogues" in cli("export", "sweet_rl", "run", "--out", "files").err
    renderer, _ = load_renderer("tiny-persona")
    with opened(tmp_path / "run", *WORDS, "rollout.tasks=1000", "rollout.repeats=3") as (
        recipe,
        run,
    ):
        left = [step for step in recipe.steps() if not run.is_finished(step)]
        assert left == [Step(0, "evaluate"), Step(2, "evaluate")]
        (task, first), (_, second) = run.store.selections(1, "select")
        assert run.store.task(task).public == {"question": ASKED}
        assert not run.store.task(task).secrets
        tree = run.store.tree(1, "rollout", task)
        assert [turn.speaker.name for turn in tree.path(first.leaf)] == [PERSON, AGENT] * 2
        assert {turn.writer for turn in tree.turns.values()} == {"import:pairs.jsonl"}
        ((prompt, turn),) = prompts(tree, first.leaf, AGENT)
        assert renderer.decode(prompt) == (
            f"<|system|>{SYSTEM}<|end|><|user|>{ASKED}<|end|><|assistant|>{ANSWERED}<|end|>"
            f"<|user|>{AGAIN}<|end|><|assistant|>"
        )
        assert turn.text == GOOD and first.rejected is not None
        assert tree.turns[first.rejected].text == BAD and second.leaf != first.leaf


def test_pairs_of_our_own_go_out_and_come_back(cli: Cli, tmp_path: Path) -> None:
    """The same texts; the same ids, where the model had sampled those that the text is tokenised to."""
    words = ("model=tiny-persona", "candidates.count=2", "candidates.share=1")
    put_in(wrote(tmp_path / "theirs.jsonl"), tmp_path / "run", *words)
    renderer, _ = load_renderer("tiny-persona")
    expected = []
    with opened(tmp_path / "run", *words) as (recipe, run):
        run_steps(recipe, run, Silent(), [Step(1, "rollout")])
        chosen = []
        for tree in run.store.trees(1, "rollout"):
            for better, worse in candidates(tree):
                if better.text != worse.text:
                    chosen.append(Selection(better.id, AGENT, rejected=worse.id))
                    sides = [prompts(tree, one.id, AGENT)[-1] for one in (better, worse)]
                    expected.append([(ids, turn.ids, turn.text) for ids, turn in sides])
        run.store.select(1, "select", chosen)
        select = Step(1, "select")
        run.begin(select, recipe.fingerprint(select))
        run.finish(select, recipe.fingerprint(select), {"selected": len(chosen), "seconds": 0.0})
        file = export_run(recipe, run, tmp_path / "files").files[-1]
    said = cli("import", "sweet_rl", file, "--preferences", "--folder", "back", *WORDS)
    assert said.code == 0, said.err
    whole = 0
    recipe = made(*WORDS)
    with open_run(tmp_path / "back", recipe.name, recipe.settings) as run:
        pairs = run.store.selections(1, "select")
        assert len(pairs) == len(expected) > 2
        for (task, pair), sides in zip(pairs, expected, strict=True):
            tree = run.store.tree(1, "rollout", task)
            for leaf, (prompt, ids, text) in zip((pair.leaf, pair.rejected), sides, strict=True):
                ((shown, turn),) = prompts(tree, str(leaf), AGENT)
                assert shown == prompt and turn.text == text
                if ids == renderer.written(text):
                    assert turn.ids == ids
                    whole += 1
    assert whole
