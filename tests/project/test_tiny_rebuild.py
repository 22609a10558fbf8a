"""A shortened rebuild of each packaged model runs, and has the packaged shape and tokenizer.

Run by ``make tiny-check``, with ``MICRO_WORLD=exchange``, ``persona``, ``problems``, ``acts``, ``encyclopedia``,
``pages`` or ``textworld`` (if installed) for one of them. The rebuild has a fraction of the tokens, so it knows
less.
"""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path

import pytest

from scripts.tiny.world import load

ASSETS = Path(str(resources.files("coterie") / "assets"))
TOKENS = 200_000
"""Of the first phase after its drills."""
NO_TEXTWORLD = importlib.util.find_spec("textworld") is None
MICRO_WORLDS = (
    *("exchange", "persona", "problems", "acts", "encyclopedia", "pages"),
    pytest.param("textworld", marks=pytest.mark.skipif(NO_TEXTWORLD, reason="no textworld")),
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a micro-world's rebuilt model, made when it is first asked for."""

    @cache
    def rebuild(micro_world: str) -> Path:
        tokens = TOKENS + (load(micro_world).drill_tokens or 0)
        folder = tmp_path_factory.mktemp("rebuilt") / f"tiny-{micro_world}"
        subprocess.run(
            [sys.executable, "-m", "scripts.tiny", micro_world,
             "--out", folder, "--tokens", str(tokens)],
            check=True,
            cwd=Path(__file__).parents[2],
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
