"""``coterie evaluate`` where a planner and a grounder play: runs of two roles, two models, rows without plans."""

import json
from pathlib import Path
from typing import Any

import pytest

from coterie.cli import evaluate
from coterie.cli.evaluate import Player
from coterie.environments.plans.plan_ground import GROUNDER, PLANNER
from coterie.progress import Silent
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.record.store import Store
from coterie.record.turn import Turn
from coterie.runs.loop import run_stages
from coterie.runs.run import open_run
from tests.conftest import Cli

SET = f"{Path(__file__).parents[1] / 'helpers/plans.py'}:Plans"
FEW = ("tasks=2", "max_tokens=40", "engine.device=cpu")
TRAIN = ("batch_size=4", "max_length=1024", "learning_rate=2e-3")
TRAINED = (
    f"dataset={SET}", "model=tiny-exchange", "iterations=1", "engine.device=cpu", "parts=grounder",
    "rollout.tasks=4", "rollout.rollouts_per_task=2", "rollout.max_tokens=40", "start.tasks=6", "evaluate.tasks=2",
    "measure.tasks=1", "measure.rollouts_per_task=1",
    *(f"{stage}.train.{word}" for stage in ("start", "improve") for word in TRAIN),
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which the planner has versions 0 and 1, and the grounder 0, 1 and 2."""
    folder = tmp_path_factory.mktemp("roles") / "run"
    recipe = recipe_of(settings("moat/maths", TRAINED))
    with open_run(folder, recipe.name, recipe.settings) as opened:
        run_stages(recipe, opened, Silent())
    recipe.close()
    return folder


def row(cli: Cli, *overrides: str) -> dict[str, Any]:
    """Return the row of an evaluation of one policy."""
    result = cli("evaluate", SET, *overrides)
    assert result.code == 0, result.err
    (only,) = json.loads(result.out.splitlines()[-1])["rows"]
    return dict(only)


def turns(store: Path, iteration: int = 0) -> dict[str, list[Turn]]:
    """Return each agent's turns in a store, or in the newest store of a folder."""
    if store.is_dir():
        store = max(store.glob("*.sqlite"), key=lambda file: file.stat().st_mtime_ns)
    of_agent: dict[str, list[Turn]] = {}
    with Store.open(store, read_only=True) as opened:
        for tree in opened.trees(iteration, "evaluate"):
            for turn in tree.turns.values():
                of_agent.setdefault(turn.speaker.name, []).append(turn)
    return of_agent


def texts(some: list[Turn]) -> list[str]:
    return [turn.text for turn in some]


def versions(of_agent: dict[str, list[Turn]]) -> dict[str, set[str]]:
    return {name: {t.sample.version for t in some if t.sample} for name, some in of_agent.items()}


def test_the_roles_of_a_run_play_their_own_agents_by_their_newest_versions(
    cli: Cli, run: Path, tmp_path: Path
) -> None:
    """As in the run's own evaluation, with the same turns."""
    evaluation = row(cli, f"policy={run}", *FEW)
    assert evaluation["version"] == 2 and evaluation["failed"] == 0
    played, own = turns(run / "evaluations"), turns(run / "store.sqlite", 2)
    assert versions(played) == {PLANNER: {"1"}, GROUNDER: {"2"}}
    for name in (PLANNER, GROUNDER):
        assert texts(played[name]) == texts(own[name]) != []
    mixed = row(cli, f"policy.{GROUNDER}={run}", "policy=tiny-persona", *FEW[:2])
    assert mixed["policy"] == "planner: tiny-persona; grounder: run 2" and mixed["version"] == 2
    of_agent = versions(turns(tmp_path / "runs/evaluations"))
    assert of_agent[PLANNER] == {"0"} and of_agent.get(GROUNDER, {"2"}) == {"2"}


def test_two_models_play_an_agent_each(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "runs/evaluations"
    alone = {}
    for name in ("tiny-exchange", "tiny-persona"):
        assert row(cli, f"policy={name}", *FEW)
        alone[name] = texts(turns(folder)[PLANNER])
    assert alone["tiny-exchange"] != alone["tiny-persona"]
    both = row(cli, f"policy.{PLANNER}=tiny-persona", f"policy.{GROUNDER}=tiny-exchange", *FEW)
    assert both["policy"] == "planner: tiny-persona; grounder: tiny-exchange"
    played = turns(folder)
    assert texts(played[PLANNER]) == alone["tiny-persona"]
    authors = {name: {t.sample.policy for t in some if t.sample} for name, some in played.items()}
    assert authors == {name: {name} for name in played}
    row(cli, f"policy.{PLANNER}=tiny-exchange", f"policy.{GROUNDER}=tiny-persona", *FEW)
    assert len(list(folder.glob("*.sqlite"))) == 4, "each has a store of its own"
    assert texts(turns(folder)[PLANNER]) == alone["tiny-exchange"]


def test_who_plays_whom_counts_for_the_name_of_a_store() -> None:
    def player(*agents: str) -> Player:
        return Player("m", agents, 0, "m", "m", lambda: pytest.fail("nothing is loaded"), {})

    casts = ([player("a", "c"), player("b")], [player("a"), player("b", "c")])
    one, other = (evaluate._all_speakers(players, ["m", "n"]) for players in casts)
    assert one != other
    assert evaluate._all_speakers([player("a", "b")], ["m"]) == "m"
