"""Examples whose result matters; ``make docs-check`` runs the commands of the pages with the others."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.environments.acting import write_answer
from coterie.environments.plans.python_maths import PythonMaths
from coterie.environments.protocol import Environment, Shared, State, openers_of, persons_of
from coterie.environments.user_simulator import check_script
from coterie.recipes.base import recorded_run
from coterie.recipes.optima import Optima
from coterie.record.tree import Outcome, Task
from coterie.rollout.episodes import Driver, Episode, EpisodeResult
from coterie.rollout.samplers import Sampler, UserSampler
from coterie.tools.registry import Toolbox
from tests.conftest import Cli
from tests.helpers import run_python as python_sessions
from tests.helpers.packaged_environments import packaged_environment
from tests.helpers.run_python import act, observed_texts
from tests.helpers.script_games import Script

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TINY = ("model=tiny-exchange", "engine.device=cpu", "evaluate.tasks=2")


def page_of_run(cli: Cli, *words: object) -> str:
    """Return the page of a run in the folder ``run``."""
    ran = cli("run", *words, "--folder", "run")
    assert ran.code == 0, ran.err
    return Path("run/report.html").read_text()


def test_examples_are_short_and_on_pages() -> None:
    for file in sorted(EXAMPLES.glob("*.py")):
        if file.name != "solutions.py":  # prepares a model
            assert len(file.read_text().splitlines()) <= 50, file
            assert any(file.name in page.read_text() for page in ROOT.glob("docs/howto/*.md")), file
    own_agent = (ROOT / "docs/howto/own-agent.md").read_text()
    for file in sorted(EXAMPLES.glob("programs/*.py")):
        assert len(file.read_text().splitlines()) <= 60 and file.name in own_agent, file
    page = (ROOT / "docs/howto/first-hour.md").read_text()
    assert (EXAMPLES / "letters.py").read_text() in page


@pytest.mark.slow
def test_the_recipe_runs_is_resumed_reported_and_evaluated(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{EXAMPLES}/recipe.py:BestOfN"
    words = (name, "environment=exchange", *TINY, "tasks=2")
    dry = cli("run", *words, "--dry-run")
    assert dry.code == 0 and "plan of BestOfN" in dry.out and "held-out tasks" in dry.out
    page = page_of_run(cli, *words)
    assert "recipe: " in page and "BestOfN" in page and "after iteration 1" in page
    again = cli("run", name, "--folder", "run")
    assert again.code == 0, again.err
    assert "training" not in again.err.split("held-out dialogues")[1], "all was finished"
    monkeypatch.chdir("run")
    assert cli("report", "../run").code == 0
    assert cli("stage", "select", "../run").code == 0
    assert '"version": 1' in cli("evaluate", "exchange", "policy=../run", "tasks=2").out
    other = cli("run", name, "environment=exchange", "train.epochs=2", "--folder", "../run")
    assert other.code == 2 and "train.epochs: 1 -> 2" in other.err


def test_the_tool_is_called_and_its_result_is_seen() -> None:
    overrides = [f"tools=[{EXAMPLES}/tool.py:multiply]", "tools.calls=tags"]
    game = packaged_environment(f"{EXAMPLES}/calls.py:Products", *overrides)
    replies = iter(["<multiply>3 * 17</multiply>", "<multiply>3 by 17</multiply>", "It is 51"])

    async def play() -> EpisodeResult:
        async with openers_of(game, Path())[Toolbox]() as box:
            clerk = Script(lambda _: next(replies))
            driver = Driver(game, {"clerk": clerk}, seed=0, shared=Shared(box))
            task = game.tasks("heldout", 2, 0)[1]
            async with driver.play_all([Episode(task, 0, 0, "rollout")]) as playing:
                return [one async for one in playing].pop()

    done = asyncio.run(play())
    assert done.tree is not None, done.failure
    ((outcome, path),) = done.tree.trajectories()
    assert outcome.score == 1.0
    results = [result.text for turn in path for result in turn.results]
    assert results[0] == "51" and "tool.py, line" in results[1]


def played_path(environment: Environment, task: Task, **said: str) -> tuple[Outcome, list[str]]:
    """Play a task with agents that say these texts, one after the other; return its outcome and all texts."""
    samplers: dict[str, Sampler] = {}
    for actor, texts in said.items():
        rest = iter(texts.split("|"))
        samplers[actor] = Script(lambda _, rest=rest: next(rest))
    for person in persons_of(environment):
        samplers[person] = UserSampler(check_script(environment))

    async def play() -> EpisodeResult:
        driver = Driver(environment, samplers, seed=0, shared=Shared())
        async with driver.play_all([Episode(task, 0, 0, "rollout")]) as playing:
            return [one async for one in playing].pop()

    done = asyncio.run(play())
    assert done.tree is not None, done.failure
    ((outcome, path),) = done.tree.trajectories()
    return outcome, [turn.text for turn in path]


def test_the_customer_tells_the_wish_that_is_asked_for() -> None:
    errand = packaged_environment(f"{EXAMPLES}/errand.py:Errand")
    task = errand.tasks("heldout", 1, 0)[0]
    outcome, texts = played_path(errand, task, seller="Hello|Which color?|SOLD: blue")
    assert texts == ["Hello", "What do you mean?", "Which color?", "blue, please.", "SOLD: blue"]
    assert outcome.score == 1.0
    assert played_path(errand, task, seller="SOLD: red")[0].score == 0.0


def test_the_pile_is_a_session_and_its_copy_is_another_one() -> None:
    nim = packaged_environment(f"{EXAMPLES}/nim.py:Nim")
    lost, won = nim.tasks("train", 2, 0)[:1] + nim.tasks("heldout", 1, 0)
    outcome, texts = played_path(nim, won, agent="2|1|3")
    assert (outcome.score, texts) == (0.0, ["2", "I take 1.", "1", "I take 2.", "3", "I take 1."])
    assert played_path(nim, lost, agent="1|3|3")[0].score == 1.0

    async def copied() -> tuple[int, int]:
        async with nim.open(won, 0, Shared()) as pile, pile.fork() as copy:
            copy.left -= 1
            return pile.left, copy.left

    assert asyncio.run(copied()) == (10, 9)


def test_the_rewards_are_terms_beside_those_that_ship(cli: Cli) -> None:
    terms = f"{{{EXAMPLES}/reward.py:asks: 0.5, {EXAMPLES}/reward.py:thrift: 2}}"
    page = page_of_run(
        cli, "optima/isft", *TINY, "iterations=1", "rollout.tasks=2", "rollout.rollouts_per_task=2",
        "rollout.max_tokens=6",
        "select.threshold=-9", "train.max_length=512", f"reward.terms={terms}",
    )  # fmt: skip
    assert "thrift" in page
    with recorded_run(Path("run")) as (recipe, run):
        assert isinstance(recipe, Optima)
        rewards = {one.leaf: one.terms for some in recipe.rewards(run, 0).values() for one in some}
        assert rewards
        for tree in run.store.trees(0, "rollout"):
            for outcome, path in tree.trajectories():
                terms_of = rewards[outcome.leaf]
                assert terms_of["asks"] == 0.5 * sum("?" in turn.text for turn in path) / len(path)
                assert terms_of["thrift"] == 2 * ((outcome.score or 0) / len(path))


@pytest.mark.slow
def test_solutions_are_played_in_real_sessions_and_imitated(tmp_path: Path) -> None:
    rows = [
        {"question": f"Ann has {n} pens and buys {n + 1}. How many has she?",
         "answer": f"She has {n}+{n + 1} = <<{n}+{n + 1}={2 * n + 1}>>{2 * n + 1}.\n#### {2 * n + 1}"}
        for n in range(12)
    ]  # fmt: skip
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = [sys.executable, EXAMPLES / "solutions.py", "train.jsonl", "tiny-acts", "out", "4"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "out" / "model" / "final" / "model.safetensors").is_file()
    assert len((tmp_path / "out" / "tasks" / "heldout.jsonl").read_text().splitlines()) == 4


def test_the_problems_have_right_answers_for_their_reward(tmp_path: Path) -> None:
    subprocess.run([sys.executable, EXAMPLES / "problems.py"], cwd=tmp_path, check=True)
    rows = [json.loads(line) for line in (tmp_path / "problems.jsonl").read_text().splitlines()]
    assert len(rows) == 200
    reward = f"environment.reward={EXAMPLES}/problems.py:calculation"
    game = packaged_environment("question", f"dataset={tmp_path}/problems.jsonl", reward)
    for task in game.tasks("train", 20, 0):
        question = str(task.public["question"])
        boxes, count, change = re.findall(r"\d+", question)
        times, sign = f"{boxes} * " * ("each" in question), "+" if "more" in question else "-"
        for answer, score in ((f"{times}{count} {sign} {change}", 1.0), (f"{count} + 99", 0.0)):
            grade = asyncio.run(game.grade(State(task, 0, answer=answer), Shared()))
            assert grade.score == score


TOOL_TASKS = {
    "__init__.py": "",
    "repl.py": "import no_such_package",
    "base.py": """
from dataclasses import dataclass
from .repl import PythonREPL

@dataclass
class Tool:
    description: str
    function: object

@dataclass
class Task:
    name: str
    tools: dict
    instruction: str
    expected_output: object
""",
    "impl/__init__.py": "from . import shop, web",
    "impl/shop.py": """
from ..base import Task, Tool
TAX = 0.5

def price(*amounts):
    return builtin_sum(amounts) * (1 + TAX)

builtin_sum = sum
CUR_TASK_NAME = "shop"
TOOLS = {
    "price": Tool("Price with tax.", price), "max": Tool("Largest.", max), "sum": Tool("Sum.", lambda *a: sum(a)),
}
TASKS = [Task("shop/a", TOOLS, "Prices?", [3.0, 6.0]), Task("shop/b", TOOLS, "Price?", price(2, 3))]
""",
    "impl/web.py": """
from ..base import Task, Tool
from pathlib import Path

class WebPage:
    def __init__(self, name, content):
        self.name, self.content = name, content

class WebBrowser:
    def __init__(self, pages, first):
        self.pages, self.at = {one.name: one for one in pages}, first

    def click(self, name):
        self.at = name
        return self.pages[name].content

with open(Path(__file__).with_name("page.txt")) as file:
    PAGES = [WebPage("/x", file.read())]
CUR_TASK_NAME = "web"
TASKS = [Task("web/a", {"click": Tool("Click.", WebBrowser(PAGES, "/").click)}, "What?", "it's x")]
""",
    "impl/page.txt": "it's x",
}  # fmt: skip
"""A package in the form of M3ToolEval's tasks."""


def test_tasks_of_m3tooleval_become_files_whose_functions_run(tmp_path: Path) -> None:
    for name, text in TOOL_TASKS.items():
        (file := tmp_path / "code/tasks" / name).parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    words = [str(EXAMPLES / "m3tooleval.py"), str(tmp_path / "code"), str(tmp_path / "out")]
    subprocess.run([sys.executable, *words], check=True)
    cells = {"shop": "price(2), max(1, 2), sum(1, 2)", "web": "click('/x')"}
    outputs = {}
    for family, cell in cells.items():
        own = tmp_path / "out" / family
        source = (f"dataset.source={own / 'tasks.jsonl'}", "dataset.heldout=1")
        functions = f"environment.functions={own / 'functions.py'}"
        environment = packaged_environment("qa", *source, "environment=python_maths", functions)
        assert isinstance(environment, PythonMaths)
        for task in environment.tasks("heldout", 9, 0):
            question = str(task.public["question"])
            right = {"Prices?": "[3, 6]", "Price?": "7.5", "What?": "it's x"}[question]
            messages = (act(cell), write_answer(right))
            state, grade = python_sessions.play_python(environment, task, *messages)
            assert grade is not None and grade.score == 1
            outputs[question] = observed_texts(state)[1]
    assert outputs == {"Prices?": "(3.0, 2, 3)", "Price?": "(3.0, 2, 3)", "What?": '"it\'s x"'}
