"""A recipe of two roles from outside the package, with its own environment, tool and reward."""

import gc
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from coterie.engines.protocol import Completion, Sampling
from coterie.errors import UserError
from coterie.models.adapters import adapter_weights, base_fingerprint, load_adapter
from coterie.models.loading import load
from coterie.progress import Silent
from coterie.runs.loop import Role, Stage, check_roles, check_stages, fork, run_stages
from coterie.runs.roles import Roles
from coterie.runs.run import Run, StageKey, open_run
from coterie.training.checkpoint import weight_hash
from tests.outside.package.relay import RelayRecipe, RelaySettings

PLACE = "tests.outside.package.relay:Relay"
TRAIN = {"learning_rate": 1e-3, "epochs": 1, "max_length": 512, "batch_size": 4}
LORA = {**TRAIN, "method": "lora", "lora_r": 4}
WAYS: dict[str, dict[str, Any]] = {
    "whole": {"train": TRAIN},
    "adapters": {"train": LORA},
    "shared": {"train": LORA, "shares": True},
}


def made(way: str, **more: Any) -> RelayRecipe:
    own = {"environment": {"name": PLACE}, "evaluate": {"tasks": 2}}
    return RelayRecipe(RelaySettings.model_validate({**WAYS[way], **own, **more}))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run folder of each way, whole."""

    @cache
    def folder(way: str) -> Path:
        path, recipe = tmp_path_factory.mktemp(way) / "run", made(way)
        with open_run(path, recipe.name, recipe.settings) as run:
            run_stages(recipe, run, Silent())
        return path

    return folder


@pytest.fixture(params=list(WAYS))
def whole(request: pytest.FixtureRequest, folders: Callable[[str], Path]) -> Any:
    """A recipe that has run, with its run open again."""
    recipe = made(request.param)
    with open_run(folders(request.param), recipe.name, recipe.settings) as run:
        yield request.param, recipe, run
    recipe.close()


def finals(recipe: RelayRecipe, run: Run) -> dict[tuple[str, int], str]:
    return {
        (role.name, version): weight_hash(Path(recipe.models(run).path(role.name, version)))
        for role in recipe.roles()
        for version in recipe.versions(run, role.name)[1:]
    }


def test_each_role_has_its_own_versions_and_turns(whole: Any) -> None:
    _, recipe, run = whole
    assert recipe.versions(run, "grounder") == [0, 1, 2]
    assert recipe.versions(run, "planner") == [0, 2]
    assert len(set(finals(recipe, run).values())) == 3, "three trainings, three results"
    assert [recipe.newest(run, role, 1) for role in ("grounder", "planner")] == [1, 0]
    for i, expected in ((0, {("planner", "0"), ("grounder", "0")}),
                        (1, {("planner", "0"), ("grounder", "1")}),
                        (2, {("planner", "2"), ("grounder", "2")})):  # fmt: skip
        stage = "rollout" if i < 2 else "evaluate"
        turns = [turn for tree in run.store.trees(i, stage) for turn in tree.turns.values()]
        speakers = {(t.speaker.name, t.sample.version) for t in turns if t.sample}
        assert speakers == expected
        assert all(t.sample.policy == t.speaker.name for t in turns if t.sample)


def test_an_adapter_continues_from_the_last_one_and_its_base_stays(
    whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    way, recipe, run = whole
    if way == "whole":
        return
    models = recipe.models(run)
    loaded = models.load("grounder", 1, trainable=True)
    assert isinstance(loaded.model, PeftModel)
    before, result = (finals(recipe, run)["grounder", version] for version in (1, 2))
    assert adapter_weights(loaded.model, "default")
    assert base_fingerprint(loaded.model) == base_fingerprint(load("tiny-exchange").model)
    folder = run.training_folder(1, "grounder")
    folder.rename(tmp_path / "aside")
    lines = list[str]()
    progress = Silent()
    monkeypatch.setattr(progress, "say", lines.append)
    recipe.find_stage(StageKey(1, "train_grounder")).do(run, 1, progress)
    assert [line.partition(":")[0] for line in lines] == ["training grounder"]
    assert weight_hash(folder / "final") == result, "the same training from the same adapter"
    assert weight_hash(Path(models.path("grounder", 1))) == before


def test_a_role_that_shares_a_base_speaks_as_each_of_its_versions_merged(
    folders: Callable[[str], Path],
) -> None:
    """Version 0 has a placeholder of rank 1, the others have adapters of rank 4."""
    recipe = made("shared")
    with open_run(folders("shared"), recipe.name, recipe.settings, write=False) as run:
        models = recipe.models(run)

        async def says(name: str, version: int) -> tuple[Completion, Completion]:
            shared = (await models.open_engine(name, version)).engine
            ask = (list(range(60)), [0], Sampling(max_tokens=12))
            return (*await shared.sample(*ask), *await models.embedded(name, version).sample(*ask))

        found = []
        for name, version in (
            *(("grounder", 0), ("planner", 0), ("grounder", 1), ("grounder", 2)),
            *(("planner", 2), ("grounder", 0), ("grounder", 2)),
        ):
            one, merged = models.engines.run(says(name, version))
            assert one.ids == merged.ids, (name, version)
            assert one.logprobs == pytest.approx(merged.logprobs, abs=1e-3), (name, version)
            found.append(merged.logprobs)
        assert len(set(found)) == 4, "told apart, but for the base"
        recipe.close()


def test_an_adapter_on_a_bfloat16_base_keeps_updates_that_merging_would_round_away(
    folders: Callable[[str], Path],
) -> None:
    recipe = made("adapters")
    with open_run(folders("adapters"), recipe.name, recipe.settings, write=False) as run:
        models = Roles(recipe.roles(), recipe.settings.engine, run, torch.bfloat16)
        loaded = models.load("grounder", 1, merge=False)
        base = loaded.model.get_base_model()
        weights = [w for name, w in base.named_parameters() if "lora" not in name]
        assert {weight.dtype for weight in weights} == {torch.bfloat16}
        again = load_adapter(load("tiny-exchange").model, Path(models.path("grounder", 1)))
        for name, weight in again.named_parameters():
            if "lora" in name:
                assert torch.equal(weight, loaded.model.get_parameter(name)), name
        (completion,) = models.engines.run(
            models.embedded("grounder", 1).sample(list(range(60)), [0], Sampling(max_tokens=4))
        )
        assert len(completion.ids) == len(completion.logprobs) > 0
        models.close()
    recipe.close()


def test_an_interrupted_run_continues_and_a_fork_keeps_unaffected_trainings(
    tmp_path: Path, folders: Callable[[str], Path]
) -> None:
    recipe = made("whole")
    with open_run(tmp_path / "cut", recipe.name, recipe.settings) as run:
        run_stages(recipe, run, Silent(), recipe.stage_keys()[:4])
        run_stages(recipe, run, Silent())
        weights = finals(recipe, run)
    recipe.close()
    with open_run(folders("whole"), recipe.name, recipe.settings) as run:
        assert finals(recipe, run) == weights
    recipe.close()
    other = made("whole", evaluate={"tasks": 1})
    kept = fork(other, tmp_path / "cut", tmp_path / "fork", other.settings)
    assert StageKey(1, "train_planner") in kept and StageKey(2, "evaluate") not in kept
    with open_run(tmp_path / "fork", other.name, other.settings) as forked:
        assert finals(other, forked) == weights, "the fork has the trainings of all roles"
    other.close()


def nothing(run: Run, iteration: int, progress: Any) -> Any:
    raise AssertionError("never done")


def stage(name: str, *after: str) -> Stage:
    return Stage(StageKey(0, name), nothing, tuple(StageKey(0, one) for one in after))


@pytest.mark.parametrize(
    ("stages", "reason"),
    [
        ([stage("a", "a")], "the a of iteration 0 without the a of iteration 0 before it"),
        ([stage("a"), stage("a")], "two stages called a of iteration 0"),
        ([stage("a", "b"), stage("b")], "the a of iteration 0 without the b of iteration 0"),
    ],
    ids=["itself", "twice", "order"],
)
def test_stages_that_cannot_run_are_refused(stages: list[Stage], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        check_stages("toy", stages)


A, B = Role("a", "tiny-exchange"), Role("b", "tiny-exchange", shares="a")


@pytest.mark.parametrize(
    ("roles", "reason"),
    [
        ([Role("a", "")], "no model is named for role 'a'"),
        ([A, A], "two roles are called 'a'"),
        ([A, replace(B, model="tiny-persona")], "differ in their weights"),
        ([A, replace(B, head=True)], "has a value head"),
    ],
    ids=["base", "twice", "bases", "head"],
)
def test_roles_that_cannot_be_are_refused(roles: list[Role], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        check_roles(roles)


def test_collections_of_a_run_leave_out_the_objects_of_the_libraries(
    folders: Callable[[str], Path],
) -> None:
    recipe = made("adapters")
    with open_run(folders("adapters"), recipe.name, recipe.settings, write=False) as run:
        recipe.models(run)
        assert gc.get_freeze_count() > 100_000
        recipe.close()
    assert gc.get_freeze_count() == 0, "what a run leaves behind can be collected after it"
