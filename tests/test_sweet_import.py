"""SWEET-RL's trajectories into a run and out of one: what they become, what is refused, and what goes round.

The rows here are our own words in the shape that the released code writes.
"""

import json
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coterie.environments.coding import AGENT, CRITIC, hidden_calls
from coterie.environments.user_simulator import PERSON, REFERENCE
from coterie.environments.user_simulator import TranscriptLine as Heard
from coterie.errors import UserError
from coterie.models.loading import load_renderer
from coterie.progress import Silent
from coterie.recipes.registry import settings
from coterie.recipes.sweet_rl.data import rewards
from coterie.recipes.sweet_rl.files.exporting import export_run
from coterie.recipes.sweet_rl.files.importing import (
    SweetImported,
    SweetSurvey,
    import_trajectories,
    survey,
)
from coterie.recipes.sweet_rl.files.records import (
    PreferenceRow,
    Trajectories,
    TrajectoryRow,
    read_lines,
)
from coterie.recipes.sweet_rl.recipe import SweetRL
from coterie.recipes.sweet_rl.settings import SweetSettings
from coterie.rollout.candidates import candidates
from coterie.runs.folder import Run, Step, open_run
from coterie.runs.loop import run_steps
from coterie.trajectories.task import Task
from coterie.trajectories.view import prompts
from tests.conftest import Cli, once

TINY = (
    "model=tiny-exchange", "dataset=colbench_code", "dataset.source=sample", "engine.device=cpu",
    "user_simulator.url=http://127.0.0.1:9/v1", "user_simulator.model=nobody", "rollout.max_tokens=12",
    "critic.train.max_length=1024", "critic.train.epochs=1", "critic.train.gradient_checkpointing=false",
    "policy.train.max_length=1024", "policy.train.gradient_checkpointing=false",
    "candidates.count=4", "candidates.share=0.5", "evaluate.tasks=2", "sandbox.workers=1",
)  # fmt: skip
REFERENCE_CODE = "def apples(boxes):\n    return boxes * 12"
RIGHT = "I WANT TO ANSWER:\n```python\ndef apples(boxes):\n    return 12 * boxes\n```"
WRONG = "I WANT TO ANSWER: def apples(boxes): return 12"


def row(number: int, *said: str, **more: Any) -> dict[str, Any]:
    """A dialogue about task ``number``: the agent's raw completions, and a person's replies between them."""
    text = f"How many apples are in my boxes, friend {number}?The signature of the function is: def apples(boxes)"
    history: list[dict[str, str]] = [{"role": "user", "content": text}]
    for place, output in enumerate(said):
        if place:
            history.append({"role": "user", "content": f"Reply {place}."})
        seen = output.partition("OUTPUT:")[2].strip() or output
        history.append(
            {"role": "assistant", "content": seen, "input": "<theirs>", "output": output}
        )
    task = {
        "problem_description": text, "ground_truth": REFERENCE_CODE, "hidden_information": REFERENCE_CODE,
        "test_cases": {f"test{n}": f"apples({n})" for n in range(10)},
    }  # fmt: skip
    answer = history[-1]["content"].partition("I WANT TO ANSWER:")[2].strip()
    return {"task": task, "dialogue_history": history, "answer": answer or None, **more}


ROWS = [
    row(0, "Hm. OUTPUT: How many in a box?", RIGHT, reward=1.0),
    row(1, "How many?", WRONG, reward=0.1),
    row(0, WRONG, reward=0.1),
    row(1, "Big ones?", "OUTPUT: Red?", RIGHT, reward=1),
]
"""Two tasks, two repeats."""


def wrote(path: Path, rows: Sequence[Any] = ROWS) -> Trajectories:
    path.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    return Trajectories(path)


def made(*words: str) -> SweetRL:
    own = settings("sweet_rl/backend", [*TINY, *words])
    assert isinstance(own, SweetSettings)
    return SweetRL(own)


def put_in(rows: Trajectories, folder: Path, *words: str) -> SweetImported:
    found = survey(rows)
    sizes = (f"rollout.tasks={found.tasks}", f"rollout.repeats={found.repeats}")
    return import_trajectories(rows, made(*sizes, *words), folder, Silent(), found=found)


@contextmanager
def opened(folder: Path, *words: str) -> Iterator[tuple[SweetRL, Run]]:
    recipe = made("rollout.tasks=2", "rollout.repeats=2", *words)
    with open_run(folder, recipe.name, recipe.settings) as run:
        yield recipe, run


# -- in ---------------------------------------------------------------------------------------


def test_trajectories_become_the_finished_dialogues_of_round_0(tmp_path: Path) -> None:
    rows = wrote(tmp_path / "theirs.jsonl")
    assert survey(rows) == SweetSurvey(2, 2, 0)
    assert put_in(rows, tmp_path / "run") == SweetImported(2, 4, 0, 0)
    with opened(tmp_path / "run") as (recipe, run):
        assert run.is_finished(Step(0, "rollout")) and not run.is_finished(Step(0, "evaluate"))
        assert run.begun_under(Step(0, "rollout")) == recipe.fingerprint(Step(0, "rollout"))
        assert run.metrics(Step(0, "rollout"))["score"] == 0.5
        found = {}
        for tree in run.store.trees(0, "rollout"):
            task = run.store.task(tree.task)
            assert "12" not in str(task.public) and hidden_calls(task) == [
                f"apples({n})" for n in range(10)
            ]
            assert task.secrets[REFERENCE].reveal(CRITIC) == REFERENCE_CODE
            assert task.secrets[REFERENCE].readers == {CRITIC, PERSON, "grader"}
            assert {turn.writer for turn in tree.turns.values()} == {"import:theirs.jsonl"}
            for outcome, path in tree.trajectories():
                assert [turn.speaker.name for turn in path] == ([PERSON, AGENT] * 4)[: len(path)]
                said = [turn.text for turn in path if turn.speaker.name == AGENT]
                found[tree.task, outcome.sample] = (said, outcome.ending.reason, outcome.score)
        shares = rewards(run)
        metrics = run.store.metrics(0, "rollout")
    expected = {}
    for index, one in enumerate(rows):
        id_ = f"colbench_code-{one.task.code_row().id}"
        outputs = [turn.output for turn in one.dialogue_history if turn.role == "assistant"]
        score = float(index in (0, 3))
        expected[id_, index // 2] = (outputs, "answered", score)
        assert shares[id_, index // 2] == one.reward
    assert found == expected
    assert sorted(int(m["turns"]) for key, m in metrics.items() if key.task) == [1, 2, 2, 3]


def test_an_imported_turn_stands_under_the_prompt_that_our_agent_would_have_had(
    tmp_path: Path,
) -> None:
    put_in(wrote(tmp_path / "theirs.jsonl"), tmp_path / "run")
    renderer, _ = load_renderer("tiny-exchange")
    with opened(tmp_path / "run") as (recipe, run):
        trees = list(run.store.trees(0, "rollout"))
        for tree in trees:
            work = recipe.environment.system_parts(run.store.task(tree.task), AGENT)
            for outcome, path in tree.trajectories():
                said = prompts(tree, outcome.leaf, AGENT)
                shown = [renderer.decode(ids) for ids, _ in said]
                for place, (text, (_, turn)) in enumerate(zip(shown, said, strict=True)):
                    assert work[0].text in text and path[0].text in text
                    assert all(f"Reply {n}." in text for n in range(1, place + 1))
                    assert not any(
                        word in text for word in ("Hm.", "OUTPUT:", "theirs", "boxes * 12")
                    )
                    assert renderer.decode(turn.ids[:-1]) == turn.text
                    assert turn.ids[-1] in renderer.end_ids
        texts = [
            renderer.decode(p) for t in trees for o in t.outcomes for p, _ in prompts(t, o, AGENT)
        ]
    assert any("How many in a box?" in text for text in texts), "thoughts go, what was said stays"


def test_dialogues_without_a_reward_are_graded_in_the_sandbox(tmp_path: Path) -> None:
    helper = "I WANT TO ANSWER: def dozen(): return 12\ndef apples(boxes): return boxes * dozen()"
    wrong = row(0, "How many?", WRONG)
    rows = [row(0, RIGHT), row(0, "12?", helper), wrong, row(0, "I don't know.", reward=0.25)]
    for one in rows:
        one["answer"] = None
    broken = row(1, RIGHT)
    broken["task"] = {**broken["task"], "ground_truth": "def apples(boxes):\n    return 1 / 0"}
    lines = wrote(tmp_path / "theirs.jsonl", [*rows, *[broken] * 4])
    found = SweetSurvey(2, 4, 7)
    assert survey(lines, 1) == SweetSurvey(8, 1, 7)
    lines = wrote(tmp_path / "theirs.jsonl", [one for r in rows for one in (r, broken)])
    assert survey(lines) == found
    assert put_in(lines, tmp_path / "run") == SweetImported(2, 8, 4, 0)
    with opened(tmp_path / "run", "rollout.repeats=4") as (_, run):
        (tree,) = run.store.trees(0, "rollout")
        shares = rewards(run)
        assert [shares[tree.task, n] for n in range(4)] == [1, 1, 0.1, 0.25]
        outcomes = [outcome for outcome, _ in tree.trajectories()]
        assert [o.score for o in outcomes] == [1, 1, 0, 0]
        assert [o.ending.reason for o in outcomes] == ["answered"] * 3 + ["turns"]
        assert outcomes[3].answer == "I don't know."
        assert all("can't be graded" in reason for _, reason in run.store.failures())
        assert run.metrics(Step(0, "rollout"))["failed"] == 4


def test_tasks_that_are_held_out_are_left_out_however_few_are_evaluated(tmp_path: Path) -> None:
    last = made().environment.tasks("heldout", 10**6, 0)[-1]
    held_out = row(7, RIGHT, reward=1)
    held_out["task"] = {
        "problem_description": last.public["question"], "id": last.id.removeprefix("colbench_code-"),
        "ground_truth": last.secrets[REFERENCE].reveal(CRITIC), "test_cases": hidden_calls(last),
    }  # fmt: skip
    other = {**held_out, "task": {**held_out["task"], "id": "by-its-content"}}
    rows = [*ROWS[:2], held_out, other, *ROWS[2:], held_out, other]
    assert put_in(wrote(tmp_path / "a.jsonl", rows), tmp_path / "run") == SweetImported(2, 4, 0, 2)
    with pytest.raises(UserError, match="1 of 1 tasks are held out"):
        put_in(wrote(tmp_path / "b.jsonl", [other] * 2), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_dialogue_that_outgrows_the_model_is_a_failure(tmp_path: Path) -> None:
    long = row(
        0, *["What about the other ones, then, and the green ones of last week?"] * 30, reward=0
    )
    rows = [ROWS[0], ROWS[1], long, ROWS[3]]
    assert put_in(wrote(tmp_path / "a.jsonl", rows), tmp_path / "run") == SweetImported(2, 4, 1, 0)
    with opened(tmp_path / "run") as (_, run):
        ((key, reason),) = run.store.failures()
    assert key.sample == "0001" and "out of context" in reason and "task 1" in reason


@pytest.mark.parametrize(
    ("number", "change", "said"),
    [
        (3, "{", "line 3: not JSON"),
        (4, {"dialogue_history": []}, "line 4: dialogue_history"),
        (2, {"reward": 1.5}, "line 2: reward: 1.5 is not a share"),
        (4, {"task": {**ROWS[3]["task"], "test_cases": {}}}, "line 4: task.test_cases"),
        (4, {"task": {**ROWS[3]["task"], "ground_truth": "def f(): 1"}}, "line 4: its task has the id"),
        (4, {"task": {**ROWS[3]["task"], "id": 3}}, "line 4: task.id"),
        (4, None, "3 rows, which are not 2 repeats"),
        (4, {"task": row(5)["task"]}, "rows 2, 4 of"),
    ],
)  # fmt: skip
def test_a_broken_file_is_refused_and_nothing_is_made(
    cli: Cli, tmp_path: Path, number: int, change: Any, said: str
) -> None:
    lines = [json.dumps(one) for one in ROWS]
    new = change if isinstance(change, str) else json.dumps({**ROWS[number - 1], **(change or {})})
    lines[number - 1 : number] = [] if change is None else [new]
    (tmp_path / "theirs.jsonl").write_text("\n".join(lines))
    found = cli("import", "sweet_rl", "theirs.jsonl", "--folder", "run", *TINY)
    assert found.code == 2 and said in found.err, found.err
    assert [path.name for path in tmp_path.iterdir()] == ["theirs.jsonl"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("environment=persona",), "environment=persona makes its own tasks"),
        (("user_simulator=script",), "nobody plays the person"),
        (("--repeats", "4"), "rows 1, 2, 3, 4 of"),
        (("--repeats", "1"), "rollout.repeats=1 leaves no pair"),
        (("--folder", "."), "exists"),
    ],
)
def test_what_cannot_work_is_refused(
    cli: Cli, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    wrote(tmp_path / "theirs.jsonl")
    own = [
        word
        for word in TINY
        if not (words[0] == "user_simulator=script" and word.startswith("user_simulator."))
    ]
    told = (*own, *words) if words[0].startswith("--") else once(*own, *words)
    found = cli("import", "sweet_rl", "theirs.jsonl", "--folder", "run", *told)
    assert found.code == 2 and said in found.err, found.err
    assert not (tmp_path / "run").exists()


def test_a_large_file_is_not_held_in_memory(tmp_path: Path) -> None:
    rows = [
        {**ROWS[0], "task": row(number)["task"], "extra": "x" * 40_000} for number in range(200)
    ] * 2
    lines = wrote(tmp_path / "theirs.jsonl", rows)
    put_in(wrote(tmp_path / "small.jsonl"), tmp_path / "small")  # loads what is loaded once
    tracemalloc.start()
    try:
        assert put_in(lines, tmp_path / "run").dialogues == 400
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    size = lines.path.stat().st_size
    assert size > 16e6 > 2 * peak, f"{peak / 1e6:.1f} of {size / 1e6:.1f} MB"


# -- on, and out ------------------------------------------------------------------------------


def test_an_imported_run_trains_critic_and_policy_and_goes_out_and_in_again(
    cli: Cli, tmp_path: Path
) -> None:
    wrote(tmp_path / "theirs.jsonl")
    assert cli("import", "sweet_rl", "theirs.jsonl", "--folder", "run", *TINY).code == 0
    assert cli("select", "run").code == 0
    with opened(tmp_path / "run") as (recipe, run):
        steps = [step for step in recipe.steps() if step.stage != "evaluate"]
        run_steps(recipe, run, Silent(), steps)
        assert run.metrics(Step(0, "train"))["rows"] == 2
        trees = list(run.store.trees(1, "rollout"))
        groups = [group for tree in trees for group in candidates(tree)]
        assert len(groups) == 4 and {len(group) for group in groups} == {4}  # half of the dialogues
        played = [turn.ids for t in run.store.trees(0, "rollout") for turn in t.turns.values()]
        again = [turn.ids for t in trees for turn in t.turns.values() if turn.author]
        assert len(again) == 8 and set(again) <= set(played)
        assert run.metrics(Step(1, "train"))["rows"] > 0
    said = cli("export", "sweet_rl", "run", "--out", "files")
    assert said.code == 0 and "tasks: 2" in said.err, said.err
    files = [Path(line) for line in said.out.split()]
    assert [file.name for file in files] == [
        "trajectories.jsonl", "critic_preferences.jsonl", "policy_preferences.jsonl",
    ]  # fmt: skip
    assert "exists already" in cli("export", "sweet_rl", "run", "--out", "files").err
    ours, theirs = Trajectories(files[0]), Trajectories(tmp_path / "theirs.jsonl")
    assert sorted(map(said_in, ours), key=str) == sorted(map(said_in, theirs), key=str)
    _check_critic_pairs([pair for _, pair in read_lines(files[1], PreferenceRow)])
    _check_policy_pairs([pair for _, pair in read_lines(files[2], PreferenceRow)], groups_of(trees))
    said = cli("import", "sweet_rl", files[0], "--folder", "back", *TINY)
    assert said.code == 0 and cli("select", "back").code == 0, said.err
    for name in ("back", "run"):
        cli("export", "sweet_rl", name, "--out", f"again-{name}")
    for name in ("trajectories.jsonl", "critic_preferences.jsonl"):
        first, second = ((tmp_path / f"again-{one}" / name).read_text() for one in ("run", "back"))
        assert first == second != ""


def said_in(one: TrajectoryRow) -> tuple[object, ...]:
    """What a row says, without the prompts, which are each run's own."""
    history = [(turn.role, turn.content, turn.output) for turn in one.dialogue_history]
    return (one.task.code_row(), history, one.answer, one.reward)


def groups_of(trees: Sequence[Any]) -> set[str]:
    return {turn.text for tree in trees for group in candidates(tree) for turn in group}


def _check_critic_pairs(pairs: Sequence[PreferenceRow]) -> None:
    assert len(pairs) == 2
    for pair in pairs:
        assert isinstance(pair.chosen, str) and isinstance(pair.rejected, str)
        assert pair.chosen.endswith(RIGHT) and pair.rejected.endswith(WRONG)
        assert pair.prompt is None
        for side in (pair.chosen, pair.rejected):
            assert side.count(REFERENCE_CODE) == 1 and "Hm." not in side


def _check_policy_pairs(pairs: Sequence[PreferenceRow], said: set[str]) -> None:
    assert pairs
    for pair in pairs:
        assert pair.prompt is not None and "boxes * 12" not in pair.prompt
        assert pair.chosen in said and pair.rejected in said


class Script:
    """A person with one reply: tasks of ColBench have no script, and a model is not what is tested here."""

    name = "script:one-reply"

    async def reply(self, task: Task, said: Sequence[Heard], seed: int) -> str:
        return f"That is up to you ({len(said)})."


def test_dialogues_of_our_own_go_out_and_come_back(tmp_path: Path) -> None:
    recipe = made(
        "rollout.tasks=3",
        "rollout.repeats=2",
        "user_simulator.url=null",
        "user_simulator.model=script",
    )
    recipe.environment.script = Script()
    with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
        with pytest.raises(UserError, match="not finished"):
            export_run(recipe, run, tmp_path / "files")
        run_steps(recipe, run, Silent(), [Step(0, "rollout")])
        done = export_run(recipe, run, tmp_path / "files")
        assert (done.tasks, done.incomplete) == (3, 0)
        rows = Trajectories(done.files[0])
        found = {}
        for tree in run.store.trees(0, "rollout"):
            for outcome, path in tree.trajectories():
                found[tree.task, outcome.sample] = [turn.text for turn in path]
        renderer, _ = load_renderer("tiny-exchange")
        assert survey(rows) == SweetSurvey(3, 2, 0)
        for index, one in enumerate(rows):
            id_ = f"colbench_code-{one.task.code_row().id}"
            tree, sample = run.store.tree(0, "rollout", id_), index // 3
            texts = [turn.output or turn.content for turn in one.dialogue_history]
            assert texts == found[id_, sample]
            leaf = next(o.leaf for o, _ in tree.trajectories() if o.sample == sample)
            shown = [renderer.decode(ids) for ids, _ in prompts(tree, leaf, AGENT)]
            assert [turn.input for turn in one.dialogue_history if turn.input] == shown
        put_in(rows, tmp_path / "back")
        with opened(tmp_path / "back", "rollout.tasks=3") as (_, back):
            for tree in back.store.trees(0, "rollout"):
                for outcome, path in tree.trajectories():
                    assert [turn.text for turn in path] == found[tree.task, outcome.sample]
            assert rewards(back) == rewards(run)


def test_tasks_without_all_their_dialogues_do_not_go_out(tmp_path: Path) -> None:
    long = row(
        0, *["What about the other ones, then, and the green ones of last week?"] * 30, reward=0
    )
    put_in(wrote(tmp_path / "a.jsonl", [ROWS[0], ROWS[1], long, ROWS[3]]), tmp_path / "run")
    with opened(tmp_path / "run") as (recipe, run):
        done = export_run(recipe, run, tmp_path / "files")
        assert (done.tasks, done.incomplete) == (1, 1)
        assert [one.reward for one in Trajectories(done.files[0])] == [0.1, 1]
    with (
        opened(tmp_path / "run", "rollout.repeats=3") as (recipe, run),
        pytest.raises(UserError, match="has all of its 3 dialogues"),
    ):
        export_run(recipe, run, tmp_path / "more")


def test_whole_dialogues_are_what_multi_turn_dpo_compares(tmp_path: Path) -> None:
    words = ("method=multi_turn_dpo", "multi_turn_dpo.train.max_length=1024")
    put_in(wrote(tmp_path / "theirs.jsonl"), tmp_path / "run", *words)
    with opened(tmp_path / "run", *words) as (recipe, run):
        run_steps(recipe, run, Silent(), [Step(0, "select")])
        files = export_run(recipe, run, tmp_path / "files").files
    assert [file.name for file in files] == ["trajectories.jsonl", "policy_preferences.jsonl"]
    pairs = [pair for _, pair in read_lines(files[1], PreferenceRow)]
    assert len(pairs) == 2 and not any("boxes * 12" in str(pair) for pair in pairs)
    assert all(str(pair.chosen).endswith(RIGHT) for pair in pairs)


def test_help_says_that_the_files_hold_references(cli: Cli) -> None:
    said = cli("export", "sweet_rl", "--help")
    assert "coterie export sweet_rl" in said.out and "hold the references" in said.out
    assert "coterie import sweet_rl" in cli("import", "sweet_rl", "--help").out
    run = cli("import", "--help").out
    assert "sweet_rl" in run and "optima" in run
