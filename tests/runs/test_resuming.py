"""What a run refuses to go on with, what it keeps, and what it plays again."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from coterie.engines.protocol import EngineError, EngineGone
from coterie.environments.exchange import Exchange
from coterie.environments.protocol import Shared
from coterie.errors import UserError
from coterie.models.catalogue import packaged_folder
from coterie.progress import Silent
from coterie.recipes.optima import Optima
from coterie.recipes.registry import settings
from coterie.record.store import ItemKey, Store
from coterie.record.turn import Part, Speaker, make_turn
from coterie.rollout.episodes import Driver, Episode
from coterie.rollout.samplers import AgentContext, Prompt, Response
from coterie.runs.loop import run_stages
from coterie.runs.run import StageKey, open_run
from coterie.runs.work_items import play, summary
from tests.conftest import SMALL, Cli

GSM8K = Path(__file__).parents[2] / "src/coterie/assets/data/gsm8k"


class Scripted:
    """A sampler that answers at once, and for some tasks raises what it is told to."""

    def __init__(self, raises: dict[str, EngineError]) -> None:
        self.raises = raises
        self.asked = 0

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        self.asked += 1
        if error := self.raises.get(prompt.tree.task):
            raise error
        turn = make_turn(
            prompt.parent, Speaker("agent", prompt.agent), [Part("<A>x</A>")], draw=prompt.draw
        )
        return Response(turn, None, 3)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.sqlite") as opened:
        yield opened


def played(store: Store, sampler: Scripted, count: int = 4) -> list[str]:
    """Play so many tasks; gives their ids."""
    environment = Exchange()
    tasks = environment.tasks("heldout", count, 0)
    episodes = [Episode(task, 0, 0, "evaluate") for task in tasks]
    cast = dict.fromkeys(environment.actors, sampler)
    driver = Driver(environment, cast, seed=0, shared=Shared())
    asyncio.run(play(store, driver, episodes, Silent(), lambda: 0))
    return [task.id for task in tasks]


def ids(count: int) -> list[str]:
    return [task.id for task in Exchange().tasks("heldout", count, 0)]


def test_an_item_that_fails_is_recorded_and_counts_as_wrong(store: Store) -> None:
    bad, last = ids(4)[1], ids(4)[3]
    played(store, Scripted({bad: EngineError("too long")}), 3)
    played(store, Scripted({last: EngineError("too long")}), 4)  # the only one that is left
    failures = [(key.task, why) for key, why in store.failures()]
    assert failures == [(bad, "too long"), (last, "too long")]
    counts = summary(store, 0, "evaluate")
    assert (counts["n"], counts["failed"]) == (4, 2)


def test_an_engine_that_is_gone_leaves_its_items_open(store: Store) -> None:
    lost = ids(4)[2:]
    with pytest.raises(UserError, match="no server is left"):
        played(store, Scripted({task: EngineGone("no server is left") for task in lost}))
    assert store.failures() == []
    played(store, Scripted({}))
    assert summary(store, 0, "evaluate")["n"] == 4


def test_nothing_is_recorded_if_everything_fails(store: Store) -> None:
    with pytest.raises(UserError, match="all 2 dialogues failed"):
        played(store, Scripted({task: EngineError("down") for task in ids(2)}), 2)
    assert store.failures() == []


def test_a_stage_continues_under_other_settings_only_before_its_first_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = ItemKey(0, "evaluate", "task", "0")

    def start(seed: int, *, with_result: bool, stops: bool = True) -> None:
        own = settings("optima/isft", [*SMALL, f"seed={seed}"])
        recipe = Optima(own)

        def evaluate(*_: object) -> dict[str, float]:
            if with_result:
                run.store.finish(result, metrics={})
            if stops:
                raise RuntimeError("stopped")
            return {}

        monkeypatch.setattr(recipe, "evaluate", evaluate)
        with open_run(tmp_path / "run", recipe.name, own) as run:
            run_stages(recipe, run, Silent(), [StageKey(0, "evaluate")])

    for seed, with_result in ((0, False), (1, True)):
        with pytest.raises(RuntimeError):
            start(seed, with_result=with_result)
    with pytest.raises(UserError) as refused:
        start(2, with_result=False, stops=False)
    assert "started under other settings" in refused.value.what
    assert "seed: 1 -> 2" in refused.value.what


def test_rows_that_changed_are_other_rows(tmp_path: Path) -> None:
    for split in ("train", "heldout"):
        shutil.copy(GSM8K / f"{split}.jsonl", tmp_path)
    overrides = ["dataset=gsm8k", f"dataset.source={tmp_path}"]
    before = Optima(settings("optima/isft", overrides)).fingerprint(StageKey(0, "rollout"))
    sample = settings("optima/isft", ["dataset=gsm8k", "dataset.source=sample"])
    assert Optima(sample).fingerprint(StageKey(0, "rollout")) == before
    lines = (tmp_path / "train.jsonl").read_text().splitlines()
    (tmp_path / "train.jsonl").write_text("\n".join(lines[1:]) + "\n")
    assert Optima(settings("optima/isft", overrides)).fingerprint(StageKey(0, "rollout")) != before
    # Another data set does not inherit the values of the first.
    stored = settings("optima/isft", SMALL).model_dump(mode="json")
    other = settings("optima/isft", ["dataset=gsm8k"], stored)
    assert other == settings("optima/isft", ["dataset=gsm8k"])


def test_a_model_in_a_folder_is_its_content_and_not_its_place(cli: Cli, tmp_path: Path) -> None:
    packaged = packaged_folder("tiny-exchange")
    assert packaged is not None
    shutil.copytree(packaged, tmp_path / "first")
    assert cli("stage", "evaluate", "mine", *SMALL, "model=first").code == 0
    (tmp_path / "first").rename(tmp_path / "second")
    assert cli("evaluate", "mine", "--iteration", 0, "model=second").code == 0, (
        "moved, and nothing else"
    )
    (tmp_path / "second/README.md").write_text("another one")
    assert cli("evaluate", "mine", "--iteration", 0).code == 0
    weights = load_file(tmp_path / "second/model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, tmp_path / "second/model.safetensors", {"format": "pt"})
    said = cli("stage", "rollout", "mine")
    assert said.code == 2 and "a file named in the settings has changed" in said.err
    assert cli("stage", "rollout", "mine", "model=tiny-exchange").code == 2


@pytest.mark.slow
def test_a_quickstart_erases_only_its_own_finished_run(cli: Cli) -> None:
    overrides = [pair for pair in SMALL if not pair.startswith("iterations")]
    assert cli("quickstart", "--folder", "q", "iterations=1", *overrides).code == 0
    marker = Path("q/mine.txt")
    marker.write_text("keep")
    refused = cli("quickstart", "--folder", "q", "iterations=1", *overrides, "seed=1")
    assert refused.code == 2 and "other settings" in refused.err and marker.exists()
    assert cli("quickstart", "--folder", "q", "iterations=1", *overrides).code == 0
    assert not marker.exists(), "the same quickstart again begins afresh"


def test_a_key_given_by_mistake_is_not_printed(cli: Cli) -> None:
    overrides = [
        "policy=http://127.0.0.1:1/v1",
        "endpoint.model=x",
        "endpoint.key_variable=sk-oops-1",
    ]
    refused = cli("evaluate", "exchange", *overrides)
    assert refused.code == 2 and "key_variable" in refused.err
    assert "sk-oops" not in refused.err
