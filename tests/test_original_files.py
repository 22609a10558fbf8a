"""Files of Optima's released code: what is read of them, what is refused, and what goes round.

The records here are our own words in the shape that the released code writes.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coterie.environments.gold import gold_answer
from coterie.errors import UserError
from coterie.progress import Silent
from coterie.recipes.optima.files.exporting import export_run, raw_lines
from coterie.recipes.optima.files.importing import OptimaImported, import_dialogues, survey
from coterie.recipes.optima.files.records import DialogueResult, Lines
from coterie.recipes.optima.files.tasks import answers_of, content, task_of
from coterie.recipes.optima.recipe import Optima
from coterie.recipes.registry import settings
from coterie.runs.folder import Run, Step, open_run
from coterie.runs.loop import run_steps
from coterie.trajectories.task import Task
from tests.conftest import SMALL, Cli

TINY = ("model=tiny-exchange", "dataset.source=sample", "engine.device=cpu")
HOTPOT = {
    "question": "In which country was the designer of the Elm Street bridge born?",
    "prompt": "You are ${name}. Speak in a matrix. ${question} ${information}",
    "first_prompt": "",
    "second_prompt": "",
    "context_first": ["The Elm Street bridge was designed by Ada Quill.", "Rain falls in autumn."],
    "context_second": ["Ada Quill was born in Norway."],
    "answer": "Norway",
    "score_type": "f1-score",
    "data_type": "qa",
    "dataset_name": "hotpot_qa",
}
GSM8K = {
    "question": "Tom has 3 pens and buys 4 more. How many pens has he?",
    "prompt": "", "first_prompt": "You solve.", "second_prompt": "You look for mistakes.",
    "context_first": [], "context_second": [], "answer": "7",
    "score_type": "exact-match", "data_type": "math", "dataset_name": "gsm8k",
}  # fmt: skip


def rewarded(conversation: list[str], answer: str, *, parts: tuple[float, ...], **more: Any) -> Any:
    score, tokens, loss = parts
    found = {
        "conversation": conversation, "final_answer": answer, "token_count": 50,
        "reward": sum(parts), "correct_score": score, "token_score": tokens, "ppl_score": loss,
    }  # fmt: skip
    return {**HOTPOT, **found, **more}


def raw(conversation: list[str], answer: str, **more: Any) -> Any:
    return {
        **GSM8K, "conversation": conversation, "final_answer": answer, "token_count": 9, **more
    }  # fmt: skip


HOTPOT_LINE = {
    "task_id": 5,
    "results": [
        rewarded(["Alice: designer = Ada Quill", "Bob: born Norway <A>Norway</A>", "<A>Norway</A>"],
                 "Norway", parts=(1.0, -0.6, 0.4)),
        rewarded(["Alice:\nwho? Bob: it is", "Bob: Alice: <A>Sweden</A>"] + ["Alice: hm", "Bob:hm"] * 4,
                 "Sweden", parts=(0.0, -0.3, 0.5), reward=-19.8),
        rewarded(["Alice: designer = Ada Quill", "large"], "", parts=(0.0, -1.0, -1.0)),
        rewarded(["error", "Bob: hello"], "", parts=(0.0, -1.0, 0.2)),
        rewarded(["large"], "", parts=(0.0, -1.0, 0.2)),
    ],
}  # fmt: skip
GSM8K_LINE = {
    "task_id": 0,
    "results": [
        raw(["Alice: 3 + 4 = \\boxed{7}", "Bob: All is right.", "Alice: \\boxed{7}"], "7"),
        raw(["Alice: 3 + 4 = \\boxed{8}", "Bob: Count again.", "Alice: \\boxed{8}"], "8"),
        raw(["Alice: 3 + 4 = \\boxed{7}", "Alice:error", "Alice: \\boxed{7}"], "7"),
    ],
}


def wrote(path: Path, *lines: Any) -> Lines:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Lines(path)


def put_in(lines: Lines, folder: Path, *words: str, kind: str = "rewarded") -> OptimaImported:
    """Import a file into a run at ``folder``."""
    found = survey(lines, rewarded=kind == "rewarded")
    recipe = Optima(settings("optima/isft", [f"dataset={found.dataset}", *TINY, *words]))
    return import_dialogues(
        lines, recipe, folder, Silent(), found=found, rewarded=kind == "rewarded"
    )


@contextmanager
def opened(folder: Path, *words: str) -> Iterator[tuple[Optima, Run]]:
    recipe = Optima(settings("optima/isft", [*TINY, *words]))
    with open_run(folder, recipe.name, recipe.settings) as run:
        yield recipe, run


# -- dialogues in -----------------------------------------------------------------------------


def test_rewarded_dialogues_become_finished_rollouts_and_rewards(tmp_path: Path) -> None:
    lines = wrote(tmp_path / "theirs.jsonl", HOTPOT_LINE)
    assert lines.kind() == "rewarded"
    assert put_in(lines, tmp_path / "run") == OptimaImported(1, 5, 2, 0)
    with opened(tmp_path / "run", "dataset=hotpot_qa") as (recipe, run):
        assert run.is_finished(Step(0, "rollout")) and run.is_finished(Step(0, "reward"))
        (tree,) = run.store.trees(0, "rollout")
        found = [
            (o.ending.reason, o.answer, o.score, [t.text for t in path])
            for o, path in tree.trajectories()
        ]
        assert found == [
            ("agreed", "Norway", 1.0,
             ["designer = Ada Quill", "born Norway <A>Norway</A>", "<A>Norway</A>"]),
            ("turns", "Sweden", 0.0,
             ["\nwho? Bob: it is", "Alice: <A>Sweden</A>", *["hm"] * 8]),
            ("length", None, 0.0, ["designer = Ada Quill"]),
        ]  # fmt: skip
        assert {turn.writer for turn in tree.turns.values()} == {"import:theirs.jsonl"}
        (rewards,) = recipe.rewards(run, 0).values()
        assert [(r.terms["task"], r.terms["tokens"], r.terms["loss"], r.terms["leaks"]) for r in rewards] == [
            (1.0, -0.6, 0.4, 0.0), (0.0, -0.3, 0.5, -20.0), (0.0, -1.0, -1.0, 0.0)
        ]  # fmt: skip
        assert [reason for _, reason in run.store.failures()] == [
            "theirs.jsonl, line 1: the server refused utterance 1 (`error`)",
            "theirs.jsonl, line 1: the file has nothing that was said",
        ]


def test_an_imported_dialogue_is_shown_as_our_own_would_be(tmp_path: Path) -> None:
    put_in(wrote(tmp_path / "theirs.jsonl", HOTPOT_LINE), tmp_path / "run")
    with opened(tmp_path / "run", "dataset=hotpot_qa") as (recipe, run):
        (tree,) = run.store.trees(0, "rollout")
        task = run.store.task(tree.task)
        assert "Norway" not in str(task.secrets) and gold_answer(task) == "Norway"
        shown = {}
        for request in tree.requests.values():
            system, *others = tree.messages(request)
            assert system.parts == recipe.environment.system_parts(task, request.agent)
            assert {m.role for m in others} <= {"user", "assistant"}
            shown[request.agent] = "".join(part.text for part in system.parts)
        assert "designed by Ada Quill" in shown["Alice"] and "Norway" not in shown["Alice"]
        assert "born in Norway" in shown["Bob"] and "matrix" not in shown["Bob"]


def test_raw_dialogues_are_scored_rewarded_selected_and_trained(cli: Cli, tmp_path: Path) -> None:
    wrote(tmp_path / "theirs.jsonl", GSM8K_LINE)
    words = (
        *TINY, "rollout.max_tokens=96", "train.max_length=1024", "train.epochs=1", "iterations=1",
        "select.threshold=-100", "select.top_share=1", "evaluate.tasks=2", "train.batch_rows=2",
    )  # fmt: skip
    said = cli("import", "optima", "theirs.jsonl", "--folder", "run", *words)
    assert said.code == 0 and "not whole, recorded as failed: 1" in said.err, said.err
    for stage, result in (
        ("reward", "trajectories=2"),
        ("select", "selected=1"),
        ("train", "rows=2"),
    ):
        said = cli(stage, "run", "--iteration", 0)
        assert said.code == 0 and result in said.out, said.err
    with opened(tmp_path / "run", "dataset=gsm8k", *words) as (recipe, run):
        (tree,) = run.store.trees(0, "rollout")
        assert [(o.score, o.ending.reason) for o in tree.outcomes.values()] == [
            (1.0, "agreed"),
            (0.0, "agreed"),
        ]
        base = recipe.load_policy(run, 0)
        (solver, critic) = recipe.rows(run, 0, base)
        turns = [tree.turns[target.turn].text for target in solver.targets + critic.targets]
        assert turns == ["3 + 4 = \\boxed{7}", "\\boxed{7}", "All is right."]
        assert all(base.tokenizer.decode(row.ids).count("Alice:") == 0 for row in (solver, critic))


def test_rewards_of_a_file_can_be_left_aside(tmp_path: Path) -> None:
    put_in(wrote(tmp_path / "theirs.jsonl", HOTPOT_LINE), tmp_path / "run", kind="raw")
    with opened(tmp_path / "run", "dataset=hotpot_qa") as (recipe, run):
        assert not run.is_finished(Step(0, "reward"))
        assert not any(recipe.rewards(run, 0).values())


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ((), ["fluent but wrong", "right", "wrong"]),
        (("select.min_score=1",), ["right", "right"]),
        (("select.threshold=1.3",), ["fluent but wrong"]),
        (("select.top_share=0.34",), ["fluent but wrong"]),
        (("select.skip_share=0.34",), ["right", "wrong"]),
    ],
)
def test_the_gate_the_threshold_and_the_shares_decide_what_is_trained_on(
    tmp_path: Path, words: tuple[str, ...], chosen: list[str]
) -> None:
    """Three tasks, of which the first has a wrong dialogue with the highest reward, the last no right one."""
    rewards = [
        [("fluent but wrong", (0.0, -0.1, 1.5)), ("right", (1.0, -0.4, 0.4))],
        [("right", (1.0, -0.2, 0.4)), ("wrong", (0.0, -0.1, 0.4))],
        [("wrong", (0.0, -0.1, 1.0)), ("wrong too", (0.0, -0.2, 0.9))],
    ]
    lines = [
        {
            "task_id": number,
            "results": [
                rewarded([text, "yes"], "x", parts=parts, question=f"Who is number {number}?")
                for text, parts in some
            ],
        }
        for number, some in enumerate(rewards)
    ]
    put_in(wrote(tmp_path / "theirs.jsonl", *lines), tmp_path / "run")
    told = ("dataset=hotpot_qa", "select.threshold=0.5", "select.top_share=1", *words)
    own = Optima(settings("optima/isft", [*TINY, *told]))
    with opened(tmp_path / "run", "dataset=hotpot_qa") as (_, run):
        own.demonstrate(run, 0, Silent())
        turns = {t.id: t for tree in run.store.trees(0, "rollout") for t in tree.turns.values()}
        found = {
            (task, turns[turns[one.leaf].parent].text)
            for task, one in run.store.selections(0, "select")
        }
    assert [text for _, text in sorted(found)] == chosen


def test_held_out_questions_are_left_out(tmp_path: Path) -> None:
    recipe = Optima(settings("optima/isft", ["dataset=gsm8k", *TINY]))
    task = recipe.heldout_tasks()[0]
    asked = {"question": f" {task.public['question']}".upper(), "answer": gold_answer(task)}
    same = {"task_id": 1, "results": [{**result, **asked} for result in GSM8K_LINE["results"]]}
    lines = wrote(tmp_path / "theirs.jsonl", GSM8K_LINE, same)
    assert put_in(lines, tmp_path / "run", kind="raw").held_out == 1
    with pytest.raises(UserError, match="1 of 1 tasks are held out"):
        put_in(wrote(tmp_path / "same.jsonl", same), tmp_path / "none", kind="raw")
    assert not (tmp_path / "none").exists()


def test_tasks_are_the_same_whatever_the_words_around_their_options() -> None:
    ours, theirs = (
        Task(str(number), {"question": f"What melts?\n{words}"})
        for number, words in enumerate(
            ("One of: ice, rock", "Please choose your answer from ice, rock")
        )
    )
    assert content("arc_c", ours) == content("arc_c", theirs)
    assert content("gsm8k", ours) != content("gsm8k", theirs)


def test_all_right_answers_are_secrets_and_come_back() -> None:
    line = {**HOTPOT, "conversation": ["Alice: x"], "answer": ["Norway", "Kingdom of Norway"]}
    task = task_of("trivia_qa", "import-1", DialogueResult.model_validate(line))
    assert answers_of(task) == line["answer"]
    assert "Norway" not in str(task.secrets) and "Norway" not in str(task.public["question"])


def changed(line: Any, **fields: Any) -> Any:
    """A line of dialogues whose last result has other fields; ``None`` takes one away."""
    last = {**line["results"][-1], **fields}
    last = {name: value for name, value in last.items() if value is not None}
    return {**line, "task_id": 77, "results": [*line["results"][:-1], last]}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ([1], "not a JSON object"),
        ({"task_id": 1, "results": []}, "results"),
        ({"task_id": "1", "results": GSM8K_LINE["results"]}, "task_id"),
        (GSM8K_LINE, "task_id 0 is that of line 1 too"),
        (changed(GSM8K_LINE, conversation="Alice: a"), r"results.2.conversation: .*list"),
        (changed(GSM8K_LINE, conversation=["a", None]), r"results.2.conversation.1: must be text"),
        (changed(GSM8K_LINE, answer=None), r"results.2.answer.*: is missing"),
        (changed(GSM8K_LINE, question="Another?"), "different questions"),
        (changed(GSM8K_LINE, correct_score=1.5), r"results.2.correct_score"),
        (changed(GSM8K_LINE, dataset_name="hotpot_qa"), "one data set, not 'gsm8k' and 'hotpot_qa'"),
    ],
)  # fmt: skip
def test_a_broken_line_is_named_and_nothing_is_made(
    cli: Cli, tmp_path: Path, line: Any, reason: str
) -> None:
    text = line if isinstance(line, str) else json.dumps(line)
    (tmp_path / "theirs.jsonl").write_text(json.dumps(GSM8K_LINE) + "\n" + text + "\n")
    with pytest.raises(UserError, match=f"line 2: .*{reason}"):
        survey(Lines(tmp_path / "theirs.jsonl"), rewarded=False)
    said = cli("import", "optima", "theirs.jsonl", "--folder", "run", *TINY)
    assert said.code == 2 and "line 2" in said.err
    assert not (tmp_path / "run").exists()


def test_rewards_must_be_whole_and_add_up(tmp_path: Path) -> None:
    for fields in ({"token_score": None}, {"reward": 2.0}, {"ppl_score": float("nan")}):
        with pytest.raises(UserError, match=r"line 1: results\.4"):
            survey(wrote(tmp_path / "a.jsonl", changed(HOTPOT_LINE, **fields)), rewarded=True)


# -- round trip -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Optima, Run]]:
    """A small run of ours up to its training, and its files."""
    own = settings("optima/isft", SMALL)
    recipe = Optima(own)
    with open_run(tmp_path_factory.mktemp("ours") / "run", recipe.name, own) as run:
        steps = [Step(0, stage) for stage in ("rollout", "reward", "select", "train")]
        run_steps(recipe, run, Silent(), steps)
        yield recipe, run


def test_our_dialogues_go_round_and_train_the_same(
    ours: tuple[Optima, Run], cli: Cli, tmp_path: Path
) -> None:
    recipe, run = ours
    files = export_run(recipe, run, tmp_path / "files", None)
    assert [path.name for path in files] == ["iteration_0.jsonl", "rewarded_iteration_0.jsonl"]
    said = cli("import", "optima", files[1], "--folder", "theirs", *SMALL)
    assert said.code == 0, said.err
    for stage in ("select", "train"):
        said = cli(stage, "theirs", "--iteration", 0)
        assert said.code == 0, said.err
    with open_run(tmp_path / "theirs", recipe.name, recipe.settings) as back:
        mine, theirs = (list(one.store.trees(0, "rollout")) for one in (run, back))
        for a, b in zip(mine, theirs, strict=True):
            for (one, path), (other, again) in zip(a.trajectories(), b.trajectories(), strict=True):
                assert [t.text for t in path] == [t.text for t in again]
                assert [t.speaker for t in path] == [t.speaker for t in again]
                assert (one.answer, one.score, one.ending) == (
                    other.answer,
                    other.score,
                    other.ending,
                )
        rewards = [
            [
                (
                    r.sample,
                    r.terms["task"],
                    r.terms["tokens"],
                    r.terms["loss"],
                    pytest.approx(r.terms["leaks"]),
                )
                for r in found
            ]
            for found in recipe.rewards(run, 0).values()
        ]
        assert rewards == [
            [
                (r.sample, r.terms["task"], r.terms["tokens"], r.terms["loss"], r.terms["leaks"])
                for r in found
            ]
            for found in recipe.rewards(back, 0).values()
        ]
        base = recipe.load_policy(run, 0)
        trained = [
            [base.tokenizer.decode(row.ids) for row in recipe.rows(one, 0, base)]
            for one in (run, back)
        ]
        assert trained[0] == trained[1] != []
        assert back.metrics(Step(0, "train"))["rows"] == run.metrics(Step(0, "train"))["rows"]
        again = list(raw_lines(recipe, back, 0))
    first = [json.loads(line) for line in files[0].read_text().splitlines()]
    for line, record in zip(first, again, strict=True):
        for one, other in zip(line["results"], record.results, strict=True):
            assert one["conversation"] == other.conversation
            assert one["context_first"] == other.context_first


def test_rewards_computed_anew_are_those_of_our_own_rollouts(
    ours: tuple[Optima, Run], cli: Cli, tmp_path: Path
) -> None:
    recipe, run = ours
    raw_file, _ = export_run(recipe, run, tmp_path / "files", 0)
    for words in (
        ("import", "optima", raw_file, "--folder", "theirs", *SMALL),
        ("reward", "theirs"),
    ):
        said = cli(*words)
        assert said.code == 0, said.err
    with open_run(tmp_path / "theirs", recipe.name, recipe.settings) as back:
        mine, theirs = (
            [reward for found in recipe.rewards(one, 0).values() for reward in found]
            for one in (run, back)
        )
    assert [r.total for r in theirs] == pytest.approx([r.total for r in mine], abs=1e-4)


def test_an_export_says_what_the_original_would(ours: tuple[Optima, Run], tmp_path: Path) -> None:
    recipe, run = ours
    _, file = export_run(recipe, run, tmp_path, 0)
    for number, line in enumerate(map(json.loads, file.read_text().splitlines())):
        assert line["task_id"] == number
        counts = [
            one["token_count"] for one in line["results"] if "large" not in one["conversation"]
        ]
        for result in line["results"]:
            over = 0.6 * result["token_count"] / max(counts, default=1)
            cut = "large" in result["conversation"]
            assert result["token_score"] == pytest.approx(-1.0 if cut else -over)
            speakers = [text.split(": ")[0] for text in result["conversation"] if text != "large"]
            assert speakers == (["Alice", "Bob"] * 9)[: len(speakers)]
            assert result["dataset_name"] == "exchange" and result["data_type"] == "qa"
            parts = result["correct_score"] + result["token_score"] + result["ppl_score"]
            assert result["reward"] <= parts + 1e-9 and result["token_count"] > 0
            assert set(HOTPOT) < set(result)
    with pytest.raises(UserError, match="exists already"):
        export_run(recipe, run, tmp_path, 0)
    with pytest.raises(UserError, match="iteration 3 not sampled"):
        export_run(recipe, run, tmp_path, 3)


# -- the commands -----------------------------------------------------------------------------


def test_what_cannot_be_guessed_is_asked_for(cli: Cli, tmp_path: Path) -> None:
    unnamed_set = changed(GSM8K_LINE, dataset_name=None)
    unnamed_set["results"] = unnamed_set["results"][-1:]
    wrote(tmp_path / "a.jsonl", unnamed_set)
    assert "dataset=hotpot_qa" in cli("import", "optima", "a.jsonl", "--folder", "run").err
    wrote(tmp_path / "b.jsonl", GSM8K_LINE)
    said = cli("import", "optima", "b.jsonl", "--folder", "run", "dataset=hotpot_qa")
    assert said.code == 2 and "is of gsm8k, not of hotpot_qa" in said.err
    wrote(tmp_path / "c.jsonl", {**unnamed_set, "results": [raw(["a"], "", dataset_name="mix")]})
    assert "none of hotpot_qa, mwh_qa" in cli("import", "optima", "c.jsonl", "--folder", "r").err
    assert cli("import", "optima", "none.jsonl", "--folder", "run").code == 2
    (tmp_path / "run").mkdir()
    said = cli("import", "optima", "b.jsonl", "--folder", "run", *TINY)
    assert said.code == 2 and "exists" in said.err


def test_help_has_examples(cli: Cli) -> None:
    for command in ("import", "export"):
        said = cli(command, "optima", "--help")
        assert said.code == 0 and f"coterie {command} optima" in said.out
        assert "optima" in cli(command, "--help").out and "record" in cli(command, "--help").out
