"""A shortened rebuild of each packaged model behaves like the packaged one, in class if not in bytes.

Run by ``make tiny-check``, with ``MICRO_WORLD=exchange``, ``persona``, ``problems``, ``acts`` or ``encyclopedia`` for
one of them. The rebuild has a fraction of the tokens, so it knows less; it must be of the same shape, with the same
tokenizer, talk in form and have learned to copy, or to play.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path

import pytest

from coterie.recipes.registry import settings
from scripts.tiny.world import load

ASSETS = Path(str(resources.files("coterie") / "assets"))
MOST_TOKENS = 1_400_000
MICRO_WORLDS = ("exchange", "persona", "problems", "acts", "encyclopedia")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a micro-world's rebuilt model, made when it is first asked for."""

    @cache
    def rebuild(micro_world: str) -> Path:
        tokens = min(MOST_TOKENS, load(micro_world).tokens // 2)
        folder = tmp_path_factory.mktemp("rebuilt") / f"tiny-{micro_world}"
        subprocess.run(
            [sys.executable, "-m", "scripts.tiny", micro_world,
             "--out", folder, "--tokens", str(tokens)],
            check=True,
            cwd=Path(__file__).parents[1],
        )  # fmt: skip
        return folder

    return rebuild


@pytest.mark.parametrize("micro_world", MICRO_WORLDS)
def test_the_tokenizer_is_the_packaged_one(
    rebuilt: Callable[[str], Path], micro_world: str
) -> None:
    packaged = ASSETS / f"tiny-{micro_world}/tokenizer.json"
    assert json.loads((rebuilt(micro_world) / "tokenizer.json").read_text()) == json.loads(
        packaged.read_text()
    )


@pytest.mark.parametrize("micro_world", MICRO_WORLDS)
def test_the_model_has_the_packaged_shape(rebuilt: Callable[[str], Path], micro_world: str) -> None:
    folders = (rebuilt(micro_world), ASSETS / f"tiny-{micro_world}")
    shapes = [json.loads((folder / "config.json").read_text()) for folder in folders]
    assert shapes[0] == shapes[1]
    assert (rebuilt(micro_world) / "model.safetensors").stat().st_size < 5_000_000


def test_the_exchange_model_talks_in_form(rebuilt: Callable[[str], Path], tmp_path: Path) -> None:
    from coterie.progress import Silent
    from coterie.recipes.optima import Optima
    from coterie.runs.folder import Step, open_run
    from coterie.runs.loop import run_steps

    model = rebuilt("exchange")
    own = settings("optima/isft", [f"model={model}", "rollout.tasks=64", "rollout.samples=2"])
    recipe = Optima(own)
    with open_run(tmp_path / "run", "optima/isft", own) as run:
        run_steps(recipe, run, Silent(), [Step(0, "rollout")])
        outcomes = [o for tree in run.store.trees(0, "rollout") for o, _ in tree.trajectories()]
    answered = sum(outcome.answer is not None for outcome in outcomes) / len(outcomes)
    assert len(outcomes) == 128
    assert answered > 0.5, "most dialogues mark an answer"


def test_the_persona_model_writes_what_it_was_told(rebuilt: Callable[[str], Path]) -> None:
    from tests.test_persona import share_right_when_all_is_told

    assert share_right_when_all_is_told(str(rebuilt("persona"))) > 0.5


def test_the_problems_model_writes_actions(rebuilt: Callable[[str], Path]) -> None:
    from tests.test_problems import share_readable_for_right_plans

    assert share_readable_for_right_plans(str(rebuilt("problems"))) > 0.8


def test_the_acts_model_plays(rebuilt: Callable[[str], Path]) -> None:
    from tests.test_acts import share_of_games_won

    assert share_of_games_won(str(rebuilt("acts"))) > 0.15


def test_the_encyclopedia_model_searches_for_what_it_is_asked(
    rebuilt: Callable[[str], Path],
) -> None:
    from tests.test_encyclopedia_rows import share_of_right_calls

    assert share_of_right_calls(str(rebuilt("encyclopedia"))) > 0.5
