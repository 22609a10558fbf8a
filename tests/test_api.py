"""The names of ``coterie``, playing from plain code and from a notebook, and a loop of one's own."""

import ast
import asyncio
import inspect
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import coterie
from coterie.environments.exchange import Exchange
from coterie.environments.protocol import Environment
from tests.played import environment_of
from tests.row_files import jsonl

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def engine() -> coterie.InProcessEngine:
    return coterie.InProcessEngine(coterie.load("tiny-exchange"))


@pytest.fixture(scope="module")
def world() -> Environment:
    return coterie.environment("exchange")


def test_importing_coterie_imports_nothing_heavy() -> None:
    code = (
        "import sys, coterie; heavy = {'torch', 'transformers', 'numpy', 'pydantic', 'typer'}; "
        "print(sorted(heavy & sys.modules.keys())); coterie.UserError; "
        "print(sorted(heavy & sys.modules.keys()))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split("\n")[:2] == ["[]", "[]"]


def test_every_name_is_there_and_says_what_it_is() -> None:
    assert 15 <= len(coterie.__all__) <= 26
    assert set(coterie.__all__) == set(coterie._PLACES) <= set(dir(coterie))
    for name in coterie.__all__:
        assert inspect.getdoc(getattr(coterie, name)), name
    with pytest.raises(AttributeError, match="has no attribute 'Coterie'"):
        _ = coterie.Coterie  # type: ignore[attr-defined]
    assert (Path(coterie.__file__).parent / "py.typed").is_file()


def test_samples_come_in_order_and_are_those_of_their_seed(world, engine) -> None:
    tasks = world.tasks("train", 3, 0)
    first, again, other = (
        coterie.play(world, engine, tasks, samples=2, max_tokens=24, seed=seed)
        for seed in (1, 1, 2)
    )
    assert [(one.task.id, one.sample) for one in first] == [
        (task.id, n) for task in tasks for n in (0, 1)
    ]
    assert list(map(str, first)) == list(map(str, again)) != list(map(str, other))
    assert [[one.sample for one in group] for group in coterie.by_task(first)] == [[0, 1]] * 3
    assert all(one.failure is None for one in first)
    assert [one.tokens for one in first] == [sum(len(t.ids) for t in one.path) for one in first]


def test_rows_are_what_an_agent_saw_and_said(world, engine) -> None:
    (one,) = coterie.play(world, engine, world.tasks("train", 1, 0), max_tokens=24)
    for agent in ("Alice", "Bob"):
        (row,) = one.rows(agent, weight=0.5)
        own = [turn for turn in one.path if turn.speaker.name == agent]
        assert [row.ids[t.start : t.stop] for t in row.targets] == [turn.ids for turn in own]
        assert row.weight == 0.5
    assert len(one.rows()) == 2


def test_it_is_played_in_a_running_loop_too(world, engine) -> None:
    async def within() -> list[coterie.Played]:
        return coterie.play(world, engine, world.tasks("train", 2, 0), max_tokens=16, seed=3)

    plain = coterie.play(world, engine, world.tasks("train", 2, 0), max_tokens=16, seed=3)
    assert list(map(str, asyncio.run(within()))) == list(map(str, plain))


def test_each_agent_may_have_an_engine_of_its_own(world, engine) -> None:
    other = coterie.InProcessEngine(coterie.load("tiny-exchange"), policy="other")
    engines = {"Alice": engine, "Bob": other}
    played = coterie.play(world, engines, world.tasks("train", 4, 0), max_tokens=16)
    turns = [turn for one in played for turn in one.path if turn.sample]
    assert {(turn.speaker.name, turn.sample.policy) for turn in turns} == {
        ("Alice", "policy"),
        ("Bob", "other"),
    }


def test_what_fails_says_why_and_scores_nothing(world, engine) -> None:
    class Broken(Exchange):
        async def act(self, state, taken, live, *, recorded=()):
            raise RuntimeError("out of order")

    (one,) = coterie.play(Broken(), engine, world.tasks("train", 1, 0), max_tokens=16)
    assert one.failure is not None and "out of order" in one.failure
    assert (one.score, one.rows(), one.outcome) == (0.0, [], None)


def test_an_environment_is_made_by_name_with_its_settings() -> None:
    assert coterie.environment("exchange", turns=3).limits == {"turns": 3}
    own = coterie.environment("gsm8k", source="sample", turns=4)
    assert own.limits == environment_of("gsm8k", "environment.turns=4").limits
    assert coterie.environment(f"{EXAMPLES}/environment.py:Guess", most=3).name == "guess"
    with pytest.raises(coterie.UserError, match=r"environment\.turn"):
        coterie.environment("exchange", turn=3)


@pytest.mark.slow
def test_a_loop_of_ones_own_is_short_and_runs(tmp_path: Path) -> None:
    file = EXAMPLES / "loop.py"
    lines = {
        line
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.stmt) and not isinstance(getattr(node, "value", None), ast.Constant)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    blank = {n for n, line in enumerate(file.read_text().split("\n"), 1) if not line.strip()}
    assert len(lines - blank) <= 30
    said = subprocess.run(
        [sys.executable, str(file), "2", "2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert [line.split()[0] for line in said.stdout.splitlines()] == ["right", "right"]
    assert (tmp_path / "loop/final/model.safetensors").is_file()


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(EXAMPLES / "loop.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is kept without outputs"
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = "".join(
        output.get("text", "")
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.get("name") == "stdout"
    )
    assert "score" in said and "step 2: loss" in said and "2 steps" in said


def test_an_agent_without_an_engine_is_named(world, engine) -> None:
    with pytest.raises(coterie.UserError, match=r"no engine for Bob \(engines: Alice\)"):
        coterie.play(world, {"Alice": engine}, world.tasks("train", 1, seed=0))


def test_an_expert_is_demonstrated_with_the_real_tools(tmp_path: Path) -> None:
    """Rows of the example of the first hour; a script that fails is refused."""
    example = EXAMPLES / "calculator.py"
    script = runpy.run_path(str(example))["script"]
    asked = "Al has 2 boxes with {} pens in each. Al gets 3 pens more. How many pens has Al?"
    rows = [{"question": asked.format(n), "answer": 2 * n + 3} for n in range(11, 15)]
    file = jsonl(tmp_path / "a.jsonl", *rows)
    tools = [f"{example}:calculate"]
    game = coterie.environment(str(file), tools=tools, calls="tags", prompt="{question}")
    (task, *_) = game.tasks("train", 4, 0)
    (row,) = coterie.demonstrate(game, [task], script)
    call, answer = script(task)
    texts = [(one["role"], one["content"]) for one in row["messages"]]
    assert texts[1:] == [
        ("user", task.public["question"]),
        ("assistant", call),
        ("user", f"<observation>\n{answer}\n</observation>"),
        ("assistant", answer),
    ]
    assert texts[0][0] == "system" and "<calculate>formula</calculate>" in texts[0][1]
    with pytest.raises(coterie.UserError, match=r"the script of task .* fails"):
        coterie.demonstrate(game, [task], lambda task: [call, "0"])
