"""SWEET-RL's offline trajectories as the dialogues of a run. The rows have our own words in the released format."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coterie.environments.coding import hidden_calls
from coterie.environments.collaboration import CRITIC, REFERENCE
from coterie.environments.protocol import AGENT
from coterie.environments.user_simulator import PERSON
from coterie.errors import UserError
from coterie.models.loading import load_renderer
from coterie.progress import Silent
from coterie.recipes.registry import settings
from coterie.recipes.sweet_rl import SweetRL, rewards
from coterie.recipes.sweet_rl_settings import SweetSettings
from coterie.record.rows import prompts
from coterie.runs.loop import run_stages
from coterie.runs.run import Run, StageKey, open_run

TINY = (
    "model=tiny-exchange", "dataset=colbench_code", "dataset.source=sample", "engine.device=cpu",
    "user_simulator.url=http://127.0.0.1:9/v1", "user_simulator.model=nobody", "rollout.max_tokens=12",
    "critic.train.max_length=1024", "critic.train.epochs=1", "train.gradient_checkpointing=false",
    "policy.train.max_length=1024",
    "candidates.count=4", "candidates.share=0.5", "evaluate.tasks=2", "sandbox.workers=1",
)  # fmt: skip
REFERENCE_CODE = "def apples(boxes):\n    return boxes * 12"
RIGHT = "I WANT TO ANSWER:\n```python\ndef apples(boxes):\n    return 12 * boxes\n```"
WRONG = "I WANT TO ANSWER: def apples(boxes): return 12"


def row(number: int, *outputs: str, **more: Any) -> dict[str, Any]:
    """A dialogue about task ``number``: the agent's raw completions, and a person's replies between them."""
    text = f"How many apples are in my boxes, friend {number}?The signature of the function is: def apples(boxes)"
    history: list[dict[str, str]] = [{"role": "user", "content": text}]
    for place, output in enumerate(outputs):
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
ROLLOUT = StageKey(0, "rollout")


def wrote(path: Path, rows: Sequence[Any] = ROWS) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    return path


def made(*overrides: str) -> SweetRL:
    own = settings("sweet_rl/backend", [*TINY, *overrides])
    assert isinstance(own, SweetSettings)
    return SweetRL(own)


@contextmanager
def read(file: Path, *overrides: str) -> Iterator[tuple[SweetRL, Run]]:
    recipe = made(f"offline={file}", *overrides)
    with open_run(file.with_name("run"), recipe.name, recipe.settings) as run:
        run_stages(recipe, run, Silent(), [ROLLOUT])
        yield recipe, run
    recipe.close()


def test_dialogues_of_a_file_are_those_of_round_0(tmp_path: Path) -> None:
    renderer, _ = load_renderer("tiny-exchange")
    with read(wrote(tmp_path / "theirs.jsonl")) as (recipe, run):
        metrics = run.metrics(ROLLOUT)
        assert (metrics["n"], metrics["score"], metrics["held_out"]) == (4, 0.5, 0)
        found, shares = {}, rewards(run)
        for tree in run.store.trees(0, "rollout"):
            task = run.store.task(tree.task)
            assert "12" not in str(task.public) and len(hidden_calls(task)) == 10
            assert task.secrets[REFERENCE].readers == {CRITIC, PERSON, "grader", "teacher"}
            assert {turn.writer for turn in tree.turns.values()} == {"import:theirs.jsonl"}
            for outcome, path in tree.trajectories():
                assert [turn.speaker.name for turn in path] == ([PERSON, AGENT] * 4)[: len(path)]
                said = [turn.text for turn in path if turn.speaker.name == AGENT]
                found[str(task.public["question"]), outcome.sample] = (said, outcome.score)
                for ids, turn in prompts(tree, outcome.leaf, AGENT):
                    shown = renderer.decode(ids)
                    assert recipe.environment.system_parts(task, AGENT)[0].text in shown
                    assert not any(w in shown for w in ("Hm.", "OUTPUT:", "theirs", "boxes * 12"))
                    assert renderer.decode(turn.ids[:-1]) == turn.text
    for index, one in enumerate(ROWS):
        history = one["dialogue_history"]
        outputs = [turn["output"] for turn in history if turn["role"] == "assistant"]
        assert found[history[0]["content"], index // 2] == (outputs, float(index in (0, 3)))
    assert sorted(shares.values()) == [0.1, 0.1, 1, 1]


def test_dialogues_without_a_reward_are_graded_in_the_sandbox(tmp_path: Path) -> None:
    helper = "I WANT TO ANSWER: def dozen(): return 12\ndef apples(boxes): return boxes * dozen()"
    rows = [row(0, RIGHT), row(0, "12?", helper), row(0, "How many?", WRONG)]
    rows.append(row(0, "I don't know.", reward=0.25))
    for one in rows:
        one["answer"] = None
    broken = row(1, RIGHT)
    broken["task"] = {**broken["task"], "ground_truth": "def apples(boxes):\n    return 1 / 0"}
    file = wrote(tmp_path / "theirs.jsonl", [*rows, broken])
    with read(file, "rollout.rollouts_per_task=4") as (_, run):
        (tree,) = run.store.trees(0, "rollout")
        shares = rewards(run)
        assert [shares[tree.task, n] for n in range(4)] == [1, 1, 0.1, 0.25]
        outcomes = [outcome for outcome, _ in tree.trajectories()]
        assert [o.score for o in outcomes] == [1, 1, 0, 0]
        assert [o.ending.reason for o in outcomes] == ["answered"] * 3 + ["turns"]
        assert outcomes[3].answer == "I don't know."
        assert all("can't be graded" in reason for _, reason in run.store.failures())
        assert run.metrics(ROLLOUT)["failed"] == 1


def test_only_tasks_and_repeats_that_are_wanted_and_not_held_out_are_read(tmp_path: Path) -> None:
    last = made().environment.tasks("heldout", 10**6, 0)[-1]
    held_out = row(7, RIGHT, reward=1)
    held_out["task"] = {
        "problem_description": last.public["question"], "id": last.id.removeprefix("colbench_code-"),
        "ground_truth": last.secrets[REFERENCE].reveal(CRITIC), "test_cases": hidden_calls(last),
    }  # fmt: skip
    other = {**held_out, "task": {**held_out["task"], "id": "by-its-content"}}
    file = wrote(tmp_path / "a.jsonl", [held_out, other, *ROWS, ROWS[0]])
    with read(file, "rollout.tasks=1", "rollout.rollouts_per_task=2") as (_, run):
        metrics = run.metrics(ROLLOUT)
        assert (metrics["n"], metrics["held_out"]) == (2, 2)
    (tmp_path / "none").mkdir()
    alone = wrote(tmp_path / "none/b.jsonl", [other])
    with pytest.raises(UserError, match="has a held-out task"), read(alone):
        pass


def test_a_dialogue_that_outgrows_the_model_is_a_failure(tmp_path: Path) -> None:
    long = ["What about the other ones, then, and the green ones of last week?"] * 30
    file = wrote(tmp_path / "a.jsonl", [ROWS[0], ROWS[1], row(0, *long, reward=0), ROWS[3]])
    with read(file) as (_, run):
        ((key, reason),) = run.store.failures()
    assert key.sample == "0001" and "out of context" in reason


def test_what_is_played_depends_on_the_file_and_only_on_its_content(tmp_path: Path) -> None:
    plain = made().fingerprint(ROLLOUT)
    file = wrote(tmp_path / "a.jsonl")
    own = made(f"offline={file}").fingerprint(ROLLOUT)
    assert own != plain == made("offline=null").fingerprint(ROLLOUT)
    assert made(f"offline={wrote(tmp_path / 'b.jsonl')}").fingerprint(ROLLOUT) == own
    wrote(file, ROWS[:2])
    assert made(f"offline={file}").fingerprint(ROLLOUT) != own
