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
import json
import coterie.cli.app as app
from tests.engines.test_without_numba import base_fingerprint, load, sampled, scored

one = load("tiny-exchange")
completions = [[list(c.ids), list(c.logprobs)] for c in sampled(one)]
print(json.dumps([completions, scored(one), base_fingerprint(one.model)]), flush=True)
assert "numba" not in sys.modules
sys.argv = ["coterie", "doctor"]
app.main()
"""


def sampled(loaded: LoadedModel) -> list[Completion]:
    engine = InProcessEngine(loaded, policy="p", version="0")
    return asyncio.run(engine.sample(PROMPT, SEEDS, SAMPLING))


def scored(loaded: LoadedModel) -> list[float]:
    """Log-probs of what follows the first token of that prompt."""
    engine = InProcessEngine(loaded, policy="p", version="0")
    return asyncio.run(engine.logprobs(PROMPT[:1], [PROMPT[1:]]))[0]


def without_numba() -> str:
    """Return the output of a process that can't import numba."""
    root, command = Path(__file__).parents[2], [sys.executable, "-c", HIDDEN]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_the_model_samples_the_same_and_doctor_reports_it() -> None:
    one = load("tiny-exchange")
    text, _, report = without_numba().partition("\n")
    completions, scores, fingerprint = json.loads(text)
    for mine, (ids, logprobs) in zip(sampled(one), completions, strict=True):
        assert list(mine.ids) == ids
        assert list(mine.logprobs) == pytest.approx(logprobs, abs=1e-4)
    assert scored(one) == pytest.approx(scores, abs=1e-4)
    assert base_fingerprint(one.model) == fingerprint
    for word in (
        "no compiled loops for the CPU",
        "no numba for this platform",
        "pip install numba",
    ):
        assert word in " ".join(report.split())
