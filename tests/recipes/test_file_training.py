"""``coterie run sft`` and ``coterie run dpo`` on files."""

import json
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import coterie
from coterie.cli.arguments import read_arguments
from coterie.cli.report import write_report
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.progress import Silent
from coterie.recipes.file_training import mean_loss
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.runs.loop import run_stages
from coterie.runs.run import StageKey, open_run
from coterie.training.settings import TrainingSettings
from coterie.training.trainer import train
from tests.contract.test_15_chat_templates import renderer
from tests.helpers.compare_weights import assert_same_weights, weight_bounds
from tests.helpers.native_templates import make_native_tokenizer as native
from tests.helpers.published_templates import PUBLISHED
from tests.helpers.published_templates import published_tokenizer as tokenizer
from tests.helpers.read_page import chart_of, sections_of
from tests.helpers.write_rows import write_jsonl


def sums(count: int) -> list[dict]:
    rng = random.Random(0)
    pairs = {(rng.randint(1, 9), rng.randint(1, 9)) for _ in range(count)}
    return [
        {
            "messages": [
                {"role": "user", "content": f"{a}+{b}?"},
                {"role": "assistant", "content": f"It is {a + b}."},
                {"role": "user", "content": "Sure?"},
                {"role": "assistant", "content": "Yes."},
            ]
        }
        for a, b in sorted(pairs)
    ]


def trained(folder: Path, rows: list[dict], name: str, *overrides: str):
    """Run a recipe on rows. Return it, its measures by policy, and the sections of its report."""
    source = write_jsonl(folder / "rows.jsonl", *rows)
    own = settings(name, [f"dataset.source={source}", "model=tiny-exchange", *overrides])
    recipe = recipe_of(own)
    recipe.plan()
    with open_run(folder / name, name, own) as run:
        run_stages(recipe, run, Silent())
        sections = sections_of(write_report(run.folder))
        measures = [run.metrics(StageKey(version, "measure")) for version in (0, 1)]
    recipe.close()
    return recipe, measures, sections


def test_the_interval_of_a_loss_per_token_resamples_whole_rows() -> None:
    """Rows of 1 and of 9 tokens have losses of 1 and 2 per token: the ends are those of the rows."""
    measured = mean_loss([1.0, 18.0], [1, 9])
    assert measured == {"loss": 1.9, "loss_low": 1.0, "loss_high": 2.0}
    low, high = (
        mean_loss([1.0, 3.0] * 200, [1, 1] * 200)[f"loss_{end}"] for end in ("low", "high")
    )
    assert (low, high) == pytest.approx((2 - 1.96 / 20, 2 + 1.96 / 20), abs=0.01)


UPDATES = "Updates of policy, iteration 0"


def heldout_losses(sections):
    """Return the held-out losses of the training by step."""
    chart = chart_of(sections[UPDATES], "heldout_loss")
    (series,) = chart["series"].values()
    steps = zip(chart["steps"], series["values"], strict=True)
    return {step: loss for step, loss in steps if loss is not None}


def test_sft_lowers_the_held_out_loss_and_shows_what_it_trained(tmp_path: Path) -> None:
    overrides = ["train.learning_rate=1e-3", "train.batch_size=8", "evaluate.tasks=4"]
    chats = sums(60)
    recipe, (before, after), sections = trained(
        tmp_path, chats, "sft", *overrides, "evaluate.every=3"
    )
    assert after["loss"] < before["loss"] / 2
    assert after["loss_low"] < after["loss"] < after["loss_high"] < before["loss_low"]
    loss = chart_of(sections["metrics"], "loss")["series"]["measure"]
    assert loss["values"] == [before["loss"], after["loss"]]
    assert loss["high"] == [before["loss_high"], after["loss_high"]]
    (pieces, *_) = recipe.examples()
    assert [text for text, is_trained in pieces if is_trained] == [
        text for text, is_trained in pieces if text.startswith(("It is", " It is", "Yes", " Yes"))
    ]
    measured = heldout_losses(sections)
    assert [*measured] == [3, 5]
    assert measured[3] > measured[5] == pytest.approx(after["loss"], abs=1e-4)
    (last, *_) = recipe_of(recipe.settings.model_copy(update={"targets": "last"})).examples()
    assert [text.strip() for text, is_trained in last if is_trained] == ["Yes.<|end|>"]


@pytest.mark.parametrize(
    "objective",
    [
        (),
        ("reduction=tokens", "beta=2", "label_smoothing=0.1", "nll_coef=0.5"),
        ("kind=simpo", "reduction=tokens", "beta=2"),
        ("kind=kto",),
    ],
)
def test_dpo_prefers_held_out_replies_of_the_chosen_kind(
    tmp_path: Path, objective: tuple[str, ...]
) -> None:
    """The held-out loss is that of the trained objective, which the trainer also measures."""
    rows = [{"prompt": f"Say {n}", "chosen": f"Sure: {n}", "rejected": "No."} for n in range(60)]
    overrides = ["train.learning_rate=2e-4", "train.batch_size=8", "evaluate.tasks=4"]
    overrides += [f"objective.{pair}" for pair in objective]
    _, (before, after), sections = trained(tmp_path, rows, "dpo", *overrides)
    is_relative = "kind=simpo" not in objective
    assert (before["margin"] == 0) == is_relative and after["accuracy"] == 1
    assert not list(tmp_path.glob("dpo/**/reference.safetensors")) or is_relative
    for name in ("accuracy", "margin"):
        (series,) = chart_of(sections["metrics"], name)["series"].values()
        assert series["values"] == [before[name], after[name]]
    if not objective:
        assert before["loss_low"] == pytest.approx(before["loss"]), "all pairs are equal at first"
    (measured,) = heldout_losses(sections).values()
    assert measured == pytest.approx(after["loss"], abs=1e-4) and after["loss"] < before["loss"]


@pytest.mark.parametrize("name", ["sft", "dpo"])
def test_without_held_out_rows_all_are_trained_on_and_nothing_is_evaluated(
    name: str, tmp_path: Path
) -> None:
    rows = sums(12)
    if name == "dpo":
        rows = [{"prompt": f"Say {n}", "chosen": "Sure.", "rejected": "No."} for n in range(12)]
    source = write_jsonl(tmp_path / "rows.jsonl", *rows)
    overrides = [f"dataset.source={source}", "dataset.heldout=0", "model=tiny-exchange"]
    recipe = recipe_of(settings(name, [*overrides, "train.max_steps=1"]))
    plan = dict(recipe.plan().lines())
    assert plan["training rows"] == str(len(rows)) and plan["stages"] == "1: train"
    assert plan["evaluation"] == "none: no rows are held out (dataset.heldout=0)"
    with open_run(tmp_path / name, name, recipe.settings) as run:
        run_stages(recipe, run, Silent())
    recipe.close()
    with pytest.raises(UserError, match="holds out no rows"):
        recipe.heldout_tasks()


def test_a_last_message_that_is_not_trained_leaves_its_row_out(tmp_path: Path) -> None:
    rows = sums(20)
    rows[4]["messages"][3]["weight"] = 0
    source = write_jsonl(tmp_path / "rows.jsonl", *rows)
    own = ["model=tiny-exchange", f"dataset.source={source}", "dataset.heldout=0"]
    for targets, count, left_out in (("all", len(rows), 0), ("last", len(rows) - 1, 1)):
        recipe = recipe_of(settings("sft", [*own, f"targets={targets}"]))
        assert recipe.plan().rows == count
        assert recipe._left_out["the last message is not trained"] == left_out  # type: ignore[attr-defined]


def test_thoughts_that_the_template_does_not_show_are_counted(tmp_path: Path) -> None:
    rows = sums(20)
    rows[4]["messages"][3]["reasoning_content"] = "hm"
    own = ["model=tiny-exchange", f"dataset.source={write_jsonl(tmp_path / 'rows.jsonl', *rows)}"]
    plan = recipe_of(settings("sft", [*own, "dataset.heldout=0"])).plan()
    warning = "the chat template has no place for thoughts: 1 are left out"
    assert ("warning", warning) in plan.details


def test_pairs_that_the_template_makes_equal_are_skipped_and_counted(tmp_path: Path) -> None:
    rows = [{"prompt": f"Say {n}", "chosen": "Sure.", "rejected": "No."} for n in range(12)]
    thinking = {"role": "assistant", "content": "Sure.", "reasoning_content": "hm"}
    rows[3] |= {"chosen": [thinking], "rejected": [{"role": "assistant", "content": "Sure."}]}  # type: ignore[dict-item]
    source = write_jsonl(tmp_path / "rows.jsonl", *rows)
    own = ["model=tiny-exchange", f"dataset.source={source}", "dataset.heldout=0"]
    with pytest.raises(UserError, match="line 4: chosen and rejected are equal as the chat"):
        recipe_of(settings("dpo", own)).plan()
    plan = recipe_of(settings("dpo", [*own, "dataset.broken=skip"])).plan()
    reason = "left out: chosen and rejected are equal as the chat template shows them"
    assert plan.rows == 11 and (reason, "1") in plan.details


def test_ranks_are_not_silently_left_out_in_python(tmp_path: Path) -> None:
    own, model = TrainingSettings(processes=2), coterie.load("tiny-exchange")
    rows = coterie.rows_from_messages(model.tokenizer, sums(1)[0]["messages"])
    with pytest.raises(UserError, match="processes=2 starts ranks in a run"):
        coterie.train(model.model, rows, own, tmp_path)


def test_long_rows_are_refused_before_training_or_dropped(tmp_path: Path) -> None:
    rows = sums(20)
    rows[3]["messages"][1]["content"] = "word " * 400
    source = f"dataset.source={write_jsonl(tmp_path / 'rows.jsonl', *rows)}"
    own = ["model=tiny-exchange", source, "train.max_length=200", "evaluate.max_tokens=64"]
    with pytest.raises(UserError, match=r"1 training rows have more than 200 tokens: line 4"):
        recipe_of(settings("sft", own)).plan()
    recipe_of(settings("sft", [*own, "long_rows=drop"])).plan()


def test_a_long_preferred_reply_is_refused_whatever_the_length_of_the_other(tmp_path: Path) -> None:
    rows = [{"prompt": f"Say {n}.", "chosen": f"{n}", "rejected": "no"} for n in range(20)]
    rows[3]["chosen"] = "word " * 400
    source = f"dataset.source={write_jsonl(tmp_path / 'rows.jsonl', *rows)}"
    with pytest.raises(UserError, match=r"1 training rows have more than 200 tokens: line 4"):
        recipe_of(settings("dpo", ["model=tiny-exchange", source, "train.max_length=200"])).plan()


def test_rows_are_those_of_trl(tmp_path: Path) -> None:
    """Tokens and trained tokens of TRL's SFTTrainer (all turns) and DPOTrainer; then five steps of SFT."""
    datasets = pytest.importorskip("datasets")
    from trl import SFTConfig, SFTTrainer

    chats = sums(8)
    config = LlamaConfig(
        vocab_size=len(tokenizer("llama3")), hidden_size=32, intermediate_size=64,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
    )  # fmt: skip
    torch.manual_seed(0)
    start = LlamaForCausalLM(config).state_dict()
    models = [LlamaForCausalLM(config) for _ in range(2)]
    for model in models:
        model.load_state_dict(start)
    trainer = SFTTrainer(
        model=models[0], processing_class=deepcopy(tokenizer("llama3")),  # it sets a pad
        train_dataset=datasets.Dataset.from_list(chats),
        args=SFTConfig(
            output_dir=str(tmp_path / "trl"), assistant_only_loss=True, max_steps=5,
            per_device_train_batch_size=8, learning_rate=1e-3, lr_scheduler_type="constant",
            max_length=None, report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False,
            save_strategy="no", logging_steps=1, disable_tqdm=True, loss_type="nll",
        ),
    )  # fmt: skip
    theirs = [
        (row["input_ids"], [one != -100 for one in row["labels"]]) for row in trainer.train_dataset
    ]
    rows = [
        row
        for chat in chats
        for row in coterie.rows_from_messages(renderer("llama3"), chat["messages"])
    ]
    for row, (ids, mask) in zip(rows, theirs, strict=True):
        assert list(row.ids) == ids
        assert row.mask == mask
    trainer.train()
    losses = [one["loss"] for one in trainer.state.log_history if "loss" in one]
    own = TrainingSettings(
        learning_rate=1e-3, schedule="constant", warmup_ratio=0.0, batch_size=8, epochs=5,
        packing="flat", mixed_precision="no", save_every_seconds=None,
    )  # fmt: skip
    with weight_bounds(models[1]) as bounds:
        train(models[1], rows, own, tmp_path / "ours")
    steps = (tmp_path / "ours" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(one)["loss"] for one in steps] == pytest.approx(losses, abs=1e-3)
    assert_same_weights(*(dict(model.named_parameters()) for model in models), bounds)


def test_pairs_are_those_of_trl() -> None:
    from trl.data_utils import apply_chat_template

    prompt_messages = [{"role": "user", "content": "2+2?"}]
    sides = [[{"role": "assistant", "content": text}] for text in ("4", "It is five.")]
    pair = coterie.pairs_from_messages(renderer("llama3"), prompt_messages, *sides)
    texts = apply_chat_template(
        {"prompt": prompt_messages, "chosen": sides[0], "rejected": sides[1]}, tokenizer("llama3")
    )
    own = tokenizer("llama3")
    prompt = own(texts["prompt"], add_special_tokens=False)["input_ids"]
    for side, name in ((pair.chosen, "chosen"), (pair.rejected, "rejected")):
        (row,) = side
        reply = own(texts[name], add_special_tokens=False)["input_ids"]
        assert list(row.ids) == prompt + reply
        assert row.mask == [False] * len(prompt) + [True] * len(reply)


CALLED = [
    {"role": "user", "content": "2+2?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": name, "function": {"name": name, "arguments": {"a": 2}}}
            for name in ("plus", "times")
        ],
    },
    {"role": "tool", "tool_call_id": "times", "content": "RES2"},
    {"role": "tool", "tool_call_id": "plus", "content": "RES1"},
    {"role": "assistant", "content": "Four."},
]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "Adds.", "parameters": SCHEMA}}
    for name in ("plus", "times")
]


@pytest.mark.parametrize("name", PUBLISHED)
def test_all_calls_are_trained_with_their_ends_or_the_row_is_refused(name: str) -> None:
    own = renderer(name)
    for chat in (CALLED, [*CALLED[:1], {**CALLED[1], "reasoning_content": "plan"}, *CALLED[2:]]):
        try:
            rows = coterie.rows_from_messages(own, chat, tools=TOOLS)
        except UserError:
            continue
        targets = [row.ids[t.start : t.stop] for row in rows for t in row.targets]
        called, reply = map(own.decode, targets)
        assert "plus" in called and "times" in called and "Four." in reply
        assert all(ids[-1] in own.end_ids for ids in targets)
        assert "plan" in called or chat is CALLED or own.template.thoughts is None
        context = own.decode(rows[-1].ids)
        assert context.index("RES1") < context.index("RES2")


INTEGER = {"type": "integer"}
ONE_ARGUMENT = {**TOOLS[0]["function"], "name": "double"}  # type: ignore[dict-item]
TWO_ARGUMENTS = {
    "name": "plus",
    "parameters": {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}},
}


def called(name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": name, "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("calls", "texts"),
    [
        ([called("double", a=2)], ["<double>2</double>"]),
        ([called("double", a=" x\n")], ["<double> x\n</double>"]),
        ([called("plus", a=1, b=2)], ['<plus>{"a": 1, "b": 2}</plus>']),
        ([called("plus", a=1, b=2), called("double", a=3)], ['<plus>{"a": 1, "b": 2}</plus>', "<double>3</double>"]),
        ([called("double", a="</double>")], "cannot be written as a tag"),
        ([called("double", a="<plus>1</plus>")], "cannot be written as a tag"),
        ([called("double", a=1, b=2)], "cannot be written as a tag"),
        ([called("other", a=1)], "cannot be written as a tag"),
    ],
)  # fmt: skip
def test_calls_become_tags_that_are_read_back(calls: list[Any], texts: Any, tmp_path: Path) -> None:
    """One after the other, each with its result; also on both sides of a preference and before it."""
    user = {"role": "user", "content": "Do it."}
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": call["id"].upper()}
        for call in calls[::-1]
    ]
    chat = [user, {"role": "assistant", "content": "", "tool_calls": calls}, *results]
    said = [{"role": "assistant", "content": text} for text in ("Done.", "No.")]
    tools = [{"type": "function", "function": one} for one in (ONE_ARGUMENT, TWO_ARGUMENTS)]
    rows = {
        "sft": {"messages": [*chat, said[0]]},
        "dpo": {"prompt": [user], "chosen": [*chat[1:], said[0]], "rejected": [*chat[1:], said[1]]},
        "dpo on the last reply": {"prompt": chat, "chosen": [said[0]], "rejected": [said[1]]},
    }
    rows["dpo on the last reply"]["prompt"] = [*chat, said[0], user]
    for name, row in rows.items():
        file = write_jsonl(tmp_path / f"{name}.jsonl", {**row, "tools": tools})
        overrides = [f"dataset.source={file}", "dataset.heldout=0", "model=tiny-acts"]
        recipe = recipe_of(settings(name.partition(" ")[0], [*overrides, "tools.calls=tags"]))
        if isinstance(texts, str):
            with pytest.raises(UserError, match=f"line 1: the call .* {texts}"):
                recipe.environment.rows("train")
            continue
        (shown,) = recipe.environment.rows("train")
        expected = ["Do it."]
        for call, text in zip(calls, texts, strict=True):
            expected += [text, f"<observation>\n{call['id'].upper()}\n</observation>"]
        more = ["Done.", "Do it.", "Done."] if "last" in name else ["Done."]
        assert [one.content for one in shown.messages][1:] == [*expected, *more]
        assert shown.messages[0].role == "system" and not shown.tools
        if name != "sft":
            assert (
                shown.rejected[-1].content == "No."
                and shown.messages[shown.start - 1].content == "Do it."
            )
        (item,) = recipe.training_items  # the template of tiny-acts shows no tools
        trained = sum(len(row.targets) for row in recipe.rows_of(item))
        assert trained == {"sft": len(calls) + 1, "dpo": 2 * len(calls) + 2}.get(name, 2)
        with pytest.raises(UserError, match=r"tools\.calls=tags"):
            recipe_of(settings(name.partition(" ")[0], overrides)).training_items  # noqa: B018


@pytest.mark.parametrize("name", ["opens", "minimax"])
def test_a_call_without_a_thought_closes_the_thought_that_its_prompt_opens(name: str) -> None:
    own = ChatRenderer(native(name))
    called = {**CALLED[1], "tool_calls": CALLED[1]["tool_calls"][:1]}
    (row,) = coterie.rows_from_messages(own, [CALLED[0], called], tools=TOOLS)
    (target,) = row.targets
    prompt, text = own.decode(row.ids[: target.start]), own.decode(row.ids[target.start :])
    assert prompt.endswith("<think>\n") and text.startswith("\n</think>\n\n")
    assert own.calls(text, "end", [])[0].name == "plus" and row.ids[-1] in own.end_ids


@pytest.mark.parametrize(
    "name", ["qwen2_5", "qwen3", "llama3_1", "nemotron_3_nano", "qwen3_5_think"]
)
def test_a_tool_dialogue_is_shown_as_the_template_writes_it(name: str) -> None:
    own = renderer(name)
    called = {**CALLED[1], "tool_calls": CALLED[1]["tool_calls"][:1]}
    if name.startswith(("nemotron", "qwen3_5")):
        called["reasoning_content"] = "Sum."
    chat = [CALLED[0], called, *CALLED[3:]]
    row = coterie.rows_from_messages(own, chat, tools=TOOLS)[-1]
    text = own.tokenizer.apply_chat_template(chat, tools=TOOLS, tokenize=False)
    assert own.decode(row.ids).replace("\n</think>Four", "</think>Four").split() == text.split()


def test_sets_of_the_catalogue_are_trained_on_as_question_and_solution() -> None:
    own = ["model=tiny-exchange", "dataset.source=sample", "train.max_length=1000"]
    recipe = recipe_of(settings("sft", ["dataset=gsm8k", *own]))
    assert recipe.plan().rows > 40
    ((_, is_prompt_trained), (reply, is_reply_trained), *_) = recipe.examples()[0]
    assert not is_prompt_trained and is_reply_trained and "\n#### " in reply
    assert recipe.heldout_tasks()[0].public["question"]


@pytest.mark.parametrize(
    ("recipe", "word", "setting"),
    [
        ("sft", "gsm8k", "dataset=gsm8k"),
        ("dpo", "HuggingFaceH4/ultrafeedback_binarized", "dataset.source=HuggingFaceH4/ultrafeedback_binarized"),
        ("dpo", "owner/name:main:train", "dataset.source=owner/name:main:train"),
        ("sft", "dataset=chats.jsonl", "dataset.source=chats.jsonl"),
        ("optima/isft", "owner/name", "dataset=qa dataset.source=owner/name"),
        ("rl/grpo", "gsm8k", "dataset=gsm8k"),
        ("rl/grpo", "qa.jsonl", "dataset=qa dataset.source=qa.jsonl"),
        ("rl/grpo", "environment=question qa.csv", "environment=question dataset=qa dataset.source=qa.csv"),
        ("rl/grpo", "gsm8k published.jsonl", "dataset=gsm8k dataset.source=published.jsonl"),
        ("rl/grpo", "published.jsonl dataset=math", "dataset.source=published.jsonl dataset=math"),
        ("optima/isft", "lr=a/b", "lr=a/b"),
    ],
)  # fmt: skip
def test_a_bare_word_names_the_data(recipe: str, word: str, setting: str) -> None:
    assert read_arguments(recipe, word.split(), None).overrides == setting.split()


def test_a_file_of_settings_names_a_file_of_rows(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("recipe: sft\ndataset: chats.jsonl\nseed: 5\n")
    own = read_arguments(None, ["model=tiny-acts"], tmp_path / "mine.yaml").resolve()
    assert (own.dataset.name, own.dataset.source, own.seed) == ("conversations", "chats.jsonl", 5)  # type: ignore[union-attr]
