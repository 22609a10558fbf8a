"""Commands and calls of a new user's first week, on files of their own: each works, or gives one error with a fix."""

import csv
import json
import random
from pathlib import Path

import pytest

from tests.conftest import Cli

pytestmark = pytest.mark.slow

REWARD = """
def score(reply, answer):
    return float(answer in reply) - len(reply) / 1000

def batch(completions, **columns):
    return [0.0 for _ in completions]

def breaks(reply, answer):
    return reply["text"]
"""
WORLD = """
from coterie import Ending, Message, Task
from coterie.environments import Grade, OneAgent, Pure, Transition


class World(OneAgent, Pure):
    name, metric, limits = "counting", "right", {"turns": 1}

    def tasks(self, split, count, seed, previous_counts=()):
        start = 0 if split == "train" else 500
        return [Task(f"{split}-{n}", {"number": start + n}) for n in range(min(count, 40))]

    def observe(self, state, actor):
        return (Message.of("user", f"What is {state.task.public['number']} + 1 ?"),)

    async def act(self, state, turns, session, *, replayed=()):
        return Transition(answer=turns[-1].text, end=Ending("answered"))

    async def grade(self, state, session):
        return Grade(float(str(state.task.public["number"] + 1) in state.answer))
"""
FAST = "model=tiny-acts train.max_steps=2 train.batch_size=4 evaluate.tasks=2"
RL = (
    "model=tiny-acts rollout.tasks=2 rollout.rollouts_per_task=4 rollout.max_tokens=12 steps.count=2 "
    "steps.save_every=1 "
    "evaluate.tasks=4"
)
OWN = "questions.jsonl environment.reward=reward.py:score environment.reward_range=[-1,1]"

COMMANDS: list[tuple[str, int, str]] = [
    # The data, before anything is trained.
    (f"run sft chats.jsonl {FAST} --dry-run", 0, "40"),
    (f"run sft alpaca.json {FAST} --dry-run", 0, "Add"),
    (f"run sft pairs.csv {FAST} --dry-run", 0, "plan of sft"),
    (f"run dpo preferences.jsonl {FAST} --dry-run", 0, "plan of dpo"),
    (f"run sft calls.jsonl {FAST} tools.calls=tags --dry-run", 0, "<add>"),
    (f"run rl/grpo {OWN} {RL} --dry-run", 0, "What is"),
    (f"run rl/grpo environment=world.py:World {RL} --dry-run", 0, "+ 1"),
    ("run optima/isft questions.jsonl model=tiny-exchange rollout.max_tokens=32 train.max_length=900 --dry-run", 0,
     "What is"),
    ("config rl/grpo dataset=questions.jsonl", 0, "rollout.tasks = 64"),
    ("list", 0, "rl/grpo"),
    ("data list", 0, "gsm8k"),
    ("doctor", 0, "cores"),
    # Training.
    (f"run sft chats.jsonl {FAST} --folder runs/sft", 0, "held-out"),
    ("run --folder runs/sft", 0, ""),
    (f"run sft chats.jsonl {FAST} dataset.heldout=0 --folder runs/all", 0, ""),
    (f"run sft chats.jsonl {FAST} train.method=lora --folder runs/lora", 0, ""),
    (f"run sft chats.jsonl {FAST} tracker=tensorboard --folder runs/tracked", 0, ""),
    (f"run dpo preferences.jsonl {FAST.replace('tiny-acts', 'runs/sft')} --folder runs/dpo", 0, "accuracy"),
    (f"run rl/grpo {OWN} {RL} --folder runs/rl", 0, "step 2 of 2"),
    (f"run rl/grpo {OWN} {RL} train.learning_rate=1e-4 --folder runs/rl --fork runs/fork --from-step 1", 0, "1 step"),
    (f"run rl/grpo environment=world.py:World {RL} --folder runs/world", 0, "step 2 of 2"),
    # Results.
    ("evaluate runs/rl --checkpoints 1,2", 0, "step 1"),
    (f"evaluate {OWN} policy=runs/rl@1 tasks=4 by=kind", 0, "even"),
    (f"evaluate {OWN} policy=tiny-acts policy=runs/rl tasks=4 max_tokens=12", 0, "difference"),
    ("evaluate questions.jsonl policy=runs/sft policy=runs/rl tasks=4", 0, "as in runs/rl"),
    ("export model runs/rl --step 1 --out exported", 0, "exported"),
    ("export model runs/lora --out merged --merge", 0, "merged"),
    ("export data runs/rl --to jsonl --out rows", 0, "rows"),
    ("report runs/sft", 0, "report.html"),
    ("report runs/rl", 0, "report.html"),
    # Mistakes.
    ("run sft missing.jsonl", 2, "no file"),
    (f"run rl/grpo {OWN} {RL} --folder .", 2, "not a run folder"),
    ("evaluate questions.jsonl", 2, "add policy="),
    (f"run sft preferences.jsonl {FAST}", 2, "coterie run dpo"),
    (f"run sft C:\\data\\chats.jsonl {FAST}", 2, "/mnt/c/data/chats.jsonl"),
    (f"run sft chats.jsonl {FAST} load_in_4bit=true", 2, "did you mean 'train.load_in_4bit'?"),
    (f"run sft chats.jsonl {FAST} train.load_in_4bit=true", 2, "use train.method=lora"),
    (f"run rl/grpo {OWN} {RL} gpu=A6000", 2, "'A100', 'L40S'"),
    (f"run rl/grpo {OWN} {RL} cluster=ray", 2, "ray"),
    (f"run rl/grpo questions.jsonl environment.reward=reward.py:batch {RL}", 2, "completions"),
    (f"run rl/grpo questions.jsonl environment.reward=reward.py:breaks {RL}", 2, "reward.py"),
    (f"run rl/grpo questions.jsonl environment.reward=reward.py:scores {RL}", 2, "score"),
    ("evaluate runs/rl --checkpoints 9", 2, "use one of: 1, 2"),
    ("export model runs/nothing --out other", 2, "runs/nothing"),
]  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files as a user has them."""
    folder = tmp_path_factory.mktemp("week")
    drawn = random.Random(0)
    sums = [(drawn.randrange(90), drawn.randrange(9), n) for n in range(40)]
    chats, preferences, calls, alpaca, questions = [], [], [], [], []
    add = {"type": "object", "properties": {"terms": {"type": "string"}}, "required": ["terms"]}
    tool = {
        "type": "function",
        "function": {"name": "add", "description": "Add.", "parameters": add},
    }
    for a, b, n in sums:
        question, reply = f"Add {a} and {b} in round {n}.", str(a + b)
        asked = {"role": "user", "content": question}
        chats.append({"messages": [asked, {"role": "assistant", "content": reply}]})
        preferences.append({"prompt": question, "chosen": reply, "rejected": f"{a} {b}"})
        call = {"name": "add", "arguments": json.dumps({"terms": f"{a} {b}"})}
        called = {"role": "assistant", "content": "", "tool_calls": [
            {"id": f"c{n}", "type": "function", "function": call}
        ]}  # fmt: skip
        result = {"role": "tool", "tool_call_id": f"c{n}", "content": reply}
        said = {"role": "assistant", "content": reply}
        calls.append({"messages": [asked, called, result, said], "tools": [tool]})
        alpaca.append(
            {"instruction": f"Add in round {n}.", "input": f"{a} and {b}", "output": reply}
        )
        kind = "odd" if (a + b) % 2 else "even"
        questions.append(
            {"question": f"What is {a} + {b} ?", "answer": a + b, "kind": kind, "n": n}
        )
    lines = {"chats": chats, "preferences": preferences, "calls": calls, "questions": questions}
    for name, rows in lines.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "alpaca.json").write_text(json.dumps(alpaca))
    with (folder / "pairs.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("prompt", "completion"), *((f"{a} and {b}, {n}", a + b) for a, b, n in sums)]
        )
    (folder / "reward.py").write_text(REWARD)
    (folder / "world.py").write_text(WORLD)
    return folder


def test_commands_work_or_give_one_error_with_a_fix(
    cli: Cli, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    faults = list[str]()
    for words, status, text in COMMANDS:
        ran = cli(*words.split())
        output = ran.out + ran.err
        is_right = ran.code == status and text in output and "Traceback" not in output
        if not is_right or (status and (output.count("error: ") != 1 or "\n  -> " not in output)):
            faults.append(
                f"coterie {words}\nstatus {ran.code}, expected {status} and {text!r}\n{output[-2000:]}"
            )
    assert not faults, "\n\n".join(faults)


CALLS: list[tuple[str, str]] = [
    ("import coterie", ""),
    ("rows = [{'question': f'What is {n} + 1 ?', 'answer': n + 1, 'n': n} for n in range(40)]", ""),
    ("score = lambda reply, answer: float(answer in reply)", ""),
    ("world = coterie.environment(rows)", ""),
    ("world = coterie.environment(rows, reward=score)", ""),
    ("coterie.environment('questions.jsonl', reward='reward.py:score', reward_range=[-1, 1])", ""),
    ("coterie.environment('exchange').tasks('train', 2, seed=0)", ""),
    ("coterie.environment('world.py:World').tasks('train', 2, seed=0)", ""),
    ("def add(a: int, b: int) -> int:\n    'Add two numbers.'\n    return a + b", ""),
    ("coterie.environment(rows, tools=[add], calls='tags')", ""),
    ("coterie.environment(rows, tools=['python'], calls='tags')", ""),
    ("tasks = world.tasks('heldout', 4, seed=0)", ""),
    ("model = coterie.load('tiny-acts')", ""),
    ("coterie.load('runs/sft')", ""),
    ("coterie.load('runs/lora')", ""),
    ("coterie.load('merged')", ""),
    ("rollouts = coterie.play(world, model, 2, samples=2, max_tokens=8)", ""),
    ("rollouts = coterie.play(world, model, tasks, samples=2, max_tokens=8)", ""),
    ("coterie.play(coterie.environment('exchange'), coterie.load('tiny-exchange'), 1, max_tokens=16)", ""),
    ("assert str(rollouts[0]) and 0 <= rollouts[0].score <= 1 and rollouts[0].tokens", ""),
    ("assert [len(group) for group in coterie.by_task(rollouts)] == [2] * 4", ""),
    ("coterie.train(model, [row for rollout in rollouts for row in rollout.rows()])", ""),
    ("coterie.train(model, [{'prompt': f'Say {n}.', 'completion': f'{n}'} for n in range(4)])", ""),
    ("coterie.train(model, [{'messages': [{'role': 'user', 'content': 'Hi.'}, "
     "{'role': 'assistant', 'content': 'Yes.'}]}])", ""),
    ("coterie.train(model, [{'prompt': 'Hi.', 'chosen': 'Yes.', 'rejected': 'No.'}])", ""),
    ("settings = coterie.TrainingSettings(learning_rate=1e-4, epochs=1)", ""),
    ("coterie.train(model, [{'prompt': 'Say 1.', 'completion': '1'}], settings, 'training')", ""),
    ("model.save('mine')", ""),
    ("coterie.load('mine')", ""),
    ("coterie.mean_interval([0.0, 1.0, 1.0], seed=0)", ""),
    ("coterie.load('nothing')", "there is no model"),
    ("coterie.environment([]).tasks('train', 1, seed=0)", "is empty"),
    ("coterie.environment('exchnge')", "did you mean 'exchange'"),
    ("coterie.environment(rows, reward='reward.py:missing').tasks('train', 1, seed=0)", "missing"),
    ("coterie.train(model, [{'text': 'a'}])", "no known form"),
    ("coterie.train(model, [])", "there are no rows"),
    ("coterie.TrainingSettings(learning_rat=1)", "learning_rat"),
]  # fmt: skip


def test_python_calls_work_or_raise_one_error_with_a_fix(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (files / "runs/sft").exists(), "the commands above have run"
    monkeypatch.chdir(files)
    names, faults = dict[str, object](), list[str]()
    for code, problem in CALLS:
        try:
            exec(code, names)
            error = ""
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        if (problem not in error) if problem else error:
            faults.append(f"{code}\n{error or 'no error'}\nexpected: {problem or 'no error'}")
    assert not faults, "\n\n".join(faults)
