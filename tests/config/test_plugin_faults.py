"""A bug in a plug-in's own code is reported with its owner, the file and the line, and no traceback."""

from pathlib import Path
from typing import Any

import pytest

from coterie.recipes.optima import Optima
from coterie.recipes.registry import settings
from coterie.record.store import Store
from tests.conftest import Cli, refused

SMALL = ("model=tiny-exchange", "evaluate.tasks=2", "engine.device=cpu")
ISFT = (
    *SMALL, "iterations=1", "rollout.tasks=2", "rollout.rollouts_per_task=2", "rollout.max_tokens=6",
    "select.threshold=-9", "train.max_length=256",
)  # fmt: skip
GUESS = "from tests.helpers.guess import Guess, GuessSettings\nclass World(Guess):\n"
RECIPE = "from coterie.recipes import Recipe, stage\nclass Mine(Recipe):\n"
STAGES = "    def stages(self): return [self.evaluation(0)]\n"
BUG = "        return {}['gone']\n"
TASKS = f"{GUESS}    def tasks(self, split, count, seed, previous_counts=()):\n"
STAGE = f"""\
{RECIPE}    def stages(self): return self.make_stages(0, self.think)
    @stage("think")
    def think(self, run, i, progress):
{BUG}"""
BUGS = {
    "tasks": f"{TASKS}{BUG}",
    "begin": f"{GUESS}    async def begin(self, task, session):\n{BUG}",
    "limits": f"{GUESS}    __init__ = lambda self, settings: None\n    @property\n    def limits(self):\n{BUG}",
    "validator": (
        "from pydantic import field_validator\nfrom tests.helpers.guess import Guess, GuessSettings\n"
        "class World(Guess):\n    class settings_type(GuessSettings):\n"
        "        _x = field_validator('most')(lambda most: {}['gone'])\n"
    ),
    "stages": f"{RECIPE}    def stages(self):\n{BUG}",
    "roles": f"{RECIPE}{STAGES}    def roles(self):\n{BUG}",
    "init": f"{RECIPE}{STAGES}    def __init__(self, settings):\n{BUG}",
    "stage": STAGE,
    "both": f"{RECIPE}{STAGES}{TASKS}{BUG}",
}


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_in_a_plugin_is_reported_when_a_run_is_planned(
    name: str, tmp_path: Path, cli: Cli
) -> None:
    text, file = BUGS[name], tmp_path / "mine.py"
    file.write_text(text)
    recipe = f"{file}:Mine" if "class Mine" in text else "optima/isft"
    environment = f"{file}:World" if "class World" in text else "exchange"
    small = ISFT if recipe == "optima/isft" else SMALL
    more = ["environment.most=5"] if name == "validator" else []
    words = (recipe, f"environment={environment}", *small, *more)
    shown = refused(cli, "run", *words, "--dry-run").replace("\n", "")
    assert f"{file}, line {len(text.splitlines())}" in shown and "KeyError: 'gone'" in shown
    assert ("the environment" if "class World" in text else "the recipe") in shown


def test_an_override_of_a_stage_keeps_its_declaration() -> None:
    class Careful(Optima):
        def demonstrate(self, run: Any, i: int, progress: Any) -> Any:
            return super().demonstrate(run, i, progress)

    own = settings("optima/isft", ["iterations=1", "engine.device=cpu"])
    plain, careful = Optima(own), Careful(own)
    assert careful.stage_keys() == plain.stage_keys()
    assert [*map(careful.fingerprint, careful.stage_keys())] == [
        *map(plain.fingerprint, plain.stage_keys())
    ]


def test_a_file_that_a_plugin_misses_is_its_own_fault_and_a_full_disk_is_not(
    tmp_path: Path, cli: Cli
) -> None:
    problems = {
        "open('/not/there')": "mine0.py, line 6: FileNotFoundError",
        "raise OSError(28, 'No space left on device')": "the disk is full",
    }
    for number, (bug, problem) in enumerate(problems.items()):
        file = tmp_path / f"mine{number}.py"
        file.write_text(STAGE.replace("return {}['gone']", bug))
        words = (f"{file}:Mine", "environment=exchange", *SMALL, "--folder", f"r{number}")
        assert problem in refused(cli, "run", *words).replace("\n", "")


def test_a_bug_in_play_fails_its_dialogue_alone(tmp_path: Path, cli: Cli) -> None:
    """Only on the task at place 3; the bug lies in a library that the plug-in calls."""
    (tmp_path / "world.py").write_text(
        f"import json\n{GUESS}    async def grade(self, state, session):\n"
        "        if state.task.public['place'] == 3:\n            json.loads('no')\n"
        "        return await super().grade(state, session)\n"
    )
    few = ("policy=tiny-exchange", "tasks=3", "max_tokens=6")
    played = cli("evaluate", f"{tmp_path}/world.py:World", *few)
    assert played.code == 0, played.err
    (store,) = Path("runs/evaluations").glob("*.sqlite")
    with Store.open(store, read_only=True) as opened:
        ((_, failure),) = opened.failures(0)
        assert len(opened.finished_keys(0, "evaluate")) == 3
    assert f"{tmp_path}/world.py, line 6" in failure and "JSONDecodeError" in failure
