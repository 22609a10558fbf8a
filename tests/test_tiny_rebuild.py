"""A shortened rebuild of the packaged model behaves like the packaged one, in class if not in bytes.

Run by ``make tiny-check``. The rebuild has a fraction of the tokens, so it knows less; it must be of the
same shape, with the same tokenizer, talk in form and have learned to copy.
"""

import json
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from coterie.recipes.registry import settings

TINY = Path(str(resources.files("coterie") / "assets/tiny-exchange"))
TOKENS = 1_400_000

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rebuilt") / "tiny-exchange"
    subprocess.run(
        [sys.executable, "-m", "coterie.recipes.tiny", "--world", "exchange", "--out", folder,
         "--tokens", str(TOKENS)],
        check=True,
    )  # fmt: skip
    return folder


def test_the_tokenizer_is_the_packaged_one(rebuilt: Path) -> None:
    assert json.loads((rebuilt / "tokenizer.json").read_text()) == json.loads(
        (TINY / "tokenizer.json").read_text()
    )


def test_the_model_has_the_packaged_shape(rebuilt: Path) -> None:
    shapes = [json.loads((folder / "config.json").read_text()) for folder in (rebuilt, TINY)]
    assert shapes[0] == shapes[1]
    assert (rebuilt / "model.safetensors").stat().st_size < 5_000_000


def test_it_talks_in_form(rebuilt: Path, tmp_path: Path) -> None:
    from coterie.progress import Silent
    from coterie.recipes.optima import NAME, Optima
    from coterie.runs.folder import Step, open_run
    from coterie.runs.loop import run_steps

    own = settings(NAME, [f"model={rebuilt}", "rollout.tasks=64", "rollout.samples=2"])
    recipe = Optima(own)
    with open_run(tmp_path / "run", NAME, own) as run:
        run_steps(recipe, run, Silent(), [Step(0, "rollout")])
        outcomes = [o for tree in run.store.trees(0, "rollout") for o, _ in tree.trajectories()]
    answered = sum(outcome.answer is not None for outcome in outcomes) / len(outcomes)
    assert len(outcomes) == 128
    assert answered > 0.5, "most dialogues mark an answer"
