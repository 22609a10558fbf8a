"""Where numba can't be imported, everything works without compiled loops, and ``coterie doctor`` says so."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Completion, Sampling
from coterie.models.adapters import base_fingerprint
from coterie.models.loading import LoadedModel, load

PROMPT = list(range(3, 40))
SAMPLING = Sampling(max_tokens=12, top_p=0.95)
SEEDS = [0, 1, 2]
HIDDEN = """
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numba", "llvmlite"):
            raise ImportError(f"no {name} for this platform", name=name)

sys.meta_path.insert(0, Hide())
"""
TALKS = """
import json
from tests.test_without_numba import base_fingerprint, load, said, scored

one = load("tiny-exchange")
completions = [[list(c.ids), list(c.logprobs)] for c in said(one)]
print(json.dumps([completions, scored(one), base_fingerprint(one.model)]))
assert "numba" not in sys.modules
"""
COMMANDS = "import coterie.cli.app as app\nsys.argv[0] = 'coterie'\napp.main()"


def said(loaded: LoadedModel) -> list[Completion]:
    engine = InProcessEngine(loaded, policy="p", version="0")
    return asyncio.run(engine.sample(PROMPT, SEEDS, SAMPLING))


def scored(loaded: LoadedModel) -> list[float]:
    """Log-probs of what follows the first token of that prompt."""
    engine = InProcessEngine(loaded, policy="p", version="0")
    return asyncio.run(engine.logprobs(PROMPT[:1], [PROMPT[1:]]))[0]


def without_numba(code: str, *words: str) -> str:
    """What a process prints that can't import numba."""
    root = Path(__file__).parent.parent
    command = [sys.executable, "-c", HIDDEN + code, *words]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_a_model_says_the_same_by_transformers() -> None:
    loaded = load("tiny-exchange")
    completions, scores, fingerprint = json.loads(without_numba(TALKS))
    for mine, (ids, logprobs) in zip(said(loaded), completions, strict=True):
        assert list(mine.ids) == ids
        assert list(mine.logprobs) == pytest.approx(logprobs, abs=1e-4)
    assert scored(loaded) == pytest.approx(scores, abs=1e-4)
    assert base_fingerprint(loaded.model) == fingerprint


def test_doctor_says_so_and_what_to_do() -> None:
    said = " ".join(without_numba(COMMANDS, "doctor").split())
    assert "no compiled loops for the CPU" in said
    for word in ("no numba for this platform", "Transformers", "pip install numba"):
        assert word in said
