"""The packaged values of three methods and eight data sets: those published, and all of them can run."""

from pathlib import Path

import pytest

from coterie.recipes.optima_settings import OptimaDPOSettings, OptimaSettings
from coterie.recipes.plan import plan
from coterie.recipes.registry import datasets, settings
from tests.conftest import Cli
from tests.templates import model

SETS = ("hotpot_qa", "2wiki", "trivia_qa", "cbt", "math", "gsm8k", "arc_c", "mmlu")
METHODS = ("optima/isft", "optima/idpo", "optima/isft_dpo")

# Optima, table 8, a column for each of SETS.
TABLE_8 = {
    "optima/isft": {
        "lambda_token": (0.6, 0.6, 0.6, 0.6, 0.4, 0.4, 0.5, 0.6),
        "lambda_loss": (1, 1, 1, 1, 0.9, 0.9, 0.6, 0.7),
        "theta_sft": (0.5, 0.5, 0.6, 0.5, 0.6, 0.6, 0.6, 0.6),
    },
    "optima/idpo": {
        "lambda_token": (0.6, 0.6, 0.6, 0.6, 0.5, 0.6, 0.4, 0.6),
        "lambda_loss": (1, 1, 1, 1, 0.7, 0.7, 0.7, 0.7),
        "theta_filter": (0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.45, 0.4),
        "beta": (0.1, 0.5, 0.5, 0.1, 0.1, 0.2, 0.2, 0.1),
    },
    "optima/isft_dpo": {
        "lambda_token": (0.6, 0.6, 0.6, 0.6, 0.4, 0.4, 0.5, 0.6),
        "lambda_loss": (1, 1, 1, 1, 0.9, 0.9, 0.6, 0.7),
        "theta_sft": (0.5, 0.5, 0.6, 0.5, 0.6, 0.6, 0.6, 0.6),
        "theta_filter": (0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.45, 0.4),
        "beta": (0.5, 0.5, 0.7, 0.7, 0.1, 0.5, 0.1, 0.1),
    },
}


def table_8(own: OptimaSettings) -> dict[str, float]:
    """A preset in the words of the paper's table."""
    if not isinstance(own, OptimaDPOSettings):
        reward = own.reward
        return {
            "lambda_token": reward.lambda_token,
            "lambda_loss": reward.lambda_loss,
            "theta_sft": own.select.threshold,
        }
    found = {
        "lambda_token": own.dpo.reward.lambda_token,
        "lambda_loss": own.dpo.reward.lambda_loss,
        "theta_filter": own.dpo.select.theta_filter,
        "beta": own.dpo.objective.beta,
    }
    if own.recipe == "optima/isft_dpo":
        found["theta_sft"] = own.select.threshold
    return found


@pytest.mark.parametrize("method", METHODS)
def test_presets_have_the_values_of_the_papers_table(method: str) -> None:
    assert datasets(method) == ["exchange", *sorted(SETS)]
    for column, name in enumerate(SETS):
        own = settings(method, [f"dataset={name}"])
        expected = {key: values[column] for key, values in TABLE_8[method].items()}
        assert table_8(own) == pytest.approx(expected), name
        assert own.iterations == 6 and own.rollout.max_tokens == 2000
        assert own.from_initial == (name in ("math", "gsm8k", "arc_c", "mmlu"))
        assert own.train.learning_rate in (2e-5, 1e-6, 2e-6)
        if isinstance(own, OptimaDPOSettings):
            assert (own.dpo.search.searches, own.dpo.search.rollouts) == (8, 3)
            assert own.dpo.select.theta_diff == 0.2 and own.dpo.train.learning_rate == 5e-7
            assert own.dpo.objective.nll == (1.0 if method == "optima/idpo" else 0.0)
            assert own.dpo.percentile == (85 if method == "optima/idpo" else 80)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose context takes the published settings."""
    made = model("chatml", context=16384)
    folder = tmp_path_factory.mktemp("large") / "model"
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("method", METHODS)
def test_every_preset_can_be_planned_on_the_rows_that_ship(
    method: str, name: str, large: Path
) -> None:
    own = settings(method, [f"dataset={name}", "data.source=sample", f"model={large}"])
    found = plan(own)
    assert found.iterations == 6
    assert found.dialogues > 0 and found.most_updates > 0 and found.longest_prompt > 50


def test_a_dry_run_says_how_many_rows_there_are(cli: Cli, large: Path) -> None:
    words = ("dataset=gsm8k", "data.source=sample", f"model={large}")
    said = cli("run", "optima/isft", *words, "--dry-run")
    assert said.code == 0
    assert "52 a round of 7,000 asked for" in said.err
