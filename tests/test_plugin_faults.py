"""A bug in a plug-in's own code is told with whose it is, the file and the line, and no traceback."""

from pathlib import Path

import pytest

from coterie.record.store import Store
from tests.conftest import Cli, refused

SMALL = ("model=tiny-exchange", "evaluate.tasks=2", "engine.device=cpu")
ISFT = (
    *SMALL, "iterations=1", "rollout.tasks=2", "rollout.samples=2", "rollout.max_tokens=6",
    "select.threshold=-9", "train.max_length=256",
)  # fmt: skip
GUESS = "from tests.guess import Guess, GuessSettings\nclass World(Guess):\n"
BUG = "        return {}['gone']\n"
WORLDS = {
    "tasks": f"    def tasks(self, split, count, seed, after=()):\n{BUG}",
    "see": f"    def see(self, state, actor):\n{BUG}",
    "begin": f"    async def begin(self, task, live):\n{BUG}",
    "limits": f"    __init__ = lambda self, settings: None\n    @property\n    def limits(self):\n{BUG}",
    "actors": f"    @property\n    def actors(self):\n{BUG}",
}  # fmt: skip


def world(folder: Path, method: str) -> tuple[str, int]:
    """A broken environment's name, and the line of its bug."""
    text = GUESS + WORLDS[method]
    (folder / "world.py").write_text(text)
    return f"{folder}/world.py:World", len(text.splitlines())


def check(shown: str, file: Path, line: int, owner: str) -> None:
    plain = shown.replace("\n", "")
    assert f"{file}, line {line}" in plain and "KeyError: 'gone'" in plain, shown
    assert owner in plain


@pytest.mark.parametrize("method", WORLDS)
def test_a_bug_in_an_environment_is_told_when_a_run_is_planned(
    method: str, tmp_path: Path, cli: Cli
) -> None:
    name, line = world(tmp_path, method)
    shown = refused(cli, "run", "optima/isft", f"environment={name}", *ISFT, "--dry-run")
    check(shown, tmp_path / "world.py", line, "World")


VALIDATOR = """\
from pydantic import field_validator
from tests.guess import Guess, GuessSettings
class Own(GuessSettings):
    @field_validator("most")
    @classmethod
    def _known(cls, most):
        return {}["gone"]
class World(Guess):
    settings_type = Own
"""


def test_a_bug_in_a_validator_of_settings_is_told(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "world.py").write_text(VALIDATOR)
    words = ("optima/isft", f"environment={tmp_path}/world.py:World", "environment.most=5")
    for shown in (refused(cli, "config", *words), refused(cli, "run", *words, *ISFT, "--dry-run")):
        check(shown, tmp_path / "world.py", 7, "the environment")


RECIPE = "from coterie.recipes.base import Recipe\nclass Mine(Recipe):\n"
RECIPES = {
    "stages": f"    def stages(self):\n{BUG}",
    "plan": f"    def stages(self): return [self.evaluation(0)]\n    def plan(self):\n{BUG}",
    "roles": f"    def stages(self): return [self.evaluation(0)]\n    def roles(self):\n{BUG}",
    "init": f"    def stages(self): return []\n    def __init__(self, settings):\n{BUG}",
}


@pytest.mark.parametrize("method", RECIPES)
@pytest.mark.parametrize("more", [["--dry-run"], []])
def test_a_bug_in_a_recipe_is_told_when_it_is_planned(
    method: str, more: list[str], tmp_path: Path, cli: Cli
) -> None:
    text = RECIPE + RECIPES[method]
    (tmp_path / "mine.py").write_text(text)
    shown = refused(cli, "run", f"{tmp_path}/mine.py:Mine", "environment=exchange", *SMALL, *more)
    check(shown, tmp_path / "mine.py", len(text.splitlines()), "the recipe")


def test_a_bug_in_a_file_of_several_plugins_is_that_of_its_class(tmp_path: Path, cli: Cli) -> None:
    text = RECIPE + f"    def stages(self): return [self.evaluation(0)]\n{GUESS}{WORLDS['tasks']}"
    (tmp_path / "both.py").write_text(text)
    place = f"{tmp_path}/both.py"
    shown = refused(cli, "run", f"{place}:Mine", f"environment={place}:World", *SMALL, "--dry-run")
    check(shown, tmp_path / "both.py", len(text.splitlines()), "the environment World")


WRONG = {
    "None": "has a tasks() that returns None",
    "['text']": " task 1",
    "[]": "returns no ",
    "super().tasks(split, 1, seed) * count": " tasks the same id",
}


@pytest.mark.parametrize("given", WRONG)
def test_tasks_that_are_none_are_refused(given: str, tmp_path: Path, cli: Cli) -> None:
    head = "    def tasks(self, split, count, seed, after=()):\n"
    (tmp_path / "world.py").write_text(f"{GUESS}{head}        return {given}\n")
    name = f"{tmp_path}/world.py:World"
    run = ("run", "optima/isft", f"environment={name}", *ISFT, "--dry-run")
    assert WRONG[given] in refused(cli, *run)
    if "count" not in given:  # it asks for one task
        assert WRONG[given] in refused(cli, "evaluate", name, "policy=tiny-exchange")


STAGE = f"""\
from coterie.recipes.base import Recipe
class Mine(Recipe):
    def stages(self): return [self.stage(0, "think", self.think)]
    def think(self, run, i, progress):
{BUG}"""


def test_a_bug_in_a_stage_is_told_by_the_run_and_by_its_trial(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "mine.py").write_text(STAGE)
    words = (f"{tmp_path}/mine.py:Mine", "environment=exchange", *SMALL)
    check(refused(cli, "run", *words, "--folder", "r"), tmp_path / "mine.py", 5, "the recipe")
    check(refused(cli, "run", *words, "--dry-run"), tmp_path / "mine.py", 5, "the recipe")


def test_what_coterie_refuses_in_a_plugins_call_is_told_with_both_places(
    tmp_path: Path, cli: Cli
) -> None:
    (tmp_path / "mine.py").write_text(STAGE.replace("return {}['gone']", "run.begin(1, 2)"))
    words = (f"{tmp_path}/mine.py:Mine", "environment=exchange", *SMALL)
    shown = refused(cli, "run", *words, "--folder", "r").replace("\n", "")
    assert "mine.py, line 5: " in shown and "raised in " in shown and "coterie/runs/" in shown


def test_a_file_that_a_plugin_misses_is_its_own_fault_and_a_full_disk_is_not(
    tmp_path: Path, cli: Cli
) -> None:
    (tmp_path / "mine.py").write_text(STAGE.replace("return {}['gone']", "open('/not/there')"))
    words = (f"{tmp_path}/mine.py:Mine", "environment=exchange", *SMALL)
    shown = refused(cli, "run", *words, "--folder", "r").replace("\n", "")
    assert "mine.py, line 5: FileNotFoundError" in shown
    full = "raise OSError(28, 'No space left on device')"
    (tmp_path / "full.py").write_text(STAGE.replace("return {}['gone']", full))
    name = f"{tmp_path}/full.py:Mine"
    assert "the disk is full" in refused(cli, "run", name, *words[1:], "--folder", "other")


PLAYED = {
    "act": "    async def act(self, state, taken, live, *, recorded=()):\n",
    "grade": "    async def grade(self, state, live):\n",
}


@pytest.mark.parametrize("method", PLAYED)
def test_a_bug_met_in_play_fails_its_dialogue_alone_and_says_where(
    method: str, tmp_path: Path, cli: Cli
) -> None:
    """Only on the task at place 3; the bug lies in a library that the plug-in calls."""
    bug = "        if state.task.public['place'] == 3:\n            json.loads('no')\n"
    args = "state, taken, live, recorded=recorded" if method == "act" else "state, live"
    text = (
        f"import json\n{GUESS}{PLAYED[method]}{bug}        return await super().{method}({args})\n"
    )
    (tmp_path / "world.py").write_text(text)
    said = cli(
        "evaluate", f"{tmp_path}/world.py:World", "policy=tiny-exchange", "tasks=3", "max_tokens=6"
    )
    assert said.code == 0, said.err
    (store,) = Path("runs/evaluations").glob("*.sqlite")
    with Store.open(store, read_only=True) as found:
        ((_, failure),) = found.failures(0)
        assert len(found.finished_keys(0, "evaluate")) == 3
    assert f"{tmp_path}/world.py, line 6" in failure and "JSONDecodeError" in failure
