"""The question environment: rows of a user's file, prompts, rewards, and what is refused before a run."""

import asyncio
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.config.user_code import as_number
from coterie.environments import question
from coterie.environments.protocol import Environment, Grade, Shared, State
from coterie.environments.question import Question, filled
from coterie.environments.registry import TaskSettings, make_environment
from coterie.errors import UserError
from coterie.recipes.registry import settings
from coterie.runs.benchmark import benchmark_settings
from coterie.tools.sandbox.pool import Sandbox
from tests.conftest import Cli, refused
from tests.helpers.write_rows import write_jsonl

REWARDS = """
import re
def words(question, reply, answer, row):
    return {"score": float(answer in reply), "words": len(reply.split()), "level": row["level"]}
async def signed(question, reply, answer, row):
    return 2.0 * (answer in reply) - 1
def number(question, reply, answer, row):
    return float(re.search(r"[0-9]+", reply).group() == answer)
def nothing(question, reply, answer, row):
    return float("nan")
def counted(question, reply, answer, row):
    return {"score": 1.0, "tokens": 3}
def leaving(question, reply, answer, row):
    raise SystemExit(2)
"""
FORMS = """
import functools
def any_order(row, answer, reply): return reply == answer and row["answer"] == int(answer)
def keywords(*, reply, question, answer): return reply == answer and question.startswith("What")
def default(reply, answer, level=-1): return reply == answer and level == -1
def rest(reply, **values): return reply == values["answer"] and len(values) == 3
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "qa" and extra_info == {}
    return {"score": solution_str == ground_truth, "acc": True, "pred": solution_str}
def verl_rest(solution_str, ground_truth, extra_info, **more): return solution_str == ground_truth and not extra_info
def wrapped(function): return lambda *args, **values: function(*args, **values)
def same(question, reply, answer, row): return reply == answer
inner = wrapped(same)
part = functools.partial(lambda limit, reply, answer: reply == answer, 3)
class Grader:
    def __call__(self, reply, answer): return reply == answer
grader = Grader()
async def waits(answer, reply): return reply == answer
def trl(completions, answer, **kwargs): return [reply == gold for reply, gold in zip(completions, answer)]
def openrlhf(queries, prompts, labels): return {"rewards": [1.0]}
def verl_batch(data_sources, solution_strs, ground_truths, extra_infos): return [1.0]
def of_one(reply, answer): return trl(completions=[reply], answer=[answer])[0]
def typo(question, reply, anwser, row): return 1.0
def positions(q, r, a, row): return 1.0
def blind(question, answer, row): return 1.0
def none(): return 1.0
number = 5
"""


def sums(count: int = 10) -> list[dict[str, Any]]:
    return [{"question": f"What is {n} + 1?", "answer": n + 1, "level": n} for n in range(count)]


def environment(file: Path, *overrides: str) -> Environment:
    own = [f"dataset={file}", *overrides]
    return make_environment(benchmark_settings(TaskSettings, "question", own))


def graded(game: Environment, reply: str, split: Any = "train") -> Grade:
    (task,) = game.tasks(split, 1, 0)
    return asyncio.run(game.grade(State(task, 0, answer=reply), Shared()))


def prompt(game: Environment) -> str:
    (task,) = game.tasks("train", 1, 0)
    (message,) = game.observe(State(task, 0), "agent")
    assert message.role == "user"
    return "".join(part.text for part in message.parts)


@pytest.mark.parametrize(
    ("raw", "overrides"),
    [
        ({"prompt": "3 + 1?", "completion": "4"}, []),
        ({"Problem": "3 + 1?", "Solution": "Add: \\boxed{4}"}, []),
        ({"instruction": "3 + 1?", "output": "3 + 1 = 4\n#### 4"}, []),
        ({"q": "3 + 1?", "meta": {"gold": [5, "4"]}}, ["dataset.question=q", "dataset.answer=meta.gold"]),
        ({"prompt": [{"role": "user", "content": "3 + 1?"}], "reward_model": {"ground_truth": "4"}}, []),
    ],
)  # fmt: skip
def test_columns_are_found_by_usual_names_or_named(
    raw: dict[str, Any], overrides: list[str], tmp_path: Path
) -> None:
    text = json.dumps(raw)
    rows = [json.loads(text.replace("3 + 1?", f"{n} and 3 + 1?")) for n in range(4)]
    game = environment(
        write_jsonl(tmp_path / "rows.jsonl", *rows), "environment.reward=math", *overrides
    )
    (task,) = game.tasks("heldout", 1, 0)
    assert str(task.public["question"]).endswith("and 3 + 1?")
    assert graded(game, "It is \\boxed{4}.", "heldout").score == 1.0


def test_a_prompt_has_columns_and_braces_and_the_default_of_its_reward(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", *sums())
    shown = prompt(
        environment(file, "environment.prompt=Level {level}: {question} {{x}} \\boxed{}")
    )
    level = shown.split()[1][:-1]
    assert shown == f"Level {level}: What is {level} + 1? {{x}} \\boxed{{}}"
    assert prompt(environment(file, "environment.reward=math")).endswith("\\boxed{}.")
    assert prompt(environment(file)).endswith("Reply with the answer only.")
    (tmp_path / "rewards.py").write_text(REWARDS)
    own = environment(file, f"environment.reward={tmp_path}/rewards.py:words")
    assert prompt(own).endswith("+ 1?"), "a function reads the reply as it is"
    row = {"tags": ["a", "b"], "n": 2.0}
    assert filled("{tags} {n}", "", row, "x", set()) == '["a", "b"] 2'
    verl = {"prompt": "?", "reward_model": {"ground_truth": "4"}, "extra_info": {"answer": "4"}}
    nested = write_jsonl(tmp_path / "b.jsonl", *(verl | {"prompt": f"{n}?"} for n in range(5)))
    for column in ("extra_info", "extra_info.answer", "reward_model.ground_truth"):
        with pytest.raises(UserError, match="shows the right answer"):
            prompt(environment(nested, f"environment.prompt={{question}} {{{column}}}"))


def test_columns_that_the_prompt_names_are_not_added_again_and_others_are_named(
    tmp_path: Path,
) -> None:
    rows = [{"question": f"{n}?", "answer": "A", "context": f"C{n}", "level": n} for n in range(10)]
    file = write_jsonl(tmp_path / "a.jsonl", *rows)
    unused = "columns that are not used"
    game = environment(file)
    assert re.fullmatch(r"C(\d)\n\n\1\?\n\nReply with the answer only\.", prompt(game))
    assert game.notes == [(unused, "level")]  # type: ignore[attr-defined]
    game = environment(file, "environment.prompt=Level {level}. {question} ({context})")
    assert re.fullmatch(r"Level (\d)\. \1\? \(C\1\)", prompt(game))
    assert not game.notes  # type: ignore[attr-defined]
    (tmp_path / "rewards.py").write_text(REWARDS)
    game = environment(file, f"environment.reward={tmp_path}/rewards.py:words")
    assert dict(game.notes)["columns that only the reward can read"] == "level"  # type: ignore[attr-defined]
    game = environment(file, "dataset.ignore=[context]", "environment.prompt={question} {context}")
    assert re.fullmatch(r"(\d)\? C\1", prompt(game)), "the prompt may show what is not added"
    choices = [{"question": f"{n}?", "choices": ["a", "b"], "answer_idx": 1} for n in range(10)]
    with pytest.raises(UserError, match="shows the right answer to the agent"):
        prompt(
            environment(write_jsonl(file, *choices), "environment.prompt={question} {answer_idx}")
        )


@pytest.mark.parametrize(
    ("reward", "answers", "reply", "score"),
    [
        ("exact", ["The Nile", "Nile River"], "nile river.", 1.0),
        ("exact", ["The Nile"], "I think \\boxed{the Nile}!", 1.0),
        ("exact", ["The Nile"], "I think the Nile", 0.0),
        ("exact", ["A"], "a", 1.0),
        ("exact", ["-6"], "6", 0.0),
        ("exact", ["3.5"], "35", 0.0),
        ("exact", ["1/2"], "0.5", 1.0),
        ("exact", ["3 + 4 = 7\n#### 7"], "#### 7", 1.0),
        ("f1", ["red fox"], "red dog", 0.5),
        ("f1", ["Red, so \\boxed{red fox}."], "red dog", 0.5),
        ("math", ["1/2"], "So it is \\boxed{\\frac{1}{2}}.", 1.0),
        ("math", ["1200"], "1100 + 100 = 1200\n#### 1200", 1.0),
        ("math", ["5"], "First \\boxed{5}, no: \\boxed{6}", 0.0),
    ],
)
def test_built_in_rewards_read_the_last_box_or_the_whole_reply(
    reward: str, answers: list[str], reply: str, score: float, tmp_path: Path
) -> None:
    rows = [{"question": f"{n}?", "answer": answers} for n in range(5)]
    game = environment(write_jsonl(tmp_path / "a.jsonl", *rows), f"environment.reward={reward}")
    assert graded(game, reply).score == pytest.approx(score)


def test_a_program_is_run_on_the_tests_of_its_row(
    tmp_path: Path, runner: asyncio.Runner, sandbox: Sandbox
) -> None:
    tests = [{"input": "2\n", "output": "4\n"}, {"input": "5\n", "output": "10\n"}]
    rows = [{"question": f"Double it, {n}.", "tests": tests} for n in range(5)]
    overrides = ("environment.reward=code", "dataset.answer=none")
    game = environment(write_jsonl(tmp_path / "a.jsonl", *rows), *overrides)
    assert "```python" in prompt(game)

    (task,) = game.tasks("heldout", 1, 0)
    for code, score, fraction in (("print(2 * int(input()))", 1.0, 1.0), ("print(4)", 0.0, 0.5)):
        state = State(task, 0, answer=f"So:\n```python\n{code}\n```")
        grade = runner.run(game.grade(state, Shared(sandbox)))
        assert (grade.score, grade.metrics["fraction"]) == (score, fraction)


CHECKED = {"function": "twice", "prelude": "import math\n", "tests": [
    {"kind": "check", "input": "def check(candidate):\n    assert candidate(2) == 4", "output": ""},
]}  # fmt: skip


@pytest.mark.parametrize(("row", "right", "wrong"), [
    (CHECKED, "def twice(x): return math.trunc(2 * x)", "def twice(x): return 5"),
    ({"tests": [{"input": "2", "output": "1"}], "checker": "print(int(open('solution_output.txt').read()))"},
     "print(1)", "print(0)"),
])  # fmt: skip
def test_a_row_may_have_a_check_or_a_checker(
    row: dict[str, Any],
    right: str,
    wrong: str,
    tmp_path: Path,
    runner: asyncio.Runner,
    sandbox: Sandbox,
) -> None:
    rows = [{"question": f"Do it, {n}.", **row} for n in range(5)]
    overrides = ("environment.reward=code", "dataset.answer=none")
    game = environment(write_jsonl(tmp_path / "a.jsonl", *rows), *overrides)
    (task,) = game.tasks("heldout", 1, 0)
    for code, score in ((right, 1.0), (wrong, 0.0)):
        state = State(task, 0, answer=f"```python\n{code}\n```")
        assert runner.run(game.grade(state, Shared(sandbox))).score == score


def test_an_own_reward_gets_plain_values_and_its_range_is_scaled(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(REWARDS)
    file = write_jsonl(tmp_path / "a.jsonl", *sums())
    game = environment(file, f"environment.reward={tmp_path}/rewards.py:words")
    (task,) = game.tasks("train", 1, 0)
    level = int(str(task.public["question"]).split()[2])
    grade = graded(game, f"It is {level + 1}.")
    assert (grade.score, dict(grade.metrics)) == (1.0, {"words": 3.0, "level": float(level)})
    overrides = (
        f"environment.reward={tmp_path}/rewards.py:signed",
        "environment.reward_range=[-1,3]",
    )
    signed = environment(file, *overrides)
    assert graded(signed, "no").score == 0.0 and graded(signed, f"{level + 1}").score == 0.5
    before = signed.version
    (tmp_path / "rewards.py").write_text(REWARDS + "# changed\n")
    assert environment(file, *overrides).version != before, "a changed function is another reward"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["environment.prompt={questoin}"], "line 1 has no 'questoin'.*did you mean 'question'"),
        (["environment.prompt=Count to {{ten}}. \\boxed{}"], "has no column: all tasks would be"),
        (["environment.prompt={level} {answer}"], "shows the right answer to the agent"),
        (["environment.reward=exat"], "exat: is no reward; did you mean 'exact'"),
        (["environment.reward_range=[1,1]"], "must be .LOW,HIGH., with LOW below HIGH"),
        (["environment.reward=OWN:number"], r"line 1: .*rewards.py, line 8: AttributeError"),
        (["environment.reward=OWN:nothing"], "nothing .* returned nan on .*line 1"),
        (["environment.reward=OWN:signed"], "returned -1 on .*line 1, outside of 0 to 1"),
        (["environment.reward=OWN:counted"], "a metric called 'tokens', which coterie measures"),
        (["environment.reward=OWN:leaving"], "leaving .* failed on .*line 1: .*2"),
        (["environment.reward=code"], "line 1 has no readable tests"),
        (["dataset.answer=none"], "line 1 has no right answer"),
        (["dataset.question=qestion"], "has no 'qestion'.*did you mean 'question'"),
    ],
)
def test_what_can_not_be_used_is_refused_before_anything_is_played(
    overrides: list[str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "rewards.py").write_text(REWARDS)
    file = write_jsonl(tmp_path / "a.jsonl", *sums())
    own = [pair.replace("OWN", f"{tmp_path}/rewards.py") for pair in overrides]
    with pytest.raises(UserError, match=f"(?s){message}"):
        environment(file, *own).tasks("train", 1, 0)


@pytest.mark.parametrize("name", ["any_order", "keywords", "default", "rest", "compute_score", "verl_rest", "inner",
    "part", "grader", "waits", "of_one"])  # fmt: skip
def test_a_reward_function_gets_its_values_by_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "forms.py").write_text(FORMS)
    file = write_jsonl(tmp_path / "a.jsonl", *sums())
    game = environment(file, f"environment.reward={tmp_path}/forms.py:{name}")
    (task,) = game.tasks("train", 1, 0)
    right = str(int(str(task.public["question"]).split()[2]) + 1)
    assert (graded(game, right).score, graded(game, f"{right}0").score) == (1.0, 0.0)
    assert isinstance(game, Question)
    assert game.trial == "1.0 for a right answer, 0.0 for a wrong one"


@pytest.mark.parametrize(("name", "message"), [
    ("trl", "missing a required argument: 'completions'.*write def NAME.*lists of one"),
    ("openrlhf", "'queries'.*lists of one"), ("verl_batch", "'data_sources'.*lists of one"),
    ("typo", "argument: 'anwser'"), ("positions", "argument: 'q'"), ("number", "5 is not a callable"),
    ("blind", "does not take the reply"), ("none", "does not take the reply"),
])  # fmt: skip
def test_a_reward_function_that_needs_other_values_is_refused(
    name: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "forms.py").write_text(FORMS)
    file = write_jsonl(tmp_path / "a.jsonl", *sums())
    with pytest.raises(UserError, match=f"(?s){message}"):
        environment(file, f"environment.reward={tmp_path}/forms.py:{name}")


def test_a_reward_function_of_verl_gets_the_columns_of_its_files(tmp_path: Path) -> None:
    code = """def score(data_source, solution_str, ground_truth, extra_info):
    return data_source == "sums" and ground_truth == ["4"] and extra_info["index"] in range(5)"""
    (tmp_path / "verl.py").write_text(code)
    rows = [
        {"prompt": [{"role": "user", "content": f"{n}?"}], "data_source": "sums",
         "reward_model": {"style": "rule", "ground_truth": ["4"]}, "extra_info": {"index": n}}
        for n in range(5)
    ]  # fmt: skip
    file = write_jsonl(tmp_path / "a.jsonl", *rows)
    game = environment(file, f"environment.reward={tmp_path}/verl.py:score")
    assert graded(game, "4").score == 1.0


def test_a_trial_says_when_right_and_wrong_answers_have_one_score(tmp_path: Path) -> None:
    code = "def score(reply, answer):\n    return {'score': None if reply else 0.5, 'length': len(reply)}\n"
    (tmp_path / "none.py").write_text(code)
    file = write_jsonl(tmp_path / "a.jsonl", *sums())
    game = environment(file, f"environment.reward={tmp_path}/none.py:score")
    grade = graded(game, "4")
    assert (grade.score, dict(grade.metrics)) == (None, {"length": 1.0}), "could not be graded"
    assert isinstance(game, Question) and "check the function" in game.trial


@pytest.mark.parametrize("code", [
    "def stuck(reply):\n    if reply == 'x': time.sleep(9)\n    return 1",
    "def stuck(reply):\n    while reply == 'x': pass\n    return 1",
    "def stuck(reply):\n    re.fullmatch('(a|aa)+b', 'a' * 40 * (reply == 'x'))\n    return 1",
    "def stuck(reply):\n    while reply == 'x':\n        with suppress(Exception): time.sleep(9)\n    return 1",
    "async def stuck(reply):\n    if reply == 'x': await asyncio.sleep(9)\n    return 1",
    "async def stuck(reply):\n    await asyncio.sleep(0)\n    if reply == 'x': time.sleep(9)\n    return 1",
])  # fmt: skip
def test_a_reward_function_that_does_not_return_is_stopped(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stuck.py").write_text(
        f"import asyncio, re, time\nfrom contextlib import suppress\n{code}\n"
    )
    file = write_jsonl(tmp_path / "a.jsonl", *sums())
    game = environment(file, f"environment.reward={tmp_path}/stuck.py:stuck")
    graded(game, "")
    monkeypatch.setattr(question, "SECONDS", 0.05)
    place = r"stuck.*failed on .*a\.jsonl, line \d+: .*stuck\.py, line \d: OutOfTime: took more than 0.05 s"
    with pytest.raises(UserError, match=place):
        graded(game, "x")
    monkeypatch.undo()
    assert graded(game, "").score == 1.0, "the next call has its own time"


@pytest.mark.parametrize(
    ("value", "number"),
    [(Decimal("0.5"), 0.5), (np.float32(0.5), 0.5), (np.bool_(True), 1.0), (torch.tensor([1]), 1.0),
     (np.array([1.0, 2.0]), None), (Decimal("NaN"), None), (10**400, None), ("1", None)],
)  # fmt: skip
def test_numbers_of_all_libraries_are_rewards(value: object, number: float | None) -> None:
    assert as_number(value) == number


def test_a_reward_that_fails_later_ends_the_run_with_the_row(tmp_path: Path, cli: Cli) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", *sums())
    code = (
        "calls = []\ndef late(reply):\n    calls.append(reply)\n    return 1 / (len(calls) < 4)\n"
    )
    (tmp_path / "late.py").write_text(code)
    overrides = ("policy=tiny-problems", "max_tokens=4", "environment.reward=late.py:late")
    problem = refused(cli, "evaluate", "question", f"dataset={file}", *overrides).replace("\n", "")
    assert re.search(r"late.*failed on.*a\.jsonl, line \d+: .*ZeroDivision", problem)


def test_questions_are_played_by_one_agent_in_rl_and_debated_in_optima(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", *sums())

    def played(recipe: str, *overrides: str, stored: Any = None) -> str | None:
        return settings(recipe, overrides, stored).environment.name

    assert played("rl/grpo", "dataset=gsm8k") == "question"
    assert played("rl/grpo", f"dataset={file}") == "question"
    assert played("rl/grpo", "dataset=gsm8k", "environment=debate") == "debate"
    assert played("rl/grpo", "dataset=hotpot_qa") == "information_exchange"
    assert played("rl/grpo", "environment=exchange") == "exchange"
    assert played("optima/isft", "dataset=gsm8k") == "debate"
    assert played("optima/isft", f"dataset={file}") == "debate"
    debate = settings("rl/grpo", ["dataset=gsm8k", "environment=debate"]).model_dump()
    assert played("rl/grpo", "dataset=gsm8k", stored=debate) == "debate", "a run goes on"


def test_the_same_words_run_resume_and_evaluate(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "rewards.py").write_text(REWARDS)
    write_jsonl(tmp_path / "a.jsonl", *sums(20))
    own = ("dataset=a.jsonl", "environment.reward=rewards.py:words")
    sizes = ("model=tiny-acts", "rollout.tasks=2", "rollout.rollouts_per_task=2", "rollout.max_tokens=4",
             "steps.count=1",
             "train.max_length=64", "evaluate.tasks=3")  # fmt: skip
    said = cli("run", "rl/grpo", *own, *sizes, "--folder", "run", "--dry-run")
    assert said.code == 0, said.err
    assert said.out.count("prompt of agent") == 3 and said.out.count("right answer: ") == 3
    for _ in range(2):
        ran = cli("run", "rl/grpo", *own, *sizes, "--folder", "run")
    assert ran.code == 0, ran.err
    assert "rl/grpo on qa" in ran.out + ran.err
    for benchmark in ("question", "a.jsonl"):
        said = cli("evaluate", benchmark, "policy=run")
        assert said.code == 0 and json.loads(said.out.splitlines()[-1])["rows"][0]["n"] == 4
        assert "as in run: environment=question max_tokens=4" in said.err, said.err
    overrides = ("policy=run", "dataset.source=sample", "tasks=1", "max_tokens=4")
    other = cli("evaluate", "gsm8k", *overrides)
    assert other.code == 0 and "as in run" not in other.err
