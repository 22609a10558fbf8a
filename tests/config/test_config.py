"""Settings from words, files and presets: an error names the key and the nearest right one."""

import sys
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import ClassVar

import pytest

from coterie.config.resolve import keys, read_settings, read_yaml
from coterie.config.settings import key
from coterie.errors import UserError
from coterie.recipes import registry
from coterie.recipes.optima_settings import OptimaSettings
from coterie.recipes.registry import RecipeDescription, played_by, quickstart_sizes, settings
from coterie.recipes.settings import RecipeSettings
from tests.conftest import Cli, refused


def test_overrides_replace_stored_values_and_these_replace_the_preset() -> None:
    own = settings(
        "optima/isft", ["seed=7", "train.learning_rate=1e-3"], {"seed": 3, "iterations": 1}
    )
    assert (own.seed, own.iterations, own.train.learning_rate) == (7, 1, 1e-3)  # fmt: skip
    assert own.model == "tiny-exchange"


@pytest.mark.parametrize(
    ("pair", "problem"),
    [
        ("rollout.rollout_per_task=4", "rollout.rollouts_per_task"),
        ("lambda_tokens=1", "reward.lambda_token"),
        ("train.method=half", "train.method=half: Input should be 'full' or 'lora'"),
        ("tracker=wandbb", "did you mean wandb?"),
        ("gpu=A6000", "Input should be 'A100', 'L40S', 'H100', 'H200' or 'B200'\n"),
        (r"model=C:\models\qwen", "in WSL write model=/mnt/c/models/qwen"),
        ("seed=99999999999999999999", "seed=99999999999999999999: Input should be less than or equal to 4294967295"),
        ("rollout.rollouts_per_task=2.5", "rollout.rollouts_per_task=2.5: Input should be a valid integer"),
        ("rollout.top_p=0", "rollout.top_p=0: Input should be greater than 0"),
        ("rollout.format_pool=maybe", "rollout.format_pool=maybe: Input should be a valid boolean"),
        ("train.learning_rate=.nan", "train.learning_rate=nan: Input should be a finite number"),
        ("train.betas=[0.9,x]", "train.betas, item 2=x: Input should be a valid number"),
        ("train.lora_r=8", "train.lora_r and train.lora_alpha have no effect with train.method=full"),
        ("train.load_in_4bit=true", "train.method=full trains them; use train.method=lora"),
        ("rollout=4", "rollout is a group of keys"),
        ("seed", "key=value"),
        ("rollout.rollouts_per_task=1", "gives no choice"),
    ],
)  # fmt: skip
def test_a_bad_override_is_refused(pair: str, problem: str) -> None:
    with pytest.raises(UserError) as error:
        settings("optima/isft", [pair])
    assert problem in str(error.value) and "Value error" not in str(error.value)


RENAMED = {
    "rl/grpo": {
        "loss.loss_type": "loss.kind", "loss.importance_sampling_level": "loss.kind",
        "loss.mean": "loss.aggregation", "loss.constant": "loss.length_constant", "loss.old": "loss.old_logprobs",
        "loss.importance": "loss.importance_sampling", "loss.importance_cap": "loss.importance_sampling_cap",
        "loss.kl": "loss.kl_coef", "loss.entropy": "loss.entropy_coef", "loss.divergence": "loss.kl_estimator",
        "advantage.lam": "advantage.gae_lambda", "advantage.whiten": "advantage.normalize",
        "rollout.draw": "rollout.oversample_tasks", "rollout.samples": "rollout.rollouts_per_task",
        "steps.minibatches": "steps.minibatches_per_step", "reward.gated": "reward.measures_only_if_correct",
        "reward.malformed": "reward.malformed_reward", "reward.overlong": "reward.overlong_penalty",
        "reward.repeats": "reward.repeat_penalty", "reward.kl": "reward.kl_coef",
        "update.learning_rate": "train.learning_rate", "update.processes": "train.processes",
    },
    "gap/tiny": {"update.learning_rate": "rl.train.learning_rate", "update.processes": "train.processes"},
    "optima/idpo": {
        "train.batch_rows": "train.batch_size", "dpo.train.batch_rows": "dpo.train.batch_size",
        "dpo.objective.nll": "dpo.objective.nll_coef", "dpo.objective.normalise": "dpo.objective.reduction",
        "dpo.search.rollouts": "dpo.search.rollouts_per_search", "dpo.probe": "dpo.probe_dialogues",
        "dpo.percentile": "dpo.length_percentile", "tools.width": "tools.concurrency",
        "tools.total": "tools.max_total_calls",
    },
    "sweet_rl/backend": {"rollout.repeats": "rollout.rollouts_per_task"},
    "moat/maths": {"measure.samples": "measure.rollouts_per_task"},
    "dense_tree/tiny": {
        "search.runs": "search.rollouts_per_task", "search.base": "search.max_children",
        "search.window": "search.rollouts_per_search",
    },
}  # fmt: skip


@pytest.mark.parametrize("method", RENAMED)
def test_the_error_for_a_renamed_key_has_the_new_key(method: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    for old, new in RENAMED[method].items():
        with pytest.raises(UserError, match=f"unknown key '{old}'\n.*did you mean '{new}'"):
            settings(method, [f"{old}=1"])
        group, _, name = old.rpartition(".")
        file.write_text(f"seed: 1\n{group}:\n  {name}: 1\n")
        with pytest.raises(UserError, match=f"line 3: unknown key '{old}'\n.*did you mean '{new}'"):
            read_settings(file, registry.settings_type(method))


def test_values_that_yaml_would_read_as_something_else_stay_text() -> None:
    overrides = ["model=2024-01-01", "train.mixed_precision=no", "train.save_every_seconds=none"]
    own = settings("optima/isft", overrides)
    assert own.model == "2024-01-01"
    assert own.train.mixed_precision == "no" and own.train.save_every_seconds is None
    assert settings("optima/isft", ["model='7'"]).model == "7"
    assert settings("optima/isft", ["model=[red]x"]).model == "[red]x"


def test_a_settings_file_may_begin_with_a_bom_and_is_refused_if_broken(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("\ufeffseed: 1\nrollout:\n  rollouts_per_task: 2\n", encoding="utf-8")
    assert read_yaml(file) == {"seed": 1, "rollout": {"rollouts_per_task": 2}}
    for broken in (b"\xff\xfe\x00", b"made: 2024-13-45", b"[" * 5000, b"seed: " + b"9" * 5000):
        file.write_bytes(broken)
        with pytest.raises(UserError, match=r"config\.yaml"):
            read_yaml(file)


def test_every_key_has_a_meaning() -> None:
    assert not [one.path for one in keys(OptimaSettings) if len(one.meaning) < 10]


PRESETS = """
common: {rate: 0.25, evaluate: {tasks: 7, temperature: 0.5}}
datasets:
  gsm8k: {evaluate: {tasks: 9}}
micro_world: {environment: {name: exchange}, seed: 4}
"""


class ToySettings(RecipeSettings):
    """Settings of a recipe that is only here."""

    recipe: ClassVar[str] = "toy/one"
    model: str = key("tiny-exchange", "The model that learns.")
    rate: float = key(0.5, "How fast the toy learns.")


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An entry with presets in a package of its own."""
    (tmp_path / "toys/presets/toy").mkdir(parents=True)
    (tmp_path / "toys/__init__.py").touch()
    (tmp_path / "toys/presets/toy/one.yaml").write_text(PRESETS)
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = RecipeDescription("toy", "toys", lambda: (ToySettings,), lambda _: pytest.fail("made"))
    monkeypatch.setattr(registry, "BUILT_IN", (*registry.BUILT_IN, entry))
    yield
    sys.modules.pop("toys", None)


def test_a_method_is_found_by_its_entry_with_its_presets(toy: None, cli: Cli) -> None:
    listed = cli("config", "toy/one", "rate=0.75")
    assert listed.code == 0 and "0.75" in listed.out and "toy learns" in listed.out
    assert "did you mean 'toy/one'" in refused(cli, "config", "toy/two")
    assert played_by("toy/one") == ["exchange", "gsm8k"]
    own = settings("toy/one", ["dataset=gsm8k"]).model_dump()
    assert (own["rate"], own["evaluate"]) == (0.25, {"tasks": 9, "temperature": 0.5})
    whole = settings("toy/one").model_dump()
    assert (whole["rate"], whole["seed"], whole["evaluate"]["tasks"]) == (0.5, 4, 500)


def test_a_quickstart_has_sizes_for_its_tasks_only(cli: Cli) -> None:
    assert quickstart_sizes("exchange") == {"environment": {"name": "exchange"}}
    problem = refused(cli, "quickstart", "--task", "mmlu")
    assert "a quickstart has no preset for mmlu" in problem and "hotpot_qa" in problem


@pytest.mark.parametrize(
    ("recipe", "key", "name"),
    [
        ("sft", "model", "tiny-exchange"),
        ("moat/maths", "grounder", "tiny-exchange"),
        ("sft", "dataset.source", "sample"),
        ("rl/grpo dataset=qa", "dataset.source", "hub"),
        ("sft", "train.launch", None),
        ("rl/grpo", "train.launch", None),
        ("gap/tiny", "traces.source", "expert"),
        ("optima/isft", "tools.config", None),
        ("optima/isft", "environment.format_pool_file", None),
    ],
)
def test_paths_in_settings_are_absolute_and_names_are_not(
    recipe: str, key: str, name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers on a cluster have other working folders. A name means the same if there is a file of that name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / (name or "other")).mkdir()
    values = {"mine": str(tmp_path / "mine"), "a/b": "a/b", **({name: name} if name else {})}
    for value, expected in values.items():
        method, *overrides = recipe.split()
        settings = registry.settings(method, [*overrides, f"{key}={value}"])
        assert attrgetter(key)(settings) == expected
