"""``coterie evaluate`` where a planner and a grounder play: runs of two roles, two models, rows without plans."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from coterie.cli import evaluate
from coterie.cli.evaluate import Player
from coterie.environments.plan_ground import GROUNDER, PLANNER
from coterie.progress import Silent
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.record.store import Store
from coterie.record.turn import Turn
from coterie.runs.folder import open_run
from coterie.runs.loop import run_steps
from tests.conftest import Cli, CliResult, refused

SET = f"{Path(__file__).with_name('plans.py')}:Plans"
FEW = ("tasks=2", "max_tokens=40", "engine.device=cpu")
TRAIN = ("batch_rows=4", "max_length=1024", "learning_rate=2e-3")
TRAINED = (
    f"dataset={SET}", "model=tiny-exchange", "iterations=1", "engine.device=cpu", "parts=grounder",
    "rollout.tasks=4", "rollout.samples=2", "rollout.max_tokens=40", "start.tasks=6", "evaluate.tasks=2",
    "measure.tasks=1", "measure.samples=1",
    *(f"{stage}.train.{word}" for stage in ("start", "improve") for word in TRAIN),
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which the planner has versions 0 and 1, and the grounder 0, 1 and 2."""
    folder = tmp_path_factory.mktemp("roles") / "run"
    recipe = recipe_of(settings("moat/maths", TRAINED))
    with open_run(folder, recipe.name, recipe.settings) as opened:
        run_steps(recipe, opened, Silent())
    recipe.close()
    return folder


def rows(said: CliResult) -> list[dict[str, Any]]:
    assert said.code == 0, said.err
    found: list[dict[str, Any]] = json.loads(said.out.splitlines()[-1])["rows"]
    return found


def turns(folder: Path) -> dict[str, list[Turn]]:
    """What each agent said, in the newest store of a folder."""
    newest = max(folder.glob("*.sqlite"), key=lambda file: file.stat().st_mtime_ns)
    found: dict[str, list[Turn]] = {}
    with Store.open(newest) as store:
        for tree in store.trees(0, "evaluate"):
            for turn in tree.turns.values():
                found.setdefault(turn.speaker.name, []).append(turn)
    return found


def texts(said: Sequence[Turn]) -> list[str]:
    return [turn.text for turn in said]


def test_the_roles_of_a_run_play_their_own_agents_by_their_newest_versions(
    cli: Cli, run: Path
) -> None:
    """What the run's own evaluation came to, with the same turns."""
    (found,) = rows(cli("evaluate", SET, f"policy={run}", *FEW))
    assert found["version"] == 2 and found["failed"] == 0
    said = turns(run / "evaluations")
    with Store.open(run / "store.sqlite", read_only=True) as store:
        own: dict[str, list[Turn]] = {}
        for tree in store.trees(2, "evaluate"):
            for turn in tree.turns.values():
                own.setdefault(turn.speaker.name, []).append(turn)
    versions = {name: {t.sample.version for t in some if t.sample} for name, some in said.items()}
    assert versions == {PLANNER: {"1"}, GROUNDER: {"2"}}
    for name in (PLANNER, GROUNDER):
        assert texts(said[name]) == texts(own[name]) != []


def test_two_models_play_an_agent_each(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "runs/evaluations"
    alone = {}
    for name in ("tiny-exchange", "tiny-persona"):
        assert rows(cli("evaluate", SET, f"policy={name}", *FEW))
        alone[name] = texts(turns(folder)[PLANNER])
    assert alone["tiny-exchange"] != alone["tiny-persona"]
    both = (f"policy.{PLANNER}=tiny-persona", f"policy.{GROUNDER}=tiny-exchange")
    (found,) = rows(cli("evaluate", SET, *both, *FEW))
    assert found["policy"] == "planner: tiny-persona; grounder: tiny-exchange"
    said = turns(folder)
    assert texts(said[PLANNER]) == alone["tiny-persona"]
    authors = {name: {t.sample.policy for t in some if t.sample} for name, some in said.items()}
    assert authors == {name: {name} for name in said}
    swapped = (f"policy.{PLANNER}=tiny-exchange", f"policy.{GROUNDER}=tiny-persona")
    rows(cli("evaluate", SET, *swapped, *FEW))
    assert len(list(folder.glob("*.sqlite"))) == 4, "each has a store of its own"
    assert texts(turns(folder)[PLANNER]) == alone["tiny-exchange"]


def test_who_plays_whom_counts_for_the_name_of_a_store() -> None:
    def player(*agents: str) -> Player:
        return Player(agents, 0, "m", "m", lambda: pytest.fail("nothing is loaded"), {})

    casts = ([player("a", "c"), player("b")], [player("a"), player("b", "c")])
    one, other = (evaluate._all_speakers(players, ["m", "n"]) for players in casts)
    assert one != other
    assert evaluate._all_speakers([player("a", "b")], ["m"]) == "m"


def test_a_role_of_a_run_may_play_with_a_model(cli: Cli, run: Path, tmp_path: Path) -> None:
    words = (f"policy.{GROUNDER}={run}", "policy=tiny-persona")
    (found,) = rows(cli("evaluate", SET, *words, *FEW[:2]))
    assert found["policy"] == "planner: tiny-persona; grounder: run 2" and found["version"] == 2
    versions = {
        name: {t.sample.version for t in some if t.sample}
        for name, some in turns(tmp_path / "runs/evaluations").items()
    }
    assert versions[PLANNER] == {"0"} and versions.get(GROUNDER, {"2"}) == {"2"}


def test_what_cannot_play_is_refused(cli: Cli, run: Path) -> None:
    for words, says in (
        (("policy.planer=tiny-exchange",), "did you mean 'planner'"),
        (("policy.planner=tiny-exchange",), "no policy is given for grounder"),
        ((), "no policy is given"),
        (("policy=tiny-exchange", "policy.grounder=http://127.0.0.1:9/v1"), "a server plays all agents"),
        (("policy=http://127.0.0.1:9/v1", "policy.grounder=tiny-exchange"), "a server plays all agents"),
        (("policy.planner=tiny-exchange", f"policy.grounder={run}", "--checkpoints", "all"), "is not one run folder"),
    ):  # fmt: skip
        assert says in refused(cli, "evaluate", SET, *words)
    web = refused(cli, "evaluate", "lumos_web", "dataset.source=sample", "policy=tiny-exchange")
    assert "no page elements" in web and "mind2web" in web
