"""DensePolicy's files into a run and out of one, and outside pairs beside them in training.

Nothing of the original's data is public: the files here are our own words in the forms that its code writes.
"""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from coterie.datasets.preferences import PreferenceRow
from coterie.errors import UserError
from coterie.models.loading import load_renderer
from coterie.progress import Silent
from coterie.recipes.dense_tree.files.exporting import export_run
from coterie.recipes.dense_tree.files.importing import ImportedPairs, import_pairs
from coterie.recipes.dense_tree.files.records import read_pairs
from coterie.recipes.dense_tree.recipe import DenseTree
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.runs.folder import Step, open_run
from coterie.runs.loop import run_steps
from coterie.runs.selected import selected
from tests.conftest import Cli, once, refused
from tests.row_files import jsonl
from tests.test_preference_sets import interaction, ours, prepared

pytestmark = pytest.mark.usefixtures("own_home")

TINY = (
    "model=tiny-problems", "dataset.source=sample", "engine.device=cpu", "train.max_steps=1", "train.batch_rows=4",
    "train.learning_rate=1e-3", "rollout.max_tokens=32", "evaluate.tasks=2", "environment.shots=0",
    "train.max_length=1024",
)  # fmt: skip
TRAIN, SELECT = Step(0, "train"), Step(0, "select")
ASKED = "Solve it.\nYou should perform actions to accomplish the goal: {}"


def told(goal: str, *said: str) -> list[dict[str, str]]:
    """A history in the original's form; the agent speaks second."""
    roles = ["user", "assistant"] * (1 + len(said))
    texts = (ASKED.format(goal), *said)
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]


def pair(
    data_id: int, goal: str, before: Sequence[str], better: str, worse: str, **change: Any
) -> dict[str, Any]:
    """A row of the original's CSV; its code writes histories as Python does."""
    row: dict[str, Any] = {
        "data_id": data_id, "cur_data_max_length": 8, "input": goal, "target": "5", "contrast_step": len(before) // 2,
    }  # fmt: skip
    for side, text, value in (("positive", better, 0.9), ("negative", worse, 0.2)):
        row |= {
            f"{side}_score": int(side == "positive"), f"{side}_run_index": (0, 1),
            f"{side}_history": told(goal, *before, text), f"{side}_visit_number": 8,
            f"{side}_value": value, f"{side}_avg_depth": 2.5,
        }  # fmt: skip
    return {**row, "selected": True, **change}


STEP = ("Thought: add.\nAction:\nprint(2 + 3)\nEnd Action", "5")
SEVEN = 'What is "7" and 1?'
ROWS = [
    pair(4, "What is 2 and 3?", (), f" {STEP[0]}\n", "Answer: 6"),
    pair(4, "What is 2 and 3?", STEP, "Answer: 5", "Answer: it's\n6"),
    pair(4, "What is 2 and 3?", STEP, "Answer: 5", "Answer: 7"),
    pair(
        7,
        SEVEN,
        (),
        "Answer: 8",
        "Answer: 9",
        positive_history=told(SEVEN, "Answer: 8", "Sure?", "Answer: 10"),
    ),
    pair(9, "What is 1 and 1?", (), "Answer: 2", "Answer: 3", selected=False),
]


def their_csv(file: Path, rows: Sequence[dict[str, Any]] = ROWS) -> Path:
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
    return file


THEIR_JSON = [
    {"history": [[ASKED.format("a?"), "Action:\n1\nEnd Action"]], "instruction": "1", "input": "",
     "chosen": "Answer: 1", "rejected": "Answer: 2"},
    {"history": [], "instruction": ASKED.format("b?"), "input": "", "chosen": "Answer: 3", "rejected": "Answer: 4"},
]  # fmt: skip


def their_json(file: Path, rows: Sequence[Any] = THEIR_JSON) -> Path:
    file.write_text(json.dumps(rows))
    return file


def made(*words: str, method: str = "dense_tree/gsm8k") -> DenseTree:
    found = recipe_of(settings(method, once(*TINY, *words)))
    assert isinstance(found, DenseTree)
    return found


def imported(path: Path, folder: Path, *words: str) -> tuple[DenseTree, ImportedPairs]:
    recipe = made(*words)
    return recipe, import_pairs(path, recipe, folder, Silent())


def compared(recipe: DenseTree, folder: Path) -> list[tuple[str, str, str]]:
    """(prompt, chosen, rejected) of the pairs that a run trains on, as text."""
    renderer, _ = load_renderer("tiny-problems")
    found = []
    with open_run(folder, recipe.name, recipe.settings, write=False) as run:
        for one in recipe.train_pairs(run, 0):
            (chosen,), (rejected,) = one.chosen, one.rejected
            start = chosen.targets[0].start
            assert chosen.ids[:start] == rejected.ids[:start]
            assert [len(side.targets) for side in (chosen, rejected)] == [1, 1]
            texts = (chosen.ids[:start], chosen.ids[start:], rejected.ids[start:])
            found.append(tuple(renderer.decode(ids) for ids in texts))
    return found  # type: ignore[return-value]


def chat(*said: str) -> str:
    shown = (f"<|{'assistant' if n % 2 else 'user'}|>{text}<|end|>" for n, text in enumerate(said))
    return f"{''.join(shown)}<|assistant|>"


# -- into a run -------------------------------------------------------------------------------


def test_selected_pairs_of_a_csv_are_what_a_run_trains_on(tmp_path: Path) -> None:
    file, folder = their_csv(tmp_path / "x_tree_pairs_result.csv"), tmp_path / "run"
    recipe, done = imported(file, folder)
    assert (done.pairs, done.tasks, done.not_selected, done.held_out) == (4, 2, 1, 0)
    asked, other = ASKED.format("What is 2 and 3?"), ASKED.format(SEVEN)
    assert compared(recipe, folder) == [
        (chat(asked), f"{STEP[0]}<|end|>", "Answer: 6<|end|>"),
        (chat(asked, *STEP), "Answer: 5<|end|>", "Answer: it's\n6<|end|>"),
        (chat(asked, *STEP), "Answer: 5<|end|>", "Answer: 7<|end|>"),
        (chat(other), "Answer: 8<|end|>", "Answer: 9<|end|>"),
    ]
    with open_run(folder, recipe.name, recipe.settings, write=False) as run:
        trees = list(run.store.trees(0, "rollout"))
        assert sorted(len(tree.turns) for tree in trees) == [3, 7], "turns that are equal are one"
        found = list(recipe.train_pairs(run, 0))
        assert [one.group for one in found] == [trees[0].task] * 3 + [trees[1].task]
        writers = {row.targets[0].writer for one in found for row in (*one.chosen, *one.rejected)}
        assert writers == {f"import:{file.name}"}


def test_a_training_json_is_read_with_its_history(tmp_path: Path) -> None:
    recipe, done = imported(their_json(tmp_path / "a.json"), tmp_path / "run")
    assert (done.pairs, done.tasks) == (2, 2)
    assert compared(recipe, tmp_path / "run") == [
        (
            chat(ASKED.format("a?"), "Action:\n1\nEnd Action", "1"),
            "Answer: 1<|end|>",
            "Answer: 2<|end|>",
        ),
        (chat(ASKED.format("b?")), "Answer: 3<|end|>", "Answer: 4<|end|>"),
    ]


def test_the_command_makes_a_run_that_goes_on_with_training(cli: Cli, tmp_path: Path) -> None:
    file = their_csv(tmp_path / "a.csv")
    words = ("--folder", "theirs", "--recipe", "dense_tree/gsm8k", *TINY)
    done = cli("import", "dense_tree", str(file), *words)
    assert done.code == 0, done.err
    assert "pairs: 4, tasks: 2" in done.err and "not selected in the file: 1" in done.err
    trained = cli("train", "theirs")
    assert trained.code == 0, trained.err
    recipe = made()
    with open_run(Path("theirs"), recipe.name, recipe.settings, write=False) as run:
        metrics = run.metrics(TRAIN)
        assert (metrics["rows"], metrics["tree_pairs"], metrics["steps"]) == (4, 4, 1)
        before = load_weights(recipe.load_policy(run, 0).model)
        after = load_weights(recipe.load_policy(run, 1).model)
        assert any((before[name] != after[name]).any() for name in before)
        recipe.close()
    out = cli("export", "dense_tree", "theirs", "--out", "files")
    assert out.code == 0 and len(out.out.split()) == 3 and "pairs: 4" in out.err
    assert "exists already" in refused(cli, "export", "dense_tree", "theirs", "--out", "files")
    assert cli("report", "theirs").code == 0


def load_weights(model: Any) -> dict[str, Any]:
    return {name: weight.clone() for name, weight in model.named_parameters()}


def test_pairs_of_held_out_tasks_are_left_out(tmp_path: Path) -> None:
    """The original sampled its trees on the tasks that it evaluates."""
    recipe = made()
    question = str(recipe.environment.tasks("heldout", 3, 0)[2].public["question"])
    rows = [
        *ROWS,
        pair(2, f" {question.upper()} ", (), "Answer: 1", "Answer: 2"),
        pair(3, "as above", (), "Answer: 1", "Answer: 2", input=question),
    ]
    done = import_pairs(their_csv(tmp_path / "a.csv", rows), recipe, tmp_path / "run", Silent())
    assert (done.pairs, done.held_out) == (4, 2)
    with pytest.raises(UserError, match="no pair to train on"):
        import_pairs(their_csv(tmp_path / "b.csv", rows[-2:]), recipe, tmp_path / "b", Silent())
    assert not (tmp_path / "b").exists()


def test_a_training_json_of_held_out_tasks_is_refused(tmp_path: Path) -> None:
    question = str(made().environment.tasks("heldout", 1, 0)[0].public["question"])
    rows = [THEIR_JSON[1] | {"instruction": ASKED.format(question)}]
    with pytest.raises(UserError, match="1 are of held-out tasks"):
        imported(their_json(tmp_path / "a.json", rows), tmp_path / "run")


# -- broken files -----------------------------------------------------------------------------

BOMB = "__import__('os').system('touch ran')"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"positive_history": BOMB}, "positive_history: must be a Python literal"),
        ({"positive_history": "[" * 5000}, "positive_history: must be a Python literal"),
        ({"positive_history": "9" * 10000}, "positive_history: must be a Python literal"),
        ({"positive_history": "-" * 50000 + "1"}, "positive_history: must be a Python literal"),
        ({"positive_history": "'text'"}, "positive_history: must be a list"),
        ({"negative_history": [{"role": "user"}]}, "negative_history.0.content: is missing"),
        ({"negative_history": told("Else?", "Answer: 6")}, "differ before contrast_step"),
        ({"contrast_step": 1}, "differ before contrast_step"),
        (
            {"positive_history": told("What is 2 and 3?")},
            "no message of the assistant at contrast_step",
        ),
        ({"contrast_step": "x"}, "contrast_step: must be a whole number"),
        ({"negative_history": told("What is 2 and 3?", STEP[0])}, "chosen and rejected are equal"),
        ({"selected": "maybe"}, "selected: must be True or False"),
    ],
)
def test_a_broken_line_of_a_csv_is_named_and_nothing_is_made(
    change: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spread = ROWS[1] | {"input": "What is\n2 and 3?"}
    file = their_csv(tmp_path / "a.csv", [spread, ROWS[0] | change])
    limit = csv.field_size_limit()
    with pytest.raises(UserError, match=r"a.csv, line 4: ") as error:
        imported(file, tmp_path / "run")
    assert said in error.value.what
    assert not (tmp_path / "run").exists() and not (tmp_path / "ran").exists()
    assert csv.field_size_limit() == limit


def test_files_that_are_no_tables_or_lists_of_pairs_are_refused(tmp_path: Path) -> None:
    file = their_csv(tmp_path / "a.csv", ROWS[:1])
    whole = file.read_text()
    for text, said in [
        (whole.rstrip("\n").rpartition(",")[0] + "\n", "more or fewer cells"),
        (whole.replace("selected", "chosen", 1), "selected: is missing"),
        (whole + '"open', "unexpected end of data"),
        (whole.replace("2 and 3", "2 and " + "3" * 2**23), "field larger than field limit"),
    ]:
        file.write_text(text)
        with pytest.raises(UserError, match=r"a.csv, line \d: ") as error:
            list(read_pairs(file))
        assert said in error.value.what
    for rows, said in [
        ({}, "holds no list of pairs"),
        ([THEIR_JSON[1], 3], "pair 2: must be an object"),
        ([THEIR_JSON[1] | {"history": [["one"]]}], "pair 1: history.0"),
        ([THEIR_JSON[1] | {"rejected": "Answer: 3 "}], "pair 1: chosen and rejected are equal"),
    ]:
        with pytest.raises(UserError, match=said):
            list(read_pairs(their_json(tmp_path / "a.json", rows)))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"neither \.csv nor \.json"):
        read_pairs(tmp_path / "a.txt")
    with pytest.raises(UserError, match="can't be read"):
        list(read_pairs(tmp_path / "none.json"))


# -- out of a run -----------------------------------------------------------------------------


def exported(path: Path, tmp_path: Path) -> Path:
    recipe, _ = imported(path, tmp_path / "run")
    with open_run(tmp_path / "run", recipe.name, recipe.settings, write=False) as run:
        done = export_run(recipe, run, tmp_path / "files", 0)
    assert (done.pairs, done.left_out) == (len(list(selected_of(path))), 0)
    return tmp_path / "files"


def selected_of(path: Path) -> list[PreferenceRow]:
    return [one.row for one in read_pairs(path) if one.selected]


def test_what_is_exported_is_what_was_imported(tmp_path: Path) -> None:
    path = their_csv(tmp_path / "a.csv")
    folder = exported(path, tmp_path)
    texts = [(row.messages, row.chosen, row.rejected) for row in selected_of(path)]
    again = [one.row for one in read_pairs(folder / "pairs.json")]
    assert [(row.messages, row.chosen, row.rejected) for row in again] == texts
    lines = [json.loads(line) for line in (folder / "preferences.jsonl").read_text().splitlines()]
    rows = [PreferenceRow.model_validate(line) for line in lines]
    assert [(row.messages, row.chosen, row.rejected) for row in rows] == texts
    (second,) = json.loads((folder / "pairs.json").read_text())[1:2]
    assert second == {
        "history": [[ASKED.format("What is 2 and 3?"), STEP[0]]], "instruction": "5", "input": "",
        "chosen": "Answer: 5", "rejected": "Answer: it's\n6",
    }  # fmt: skip


def test_a_system_prompt_goes_into_a_column_of_its_own(tmp_path: Path) -> None:
    folder = exported(
        their_json(tmp_path / "a.json", [row | {"system": "Be short."} for row in THEIR_JSON]),
        tmp_path,
    )
    assert {row["system"] for row in json.loads((folder / "pairs.json").read_text())} == {
        "Be short."
    }
    columns = json.loads((folder / "dataset_info.json").read_text())["dense_tree"]["columns"]
    assert columns.get("system") == "system"
    first = json.loads((folder / "preferences.jsonl").read_text().splitlines()[0])
    assert first["prompt"][0] == {"role": "system", "content": "Be short."}


def test_trl_takes_the_preferences(tmp_path: Path) -> None:
    from datasets import load_dataset
    from trl.data_utils import apply_chat_template, is_conversational

    folder = exported(their_csv(tmp_path / "a.csv"), tmp_path)
    file, cache = str(folder / "preferences.jsonl"), str(tmp_path / "cache")
    rows = load_dataset("json", data_files=file, split="train", cache_dir=cache)
    tokenizer = load_renderer("tiny-problems")[0].tokenizer
    assert all(is_conversational(row) for row in rows)
    shown = apply_chat_template(rows[1], tokenizer)
    assert shown["prompt"] == chat(ASKED.format("What is 2 and 3?"), *STEP)
    assert shown["chosen"].startswith("Answer: 5") and shown["rejected"].startswith("Answer: it's")


LOADER = """
import json, sys
from types import SimpleNamespace
from llamafactory.data.loader import _get_merged_dataset
from llamafactory.hparams.data_args import DataArguments
folder, cache = sys.argv[1:]
data = DataArguments(dataset="dense_tree", dataset_dir=folder)
model = SimpleNamespace(cache_dir=cache, hf_hub_token=None)
training = SimpleNamespace(local_process_index=0, seed=0, dataloader_num_workers=0)
rows = _get_merged_dataset(data.dataset, model, data, training, stage="rm")
print("ROWS", json.dumps([{name: row[name] for name in ("_prompt", "_response", "_system")} for row in rows]))
"""


def test_llama_factory_loads_the_pairs(tmp_path: Path) -> None:
    """By its own loader, where it is: in the environment, or in the folder COTERIE_LLAMAFACTORY."""
    folder = exported(their_csv(tmp_path / "a.csv"), tmp_path)
    extra = os.environ.get("COTERIE_LLAMAFACTORY", "")
    found = subprocess.run(
        [sys.executable, "-c", LOADER, str(folder), str(tmp_path / "cache")],
        env={**os.environ, "PYTHONPATH": extra, "DISABLE_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if "ModuleNotFoundError" in found.stderr:
        pytest.skip(f"LLaMA-Factory can't be imported: {found.stderr.strip().splitlines()[-1]}")
    assert found.returncode == 0, found.stderr
    (line,) = [one for one in found.stdout.splitlines() if one.startswith("ROWS ")]
    rows = json.loads(line.removeprefix("ROWS "))
    assert len(rows) == 4
    assert rows[1] == {
        "_prompt": told("What is 2 and 3?", *STEP),
        "_response": [
            {"role": "assistant", "content": "Answer: 5"},
            {"role": "assistant", "content": "Answer: it's\n6"},
        ],
        "_system": "",
    }


def test_dataset_info_has_llama_factorys_documented_fields(tmp_path: Path) -> None:
    folder = exported(their_csv(tmp_path / "a.csv"), tmp_path)
    info = json.loads((folder / "dataset_info.json").read_text())
    assert info == {
        "dense_tree": {
            "file_name": "pairs.json", "ranking": True,
            "columns": {
                "prompt": "instruction", "query": "input", "chosen": "chosen", "rejected": "rejected",
                "history": "history",
            },
        }
    }  # fmt: skip


def test_pairs_of_controls_are_exported_as_they_were_turned_and_runs_without_pairs_are_refused(
    tmp_path: Path,
) -> None:
    recipe, _ = imported(their_csv(tmp_path / "a.csv"), tmp_path / "run")
    with open_run(tmp_path / "run", recipe.name, recipe.settings, write=False) as run:
        with pytest.raises(UserError, match=r"iteration 1 .* are not there"):
            export_run(recipe, run, tmp_path / "files", 1)
        (tree, one), *_ = selected(run, 0)
        assert one.rejected is not None and one.leaf in tree.turns
        with pytest.raises(UserError, match="has no pairs"):
            export_run(made("learns=successes"), run, tmp_path / "files", 0)
    for learns in ("successes", "random_sides"):
        with pytest.raises(UserError, match=f"learns={learns} needs trees"):
            imported(tmp_path / "a.csv", tmp_path / "other", f"learns={learns}")


# -- outside pairs beside them ----------------------------------------------------------------


def test_training_takes_so_many_outside_pairs_and_says_how_many(tmp_path: Path) -> None:
    prepared(jsonl(tmp_path / "u.jsonl", *map(interaction, range(9))))
    own = ours(tmp_path / "own.jsonl", 3)
    words = f"mix={{ultra_interact: 5, {own}: 10}}"
    folder = tmp_path / "run"
    recipe, _ = imported(their_csv(tmp_path / "a.csv"), folder, words)
    with open_run(folder, recipe.name, recipe.settings) as run:
        run_steps(recipe, run, Silent(), [TRAIN])
        metrics = run.metrics(TRAIN)
    assert (metrics["tree_pairs"], metrics["rows"], metrics["dropped"]) == (4, 12, 0)
    assert metrics["mixed_ultra_interact"] == 5
    assert (metrics["mixed_own.jsonl"], metrics["lacking_own.jsonl"]) == (3, 7)
    assert "lacking_ultra_interact" not in metrics and "held_out_ultra_interact" not in metrics


def test_outside_pairs_that_ask_held_out_questions_are_left_out(tmp_path: Path) -> None:
    question = str(made().environment.tasks("heldout", 1, 0)[0].public["question"])
    own = ours(tmp_path / "own.jsonl", 4)
    other = ours(tmp_path / "other.jsonl", 2, asked=f"Step by step!\n{question}")
    recipe = made(f"mix={{{own}: 2, {other}: 2}}")
    renderer, _ = load_renderer("tiny-problems")
    pairs, counts = recipe.mixed_pairs(0, renderer, Silent())
    assert counts == {"mixed_own.jsonl": 2, "mixed_other.jsonl": 0, "held_out_other.jsonl": 2}
    drawn = {one.name for one in pairs}
    assert len(drawn) == 2
    others = [{one.name for one in recipe.mixed_pairs(i, renderer, Silent())[0]} for i in range(8)]
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
        (["mix={a/x.jsonl: 1, b/x.jsonl: 2}"], "would both be called x.jsonl"),
        (["mix={ultra_interact: 5}", "learns=successes"], "leave out mix.sets"),
    ],
)
def test_sets_that_there_are_not_and_counts_below_one_are_refused(
    words: list[str], said: str
) -> None:
    with pytest.raises(UserError) as error:
        made(*words)
    assert said in error.value.what


def test_a_set_that_is_not_here_is_refused_before_anything_is_done() -> None:
    with pytest.raises(UserError, match="ultra_feedback is not prepared on this machine"):
        made("mix={ultra_feedback: 14000}").plan()
