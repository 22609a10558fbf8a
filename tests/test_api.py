"""The names of ``coterie``, rollouts from plain code and a notebook, and a custom loop."""

import asyncio
import math
import runpy
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
import torch
from rich.console import Console

import coterie
from coterie.cli import execution
from coterie.cli.arguments import read_arguments
from coterie.environments.exchange import Exchange
from coterie.environments.protocol import Environment, State
from coterie.environments.registry import make_environment
from coterie.recipes import registry
from coterie.tools.registry import sources_of
from tests.helpers.packaged_environments import packaged_environment
from tests.helpers.write_rows import write_jsonl

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def engine() -> coterie.InProcessEngine:
    return coterie.InProcessEngine(coterie.load("tiny-exchange"))


@pytest.fixture(scope="module")
def world() -> Environment:
    return coterie.environment("exchange")


def test_importing_coterie_imports_nothing_heavy() -> None:
    code = (
        "import sys, coterie; coterie.UserError; "
        "print({'torch', 'transformers', 'numpy', 'pydantic', 'typer'} & sys.modules.keys())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"


def test_the_package_is_typed() -> None:
    assert (Path(coterie.__file__).parent / "py.typed").is_file()


def test_samples_come_in_order_and_depend_on_the_seed_alone(world, engine) -> None:
    """Also inside a running event loop."""
    tasks = world.tasks("train", 3, 0)

    def play(seed: int) -> list[coterie.Played]:
        return coterie.play(world, engine, tasks, samples=2, max_tokens=24, seed=seed)

    async def within() -> list[coterie.Played]:
        return play(1)

    rollouts = play(1)
    assert [(one.task.id, one.sample) for one in rollouts] == [
        (task.id, n) for task in tasks for n in (0, 1)
    ]
    assert list(map(str, rollouts)) == list(map(str, asyncio.run(within())))
    assert list(map(str, rollouts)) != list(map(str, play(2)))
    assert [[one.sample for one in group] for group in coterie.by_task(rollouts)] == [[0, 1]] * 3
    assert all(one.failure is None for one in rollouts)
    assert [one.tokens for one in rollouts] == [sum(len(t.ids) for t in one.path) for one in rollouts]  # fmt: skip
    dialogue = next(one for one in rollouts if len(one.rows()) == 2)
    for agent in ("Alice", "Bob"):
        (row,) = dialogue.rows(agent, weight=0.5)
        own = [turn.ids for turn in dialogue.path if turn.speaker.name == agent]
        assert [row.ids[t.start : t.stop] for t in row.targets] == own and row.weight == 0.5


def test_agents_may_have_engines_of_their_own(world, engine) -> None:
    other = coterie.InProcessEngine(coterie.load("tiny-exchange"), policy="other")
    tasks = world.tasks("train", 4, 0)
    rollouts = coterie.play(world, {"Alice": engine, "Bob": other}, tasks, max_tokens=16)
    turns = [turn for one in rollouts for turn in one.path if turn.sample]
    policies = {(turn.speaker.name, turn.sample.policy) for turn in turns}
    assert policies == {("Alice", "policy"), ("Bob", "other")}
    with pytest.raises(coterie.UserError, match=r"no engine for Bob \(engines: Alice\)"):
        coterie.play(world, {"Alice": engine}, tasks)


def test_a_failed_rollout_has_its_reason_and_scores_nothing(world, engine) -> None:
    class Broken(Exchange):
        async def act(self, state, taken, session, *, replayed=()):
            raise RuntimeError("out of order")

    (one,) = coterie.play(Broken(), engine, world.tasks("train", 1, 0), max_tokens=16)
    assert one.failure is not None and "out of order" in one.failure
    assert (one.score, one.rows(), one.outcome) == (0.0, [], None)


def test_an_environment_is_made_by_name_with_its_settings() -> None:
    own = coterie.environment("gsm8k", source="sample", turns=4)
    assert own.limits == packaged_environment("gsm8k", "environment.turns=4").limits
    assert coterie.environment(f"{EXAMPLES}/environment.py:Guess", most=3).name == "guess"
    with pytest.raises(coterie.UserError, match=r"environment\.turn"):
        coterie.environment("exchange", turn=3)


SUMS = [{"question": f"What is {n} + 1?", "answer": n + 1, "day": date(2026, 1, n)} for n in range(1, 11)]  # fmt: skip


def brevity(reply: str, answer: str) -> float:
    return 1 / (1 + len(reply))


def double(number: int) -> str:
    """Double a number."""
    return str(2 * number)


def test_rows_classes_and_functions_make_an_environment(engine, tmp_path: Path) -> None:
    """Functions of a notebook have no file; a later function of the same name does not replace an earlier one."""
    prompt = "Question [x]: {question}\nAnswer: # 1"
    brief = coterie.environment(SUMS, reward=brevity, prompt=prompt)
    others = {
        "always": coterie.environment(iter(SUMS), reward=lambda reply, **_: 1.0),
        "never": coterie.environment(SUMS, reward=lambda reply, **_: 0.0),
    }
    assert brief.tasks("train", 1, 0)[0].public["prompt"].endswith("+ 1?\nAnswer: # 1")
    for rollout in coterie.play(brief, engine, 3, max_tokens=8):
        assert rollout.score == pytest.approx(brevity(rollout.path[-1].text, ""))
    scores = {
        name: [one.score for one in coterie.play(world, engine.loaded, 2, max_tokens=4)]
        for name, world in others.items()
    }
    assert scores == {"always": [1.0, 1.0], "never": [0.0, 0.0]}
    file = write_jsonl(tmp_path / "sums.jsonl", {"question": "1 + 1?", "answer": 2})
    assert coterie.environment(file, reward="math", heldout=0).tasks("train", 1, 0)
    equipped = coterie.environment(SUMS, tools=[double], calls="tags")
    (task,) = equipped.tasks("train", 1, 0)
    assert "double" in str(equipped.observe(State(task, seed=0), "agent"))

    class Own(Exchange):
        name = "own"

    assert coterie.environment(Own).name == "own"
    with pytest.raises(coterie.UserError, match="does not take the reply"):
        coterie.environment(SUMS, reward=lambda answer: 1.0)


CHATS = [
    {"messages": [{"role": "user", "content": f"Say {n}"}, {"role": "assistant", "content": str(n)}]}
    for n in range(6)
]  # fmt: skip
OPENAI_PAIRS = [
    {
        "input": {"messages": chat["messages"][:1]},
        "preferred_output": chat["messages"][1:],
        "non_preferred_output": [{"role": "assistant", "content": "no"}],
    }
    for chat in CHATS
]
SETTINGS = coterie.TrainingSettings(learning_rate=1e-3, epochs=1, batch_size=3)


@pytest.mark.parametrize(
    ("rows", "loss"),
    [
        (CHATS, "nll"),
        ([{"prompt": f"Say {n}", "completion": str(n)} for n in range(6)], "nll"),
        ([{"prompt": f"Say {n}", "chosen": str(n), "rejected": "no"} for n in range(6)], "margin"),
        (OPENAI_PAIRS, "margin"),
    ],
)
def test_rows_as_dictionaries_are_trained_on_in_memory_and_saved(
    rows, loss: str, tmp_path: Path
) -> None:
    model = coterie.load("tiny-exchange")
    report = coterie.train(model, rows, SETTINGS, heldout=rows[:2])
    assert (report.rows, report.steps) == (6, 2) and report.last_loss < report.first_loss
    # A DPO loss begins at log 2, where policy and reference are equal.
    assert (abs(report.first_loss - math.log(2)) < 1e-3) == (loss == "margin")
    model.save(tmp_path / "saved")
    saved = coterie.load(tmp_path / "saved").model.state_dict()
    assert all(torch.equal(weight, saved[name]) for name, weight in model.model.state_dict().items())  # fmt: skip
    with pytest.raises(coterie.UserError, match="tokenizer"):
        coterie.train(model.model, rows, SETTINGS)
    with pytest.raises(coterie.UserError, match="line 1 is of no known form"):
        coterie.train(model, [{"text": "Say"}], SETTINGS)


def test_runs_and_adapters_are_loaded_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the base was given by a relative path."""
    coterie.load("tiny-exchange").save(tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(coterie.UserError, match="folder"):
        coterie.train(coterie.load("base"), CHATS, coterie.TrainingSettings(method="lora"))
    lora = SETTINGS.model_copy(update={"method": "lora", "learning_rate": 0.1})
    coterie.train(coterie.load("base"), CHATS, lora, "lora")
    write_jsonl(tmp_path / "chats.jsonl", *CHATS)
    overrides = ["chats.jsonl", "model=base", "dataset.heldout=0", "train.epochs=1"]
    own = read_arguments("sft", overrides, None).resolve()
    execution.run_recipe(own, tmp_path / "run", Console(quiet=True))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    base, adapted, trained = (
        coterie.load(tmp_path / name).model.lm_head.weight for name in ("base", "lora/final", "run")
    )
    assert torch.equal(base, adapted), "LoRA trains attention alone"
    assert not torch.equal(base, trained)
    query = "model.layers.0.self_attn.q_proj.weight"
    weights = [coterie.load(tmp_path / name).model.get_parameter(query) for name in ("base", "lora/final")]  # fmt: skip
    assert not torch.equal(*weights)
    template = tmp_path / "lora/final/chat_template.jinja"
    template.write_text("{{ 'Chat.' }}" + template.read_text())
    with pytest.raises(coterie.UserError, match="another chat template than its base"):
        coterie.load(tmp_path / "lora/final")


@pytest.mark.slow
def test_the_custom_loop_and_the_notebook_run(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    words = [sys.executable, EXAMPLES / "loop.py", "2", "2"]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert [line.split()[0] for line in ran.stdout.splitlines()] == ["right", "right"]
    assert (tmp_path / "loop/final/model.safetensors").is_file()
    notebook = nbformat.read(EXAMPLES / "loop.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is kept without outputs"
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    text = "".join(one.get("text", "") for one in outputs if one.get("name") == "stdout")
    assert "score" in text and "step 2: loss" in text


def test_an_expert_is_demonstrated_with_the_real_tools(tmp_path: Path) -> None:
    """Rows of the example of the first hour; a script that fails is refused."""
    example = EXAMPLES / "calculator.py"
    script = runpy.run_path(str(example))["script"]
    text = "Al has 2 boxes with {} pens in each. Al gets 3 pens more. How many pens has Al?"
    rows = [{"question": text.format(n), "answer": 2 * n + 3} for n in range(11, 15)]
    file = write_jsonl(tmp_path / "a.jsonl", *rows)
    tools = [f"{example}:calculate"]
    game = coterie.environment(str(file), tools=tools, calls="tags", prompt="{question}")
    (task, *_) = game.tasks("train", 4, 0)
    (row,) = coterie.demonstrate(game, [task], script)
    call, answer = script(task)
    (role, system), *messages = [(one["role"], one["content"]) for one in row["messages"]]
    assert role == "system" and "<calculate>formula</calculate>" in system
    assert messages == [
        ("user", task.public["question"]),
        ("assistant", call),
        ("user", f"<observation>\n{answer}\n</observation>"),
        ("assistant", answer),
    ]
    with pytest.raises(coterie.UserError, match=r"the script of task .* fails"):
        coterie.demonstrate(game, [task], lambda task: [call, "0"])
    # A file with the same calls in OpenAI's form is trained on as the same text, with tools.calls=tags.
    formula = call.removeprefix("<calculate>").removesuffix("</calculate>")
    (source,) = sources_of(tools, None)
    (tool,) = source.tools
    native = {
        "messages": [
            {"role": "user", "content": task.public["question"]},
            {"role": "assistant", "content": None,
             "tool_calls": [{"function": {"name": "calculate", "arguments": {"formula": formula}}}]},
            {"role": "tool", "content": answer},
            {"role": "assistant", "content": answer},
        ],
        "tools": [{"function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters}}],
    }  # fmt: skip
    chats = write_jsonl(tmp_path / "chats.jsonl", native)
    overrides = [
        f"dataset.source={chats}",
        "dataset.heldout=0",
        "tools.calls=tags",
        "model=tiny-acts",
    ]
    for more in ([], [f"tools=[{tools[0]}]"]):
        environment = make_environment(registry.settings("sft", [*overrides, *more]))
        (shown,) = environment.rows("train")  # type: ignore[attr-defined]
        assert [{"role": one.role, "content": one.content} for one in shown.messages] == row[
            "messages"
        ]
